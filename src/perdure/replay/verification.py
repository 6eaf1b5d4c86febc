"""
Digests of files that are in use already: compared in the background, at first touch, or before anything is used.

Damage is found by reading the file again, not the mapping: pages of the mapping that the ring has overwritten since are
the process's own. Both reads meet in the page cache, so what is verified is what is sampled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from blake3 import blake3

from perdure.core.component import PartsSource
from perdure.core.manifest import FileEntry
from perdure.core.ring import Piece, RingState, rows_of
from perdure.errors import CorruptionError, DeadlineError, InternalError, PerdureError
from perdure.files.door import Files, explained
from perdure.files.reading import allocate

STRIDE_BYTES = 1024 * 1024
"""Small enough that a digest finds what was just read in the processor's cache."""
READERS = 4
SILENCE_SECONDS = 120.0
"""One segment takes milliseconds, seconds on a slow network; after this long without one the disk is stuck."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """A file in use whose bytes have not been compared with its digest yet."""

    key: tuple[str, int]
    """Prefix of the group, and segment."""
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
        hint="restore an older checkpoint, or go on without these transitions with damaged='drop'",
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


class Verification:
    """
    Compares mapped files with their digests beside training.

    The first damage ends it: every `check` raises it from then on. Nothing is committed before `finish` has returned,
    so what was trained on a sample of a segment that turns out to be damaged never reaches a checkpoint.

    Args:
        source: The checkpoint that was restored.
        files: The file system.
        doubts: Files to compare.
    """

    def __init__(self, source: PartsSource, files: Files, doubts: Sequence[Doubt]) -> None:
        self._source = source
        self._files = files
        self._open = {(doubt.key, doubt.piece.file): doubt for doubt in doubts}
        self._changed = threading.Condition()
        self._error: PerdureError | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="perdure-verify", daemon=True)

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to compare."""
        return not self._open

    def start(self) -> None:
        """Begin in a thread of its own, if that has not been done."""
        with self._changed:
            if self._thread.ident is None:
                self._thread.start()

    def stop(self) -> None:
        """Give up what is left, as when something else is restored; `check` raises nothing from then on."""
        with self._changed:
            self._stopped = True
            self._open.clear()
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

    def require(self, keys: Collection[tuple[str, int]]) -> None:
        """
        Compare the files of some segments now, if that has not been done.

        Raises:
            CorruptionError: Kind ``replay.damaged``.
        """
        self.check()
        for doubt in [doubt for doubt in list(self._open.values()) if doubt.key in keys]:
            self._look(doubt, allocate(STRIDE_BYTES))
        self.check()

    def finish(self, silence_seconds: float = SILENCE_SECONDS) -> None:
        """
        Wait until everything has been compared.

        Raises:
            CorruptionError: Kind ``replay.damaged``.
            DeadlineError: Kind ``replay.verification-stuck``: no file was finished for ``silence_seconds``.
        """
        self.start()
        with self._changed:
            left = len(self._open)
            while self._open and self._error is None:
                self._changed.wait(silence_seconds)
                if len(self._open) == left:
                    raise DeadlineError(
                        f"cannot commit: {left} replay segments of the last restore are still unverified and none was "
                        f"finished for {silence_seconds:g} s",
                        kind="replay.verification-stuck",
                        hint="check the disk that the run directory is on",
                        waited_seconds=silence_seconds,
                        holder="perdure-verify",
                    )
                left = len(self._open)
        self.check()

    def _run(self) -> None:
        scratch = allocate(STRIDE_BYTES)
        for doubt in list(self._open.values()):
            if self._stopped or self._error is not None:
                return
            self._look(doubt, scratch)

    def _look(self, doubt: Doubt, scratch: memoryview) -> None:
        try:
            error: PerdureError | None = find_damage(self._source, self._files, doubt, scratch)
        except PerdureError as failure:
            error = failure
        except Exception as failure:  # noqa: BLE001 - top of a thread; whoever checks or waits gets it
            error = InternalError(f"cannot verify {doubt.entry.path}: {failure}", kind="replay.verification-failed")
        with self._changed:
            if not self._stopped:
                self._open.pop((doubt.key, doubt.piece.file), None)
                self._error = self._error or error
            self._changed.notify_all()
