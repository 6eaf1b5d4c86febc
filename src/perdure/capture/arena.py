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
from perdure.core.tensorfile import TensorSpec, plan_layout
from perdure.files.reading import allocate

_METADATA = {"format": "pt"}
"""What the safetensors libraries of the field expect to find."""


class Image:
    """One tensor file in memory."""

    def __init__(self, specs: tuple[TensorSpec, ...], arrays: Mapping[str, Any]) -> None:
        layout = plan_layout(specs, _METADATA)
        blocks = -(-layout.total_bytes // mmap.PAGESIZE)
        memory = allocate(blocks * mmap.PAGESIZE)
        memory[: len(layout.prefix)] = layout.prefix
        self.specs = specs
        self.content = memory[: layout.total_bytes]
        places = {
            tensor.spec.name: memory[tensor.offset_bytes : tensor.offset_bytes + tensor.spec.size_bytes]
            for tensor in layout.tensors
        }
        self._destinations = [Destination(places[name], array) for name, array in arrays.items()]

    def fill(self, arrays: Mapping[str, Any]) -> None:
        """Copy the arrays in; they have the names, types, shapes and order that the image was made for."""
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
        specs = tuple(spec_of(name, array) for name, array in arrays.items())
        image = self._images.get(path)
        if image is None or image.specs != specs:
            image = Image(specs, arrays)
            self._images[path] = image
        image.fill(arrays)
        return image.content
