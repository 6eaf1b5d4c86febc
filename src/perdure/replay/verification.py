"""
What a restore has left to do: digests of mapped files to compare, and coded files to decode into their places.

It is done in the background, at first touch, or before anything is used. Damage of a mapped file is found by reading
the file again, not the mapping: pages of the mapping that the ring has overwritten since are the process's own. Both
reads meet in the page cache, so what is verified is what is sampled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
from blake3 import blake3

from perdure.core.component import PartsSource
from perdure.core.manifest import FileEntry
from perdure.core.ring import Piece, RingState, rows_of
from perdure.errors import CorruptionError, DeadlineError, InternalError, PerdureError
from perdure.files.door import Files, explained
from perdure.files.reading import allocate

STRIDE_BYTES = 256 * 1024
"""Small enough that a digest finds what was just read in the processor's own cache."""
READERS = 8
"""While some wait for the disk, others digest."""
SILENCE_SECONDS = 120.0
"""One segment takes milliseconds, seconds on a slow network; after this long without one the disk is stuck."""

Key = tuple[str, int]
"""Prefix of a group, and segment."""
_Name = tuple[Key, str, bool]
"""Of an errand: the segment, its file, and whether it brings rows."""


class Doubt(msgspec.Struct, frozen=True):
    """A file in use whose bytes have not been compared with its digest yet."""

    key: Key
    piece: Piece
    entry: FileEntry
    state: RingState
    """Of the ring that was saved."""
    n_envs: int

    @property
    def rows(self) -> str:
        """The transitions that are taken from it, in words, counted from the first one ever added."""
        rows = rows_of(self.piece.used, self.state)
        if rows is None:
            return "no transitions"
        first, last, total = (count * self.n_envs for count in (*rows, self.state.total_count))
        return f"transitions {first:,} to {last - 1:,} of {total:,}"


Done = Callable[[Doubt], None]
"""Told of every file that has been dealt with, in the thread that restores."""


def damaged_segment(
    path: str, rows: str, why: str, expected: str | int = "", actual: str | int = ""
) -> CorruptionError:
    """The error for a segment that is gone or not what was committed."""
    return CorruptionError(
        f"cannot use replay segment {path}, which holds {rows}: {why}",
        kind="replay.damaged",
        hint="restore an older checkpoint, or go on without these transitions: `perdure repair --without-lost` once "
        "the run has stopped, or damaged='drop'",
        path=path,
        expected=expected,
        actual=actual,
    )


def find_damage(source: PartsSource, files: Files, doubt: Doubt, scratch: memoryview) -> CorruptionError | None:
    """
    Compare one file with its digest.

    Args:
        source: The checkpoint.
        files: The file system.
        doubt: Which file.
        scratch: Overwritten.
    """
    path = doubt.entry.path
    try:
        descriptor = source.open(path)
    except CorruptionError as error:
        return damaged_segment(path, doubt.rows, error.message, error.expected or "", error.actual or "")
    digest = blake3()
    try:
        position = 0
        with explained("read", path):
            while position < doubt.entry.bytes:
                count = files.read_into(descriptor, scratch, position)
                if count == 0:
                    return damaged_segment(path, doubt.rows, "it became shorter", doubt.entry.bytes, position)
                digest.update(scratch[:count])
                position += count
    finally:
        files.close(descriptor)
    actual = f"blake3:{digest.hexdigest()}"
    if actual == doubt.entry.digest:
        return None
    return damaged_segment(path, doubt.rows, "its bytes are not those that were committed", doubt.entry.digest, actual)


def find_all_damage(
    source: PartsSource, files: Files, doubts: Sequence[Doubt], done: Done
) -> dict[Doubt, CorruptionError]:
    """Compare many files with their digests, several at a time; returns those that differ."""
    scratch = threading.local()

    def look(doubt: Doubt) -> CorruptionError | None:
        if not hasattr(scratch, "memory"):
            scratch.memory = allocate(STRIDE_BYTES)
        return find_damage(source, files, doubt, scratch.memory)

    damage = {}
    with ThreadPoolExecutor(READERS, "perdure-verify") as pool:
        for doubt, error in zip(doubts, pool.map(look, doubts), strict=True):
            if error is None:
                done(doubt)
            else:
                damage[doubt] = error
    return damage


class Errand(msgspec.Struct, frozen=True):
    """What is left to do about one file."""

    doubt: Doubt
    run: Callable[[memoryview], CorruptionError | None]
    """Does it, with memory of `STRIDE_BYTES` to overwrite; returns the damage that it has found."""
    brings_rows: bool
    """Whether the ring's rows are not in memory before it was done."""


