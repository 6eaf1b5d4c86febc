"""
The safetensors file format, pure: plan a file's layout, and parse a header that nobody has vouched for.

A file is an 8-byte little-endian header length, a JSON header padded with spaces, and the tensors' bytes without
gaps. Specification: https://github.com/huggingface/safetensors#format. Tensors are ordered by falling element size, so
that every tensor is aligned to its element when the data begins at a multiple of 64, which it does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from perdure.errors import CorruptionError, InvalidInputError

ELEMENT_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "C64": 8,
    "F32": 4, "I32": 4, "U32": 4,
    "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "BOOL": 1, "I8": 1, "U8": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip
"""Bytes of one element by the format's name of its type."""

DATA_ALIGNMENT_BYTES = 64
MAXIMUM_HEADER_BYTES = 100_000_000
"""Of the header's JSON, as in the format's own library."""
MAXIMUM_TENSORS = 500_000
METADATA = "__metadata__"
"""The name in a header that is no tensor's."""
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, element type and shape of one tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor's elements."""
        return ELEMENT_BYTES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class PlacedTensor:
    """A tensor and where its bytes begin, counted from the beginning of the file."""

    spec: TensorSpec
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A whole file: the bytes before the data, where each tensor lies, and the length."""

    prefix: bytes
    tensors: tuple[PlacedTensor, ...]
    total_bytes: int


def plan_layout(specs: Sequence[TensorSpec], metadata: dict[str, str] | None = None) -> Layout:
    """
    Lay tensors out in one file; equal specs always give equal bytes.

    Raises:
        InvalidInputError: Kind ``tensorfile.unreadable``: no reader would take the file.
    """
    ordered = sorted(specs, key=lambda spec: (-ELEMENT_BYTES[spec.dtype], spec.name))
    header: dict[str, object] = {METADATA: metadata} if metadata else {}
    position = 0
    for spec in ordered:
        end = position + spec.size_bytes
        header[spec.name] = {
            "dtype": spec.dtype,
            "shape": spec.shape,
            "data_offsets": [position, end],
        }
        position = end
    text = _header_text(header, specs)
    data_start = -(-(_LENGTH_BYTES + len(text)) // DATA_ALIGNMENT_BYTES) * DATA_ALIGNMENT_BYTES
    text = text.ljust(data_start - _LENGTH_BYTES, b" ")
    prefix = len(text).to_bytes(_LENGTH_BYTES, "little") + text
    offsets = _offsets(ordered, data_start)
    return Layout(prefix, offsets, data_start + position)


def file_chunks(layout: Layout, arrays: Mapping[str, Any]) -> list[memoryview]:
    """The bytes of a whole file: the header, and the memory of NumPy arrays, borrowed where it is in C order."""
    # Empty arrays have no memory to show.
    tensors = [tensor.spec.name for tensor in layout.tensors if tensor.spec.size_bytes]
    return [memoryview(layout.prefix), *(arrays[name].reshape(-1).view("u1").data for name in tensors)]


def _header_text(header: dict[str, object], specs: Sequence[TensorSpec]) -> bytes:
    """The header's JSON; what `parse_header` refuses is refused here, while the state is still alive."""
    names = {spec.name for spec in specs}
    if METADATA in names or len(names) != len(specs):
        raise _unreadable("two of them have one name, or one that the format keeps for itself")
    try:
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise _unreadable(f"the name {error.object[:80]!r} is no Unicode text") from error
    if _tensors_in(text) > MAXIMUM_TENSORS:
        raise _unreadable(f"they are {len(names):,}, and at most {MAXIMUM_TENSORS:,} are read")
    if len(text) + DATA_ALIGNMENT_BYTES > MAXIMUM_HEADER_BYTES:
        raise _unreadable(f"their names and shapes take {len(text):,} bytes, and {MAXIMUM_HEADER_BYTES:,} are read")
    return text


def _unreadable(why: str) -> InvalidInputError:
    return InvalidInputError(
        f"cannot store these arrays in one file: {why}",
        kind="tensorfile.unreadable",
        hint="keep a replay buffer in perdure.RingBuffer, and other arrays of one shape as one (numpy.stack); or track "
        "parts of the state under names of their own",
    )


