"""The save side: from a ring as it is now to the files of a checkpoint, written behind training's back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perdure.core.component import ContentPart, LinkPart, Part
from perdure.core.manifest import FileEntry
from perdure.core.ring import Group, Piece, PlannedPiece, RingState, SavedGroup, Span, plan_segment, segments_to_plan
from perdure.core.tensorfile import TensorSpec, plan_layout
from perdure.files.reading import allocate
from perdure.replay.header import BETWEEN, MUTABLE_FILE, encode_piece, encode_table, table_bytes
from perdure.replay.journal import Journal, Snapshot
from perdure.replay.layout import plan_rows
from perdure.replay.rows import column_of

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Listed:
    """One segment of a committed save, ready to be linked to and listed again."""

    pieces: tuple[Piece, ...]
    text_bytes: int
    """What they take in the header's table."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """What the last committed save holds of a ring."""

    state: RingState
    sequence: int
    """The journal's count when it was taken; segments that were edited later differ from it."""
    segments: Mapping[Key, Listed]
    links: dict[str, LinkPart]
    """Its files by path."""
    text_bytes: int
    """What all of them take in the header's table."""

    def group(self, group: Group, edits: Mapping[Key, int]) -> SavedGroup:
        """One group of it."""
        edited = {segment for (prefix, segment), at in edits.items() if prefix == group.prefix and at > self.sequence}
        return SavedGroup(self.state, _PiecesOf(group.prefix, self.segments), edited)


class _PiecesOf(Mapping[int, tuple[Piece, ...]]):
    """A group's segments of a shelf; a view, because a ring may have thousands and a save touches few."""

    def __init__(self, prefix: str, segments: Mapping[Key, Listed]) -> None:
        self._prefix = prefix
        self._segments = segments

    def __getitem__(self, segment: int) -> tuple[Piece, ...]:
        return self._segments[self._prefix, segment].pieces

    def __iter__(self) -> Iterator[int]:
        return (segment for prefix, segment in self._segments if prefix == self._prefix)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def shelve(
    stem: str,
    state: RingState,
    sequence: int,
    pieces: Mapping[Key, tuple[Piece, ...]],
    directory: Path,
    files: Mapping[str, FileEntry],
) -> Shelf:
    """Put a committed checkpoint's pieces on the shelf."""
    segments = {key: Listed(held, _text_bytes(key, held)) for key, held in pieces.items()}
    paths = [f"{stem}/{piece.file}" for held in pieces.values() for piece in held]
    links = {path: LinkPart(path, directory / path, files[path]) for path in paths}
    text_bytes = sum(listed.text_bytes for listed in segments.values())
    return Shelf(state, sequence, segments, links, text_bytes)


def _text_bytes(key: Key, pieces: Iterable[Piece]) -> int:
    return sum(len(encode_piece(key[0], piece)) + len(BETWEEN) for piece in pieces)


@dataclass(frozen=True, slots=True)
class Draft:
    """The segments of the next save: those on the shelf, but for the ones planned anew."""

    shelf: Shelf | None
    planned: Mapping[Key, tuple[PlannedPiece, ...]]

    @property
    def needed(self) -> list[tuple[str, int, Span]]:
        """What the writer will copy from the ring."""
        return [
            (prefix, segment, plan.piece.held)
            for (prefix, segment), plans in self.planned.items()
            for plan in plans
            if plan.source is None
        ]

    @property
    def replaced(self) -> list[Listed]:
        """What is on the shelf and not in the save."""
        return [self.shelf.segments[key] for key in self.planned if key in self.shelf.segments] if self.shelf else []

    def table_bytes(self) -> int:
        """Length of the segment table, found without making it."""
        total = self.shelf.text_bytes if self.shelf else 0
        total -= sum(listed.text_bytes for listed in self.replaced)
        total += sum(_text_bytes(key, [plan.piece for plan in plans]) for key, plans in self.planned.items())
        return table_bytes(total)

    def table(self) -> bytes:
        """The segment table."""
        return encode_table(encode_piece(key[0], piece) for key, held in self.pieces().items() for piece in held)

    def pieces(self) -> dict[Key, tuple[Piece, ...]]:
        """All pieces by segment."""
        kept = self.shelf.segments if self.shelf else {}
        pieces = {key: listed.pieces for key, listed in kept.items() if key not in self.planned}
        pieces.update({key: tuple(plan.piece for plan in plans) for key, plans in self.planned.items() if plans})
        return pieces


