"""``buffer_header.json``: what a saved ring consists of. Its form is a promise, see docs/format/buffer.md."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from perdure.core.names import check_segment
from perdure.core.ring import Column, Group, Piece, RingState, check_column, overlap
from perdure.errors import CorruptionError, FormatError, InvalidInputError

SCHEMA_VERSION = 1
HEADER_FILE = "buffer_header.json"
MUTABLE_FILE = "mutable.safetensors"
BETWEEN = ",\n"
"""What stands between two entries of the segment table."""
_END = "\n]}\n"


@dataclass(frozen=True, slots=True)
class Header:
    """A saved ring: where it stood, how it is cut, and which file holds which rows."""

    state: RingState
    n_envs: int
    groups: tuple[Group, ...]
    pieces: dict[tuple[str, int], tuple[Piece, ...]]
    """By prefix of the group and segment; the newest rows first."""
    mutable: tuple[str, ...]
    """Names of the arrays in `MUTABLE_FILE`; there is no such file if there are none."""
    random_state: dict[str, Any] | None

    @property
    def columns(self) -> dict[str, Column]:
        """All columns by name."""
        return {column.name: column for group in self.groups for column in group.columns}

    def group(self, prefix: str) -> Group:
        """The group of that prefix."""
        return next(group for group in self.groups if group.prefix == prefix)


def encode_piece(prefix: str, piece: Piece) -> str:
    """One entry of the segment table as JSON."""
    return (
        f'{{"group":"{prefix}","segment":{piece.segment},"file":"{piece.file}",'
        f'"held":[{piece.held[0]},{piece.held[1]}],"used":[{piece.used[0]},{piece.used[1]}]}}'
    )


def encode_head(
    state: RingState,
    n_envs: int,
    groups: Iterable[Group],
    mutable: Iterable[str],
    random_state: Mapping[str, Any] | None,
) -> bytes:
    """
    Put all of a header but its segment table together; `encode_table` gives the rest of the file.

    They are apart because a ring may have thousands of segments, and the table is made behind training's back.

    Args:
        state: Where the ring stands.
        n_envs: Transitions in a row.
        groups: How it is cut.
        mutable: Names of the arrays that were copied.
        random_state: JSON-able but for arrays, which become lists.
    """
    head = {
        "schema_version": SCHEMA_VERSION,
        "capacity": state.capacity,
        "head_position": state.head_position,
        "tail_position": state.tail_position,
        "size": state.size,
        "total_count": state.total_count,
        "n_envs": n_envs,
        "groups": [
            {
                "prefix": group.prefix,
                "rows_per_segment": group.rows_per_segment,
                "columns": [{"name": c.name, "dtype": c.dtype, "shape": c.shape} for c in group.columns],
            }
            for group in groups
        ],
        "mutable": sorted(mutable),
        "random_state": random_state,
    }
    text = json.dumps(head, separators=(",", ":"), default=_listed)
    return f'{text[:-1]},"segments":[\n'.encode()


def encode_table(pieces: Iterable[str]) -> bytes:
    """The segment table, from the texts of its pieces, and the end of the file."""
    return f"{BETWEEN.join(pieces)}{_END}".encode()


def table_bytes(text_bytes: int) -> int:
    """Length of what `encode_table` gives for pieces whose texts, each with a `BETWEEN`, have this length together."""
    return max(0, text_bytes - len(BETWEEN)) + len(_END)


def _listed(value: object) -> object:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"cannot write a {type(value).__name__} as JSON")


class _ColumnForm(msgspec.Struct):
    name: str
    dtype: str
    shape: tuple[int, ...]


class _GroupForm(msgspec.Struct):
    prefix: str
    rows_per_segment: int
    columns: tuple[_ColumnForm, ...]


class _PieceForm(msgspec.Struct):
    group: str
    segment: int
    file: str
    held: tuple[int, int]
    used: tuple[int, int]


class _HeaderForm(msgspec.Struct):
    capacity: int
    head_position: int
    tail_position: int
    size: int
    total_count: int
    n_envs: int
    groups: tuple[_GroupForm, ...]
    mutable: tuple[str, ...]
    random_state: dict[str, Any] | None
    segments: tuple[_PieceForm, ...]


def decode_header(content: bytes | memoryview, path: str) -> Header:
    """
    Read a header whose digest was right but whose writer nobody has vouched for.

    Raises:
        FormatError: Kind ``replay.newer-schema``.
        CorruptionError: Kind ``replay.malformed``: it is no header, or contradicts itself.
    """
    try:
        # Python's own parser: a generator's state has integers of 128 bits.
        value = json.loads(bytes(content))
        version = value["schema_version"]
        if type(version) is int and version > SCHEMA_VERSION:
            raise _newer(path, version)
        form = msgspec.convert(value, _HeaderForm)
        header = _header_of(form)
        _check(header, form)
    except (ValueError, KeyError, TypeError, RecursionError, msgspec.ValidationError, InvalidInputError) as error:
        raise CorruptionError(
            f"cannot read replay header {path}: {error}",
            kind="replay.malformed",
            hint="run `perdure verify`; an older checkpoint is used meanwhile",
            path=path,
        ) from error
    return header


def _header_of(form: _HeaderForm) -> Header:
    groups = tuple(
        Group(
            check_segment(group.prefix, "group prefix"),
            tuple(check_column(Column(c.name, c.dtype, c.shape)) for c in group.columns),
            group.rows_per_segment,
        )
        for group in form.groups
    )
    pieces: dict[tuple[str, int], tuple[Piece, ...]] = {}
    for piece in form.segments:
        key = (piece.group, piece.segment)
        entry = Piece(piece.segment, check_segment(piece.file, "file name"), piece.held, piece.used)
        pieces[key] = (*pieces.get(key, ()), entry)
    state = RingState(form.capacity, form.head_position, form.size, form.total_count)
    return Header(state, form.n_envs, groups, pieces, form.mutable, form.random_state)


def _check(header: Header, form: _HeaderForm) -> None:
    state = header.state
    if state.capacity < 1 or not state.is_possible() or header.n_envs < 1 or state.tail_position != form.tail_position:
        raise ValueError("its positions and counts contradict each other")
    if len(header.columns) != sum(len(group.columns) for group in header.groups) or not header.columns:
        raise ValueError("it has no columns, or one of them twice")
    by_prefix = {group.prefix: group for group in header.groups}
    if len(by_prefix) != len(header.groups):
        raise ValueError("it has a group twice")
    if any(group.rows_per_segment < 1 or min((0, *_lengths(group))) < 0 for group in header.groups):
        raise ValueError("a segment or a column has an impossible size")
    for (prefix, segment), pieces in header.pieces.items():
        if prefix not in by_prefix or not 0 <= segment < by_prefix[prefix].segment_count(state.capacity):
            raise ValueError(f"segment {segment} of {prefix!r} does not exist")
        first, last = by_prefix[prefix].span(segment, state.capacity)
        for piece in pieces:
            if not first <= piece.held[0] <= piece.used[0] < piece.used[1] <= piece.held[1] <= last:
                raise ValueError(f"{piece.file} holds impossible rows")
    for group in header.groups:
        _check_complete(header, group)


def _lengths(group: Group) -> list[int]:
    return [length for column in group.columns for length in column.shape]


def _check_complete(header: Header, group: Group) -> None:
    """Every row that the ring holds is in exactly one piece; this is what nothing else would notice."""
    for held in header.state.spans:
        for segment in group.segments(held):
            wanted = overlap(held, group.span(segment, header.state.capacity))
            pieces = header.pieces.get((group.prefix, segment), ())
            parts = sorted(part for piece in pieces if wanted and (part := overlap(piece.used, wanted)))
            edges = [edge for part in parts for edge in part]
            if wanted is None or edges[:1] != [wanted[0]] or edges[-1:] != [wanted[1]] or edges[1:-1:2] != edges[2::2]:
                raise ValueError(f"rows of segment {segment} of {group.prefix!r} are in no file or in two")


def _newer(path: str, version: int) -> FormatError:
    return FormatError(
        f"cannot read replay header {path}: its schema is version {version} and this perdure reads up to "
        f"{SCHEMA_VERSION}",
        kind="replay.newer-schema",
        hint="upgrade perdure, or restore with the version that wrote it",
        path=path,
        schema_version=version,
        supported_version=SCHEMA_VERSION,
    )
