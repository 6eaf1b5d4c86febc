"""
Arenas: memory that a capture is copied into, laid out as the files it will become.

An image is one safetensors file, header included, in page-aligned memory. It is planned and allocated when a
component is captured for the first time or has changed its shapes, and reused after that: a save then is one copy, and
writing it is one sequential write without any serialisation.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping
from typing import Any

from perdure.capture.arrays import Destination, allocate_pinned, on_accelerator, signature_of, spec_of
from perdure.core.tensorfile import plan_layout
from perdure.errors import InvalidInputError
from perdure.files.reading import allocate

_METADATA = {"format": "pt"}
"""What the safetensors libraries of the field expect to find."""


class Image:
    """
    One tensor file in memory.

    Args:
        arrays: Examples of what it will hold, by name: later ones have the same types and shapes.
        room_bytes: Memory that may be allocated; None for no limit.

    Raises:
        InvalidInputError: An array cannot be stored, or the file is larger than the room.
    """

    def __init__(self, arrays: Mapping[str, Any], room_bytes: int | None) -> None:
        layout = plan_layout([spec_of(name, array) for name, array in arrays.items()], _METADATA)
        self.size_bytes = -(-layout.total_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        if room_bytes is not None and self.size_bytes > room_bytes:
            raise _no_room(self.size_bytes, room_bytes)
        # The copies of an accelerator run on by themselves only into memory that the kernel cannot move.
        pinned = any(on_accelerator(array) for array in arrays.values())
        memory = allocate_pinned(self.size_bytes) if pinned else allocate(self.size_bytes)
        memory[: len(layout.prefix)] = layout.prefix
        self._signature = signature_of(arrays)
        self.content = memory[: layout.total_bytes]
        places = {
            tensor.spec.name: memory[tensor.offset_bytes : tensor.offset_bytes + tensor.spec.size_bytes]
            for tensor in layout.tensors
        }
        self.destinations = [Destination(places[name], array) for name, array in arrays.items()]

    def fits(self, arrays: Mapping[str, Any]) -> bool:
        """Whether the arrays have the names, types, shapes and order that the image was made for."""
        return self._signature == signature_of(arrays)


class Arena:
    """
    The images of one capture, by the path of the file each will become.

    Args:
        limit_bytes: Memory that it may hold; None for no limit.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.limit_bytes = limit_bytes
        self._images: dict[str, Image] = {}

    @property
    def size_bytes(self) -> int:
        """Memory held."""
        return sum(image.size_bytes for image in self._images.values())

    def image(self, path: str, arrays: Mapping[str, Any]) -> Image:
        """
        The image that the arrays fit into, made anew if they have changed; its content is that of an earlier capture.

        Raises:
            InvalidInputError: An array cannot be stored, or kind ``arena.full``: the arena would outgrow its limit.
        """
        image = self._images.get(path)
        if image is None or not image.fits(arrays):
            # What does not fit any more goes first: at no time is there memory for both.
            self._images.pop(path, None)
            room = None if self.limit_bytes is None else self.limit_bytes - self.size_bytes
            image = self._images[path] = Image(arrays, room)
        return image

    def keep_only(self, paths: Iterable[str]) -> None:
        """Free the images of files that the newest capture does not have."""
        for path in self._images.keys() - set(paths):
            del self._images[path]


def _no_room(needed_bytes: int, room_bytes: int) -> InvalidInputError:
    return InvalidInputError(
        f"cannot save: {needed_bytes:,} bytes of memory are needed for a copy of the state and {room_bytes:,} are left "
        "of the limit",
        kind="arena.full",
        hint="raise memory_bytes= of perdure.open, or track less",
        field="memory_bytes",
    )