def draft_save(groups: Sequence[Group], state: RingState, shelf: Shelf | None, edits: Mapping[Key, int]) -> Draft:
    """Plan a save, in a time that grows with the segments that changed and not with those that did not."""
    planned = {}
    for group in groups:
        saved = shelf.group(group, edits) if shelf else None
        for segment in segments_to_plan(group, state, saved):
            planned[group.prefix, segment] = plan_segment(group, segment, state, saved)
    return Draft(shelf, planned)


class Images:
    """Page-aligned memory in which the images of files are put together, used again and again."""

    def __init__(self) -> None:
        self._free: deque[memoryview] = deque(maxlen=2)

    def take(self, size_bytes: int) -> memoryview:
        """Memory of at least this size."""
        try:
            image = self._free.pop()
        except IndexError:
            return allocate(size_bytes)
        return image if len(image) >= size_bytes else allocate(size_bytes)

    def give(self, image: memoryview) -> None:
        """Take it back."""
        self._free.append(image)


def segment_chunks(
    images: Images, journal: Journal, snapshot: Snapshot, group: Group, piece: Piece, check: Callable[[Piece], None]
) -> Iterator[memoryview]:
    """
    Put the image of a segment's file together from the ring's own memory; runs in the writer's thread.

    Args:
        images: Where memory comes from.
        journal: The ring's.
        snapshot: The moment that is saved.
        group: Which columns.
        piece: Which rows.
        check: Called after the rows were copied; raises if the copy cannot be right.
    """
    rows = piece.held[1] - piece.held[0]
    layout, places = plan_rows(group.columns, rows, is_mappable=group.is_mappable)
    image = images.take(layout.total_bytes)
    try:
        content = np.frombuffer(image, np.uint8)
        content[: len(layout.prefix)] = np.frombuffer(layout.prefix, np.uint8)
        names = {place.column.name for place in places}
        for placed in layout.tensors:
            if placed.spec.name not in names:
                content[placed.offset_bytes : placed.offset_bytes + placed.spec.size_bytes] = 0
        target = {
            place.column.name: content[place.offset_bytes : place.offset_bytes + place.size_bytes]
            .view(snapshot.columns[place.column.name].dtype)
            .reshape(rows, *place.column.shape)
            for place in places
        }
        journal.copy(snapshot, (group.prefix, piece.segment), piece.held, target)
        check(piece)
        yield image[: layout.total_bytes]
    finally:
        images.give(image)


def segment_parts(
    draft: Draft,
    state: RingState,
    stem: str,
    groups: Sequence[Group],
    chunks: Callable[[Group, Piece], Iterator[memoryview]],
) -> list[Part]:
    """
    The files of all segments; those nearest ahead of the head, which the ring will overwrite first, are first.

    Args:
        draft: The plan; the shelf's files lie under the same stem.
        state: Where the ring stands.
        stem: Where the buffer's files lie in a checkpoint.
        groups: By their prefix in the plan.
        chunks: Gives the content of a file that must be written.
    """
    by_prefix = {group.prefix: group for group in groups}
    links = draft.shelf.links if draft.shelf else {}
    kept = dict(links)
    for listed in draft.replaced:
        for piece in listed.pieces:
            del kept[f"{stem}/{piece.file}"]

    def rows_until_overwritten(key: Key) -> int:
        _, stop = by_prefix[key[0]].span(key[1], state.capacity)
        return (stop - 1 - state.head_position) % state.capacity

    parts: list[Part] = []
    for key in sorted(draft.planned, key=rows_until_overwritten):
        for plan in draft.planned[key]:
            path = f"{stem}/{plan.piece.file}"
            if plan.source is None:
                parts.append(_content(path, by_prefix[key[0]], plan.piece, chunks))
            else:
                parts.append(replace(links[f"{stem}/{plan.source}"], path=path))
    parts.extend(kept.values())
    return parts


def _content(
    path: str, group: Group, piece: Piece, chunks: Callable[[Group, Piece], Iterator[memoryview]]
) -> ContentPart:
    layout, _ = plan_rows(group.columns, piece.held[1] - piece.held[0], is_mappable=group.is_mappable)
    return ContentPart(path, layout.total_bytes, lambda: chunks(group, piece))


def mutable_part(stem: str, arrays: Mapping[str, NDArray[Any]]) -> ContentPart:
    """The file of the arrays that were copied."""
    specs = []
    for name, array in arrays.items():
        column = column_of(name, array)
        specs.append(TensorSpec(name, column.tensor_type, array.shape))
    layout = plan_layout(specs)
    chunks = [memoryview(layout.prefix)]
    # Empty arrays have no memory to show.
    chunks += [arrays[t.spec.name].reshape(-1).view(np.uint8).data for t in layout.tensors if t.spec.size_bytes]
    return ContentPart(f"{stem}/{MUTABLE_FILE}", layout.total_bytes, lambda: chunks)