class Verification:
    """
    Runs errands beside training.

    The first damage ends it: every `check` raises it from then on. Nothing is committed before `finish` has returned,
    so what was trained on a sample of a segment that turns out to be damaged never reaches a checkpoint.

    Args:
        errands: In the order in which they are wanted.
    """

    def __init__(self, errands: Sequence[Errand]) -> None:
        # Of one file there may be two: its rows are brought, and then its digest is compared.
        self._open = {(errand.doubt.key, errand.doubt.piece.file, errand.brings_rows): errand for errand in errands}
        self._running: set[_Name] = set()
        self._absent = sum(errand.brings_rows for errand in errands)
        self._changed = threading.Condition()
        self._error: PerdureError | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="perdure-verify", daemon=True)

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to do."""
        return not self._open

    @property
    def has_all_rows(self) -> bool:
        """Whether every row of the ring is in memory or mapped."""
        return self._absent == 0

    def start(self) -> None:
        """Begin in a thread of its own, if that has not been done."""
        with self._changed:
            if self._thread.ident is None:
                self._thread.start()

    def stop(self) -> None:
        """
        Do nothing more beside training, as when something else is restored; `check` raises nothing from then on.

        What a pending capture still `require`s is done all the same.
        """
        with self._changed:
            self._stopped = True
            self._error = None
            self._changed.notify_all()

    def check(self) -> None:
        """
        Raise what has been found so far; costs nothing otherwise.

        Raises:
            CorruptionError: Kind ``replay.damaged``.
        """
        if self._error is not None:
            raise self._error

    def require(self, keys: Collection[Key] | None, *, only_rows: bool) -> None:
        """
        Do now what has not been done yet about some segments.

        Args:
            keys: Which; None for all of them.
            only_rows: Whether only rows that are not in memory are wanted, and digests may be compared later.

        Raises:
            CorruptionError: Kind ``replay.damaged``.
            DeadlineError: Kind ``replay.verification-stuck``: another thread does not come to an end with one.
        """
        self.check()
        scratch = None
        for name, errand in list(self._open.items()):
            if (keys is None or name[0] in keys) and (errand.brings_rows or not only_rows):
                scratch = scratch or allocate(STRIDE_BYTES)
                if error := self._settle(name, errand, scratch):
                    raise error
        self.check()

    def finish(self, silence_seconds: float = SILENCE_SECONDS) -> None:
        """
        Wait until everything has been done.

        Raises:
            CorruptionError: Kind ``replay.damaged``.
            DeadlineError: Kind ``replay.verification-stuck``: no file was finished for ``silence_seconds``.
        """
        self.start()
        with self._changed:
            left = len(self._open)
            while self._open and self._error is None and not self._stopped:
                self._changed.wait(silence_seconds)
                if len(self._open) == left and self._error is None and not self._stopped:
                    raise _stuck(left, silence_seconds)
                left = len(self._open)
        self.check()

    def _run(self) -> None:
        scratch = allocate(STRIDE_BYTES)
        for name, errand in list(self._open.items()):
            if self._stopped or self._error is not None:
                return
            self._settle(name, errand, scratch)

    def _settle(self, name: _Name, errand: Errand, scratch: memoryview) -> PerdureError | None:
        """Run an errand once, whoever wants it; returns what went wrong."""
        with self._changed:
            # Twice would be wrong: rows that were brought may have been overwritten by the ring meanwhile.
            while name in self._running:
                if not self._changed.wait(SILENCE_SECONDS):
                    return _stuck(len(self._open), SILENCE_SECONDS)
            if name not in self._open:
                return self._error
            self._running.add(name)
        try:
            error: PerdureError | None = errand.run(scratch)
        except PerdureError as failure:
            error = failure
        except Exception as failure:  # noqa: BLE001 - top of a thread; whoever checks or waits gets it
            path = errand.doubt.entry.path
            error = InternalError(f"cannot verify {path}: {failure}", kind="replay.verification-failed")
        with self._changed:
            self._running.discard(name)
            if error is None:
                del self._open[name]
                self._absent -= errand.brings_rows
            elif not self._stopped:
                self._error = self._error or error
            self._changed.notify_all()
        return error


def _stuck(left: int, waited_seconds: float) -> DeadlineError:
    return DeadlineError(
        f"cannot go on: {left} replay segments of the last restore are still unverified and none was "
        f"finished for {waited_seconds:g} s",
        kind="replay.verification-stuck",
        hint="check the disk that the run directory is on",
        waited_seconds=waited_seconds,
        holder="perdure-verify",
    )