def _offsets(ordered: Iterable[TensorSpec], start: int) -> tuple[PlacedTensor, ...]:
    placed = []
    for spec in ordered:
        placed.append(PlacedTensor(spec, start))
        start += spec.size_bytes
    return tuple(placed)


def header_bytes(first_eight: bytes, file_bytes: int, path: str) -> int:
    """
    Length of the JSON header, from a file's first eight bytes, checked against caps before anything is parsed.

    Raises:
        CorruptionError: Kind ``tensorfile.malformed``.
    """
    if len(first_eight) != _LENGTH_BYTES:
        raise _malformed(path, "it is shorter than 8 bytes")
    length = int.from_bytes(first_eight, "little")
    if length > min(MAXIMUM_HEADER_BYTES, file_bytes - _LENGTH_BYTES):
        raise _malformed(path, f"its header claims {length} bytes")
    return length


def parse_header(header: bytes, file_bytes: int, path: str) -> tuple[PlacedTensor, ...]:
    """
    Read an untrusted header; every tensor lies inside the file, and together they cover the data without gaps.

    Args:
        header: The JSON header's bytes, without the 8-byte length.
        file_bytes: Length of the whole file.
        path: Named in errors.

    Raises:
        CorruptionError: Kind ``tensorfile.malformed``.
    """
    # Whatever the header says, no more objects are made of it than a file of the most tensors has.
    if _tensors_in(header) > MAXIMUM_TENSORS:
        raise _malformed(path, f"its header describes more than {MAXIMUM_TENSORS:,} tensors")
    try:
        content = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _malformed(path, f"its header is no JSON object ({error})") from error
    start = _LENGTH_BYTES + len(header)
    placed = [_parse_entry(name, entry, start, path) for name, entry in content.items() if name != METADATA]
    placed.sort(key=lambda tensor: (tensor.offset_bytes, tensor.spec.size_bytes))
    position = start
    for tensor in placed:
        if tensor.offset_bytes != position:
            raise _malformed(path, f"tensor {tensor.spec.name[:60]!r} overlaps or leaves a gap")
        position += tensor.spec.size_bytes
    if position != file_bytes:
        raise _malformed(path, f"its tensors end at byte {position} and the file at {file_bytes}")
    return tuple(placed)


def parse_metadata(header: bytes) -> dict[str, str]:
    """Give what a header that `parse_header` has accepted says beside the tensors; what is no text is left out."""
    found = json.loads(header).get(METADATA)
    return {key: text for key, text in found.items() if isinstance(text, str)} if isinstance(found, dict) else {}


def _tensors_in(header: bytes) -> int:
    """
    How many tensors a header describes by the look of it, before anything is made of it.

    Each is an object with three keys. The header itself and its metadata are as much as two tensors. Braces and colons
    in names count, so the writer asks as well.
    """
    return max(header.count(b"{"), header.count(b":") // 4) - 2


class _Entry(msgspec.Struct):
    dtype: str
    shape: Annotated[tuple[Annotated[int, Meta(ge=0, lt=2**48)], ...], Meta(max_length=64)]
    data_offsets: tuple[Annotated[int, Meta(ge=0)], int]


_ENTRY = msgspec.json.Decoder(_Entry)
_MAXIMUM_ENTRY_BYTES = 4096
"""More than 64 lengths and two offsets take, however they are spaced by writers that we know of."""


def _parse_entry(name: str, entry: msgspec.Raw, start: int, path: str) -> PlacedTensor:
    if len(memoryview(entry)) <= _MAXIMUM_ENTRY_BYTES:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            found = _ENTRY.decode(entry)
            begin, end = found.data_offsets
            if found.dtype in ELEMENT_BYTES:
                spec = TensorSpec(name, found.dtype, found.shape)
                if end - begin == spec.size_bytes:
                    return PlacedTensor(spec, start + begin)
    raise _malformed(path, f"tensor {name[:60]!r} is described wrongly")


def _malformed(path: str, what: str) -> CorruptionError:
    return CorruptionError(
        f"cannot read tensor file {path}: {what}",
        kind="tensorfile.malformed",
        hint="run `perdure verify`, and restore an older checkpoint",
        path=path,
    )
