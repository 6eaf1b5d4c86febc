"""
The undo journal: a ring is written to disk in place, and a row that a save still needs is kept when it is overwritten.

A snapshot names the rows that a save needs and copies nothing. Whoever is about to overwrite rows says so first, under
the journal's lock, and the journal keeps the old rows if a snapshot has not yet been copied. The writer copies a
segment without any lock, then takes the lock for a moment to collect what was kept, and puts those rows back into its
copy. A row that changed before, during or after the copy thus comes out as it was at the snapshot:

* kept before the overwrite began, so whatever the copy saw of it, torn or whole, is replaced;
* not overwritten until the copy was declared finished, so the copy saw it whole.

Records are put back newest first: when a row was overwritten twice, the snapshot gets the older content, and a later
snapshot, which ignores the records from before it, gets the younger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perdure.core.ring import Group, Span, overlap, spans
from perdure.replay.lock import TimedLock

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class _Kept:
    """Old content of some rows of a segment."""

    sequence: int
    slots: NDArray[np.intp]
    rows: dict[str, NDArray[Any]]


@dataclass(slots=True)
class _Pending:
    """A segment that snapshots wait to have copied."""

    span: Span
    kept: list[_Kept] = field(default_factory=list)
    waiting: set[int] = field(default_factory=set)
    is_kept: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    """By row of the span: whether its content as of the newest waiting snapshot has been kept."""


class Snapshot:
    """
    The rows that one save needs, as they were when it was taken, until `Journal.release`.

    Holds on to the ring's arrays of that moment, so that a ring which gets new arrays meanwhile changes nothing.
    """

    def __init__(self, sequence: int, columns: Arrays, pending: dict[tuple[str, int], _Pending]) -> None:
        self.sequence = sequence
        self.columns = columns
        self.pending = pending


class Journal:
    """
    What a ring tells its writes to. Safe to use from several threads; the lock is never held for a copy of a segment.

    Args:
        groups: How the ring is cut into segments; set again when that changes.
        capacity: Rows of the ring.
    """

    def __init__(self, groups: Sequence[Group] = (), capacity: int = 1) -> None:
        self.lock = TimedLock("the replay ring")
        self.groups = tuple(groups)
        self.capacity = capacity
        self.edits: dict[tuple[str, int], int] = {}
        """Sequence number of the last change in place, by segment."""
        self.bring_rows: Callable[[int, int], None] | None = None
        """Called with the lock held before rows from a slot on are overwritten; returns when they are in memory."""
        self._sequence = 0
        self._pending: dict[tuple[str, int], _Pending] = {}

    @property
    def sequence(self) -> int:
        """Counts what happened; what was edited later has a higher number in `edits`."""
        return self._sequence

    @property
    def is_idle(self) -> bool:
        """Whether no snapshot waits for a copy."""
        return not self._pending

    @property
    def kept_bytes(self) -> int:
        """Memory that old rows take at the moment."""
        return sum(rows.nbytes for p in self._pending.values() for kept in p.kept for rows in kept.rows.values())

    def before_write(self, columns: Arrays, start: int, count: int) -> None:
        """
        Keep what pending snapshots need of the ``count`` rows from slot ``start`` on; called with the lock held.

        The rows may be overwritten as soon as this returns, and the lock must be held until they have been.
        """
        if self.bring_rows is not None:
            self.bring_rows(start, count)
        if not self._pending:
            return
        self._sequence += 1
        for span in spans(start, count, self.capacity):
            for group in self.groups:
                for segment in group.segments(span):
                    pending = self._pending.get((group.prefix, segment))
                    if pending and (common := overlap(span, pending.span)):
                        self._keep(pending, group, columns, common)

    def before_edit(self, columns: Arrays, start: int, count: int) -> None:
        """Like `before_write`, for rows that change in place away from the head: their segments are saved again."""
        self.before_write(columns, start, count)
        self._sequence += 1
        for span in spans(start, count, self.capacity):
            for group in self.groups:
                self.edits.update({(group.prefix, segment): self._sequence for segment in group.segments(span)})

    def _keep(self, pending: _Pending, group: Group, columns: Arrays, span: Span) -> None:
        first = pending.span[0]
        fresh = ~pending.is_kept[span[0] - first : span[1] - first]
        slots = np.flatnonzero(fresh) + span[0]
        if len(slots):
            rows = {column.name: columns[column.name][slots] for column in group.columns}
            pending.kept.append(_Kept(self._sequence, slots, rows))
            pending.is_kept[slots - first] = True

    def take(self, columns: Arrays, needed: Iterable[tuple[str, int, Span]]) -> Snapshot:
        """
        Fix the content of some segments as of now; called with the lock held. Nothing is copied.

        Args:
            columns: The ring's arrays.
            needed: Prefix of the group, segment, and the slots of it that must be kept.
        """
        self._sequence += 1
        held: dict[tuple[str, int], _Pending] = {}
        for prefix, segment, span in needed:
            pending = self._pending.setdefault((prefix, segment), _Pending(span))
            # A snapshot of more rows than an older one of the same segment: keep as many for both.
            pending.span = (min(pending.span[0], span[0]), max(pending.span[1], span[1]))
            pending.is_kept = np.zeros(pending.span[1] - pending.span[0], np.bool_)
            pending.waiting.add(self._sequence)
            held[prefix, segment] = pending
        return Snapshot(self._sequence, dict(columns), held)

    def copy(self, snapshot: Snapshot, key: tuple[str, int], span: Span, target: Arrays) -> None:
        """
        Copy a segment's rows, as they were at the snapshot, into ``target``; called without the lock, once.

        Args:
            snapshot: What to copy from.
            key: Prefix of the group, and segment.
            span: The slots to copy, part of what the snapshot needs.
            target: An array of as many rows for each column of the group.
        """
        for name, rows in target.items():
            np.copyto(rows, snapshot.columns[name][span[0] : span[1]])
        with self.lock:
            pending = snapshot.pending[key]
            kept = [record for record in pending.kept if record.sequence > snapshot.sequence]
            self._forget(snapshot, key)
        for record in reversed(kept):
            inside = (record.slots >= span[0]) & (record.slots < span[1])
            for name, rows in target.items():
                rows[record.slots[inside] - span[0]] = record.rows[name][inside]

    def release(self, snapshot: Snapshot) -> None:
        """Let go of all segments that the snapshot still waits for."""
        with self.lock:
            for key in list(snapshot.pending):
                self._forget(snapshot, key)

    def _forget(self, snapshot: Snapshot, key: tuple[str, int]) -> None:
        pending = snapshot.pending.pop(key)
        pending.waiting.discard(snapshot.sequence)
        if not pending.waiting:
            pending.kept.clear()
            if self._pending.get(key) is pending:
                del self._pending[key]

    def start_over(self, groups: Sequence[Group], capacity: int) -> None:
        """
        Go on with other arrays; called with the lock held.

        Snapshots that were taken before keep the old arrays and what was kept for them; nothing overwrites those.
        """
        self.groups = tuple(groups)
        self.capacity = capacity
        self.edits = {}
        self.bring_rows = None
        self._pending = {}
