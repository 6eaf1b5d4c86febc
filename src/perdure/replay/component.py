"""A ring as a component of a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perdure.core.component import ContentPart, DeferredPart, PartsCapture, PartsSource, Progress
from perdure.core.manifest import FileEntry, Grade
from perdure.core.names import Section
from perdure.core.ring import (
    NARROW_SEGMENT_BYTES,
    WIDE_SEGMENT_BYTES,
    Group,
    Piece,
    RingState,
    overlap,
    plan_groups,
    spans,
)
from perdure.core.trimming import All, Trim
from perdure.errors import DeadlineError, InvalidInputError
from perdure.files.door import Files
from perdure.replay.header import HEADER_FILE, encode_head, encode_table
from perdure.replay.journal import Journal, Snapshot
from perdure.replay.mapping import fetch_ahead
from perdure.replay.packing import installed_packings
from perdure.replay.progress import ProgressFile
from perdure.replay.restoring import Options, Outcome, restore_ring, stem_of
from perdure.replay.rings import Columns, Ring
from perdure.replay.rows import column_of
from perdure.replay.saving import Draft, Shelf, draft_save, mutable_part, segment_parts, shelve
from perdure.replay.verification import Verification
from perdure.replay.writing import Coder, Images, SegmentWriter

_CHOICES = {
    "verify": ("background", "first-touch", "eager"),
    "load": ("auto", "read"),
    "damaged": ("refuse", "drop"),
    "codec": ("raw", "auto"),
}
_GUARD_BYTES = 16 * 1024 * 1024
_FETCHED_ROWS = 4096
"""Of larger samples the kernel has enough to do without advice."""


@dataclass(frozen=True, slots=True)
class _Moment:
    """A ring as it is captured."""

    epoch: int
    """Counts restores; what is committed after one is not built upon."""
    groups: tuple[Group, ...]
    state: RingState
    draft: Draft
    snapshot: Snapshot
    guard_rows: int
    """Rows ahead of the head that were kept in advance, if the ring does not announce its writes."""
    mutable: dict[str, NDArray[Any]]
    random_state: Mapping[str, Any] | None


class RingComponent:
    """
    Saves and restores a ring.

    A save copies nothing but the mutable arrays and writes what changed since the last one. A restore maps the files:
    the ring gets plain arrays at once, and pages come from the disk when they are used.

    Args:
        ring: The ring.
        restore: What of a checkpoint to restore; anything but all must be asked for.
        keep_recent: Transitions to save, the newest ones; all that are held if None.
        verify: When digests are compared after a restore. ``background`` compares them beside training, from the
            second sample on; a damaged segment then raises at the next sample or save, and nothing is committed
            before all have been compared.
            ``first-touch`` compares a segment before a sample of it is handed out. ``eager`` compares all before the
            restore returns.
        load: ``auto`` maps files where that is wise and reads them where it is not; ``read`` reads them all.
        damaged: ``refuse`` raises if a segment is gone or damaged; ``drop`` goes on without its transitions.
        codec: ``raw`` writes rows as they are, which can be mapped. ``auto`` tries at each save, column by column, what
            makes them smaller: frames that repeat kept once, LZ4 and Zstandard where they are installed. Coded segments
            are decoded in the background after a restore, and before the first sample of them.
        progress: Told of bytes done and in all while files are read or verified, in the thread that restores. If None
            the run shows a bar when it takes long.
        progress_file: Where to note how far that is, so that an interrupted restore need not begin again.
        files: The file system.
        clock_seconds: Seconds of work that the calling thread has done, to measure codings with. Not of waiting: a
            machine that is busy with other things would make every coding look slow.
        wide_bytes: Size of segments of wide columns, such as observations.
        narrow_bytes: Size of segments of narrow columns, such as rewards.

    Raises:
        InvalidInputError: A choice does not exist, a column's type cannot be stored, or the ring cannot do
            ``first-touch``.
    """

    kind = "replay.ring"
    section = Section.BUFFER
    grade = Grade.EXACT

    def __init__(
        self,
        ring: Ring,
        *,
        restore: Trim | None = None,
        keep_recent: int | None = None,
        verify: str = "background",
        load: str = "auto",
        damaged: str = "refuse",
        codec: str = "raw",
        progress: Progress | None = None,
        progress_file: Path | None = None,
        files: Files | None = None,
        clock_seconds: Callable[[], float] = time.thread_time,
        wide_bytes: int = WIDE_SEGMENT_BYTES,
        narrow_bytes: int = NARROW_SEGMENT_BYTES,
    ) -> None:
        for name, value in (("verify", verify), ("load", load), ("damaged", damaged), ("codec", codec)):
            _check_choice(name, value)
        self._files = files or Files()
        note = ProgressFile(self._files, progress_file) if progress_file else None
        self._ring = ring
        self._verification = Verification(())
        self._restored: Columns = {}
        self._is_watched = ring.watch_reads(self._before_read)
        may_wait = self._is_watched and ring.announces_writes
        self._options = Options(restore or All(), verify, load, damaged, progress, note, may_wait)
        self._is_coding = codec == "auto"
        self._clock_seconds = clock_seconds
        self._keep_rows = ring.state.capacity if keep_recent is None else max(0, keep_recent) // ring.n_envs
        columns = [column_of(name, array) for name, array in ring.columns.items()]
        self._groups = plan_groups(columns, ring.state.capacity, wide_bytes, narrow_bytes)
        self._shelf: Shelf | None = None
        self._epoch = 0
        self._images = Images()
        row_bytes = max(1, sum(column.row_bytes for column in columns))
        self._guard_rows = max(2 * ring.rows_per_write, _GUARD_BYTES // row_bytes)
        self._was_read = False
        self._prepared: tuple[PartsSource, Outcome] | None = None
        if not self._is_watched and verify == "first-touch":
            raise InvalidInputError(
                "cannot verify at first touch: this ring hands samples out without telling",
                kind="replay.unwatched-ring",
                hint="use verify='background' or verify='eager'",
                field="verify",
            )
        with ring.journal.lock:
            ring.journal.start_over(self._groups, ring.state.capacity)

    def check(self) -> None:
        """
        Raise damage that was found behind a restore; to be called where training can stop.

        Raises:
            CorruptionError: Kind ``replay.damaged``, naming the transitions.
        """
        self._begin()
        self._verification.check()

    @property
    def verification(self) -> Verification:
        """What the last restore has left to do."""
        return self._verification

    def _begin(self) -> None:
        if self._options.verify != "first-touch" and not self._verification.is_complete:
            self._verification.start()

    def _columns(self) -> Columns:
        """The ring's arrays, without waiting for rows that are still being brought or raising what was found."""
        is_asked_about = self._is_watched and not self._verification.is_complete
        return self._restored if is_asked_about else self._ring.columns

    def _before_read(self, slots: NDArray[np.intp] | None) -> None:
        verification = self._verification
        if verification.is_complete:
            return
        is_first_touch = self._options.verify == "first-touch"
        only_rows = slots is None or not is_first_touch
        if not (only_rows and verification.has_all_rows):
            verification.require(None if slots is None else self._segments(slots), only_rows=only_rows)
        verification.check()
        if slots is None or is_first_touch:
            return
        # The first batch after a restore is waited for most: it has the disk to itself.
        if self._was_read:
            verification.start()
        self._was_read = True
        # The files are probably not in memory yet: ask for all rows of the sample at once.
        if len(slots) <= _FETCHED_ROWS:
            for column in (column for group in self._groups if group.is_mappable for column in group.columns):
                fetch_ahead(self._restored[column.name], slots)

    def _segments(self, slots: NDArray[np.intp]) -> set[tuple[str, int]]:
        return {(g.prefix, n) for g in self._groups for n in set((slots // g.rows_per_segment).tolist())}

    def _bring_rows(self, start: int, count: int) -> None:
        """Have rows in memory before they are overwritten; decoding them later would bring the old ones back."""
        if not self._verification.has_all_rows:
            capacity = self._ring.state.capacity
            slots = np.concatenate([np.arange(*span) for span in spans(start, count, capacity)])
            self._verification.require(self._segments(slots), only_rows=True)

    # Saving

    def capture_parts(self, stem: str) -> PartsCapture:
        """
        Fix the ring as of now and return the files that hold it.

        Copies the mutable arrays only; takes time in proportion to the segments that changed. Files are put together
        in the writer's thread from the ring's own memory. A crash leaves nothing behind.

        Raises:
            CorruptionError: A segment that was restored turned out to be damaged.
            DeadlineError: A thread holds the ring.
        """
        self.check()
        moment = self._take()
        ring, journal, draft, state = self._ring, self._ring.journal, moment.draft, moment.state
        writer = SegmentWriter(
            self._images,
            journal,
            moment.snapshot,
            # What an earlier restore has yet to bring is brought into the arrays of then.
            partial(_require_rows, self._verification),
            partial(self._check_not_overtaken, moment),
            Coder(installed_packings(), self._clock_seconds) if self._is_coding else None,
        )
        parts = segment_parts(draft, state, stem, moment.groups, writer.part)
        if moment.mutable:
            parts.append(mutable_part(stem, moment.mutable))
        head = encode_head(state, ring.n_envs, moment.groups, moment.mutable, moment.random_state)
        path = f"{stem}/{HEADER_FILE}"

        def header() -> ContentPart:
            # Of what was restored, nothing may be in doubt any more: no checkpoint is made of it before.
            self._verification.finish()
            content = memoryview(head + encode_table(draft.pieces(writer.coded)))
            return ContentPart(path, len(content), lambda: (content,))

        parts.append(DeferredPart(path, header))

        def committed(directory: Path, files: Mapping[str, FileEntry]) -> None:
            journal.release(moment.snapshot)
            # What was restored meanwhile has files of its own; these are of another past.
            if moment.epoch == self._epoch:
                pieces = draft.pieces(writer.coded)
                shelf = shelve(stem, state, moment.snapshot.sequence, pieces, directory, files)
                shelf.links()  # here, in the writer's thread, where no training waits for it
                self._shelf = shelf

        detail = {"transitions": state.size * ring.n_envs, "capacity": state.capacity * ring.n_envs}
        return PartsCapture(tuple(parts), detail, committed, lambda: journal.release(moment.snapshot))

    def _take(self) -> _Moment:
        ring, journal = self._ring, self._ring.journal
        with journal.lock:
            live = ring.state
            state = live.keeping(self._keep_rows)
            draft = draft_save(self._groups, state, self._shelf, journal.edits)
            columns = self._columns()
            snapshot = journal.take(columns, draft.needed)
            if not ring.announces_writes:
                journal.before_write(columns, live.head_position, self._guard_rows)
            return _Moment(
                epoch=self._epoch,
                groups=self._groups,
                state=state,
                draft=draft,
                snapshot=snapshot,
                guard_rows=self._guard_rows,
                mutable={name: np.array(array) for name, array in ring.mutable.items()},
                random_state=ring.random_state,
            )

    def _check_not_overtaken(self, moment: _Moment, piece: Piece) -> None:
        """Refuse a copy of rows that a ring which announces nothing may have overwritten meanwhile."""
        if self._ring.announces_writes or moment.epoch != self._epoch:
            return
        with self._ring.journal.lock:
            now = self._ring.state
        then, guard_rows = moment.state, moment.guard_rows
        written = now.total_count - then.total_count + self._ring.rows_per_write
        beyond = spans((then.head_position + guard_rows) % then.capacity, written - guard_rows, then.capacity)
        if now.total_count < then.total_count or any(overlap(span, piece.held) for span in beyond):
            self._guard_rows = min(2 * guard_rows, then.capacity)
            raise DeadlineError(
                f"cannot save the replay ring: {written:,} rows were written before its segments were copied",
                kind="replay.overtaken",
                hint="the next save keeps more rows in advance; announce writes (Journal.before_write) to need none",
                holder="the disk",
            )

    # Restoring

    def check_parts(self, source: PartsSource) -> None:
        """
        Bring a checkpoint into memory beside the ring, or refuse it; `restore_parts` then only puts it in.

        Raises:
            IncompatibleError: Kind ``replay.differs``: the checkpoint does not fit.
            CorruptionError: Kind ``replay.damaged`` or ``replay.malformed``: a file is not what was committed. Bytes
                that are verified later are not looked at yet.
            StoreError: A file cannot be read.
        """
        self._prepared = None
        self._prepared = (source, restore_ring(source, self._ring, self._columns(), self._options, self._files))

    def restore_parts(self, source: PartsSource) -> str:
        """
        Bring the ring to the checkpoint: its arrays are replaced, views of the old ones show the old content.

        Does the same however often it is called. Until it returns the ring is unchanged.

        Returns:
            What was done, for the report.

        Raises:
            PerdureError: As `check_parts`, which is done first if it was not.
        """
        if self._prepared is None or self._prepared[0] is not source:
            outcome = restore_ring(source, self._ring, self._columns(), self._options, self._files)
        else:
            outcome = self._prepared[1]
        self._prepared = None
        header = outcome.header
        self._verification.stop()
        journal = self._ring.journal
        with journal.lock:
            self._epoch += 1
            self._verification = Verification(outcome.errands)
            self._restored = outcome.content.columns
            self._was_read = False
            if outcome.is_in_place:
                self._groups = header.groups
            self._ring.adopt(outcome.content)
            journal.start_over(self._groups, outcome.content.state.capacity)
            journal.bring_rows = self._bring_rows if self._options.may_wait else None
            sequence = journal.sequence
        # What lies in its old place is the committed file's, byte for byte: the next save links it.
        self._shelf = (
            shelve(stem_of(source), header.state, sequence, header.pieces, source.directory, source.files)
            if outcome.is_in_place
            else None
        )
        if not self._is_watched:
            self._begin()
        return outcome.note


def _require_rows(verification: Verification, group: Group, piece: Piece) -> None:
    verification.require({(group.prefix, piece.segment)}, only_rows=True)


def _check_choice(name: str, value: str) -> None:
    if value not in _CHOICES[name]:
        raise InvalidInputError(
            f"cannot use {name}={value!r} for a replay buffer: it is one of {', '.join(_CHOICES[name])}",
            kind="replay.invalid-choice",
            field=name,
        )


def component_for(value: Any) -> RingComponent | None:
    """Make a component with the default choices of anything that is a ring; None for anything else."""
    is_ring = isinstance(getattr(value, "journal", None), Journal) and isinstance(value, Ring)
    return RingComponent(value) if is_ring else None
