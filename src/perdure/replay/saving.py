"""The save side: from a ring as it is now to the files of a checkpoint, written behind training's back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from numpy.typing import NDArray

from perdure.core.component import ContentPart, LinkPart, Part
from perdure.core.manifest import FileEntry
from perdure.core.ring import Group, Piece, PlannedPiece, RingState, SavedGroup, Span, plan_segment, segments_to_plan
from perdure.core.tensorfile import TensorSpec, file_chunks, plan_layout
from perdure.replay.header import MUTABLE_FILE
from perdure.replay.rows import column_of

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Shelf:
    """What the last committed save holds of a ring."""

    state: RingState
    sequence: int
    """The journal's count when it was taken; segments that were edited later differ from it."""
    pieces: Mapping[Key, tuple[Piece, ...]]
    links: Callable[[], dict[str, LinkPart]]
    """Its files by path. Made when first asked for: a training that begins anew needs none before its first save."""

    def group(self, group: Group, edits: Mapping[Key, int]) -> SavedGroup:
        """One group of it."""
        edited = {segment for (prefix, segment), at in edits.items() if prefix == group.prefix and at > self.sequence}
        return SavedGroup(self.state, _PiecesOf(group.prefix, self.pieces), edited)


class _PiecesOf(Mapping[int, tuple[Piece, ...]]):
    """A group's segments of a shelf; a view, because a ring may have thousands and a save touches few."""

    def __init__(self, prefix: str, pieces: Mapping[Key, tuple[Piece, ...]]) -> None:
        self._prefix = prefix
        self._pieces = pieces

    def __getitem__(self, segment: int) -> tuple[Piece, ...]:
        return self._pieces[self._prefix, segment]

    def __iter__(self) -> Iterator[int]:
        return (segment for prefix, segment in self._pieces if prefix == self._prefix)

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

    @cache
    def links() -> dict[str, LinkPart]:
        paths = [f"{stem}/{piece.file}" for held in pieces.values() for piece in held]
        return {path: LinkPart(path, directory / path, files[path]) for path in paths}

    return Shelf(state, sequence, pieces, links)


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
    def replaced(self) -> list[Piece]:
        """What is on the shelf and not in the save."""
        return [piece for key in self.planned for piece in self.shelf.pieces.get(key, ())] if self.shelf else []

    def pieces(self, coded: Collection[str]) -> dict[Key, tuple[Piece, ...]]:
        """All pieces by segment, once the files with the given names were written coded and other new ones as rows."""
        kept = self.shelf.pieces if self.shelf else {}
        pieces = {key: held for key, held in kept.items() if key not in self.planned}
        for key, plans in self.planned.items():
            held = tuple(
                plan.piece if plan.source else msgspec.structs.replace(plan.piece, is_coded=plan.piece.file in coded)
                for plan in plans
            )
            if held:
                pieces[key] = held
        return pieces


def draft_save(groups: Sequence[Group], state: RingState, shelf: Shelf | None, edits: Mapping[Key, int]) -> Draft:
    """Plan a save, in a time that grows with the segments that changed and not with those that did not."""
    planned = {}
    for group in groups:
        saved = shelf.group(group, edits) if shelf else None
        for segment in segments_to_plan(group, state, saved):
            planned[group.prefix, segment] = plan_segment(group, segment, state, saved)
    return Draft(shelf, planned)


def segment_parts(
    draft: Draft,
    state: RingState,
    stem: str,
    groups: Sequence[Group],
    part_of: Callable[[str, Group, Piece], Part],
) -> list[Part]:
    """
    The files of all segments; those nearest ahead of the head, which the ring will overwrite first, are first.

    Args:
        draft: The plan; the shelf's files lie under the same stem.
        state: Where the ring stands.
        stem: Where the buffer's files lie in a checkpoint.
        groups: By their prefix in the plan.
        part_of: Gives a file that must be written, by its path.
    """
    by_prefix = {group.prefix: group for group in groups}
    links = draft.shelf.links() if draft.shelf else {}
    kept = dict(links)
    for piece in draft.replaced:
        del kept[f"{stem}/{piece.file}"]

    def rows_until_overwritten(key: Key) -> int:
        _, stop = by_prefix[key[0]].span(key[1], state.capacity)
        return (stop - 1 - state.head_position) % state.capacity

    parts: list[Part] = []
    for key in sorted(draft.planned, key=rows_until_overwritten):
        for plan in draft.planned[key]:
            path = f"{stem}/{plan.piece.file}"
            if plan.source is None:
                parts.append(part_of(path, by_prefix[key[0]], plan.piece))
            else:
                parts.append(replace(links[f"{stem}/{plan.source}"], path=path))
    parts.extend(kept.values())
    return parts


def mutable_part(stem: str, arrays: Mapping[str, NDArray[Any]]) -> ContentPart:
    """The file of the arrays that were copied."""
    specs = []
    for name, array in arrays.items():
        column = column_of(name, array)
        specs.append(TensorSpec(name, column.tensor_type, array.shape))
    layout = plan_layout(specs)
    chunks = file_chunks(layout, arrays)
    return ContentPart(f"{stem}/{MUTABLE_FILE}", layout.total_bytes, lambda: chunks)
