"""Segment files, put together in the writer's thread from the ring's own memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perdure.core.coding import MOST_SHARE, RAW, Coding
from perdure.core.component import ContentPart, DeferredPart, Part
from perdure.core.ring import WIDE_PREFIX, Column, Group, Piece
from perdure.files.reading import allocate
from perdure.replay.coding import Coded, Columns, encode_rows
from perdure.replay.journal import Journal, Snapshot
from perdure.replay.layout import plan_rows
from perdure.replay.trials import LEAST_ROWS, choose_codings


class Images:
    """Page-aligned memory in which the images of files are put together, used again and again."""

    def __init__(self) -> None:
        self._free: deque[memoryview] = deque(maxlen=2)

    def take(self, size_bytes: int) -> memoryview:
        """Memory of at least this size."""
        try:
            image = self._free.pop()
        except IndexError:
            image = memoryview(b"")
        return image if len(image) >= size_bytes else allocate(size_bytes, is_wiped_in_children=True)

    def give(self, image: memoryview) -> None:
        """Take it back."""
        self._free.append(image)


class Coder:
    """
    Codes the segments of one save, by a trial on the first of them that has rows enough.

    Args:
        packings: What can be used here.
        clock_seconds: Seconds of work of this thread.
    """

    def __init__(self, packings: Sequence[str], clock_seconds: Callable[[], float]) -> None:
        self._packings = packings
        self._clock_seconds = clock_seconds
        self._codings: dict[str, Coding] = {}

    def encode(self, columns: Sequence[Column], rows: Columns) -> Coded | None:
        """Code rows; None if they are better written as they are."""
        if not self._codings:
            if len(rows[columns[0].name]) < LEAST_ROWS:
                return None
            self._codings = choose_codings(columns, rows, self._packings, self._clock_seconds)
        if set(self._codings.values()) == {RAW}:
            return None
        coded = encode_rows(columns, rows, self._codings)
        raw_bytes = sum(array.nbytes for array in rows.values())
        return coded if coded.total_bytes <= MOST_SHARE * raw_bytes else None


class SegmentWriter:
    """
    Makes the files of one capture.

    Args:
        images: Where memory comes from.
        journal: The ring's.
        snapshot: The moment that is saved.
        before_copy: Called with a group and a piece before its rows are copied; returns when they are in memory.
        after_copy: Called after that; raises if the copy cannot be right.
        coder: Codes wide columns; None to write rows as they are.
    """

    def __init__(
        self,
        images: Images,
        journal: Journal,
        snapshot: Snapshot,
        before_copy: Callable[[Group, Piece], None],
        after_copy: Callable[[Piece], None],
        coder: Coder | None,
    ) -> None:
        self._images = images
        self._journal = journal
        self._snapshot = snapshot
        self._before_copy = before_copy
        self._after_copy = after_copy
        self._coder = coder
        self.coded: set[str] = set()
        """Names of files that have been coded; complete once all parts have been made."""

    def part(self, path: str, group: Group, piece: Piece) -> Part:
        """The file of a piece; nothing is copied before it is its turn to be written."""
        if self._coder is not None and group.prefix == WIDE_PREFIX:
            coder = self._coder
            return DeferredPart(path, lambda: self._code(coder, path, group, piece))
        layout, _ = plan_rows(group.columns, piece.held[1] - piece.held[0], is_mappable=group.is_mappable)
        return ContentPart(path, layout.total_bytes, lambda: self._lend(self._copy(group, piece)[0]))

    def _code(self, coder: Coder, path: str, group: Group, piece: Piece) -> ContentPart:
        image, rows = self._copy(group, piece)
        coded = coder.encode(group.columns, rows)
        if coded is not None:
            self.coded.add(piece.file)
            joined = self._images.take(coded.total_bytes)
            coded.write_into(joined[: coded.total_bytes])
            self._images.give(image)
            image = joined[: coded.total_bytes]
        return ContentPart(path, len(image), lambda: self._lend(image))

    def _copy(self, group: Group, piece: Piece) -> tuple[memoryview, Mapping[str, NDArray[Any]]]:
        """Bring a file's image together; returns it, and the rows in it by column."""
        rows = piece.held[1] - piece.held[0]
        layout, places = plan_rows(group.columns, rows, is_mappable=group.is_mappable)
        self._before_copy(group, piece)
        image = self._images.take(layout.total_bytes)
        content = np.frombuffer(image, np.uint8)
        content[: len(layout.prefix)] = np.frombuffer(layout.prefix, np.uint8)
        names = {place.column.name for place in places}
        for placed in layout.tensors:
            if placed.spec.name not in names:
                content[placed.offset_bytes : placed.offset_bytes + placed.spec.size_bytes] = 0
        target = {
            place.column.name: content[place.offset_bytes : place.offset_bytes + place.size_bytes]
            .view(self._snapshot.columns[place.column.name].dtype)
            .reshape(rows, *place.column.shape)
            for place in places
        }
        self._journal.copy(self._snapshot, (group.prefix, piece.segment), piece.held, target)
        self._after_copy(piece)
        return image[: layout.total_bytes], target

    def _lend(self, image: memoryview) -> Iterator[memoryview]:
        try:
            yield image
        finally:
            self._images.give(image)
