"""
Arenas: memory that a capture is copied into, laid out as the files it will become.

An image is one safetensors file, header included, in page-aligned memory. It is planned and allocated when a
component is captured for the first time or has changed its shapes, and reused after that: a save then is one copy, and
writing it is one sequential write without any serialisation.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from typing import Any

from perdure.capture.arrays import Destination, copy_arrays, spec_of
from perdure.core.tensorfile import plan_layout
from perdure.files.reading import allocate

_METADATA = {"format": "pt"}
"""What the safetensors libraries of the field expect to find."""


class Image:
    """One tensor file in memory."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        layout = plan_layout([spec_of(name, array) for name, array in arrays.items()], _METADATA)
        blocks = -(-layout.total_bytes // mmap.PAGESIZE)
        memory = allocate(blocks * mmap.PAGESIZE)
        memory[: len(layout.prefix)] = layout.prefix
        self._signature = _signature(arrays)
        self.content = memory[: layout.total_bytes]
        places = {
            tensor.spec.name: memory[tensor.offset_bytes : tensor.offset_bytes + tensor.spec.size_bytes]
            for tensor in layout.tensors
        }
        self._destinations = [Destination(places[name], array) for name, array in arrays.items()]

    def fits(self, arrays: Mapping[str, Any]) -> bool:
        """Whether the arrays have the names, types, shapes and order that the image was made for."""
        return self._signature == _signature(arrays)

    def fill(self, arrays: Mapping[str, Any]) -> None:
        """Copy arrays that fit in."""
        copy_arrays(self._destinations, list(arrays.values()))


class Arena:
    """The images of one capture, by the path of the file each will become."""

    def __init__(self) -> None:
        self._images: dict[str, Image] = {}

    @property
    def size_bytes(self) -> int:
        """Memory held."""
        return sum(len(image.content) for image in self._images.values())

    def store(self, path: str, arrays: Mapping[str, Any]) -> memoryview:
        """
        Copy arrays into the image of ``path``, and return the file's content.

        The content is borrowed: it is overwritten when the arena is used again.

        Raises:
            InvalidInputError: An array cannot be stored.
        """
        image = self._images.get(path)
        if image is None or not image.fits(arrays):
            image = Image(arrays)
            self._images[path] = image
        image.fill(arrays)
        return image.content


def _signature(arrays: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    # Compared at every save, so it is made of what the arrays have at hand. Layouts that cannot be stored are told
    # apart as well: a tensor that turned sparse does not fit the image of the dense one.
    return [(name, array.dtype, array.shape, getattr(array, "layout", None)) for name, array in arrays.items()]
