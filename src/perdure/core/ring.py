"""
Ring arithmetic, pure: which rows a ring holds, into which segments they fall, and which of them a save must write.

A ring has ``capacity`` slots of one row each. What happened between two moments follows from their states alone: the
slots that were written are the ``total_count`` difference, beginning at the older head. So nothing has to be marked
dirty while training, and nothing that was marked can be forgotten when a save is given up.

A span is a half-open range of slots, ``(start, stop)``, that does not wrap.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from perdure.core.names import check_path
from perdure.core.tensorfile import ELEMENT_BYTES
from perdure.errors import InvalidInputError

PAGE_BYTES = 4096
WIDE_SEGMENT_BYTES = 15 * 1024 * 1024
"""Size of a segment of wide columns; with one of narrow columns beside it, 16 MiB."""
NARROW_SEGMENT_BYTES = 1024 * 1024
LARGEST_MAPPED_SEGMENT_BYTES = 64 * 1024 * 1024
"""Rows of an awkward size are mapped only if segments up to this size make their columns page multiples."""
MAXIMUM_SEGMENTS = 4096
"""Keeps a manifest that lists every segment near one megabyte."""
MAXIMUM_MAPPINGS = 16_384
"""A quarter of what Linux lets one process map by default (``vm.max_map_count``, 65,530)."""
WIDE_PREFIX = "segment"
NARROW_PREFIX = "narrow"
WIDE_ROW_BYTES = 128
WIDE_SHARE = 1 / 64
"""A column is wide if its row has `WIDE_ROW_BYTES` and this share of the whole row; the others are read eagerly."""

TENSOR_TYPES = {
    "float64": "F64", "int64": "I64", "uint64": "U64", "complex64": "C64",
    "float32": "F32", "int32": "I32", "uint32": "U32",
    "float16": "F16", "bfloat16": "BF16", "int16": "I16", "uint16": "U16",
    "bool": "BOOL", "int8": "I8", "uint8": "U8", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
"""Element types that a segment can hold: NumPy's name and the safetensors name."""

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a ring: its name, the type of its elements, and the shape of one row."""

    name: str
    dtype: str
    """NumPy's name of the type, a key of `TENSOR_TYPES`."""
    shape: tuple[int, ...]

    @property
    def tensor_type(self) -> str:
        """The safetensors name of the element type."""
        return TENSOR_TYPES[self.dtype]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return ELEMENT_BYTES[self.tensor_type] * math.prod(self.shape)


def check_column(column: Column) -> Column:
    """
    Return the column if a segment can hold it.

    Raises:
        InvalidInputError: Kind ``replay.unsupported-dtype`` or ``name.invalid``.
    """
    check_path(column.name, "column name")
    if column.dtype not in TENSOR_TYPES:
        raise InvalidInputError(
            f"cannot keep replay column {column.name!r}: its type {column.dtype!r} cannot be stored",
            kind="replay.unsupported-dtype",
            hint=f"use one of {', '.join(sorted(TENSOR_TYPES))}",
            field=column.name,
        )
    return column


@dataclass(frozen=True, slots=True)
class RingState:
    """Where a ring stands; everything is counted in rows."""

    capacity: int
    head_position: int
    """Slot that is written next."""
    size: int
    """Rows held: the newest ``size`` before the head."""
    total_count: int
    """Rows ever added."""

    @property
    def tail_position(self) -> int:
        """Slot of the oldest row held; the head's if there is none."""
        return (self.head_position - self.size) % self.capacity

    @property
    def spans(self) -> tuple[Span, ...]:
        """The slots that hold rows, oldest first."""
        return spans(self.tail_position, self.size, self.capacity)

    def keeping(self, rows: int) -> RingState:
        """The same ring, holding at most the newest ``rows``."""
        return RingState(self.capacity, self.head_position, min(self.size, rows), self.total_count)

    def is_possible(self) -> bool:
        """Whether a ring can be in this state at all."""
        return 0 <= self.head_position < self.capacity and 0 <= self.size <= min(self.capacity, self.total_count)


def spans(start: int, count: int, capacity: int) -> tuple[Span, ...]:
    """Cut ``count`` slots from ``start`` on, going round the ring at most once, into spans in ring order."""
    if count <= 0:
        return ()
    stop = start + min(count, capacity)
    return ((start, stop),) if stop <= capacity else ((start, capacity), (0, stop - capacity))


