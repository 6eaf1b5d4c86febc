"""
Arenas: memory that a capture is copied into, laid out as the files it will become.

An image is one safetensors file, header included, in page-aligned memory. It is planned and allocated when a
component is captured for the first time or has changed its shapes, and reused after that: a save then is one copy, and
writing it is one sequential write without any serialisation.

With a memory tier that memory is a file of the tier's file system, so that a checkpoint there needs no second copy: a
link to the file makes it one. While it has such a link the image is never written to.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perdure.capture.arrays import Destination, allocate_pinned, on_accelerator, signature_of, spec_of
from perdure.capture.copying import Move, copy_now
from perdure.core.tensorfile import plan_layout
from perdure.errors import InvalidInputError, StoreError
from perdure.files.reading import allocate
from perdure.files.shared import SharedFile, SharedFolder

_METADATA = {"format": "pt"}
"""What the safetensors libraries of the field expect to find."""


class Image:
    """
    One tensor file in memory.

    Args:
        arrays: Examples of what it will hold, by name: later ones have the same types and shapes.
        room_bytes: Memory that may be allocated; None for no limit.
        folder: Where it becomes a file at once; None for memory of this process alone.

    Raises:
        InvalidInputError: An array cannot be stored, or the file is larger than the room.
    """

    def __init__(self, arrays: Mapping[str, Any], room_bytes: int | None, folder: SharedFolder | None = None) -> None:
        layout = plan_layout([spec_of(name, array) for name, array in arrays.items()], _METADATA)
        self.size_bytes = -(-layout.total_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        if room_bytes is not None and self.size_bytes > room_bytes:
            raise _no_room(self.size_bytes, room_bytes)
        # The copies of an accelerator run on by themselves only into memory that the kernel cannot move.
        pinned = any(on_accelerator(array) for array in arrays.values())
        self._file = None if pinned or folder is None else _file_of(folder, layout.total_bytes)
        if self._file is not None:
            memory = self._file.memory
        elif pinned:
            memory = allocate_pinned(self.size_bytes)
        else:
            memory = allocate(self.size_bytes, is_wiped_in_children=True)
        memory[: len(layout.prefix)] = layout.prefix
        self._signature = signature_of(arrays)
        self.content = memory[: layout.total_bytes]
        places = {
            tensor.spec.name: memory[tensor.offset_bytes : tensor.offset_bytes + tensor.spec.size_bytes]
            for tensor in layout.tensors
        }
        self._destinations = [Destination(places[name], array) for name, array in arrays.items()]
        self._filled_with: list[Callable[[], object]] = []

    @property
    def path(self) -> Path | None:
        """The file of the memory file system that it is, if it is one."""
        return self._file.path if self._file else None

    @property
    def is_relied_on(self) -> bool:
        """Whether a checkpoint in memory consists of it, so that it must not be written to."""
        return self._file is not None and not self._file.is_ours_alone

    def fits(self, arrays: Mapping[str, Any]) -> bool:
        """Whether the arrays have the names, types, shapes and order that the image was made for."""
        return self._signature == signature_of(arrays)

    def moves(self, arrays: Mapping[str, Any]) -> list[Move]:
        """The copies that bring arrays which fit into it."""
        places = zip(arrays.items(), self._destinations, strict=True)
        return [Move(name, destination, array) for (name, array), destination in places]

    def fill(self, arrays: Mapping[str, Any]) -> None:
        """Copy arrays of the host that nobody changes any more, unless these very ones are in it already."""
        filling = list(arrays.values())
        if not _are_same(filling, [known() for known in self._filled_with]):
            self._filled_with = []
            copy_now(self.moves(arrays))
            self._filled_with = [_reference(array) for array in filling]

    def forget(self) -> None:
        """Give its memory back, once nobody uses it any more."""
        if self._file is not None:
            self._file.forget()


def _reference(array: object) -> Callable[[], object]:
    """What gives an array while somebody has it; nothing for a scalar of NumPy's, which cannot be referred to."""
    try:
        return weakref.ref(array)
    except TypeError:
        return lambda: None


def _are_same(some: Sequence[object], others: Sequence[object]) -> bool:
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))


def _file_of(folder: SharedFolder, size_bytes: int) -> SharedFile | None:
    try:
        return folder.make(size_bytes)
    except StoreError:
        return None  # a full memory file system costs the saves to it, not those to the disk


class Arena:
    """
    The images of one capture, by the path of the file each will become.

    Args:
        limit_bytes: Memory that it may hold; None for no limit.
        folder: Where its images are files of a memory file system; None for memory of this process alone.
    """

    def __init__(self, limit_bytes: int | None = None, folder: SharedFolder | None = None) -> None:
        self.limit_bytes = limit_bytes
        self._folder = folder
        self._images: dict[str, Image] = {}

    @property
    def size_bytes(self) -> int:
        """Memory held."""
        # The thread that writes may be adding one.
        return sum(image.size_bytes for image in tuple(self._images.values()))

    @property
    def is_relied_on(self) -> bool:
        """Whether a checkpoint in memory consists of it."""
        return any(image.is_relied_on for image in self._images.values())

    def image(self, path: str, arrays: Mapping[str, Any]) -> Image:
        """
        The image that the arrays fit into, made anew if they have changed; its content is that of an earlier capture.

        Raises:
            InvalidInputError: An array cannot be stored, or kind ``arena.full``: the arena would outgrow its limit.
        """
        image = self._images.get(path)
        if image is None or image.is_relied_on or not image.fits(arrays):
            # What does not fit any more goes first: at no time is there memory for both.
            self._forget(path)
            room = None if self.limit_bytes is None else self.limit_bytes - self.size_bytes
            image = self._images[path] = Image(arrays, room, self._folder)
        return image

    def keep_only(self, paths: Iterable[str]) -> None:
        """Free the images of files that the newest capture does not have."""
        for path in self._images.keys() - set(paths):
            self._forget(path)

    def _forget(self, path: str) -> None:
        image = self._images.pop(path, None)
        if image is not None:
            image.forget()


def _no_room(needed_bytes: int, room_bytes: int) -> InvalidInputError:
    return InvalidInputError(
        f"cannot save: {needed_bytes:,} bytes of memory are needed for a copy of the state and {room_bytes:,} are left "
        "of the limit",
        kind="arena.full",
        hint="raise memory_bytes= of perdure.open, or track less",
        field="memory_bytes",
    )
