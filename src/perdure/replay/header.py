"""``buffer_header.json``: what a saved ring consists of. Its form is a promise, see docs/format/buffer.md."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from perdure.core.names import check_segment
from perdure.core.ring import Column, Group, Piece, RingState, Span, check_column, overlap
from perdure.core.trimming import without
from perdure.errors import CorruptionError, FormatError, InvalidInputError

SCHEMA_VERSION = 1
HEADER_FILE = "buffer_header.json"
MUTABLE_FILE = "mutable.safetensors"


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
    lost: tuple[Span, ...] = ()
    """Slots whose rows are gone though they count as held: a repair went on without them."""

    def without(self, files: Collection[str]) -> Header:
        """The same ring, gone on without the rows of some files."""
        pieces = {key: tuple(p for p in held if p.file not in files) for key, held in self.pieces.items()}
        gone = {piece.used for held in self.pieces.values() for piece in held if piece.file in files}
        return replace(
            self, pieces={key: held for key, held in pieces.items() if held}, lost=(*sorted(gone | set(self.lost)),)
        )

    @property
    def columns(self) -> dict[str, Column]:
        """All columns by name."""
        return {column.name: column for group in self.groups for column in group.columns}

    def group(self, prefix: str) -> Group:
        """The group of that prefix."""
        return next(group for group in self.groups if group.prefix == prefix)


def _entry(prefix: str, piece: Piece) -> str:
    """One entry of the segment table as JSON."""
    coded = ',"coded":true' if piece.is_coded else ""
    return (
        f'{{"group":"{prefix}","segment":{piece.segment},"file":"{piece.file}",'
        f'"held":[{piece.held[0]},{piece.held[1]}],"used":[{piece.used[0]},{piece.used[1]}]{coded}}}'
    )


def encode_head(
    state: RingState,
    n_envs: int,
    groups: Iterable[Group],
    mutable: Iterable[str],
    random_state: Mapping[str, Any] | None,
    lost: Iterable[Span] = (),
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
        lost: Slots whose rows are gone.
    """
    gone = list(lost)
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
    } | ({"lost": gone} if gone else {})
    text = json.dumps(head, separators=(",", ":"), default=_listed)
    return f'{text[:-1]},"segments":[\n'.encode()


def encode_table(pieces: Mapping[tuple[str, int], Iterable[Piece]]) -> bytes:
    """The segment table, and the end of the file."""
    entries = ",\n".join(_entry(key[0], piece) for key, held in pieces.items() for piece in held)
    return f"{entries}\n]}}\n".encode()


def encode_header(header: Header) -> bytes:
    """A whole header file."""
    head = encode_head(header.state, header.n_envs, header.groups, header.mutable, header.random_state, header.lost)
    return head + encode_table(header.pieces)


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
    coded: bool = False


class _VersionForm(msgspec.Struct):
    schema_version: int


class _HeaderForm(msgspec.Struct):
    capacity: int
    head_position: int
    tail_position: int
    size: int
    total_count: int
    n_envs: int
    groups: tuple[_GroupForm, ...]
    mutable: tuple[str, ...]
    random_state: msgspec.Raw
    """Left to Python's own parser: a generator's state has integers of 128 bits."""
    segments: tuple[_PieceForm, ...]
    lost: tuple[tuple[int, int], ...] = ()


def decode_header(content: bytes | memoryview, path: str) -> Header:
    """
    Read a header whose digest was right but whose writer nobody has vouched for.

    Raises:
        FormatError: Kind ``replay.newer-schema``.
        CorruptionError: Kind ``replay.malformed``: it is no header, or contradicts itself.
    """
    try:
        version = msgspec.json.decode(content, type=_VersionForm).schema_version
        if version > SCHEMA_VERSION:
            raise _newer(path, version)
        form = msgspec.json.decode(content, type=_HeaderForm)
        header = _header_of(form)
        _check(header, form)
    except (ValueError, RecursionError, msgspec.MsgspecError, InvalidInputError) as error:
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
        entry = Piece(piece.segment, check_segment(piece.file, "file name"), piece.held, piece.used, piece.coded)
        pieces[key] = (*pieces.get(key, ()), entry)
    state = RingState(form.capacity, form.head_position, form.size, form.total_count)
    random_state = msgspec.convert(json.loads(bytes(form.random_state)), dict[str, Any] | None)
    return Header(state, form.n_envs, groups, pieces, form.mutable, random_state, form.lost)


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
    """Every row that the ring holds and has not lost is in exactly one piece; nothing else would notice."""
    used = sorted(piece.used for key, held in header.pieces.items() if key[0] == group.prefix for piece in held)
    for held in (span for whole in header.state.spans for span in without(whole, header.lost)):
        position = held[0]
        for part in used:
            common = overlap(part, held)
            if common is not None:
                if common[0] != position:
                    break
                position = common[1]
        if position != held[1]:
            segment = position // group.rows_per_segment
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