def overlap(one: Span, other: Span) -> Span | None:
    """What two spans have in common, or None."""
    start, stop = max(one[0], other[0]), min(one[1], other[1])
    return (start, stop) if start < stop else None


@dataclass(frozen=True, slots=True)
class Group:
    """Columns whose rows are kept in the same files, on one fixed grid of segments."""

    prefix: str
    """Beginning of the files' names."""
    columns: tuple[Column, ...]
    rows_per_segment: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of all the group's columns."""
        return sum(column.row_bytes for column in self.columns)

    @property
    def is_mappable(self) -> bool:
        """
        Whether its files are made to be mapped: segments lie one after the other, and each of them begins at a page.

        Narrow columns are not: a page of them holds hundreds of rows, of which a sample needs one.
        """
        return self.prefix == WIDE_PREFIX and all(
            self.rows_per_segment * column.row_bytes % PAGE_BYTES == 0 for column in self.columns
        )

    def segment_count(self, capacity: int) -> int:
        """Segments that a ring of this capacity has."""
        return -(-capacity // self.rows_per_segment)

    def span(self, segment: int, capacity: int) -> Span:
        """The slots of a segment; the last one may be short."""
        start = segment * self.rows_per_segment
        return start, min(start + self.rows_per_segment, capacity)

    def segments(self, span: Span) -> range:
        """The segments that a span touches."""
        return range(span[0] // self.rows_per_segment, -(-span[1] // self.rows_per_segment))

    def file_name(self, segment: int, place: int) -> str:
        """Name of a segment's file: place 0 holds the newest rows, 1 the older rest after the head."""
        return f"{self.prefix}-{segment:06d}{'-older' if place else ''}.safetensors"


def plan_groups(
    columns: Sequence[Column],
    capacity: int,
    wide_bytes: int = WIDE_SEGMENT_BYTES,
    narrow_bytes: int = NARROW_SEGMENT_BYTES,
) -> tuple[Group, ...]:
    """
    Divide columns into wide ones, which a restore maps, and narrow ones, which it reads; cut each group into segments.

    Args:
        columns: In the order of their owner.
        capacity: Rows of the ring.
        wide_bytes: Size that segments of wide columns should have.
        narrow_bytes: Size that segments of narrow columns should have.
    """
    row_bytes = sum(column.row_bytes for column in columns)
    least = max(WIDE_ROW_BYTES, row_bytes * WIDE_SHARE)
    wide = tuple(column for column in columns if column.row_bytes >= least)
    narrow = tuple(column for column in columns if column.row_bytes < least)
    groups = []
    if wide:
        groups.append(Group(WIDE_PREFIX, wide, _mapped_rows(wide, capacity, wide_bytes)))
    if narrow:
        rows = narrow_bytes // max(1, sum(column.row_bytes for column in narrow))
        groups.append(Group(NARROW_PREFIX, narrow, max(1, rows, -(-capacity // MAXIMUM_SEGMENTS))))
    return tuple(groups)


def _mapped_rows(columns: Sequence[Column], capacity: int, target_bytes: int) -> int:
    row_bytes = sum(column.row_bytes for column in columns)
    most_segments = min(MAXIMUM_SEGMENTS, MAXIMUM_MAPPINGS // len(columns))
    rows = max(1, target_bytes // row_bytes, -(-capacity // most_segments))
    # Each divisor of a page is a power of two, so the largest of them is their least common multiple.
    unit = max(PAGE_BYTES // math.gcd(PAGE_BYTES, column.row_bytes) for column in columns)
    if unit <= rows:
        fitting = rows // unit * unit
        return fitting if -(-capacity // fitting) <= most_segments else fitting + unit
    return unit if unit * row_bytes <= LARGEST_MAPPED_SEGMENT_BYTES else rows


class Piece(msgspec.Struct, frozen=True):  # made by the thousand, and seven times as fast as a dataclass
    """Rows of one segment as one file holds them."""

    segment: int
    file: str
    """Name of the file in the buffer's directory."""
    held: Span
    """Slots whose rows are in the file."""
    used: Span
    """Slots that are to be taken from it; the others are out of date or not wanted."""
    is_coded: bool = False
    """Whether the file holds fewer bytes than its rows have, see `perdure.core.coding`; it cannot be mapped then."""


@dataclass(frozen=True, slots=True)
class PlannedPiece:
    """A piece of the next save, and the file of the last one that already is it, byte for byte."""

    piece: Piece
    source: str | None
    """Name in the last save's buffer directory; None if the piece must be written."""


@dataclass(frozen=True, slots=True)
class SavedGroup:
    """What the last committed save holds of one group."""

    state: RingState
    pieces: Mapping[int, tuple[Piece, ...]]
    """By segment; the piece of place 0 first."""
    edited: Collection[int] = field(default=())
    """Segments in which rows changed in place since."""


def written_since(saved: RingState, now: RingState) -> tuple[Span, ...] | None:
    """The slots that were written between two states of a ring; None if one does not follow from the other."""
    count = now.total_count - saved.total_count
    if saved.capacity != now.capacity or count < 0:
        return None
    if (saved.head_position + count) % saved.capacity != now.head_position:
        return None
    return spans(saved.head_position, count, saved.capacity)


def plan_segment(group: Group, segment: int, now: RingState, saved: SavedGroup | None) -> tuple[PlannedPiece, ...]:
    """
    Plan the files of one segment.

    A segment that the head stands in is written only up to the head where the last save still has the older rest, so
    that a save never writes more than what changed and one segment.
    """
    span = group.span(segment, now.capacity)
    needed = [common for held in now.spans if (common := overlap(held, span))]
    written = written_since(saved.state, now) if saved else None
    stored: tuple[Piece, ...] = ()
    if saved and written is not None and segment not in saved.edited:
        stored = saved.pieces.get(segment, ())
    keepers = [(part, _keeper(part, stored, written or ())) for part in needed]
    linked = [(part, keeper) for part, keeper in keepers if keeper]
    if len(linked) < len(needed):
        linked = [(part, keeper) for part, keeper in linked if part[0] >= now.head_position > span[0]]
    kept = {part for part, _ in linked}
    stop = max((part[1] for part in needed if part not in kept), default=None)
    planned = [] if stop is None else [PlannedPiece(Piece(segment, "", (span[0], stop), (span[0], stop)), None)]
    # Newest first: it is the one below the head. One file that holds both parts is one piece.
    for keeper in dict.fromkeys(keeper for _, keeper in sorted(linked, key=lambda link: link[0])):
        parts = [part for part, other in linked if other is keeper]
        used = (min(start for start, _ in parts), max(stop for _, stop in parts))
        planned.append(PlannedPiece(msgspec.structs.replace(keeper, used=used), keeper.file))
    return tuple(
        PlannedPiece(msgspec.structs.replace(plan.piece, file=group.file_name(segment, place)), plan.source)
        for place, plan in enumerate(planned)
    )


def _keeper(part: Span, stored: Iterable[Piece], written: Iterable[Span]) -> Piece | None:
    if any(overlap(part, span) for span in written):
        return None
    return next((piece for piece in stored if piece.used[0] <= part[0] and part[1] <= piece.used[1]), None)


def segments_to_plan(group: Group, now: RingState, saved: SavedGroup | None) -> Collection[int]:
    """The segments whose files may differ from the last save's; for all others its pieces are kept as they are."""
    everything = range(group.segment_count(now.capacity))
    written = written_since(saved.state, now) if saved else None
    if saved is None or written is None:
        return everything
    dropped = (now.total_count - now.size) - (saved.state.total_count - saved.state.size)
    if dropped < 0:
        return everything
    edges = [
        (position, position + 1)
        for state in (now, saved.state)
        for position in (state.head_position, state.tail_position)
    ]
    gone = spans(saved.state.tail_position, dropped, now.capacity)
    return sorted({n for span in (*written, *gone, *edges) for n in group.segments(span)} | set(saved.edited))


def rows_of(span: Span, state: RingState) -> tuple[int, int] | None:
    """
    The rows in a span as they are counted since the beginning, ``(first, last + 1)``; None if it holds none.

    In the segment of the head, a span can hold newest and oldest rows; the answer then goes from the oldest to the
    newest of them.
    """
    first = state.total_count - state.size
    numbers = []
    for held in state.spans:
        if common := overlap(held, span):
            distance = (common[0] - state.tail_position) % state.capacity
            numbers.append((first + distance, first + distance + common[1] - common[0]))
    return (min(numbers)[0], max(numbers)[1]) if numbers else None
