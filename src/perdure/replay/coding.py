"""
Coded segment files: columns in fewer bytes than their rows have, still plain safetensors.

A column that is taken apart into frames is a tensor of frame numbers, ``(rows, frames of a row)``. The frames that it
refers to are a tensor named after their length and packing, one frame a row; columns share it, so that a next
observation costs its numbers only. What is packed is one row of bytes. The file's metadata says how each column is
coded and how many frames there are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from perdure.core.coding import CODINGS, TRAILING, Coding, picture_bytes
from perdure.core.ring import Column, Span
from perdure.core.tensorfile import TensorSpec, header_bytes, parse_header, parse_metadata, plan_layout
from perdure.replay.packing import pack, unpack

Columns = Mapping[str, NDArray[Any]]
Bytes = NDArray[np.uint8]
Numbers = NDArray[np.uint32]


def pool_name(frame_bytes: int, packing: str) -> str:
    """Name of the tensor of all frames of one length; not a valid column name, so it never meets one."""
    return f".frames-{frame_bytes}{f'-{packing}' if packing else ''}"


class Pool:
    """
    Different frames of one length, numbered in the order in which they were first seen.

    Args:
        frame_bytes: Their length.
    """

    def __init__(self, frame_bytes: int) -> None:
        self._numbers: dict[bytes, int] = {}
        self._frames = [np.empty((0, frame_bytes), np.uint8)]

    def add(self, frames: Bytes) -> Numbers:
        """Take frames, ``(count, frame_bytes)``, and return their numbers."""
        known = self._numbers
        numbers = np.empty(len(frames), np.uint32)
        fresh = []
        for place, frame in enumerate(frames):
            count = len(known)
            numbers[place] = known.setdefault(blake3(frame).digest(), count)
            if numbers[place] == count:
                fresh.append(place)
        self._frames.append(frames[fresh])
        return numbers

    def content(self) -> Bytes:
        """All frames, one after the other."""
        return np.concatenate(self._frames).reshape(-1)

    def __len__(self) -> int:
        return len(self._numbers)


def split_frames(column: Column, array: NDArray[Any], frames: str) -> Bytes:
    """Take rows apart: ``(rows of the array * frames of a row, bytes of a frame)``; a copy if they must be gathered."""
    ordered = np.moveaxis(array, -1, -3) if frames == TRAILING else array
    return np.ascontiguousarray(ordered).reshape(-1).view(np.uint8).reshape(-1, picture_bytes(column, frames))


def join_frames(frames: Bytes, split: str, target: NDArray[Any]) -> None:
    """Undo `split_frames` into an array of whole rows."""
    shape = target.shape
    if split == TRAILING:
        shape = (*shape[:-3], shape[-1], *shape[-3:-1])
    ordered = frames.reshape(-1).view(target.dtype).reshape(shape)
    target[...] = np.moveaxis(ordered, -3, -1) if split == TRAILING else ordered


def as_bytes(array: NDArray[Any]) -> Bytes:
    """All of an array as bytes; a copy if it is not contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


@dataclass(frozen=True, slots=True)
class Coded:
    """A coded segment file, in the pieces that it is written from."""

    prefix: bytes
    tensors: tuple[Bytes, ...]
    """In the order of the file, without gaps."""
    total_bytes: int

    def write_into(self, image: memoryview) -> None:
        """Put the file together in memory of its length."""
        content = np.frombuffer(image, np.uint8)
        position = len(self.prefix)
        content[:position] = np.frombuffer(self.prefix, np.uint8)
        for tensor in self.tensors:
            content[position : position + len(tensor)] = tensor
            position += len(tensor)


