"""How the rows of one segment lie in a file that any safetensors reader opens and that can be mapped into memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from perdure.core.ring import PAGE_BYTES, Column
from perdure.core.tensorfile import ELEMENT_BYTES, Layout, PlacedTensor, TensorSpec

_LENGTH_BYTES = 8
_PADDING = ".padding-{}"
"""Not a valid column name, so it never meets one."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a column's rows lie in a file."""

    column: Column
    offset_bytes: int
    """A multiple of the page size for every column of a mappable group."""
    size_bytes: int


@lru_cache(maxsize=64)  # all but a few segments of a ring are alike
def plan_rows(columns: tuple[Column, ...], rows: int, *, is_mappable: bool) -> tuple[Layout, tuple[Place, ...]]:
    """
    Lay ``rows`` rows of some columns out in one file; equal arguments always give equal bytes.

    The format allows no gaps. Where every column must begin at a page, tensors named ``.padding-N`` fill the space.
    The header is padded with spaces so that the data begins at a page as well.
    """
    ordered = sorted(columns, key=lambda column: (-ELEMENT_BYTES[column.tensor_type], column.name))
    specs: list[TensorSpec] = []
    position = 0
    for column in ordered:
        specs.append(TensorSpec(column.name, column.tensor_type, (rows, *column.shape)))
        position += rows * column.row_bytes
        gap = -position % PAGE_BYTES
        if is_mappable and gap and column is not ordered[-1]:
            specs.append(TensorSpec(_PADDING.format(len(specs)), "U8", (gap,)))
            position += gap
    layout = _pack(specs)
    starts = {placed.spec.name: placed.offset_bytes for placed in layout.tensors}
    return layout, tuple(Place(column, starts[column.name], rows * column.row_bytes) for column in ordered)


def _pack(specs: Sequence[TensorSpec]) -> Layout:
    header: dict[str, object] = {}
    offsets = []
    position = 0
    for spec in specs:
        end = position + spec.size_bytes
        header[spec.name] = {"dtype": spec.dtype, "shape": spec.shape, "data_offsets": [position, end]}
        offsets.append(position)
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    start = -(-(_LENGTH_BYTES + len(text)) // PAGE_BYTES) * PAGE_BYTES
    text = text.ljust(start - _LENGTH_BYTES, b" ")
    prefix = len(text).to_bytes(_LENGTH_BYTES, "little") + text
    placed = tuple(PlacedTensor(spec, start + offset) for spec, offset in zip(specs, offsets, strict=True))
    return Layout(prefix, placed, start + position)