def encode_rows(columns: Sequence[Column], arrays: Columns, codings: Mapping[str, Coding]) -> Coded:
    """
    Write rows in fewer bytes.

    Args:
        columns: Which.
        arrays: Their rows, ``(rows, *shape)``; borrowed until the pieces have been written.
        codings: How each of them is written.

    Raises:
        MissingDependencyError: A compressor is not installed.
    """
    contents: dict[str, tuple[TensorSpec, Bytes]] = {}
    pools: dict[tuple[int, str], Pool] = {}
    metadata = {}
    for column in columns:
        name, array, coding = column.name, arrays[column.name], codings[column.name]
        metadata[name] = coding.text
        if coding.frames:
            key = (picture_bytes(column, coding.frames), coding.packing)
            numbers = pools.setdefault(key, Pool(key[0])).add(split_frames(column, array, coding.frames))
            shape = (len(array), len(numbers) // max(1, len(array)))
            contents[name] = (TensorSpec(name, "U32", shape), as_bytes(numbers))
        elif coding.packing:
            packed = pack(coding.packing, as_bytes(array))
            contents[name] = (TensorSpec(name, "U8", (len(packed),)), packed)
        else:
            contents[name] = (TensorSpec(name, column.tensor_type, array.shape), as_bytes(array))
    for (frame_bytes, packing), pool in pools.items():
        name = pool_name(frame_bytes, packing)
        content = pack(packing, pool.content())
        form = (len(content),) if packing else (len(pool), frame_bytes)
        contents[name] = (TensorSpec(name, "U8", form), content)
        metadata[name] = str(len(pool))
    layout = plan_layout([spec for spec, _ in contents.values()], metadata)
    ordered = tuple(contents[placed.spec.name][1] for placed in layout.tensors)
    return Coded(layout.prefix, ordered, layout.total_bytes)


class CodedFile:
    """
    A coded segment file in memory.

    Args:
        content: The whole file, its digest compared already.
        rows: How many it must hold.
        path: Named in errors.

    Raises:
        CorruptionError: Kind ``tensorfile.malformed``.
    """

    def __init__(self, content: memoryview, rows: int, path: str) -> None:
        length = header_bytes(bytes(content[:8]), len(content), path)
        header = bytes(content[8 : 8 + length])
        whole = np.frombuffer(content, np.uint8)
        self._tensors = {
            placed.spec.name: (
                placed.spec,
                whole[placed.offset_bytes : placed.offset_bytes + placed.spec.size_bytes],
            )
            for placed in parse_header(header, len(content), path)
        }
        self._metadata = parse_metadata(header)
        self._rows = rows
        self._pools: dict[tuple[int, str], Bytes] = {}

    def read(self, column: Column, wanted: Span, target: NDArray[Any]) -> None:
        """
        Decode some rows of a column.

        Args:
            column: Which.
            wanted: First of them in the file, and where they end.
            target: As many rows of the ring's array.

        Raises:
            ValueError: The file does not hold them.
            MissingDependencyError: It is packed with something that is not installed.
        """
        coding = CODINGS.get(self._metadata.get(column.name, ""))
        if coding is None:
            raise ValueError(f"column {column.name!r} is coded in an unknown way")
        spec, content = self._tensor(column.name)
        start, stop = wanted
        if not coding.frames:
            raw = unpack(coding.packing, content, self._rows * column.row_bytes)
            rows = raw[start * column.row_bytes : stop * column.row_bytes]
            target[...] = rows.view(target.dtype).reshape(target.shape)
            return
        frame_bytes = picture_bytes(column, coding.frames)
        a_row = column.row_bytes // max(1, frame_bytes)
        if spec != TensorSpec(column.name, "U32", (self._rows, a_row)):
            raise ValueError(f"column {column.name!r} has frame numbers of another form")
        numbers = content.view(np.uint32)[start * a_row : stop * a_row]
        pool = self._pool(frame_bytes, coding.packing)
        if len(numbers) and int(numbers.max()) >= len(pool):
            raise ValueError(f"column {column.name!r} refers to frames that are not there")
        if coding.frames == TRAILING:
            join_frames(pool[numbers], TRAILING, target)
        else:
            # Straight into the rows, which are contiguous; the numbers are in range.
            np.take(pool, numbers, axis=0, out=split_frames(column, target, coding.frames), mode="clip")

    def _tensor(self, name: str) -> tuple[TensorSpec, Bytes]:
        if name not in self._tensors:
            raise ValueError(f"it has no tensor {name!r}")
        return self._tensors[name]

    def _pool(self, frame_bytes: int, packing: str) -> Bytes:
        if (frame_bytes, packing) not in self._pools:
            name = pool_name(frame_bytes, packing)
            _, content = self._tensor(name)
            stated = self._metadata.get(name, "")
            if not stated.isdecimal() or int(stated) > self._most_frames():
                raise ValueError(f"it states {stated[:20]!r} frames")
            pool = unpack(packing, content, int(stated) * frame_bytes)
            self._pools[frame_bytes, packing] = pool.reshape(int(stated), frame_bytes)
        return self._pools[frame_bytes, packing]

    def _most_frames(self) -> int:
        """As many as there are numbers: each frame is referred to."""
        return sum(math.prod(spec.shape) for spec, _ in self._tensors.values() if spec.dtype == "U32")
