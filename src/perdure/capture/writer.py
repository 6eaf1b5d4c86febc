"""
The background writer: captures go in, commits come out, and training waits for neither.

Two arenas alternate: one is being written while the next save is copied into the other. When both are taken a save is
skipped and counted; it never waits for a disk. Every save ends in a handle that says what became of it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from perdure.capture.arena import Arena
from perdure.errors import DeadlineError, InternalError, InvalidInputError

ARENA_COUNT = 2
DEFAULT_DEADLINE_SECONDS = 600.0
"""No wait is without an end; a save that takes longer than this has a problem worth an error."""

Clock = Callable[[], float]


class Milestone:
    """A point on the way of a save: not yet reached, reached, or failed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._ended = threading.Event()
        self._error: BaseException | None = None

    def is_set(self) -> bool:
        """Whether the point has been reached."""
        return self._ended.is_set() and self._error is None

    def wait(self, timeout_seconds: float = DEFAULT_DEADLINE_SECONDS) -> None:
        """
        Return once the point has been reached.

        Raises:
            DeadlineError: It was not reached in time; the save goes on.
            PerdureError: The save failed; the error that ended it.
        """
        if not self._ended.wait(timeout_seconds):
            raise DeadlineError(
                f"cannot wait longer for the save to be {self._name}: {timeout_seconds:g} s have passed",
                kind="save.deadline",
                hint="look at the disk; `perdure status` shows what is being written",
                waited_seconds=timeout_seconds,
                holder="the background writer",
            )
        if self._error is not None:
            raise self._error

    def reach(self) -> None:
        """Mark the point as reached."""
        self._ended.set()

    def fail(self, error: BaseException) -> None:
        """Mark the point as one that will never be reached."""
        if not self._ended.is_set():
            self._error = error
            self._ended.set()


class SaveHandle:
    """
    What became of one save.

    Attributes:
        step: Environment step of the cut.
        reason: Why it was saved.
        skipped: Why nothing was saved, or '' if something was.
        captured: Reached when the live objects may change again.
        committed: Reached when the checkpoint survives a power cut on the first tier.
        replicated: Reached when it is safe on the next tier; with a single tier, together with ``committed``.
        checkpoint: Full id of the checkpoint that was or will be committed.
    """

    def __init__(self, checkpoint: str, step: int, reason: str, skipped: str = "") -> None:
        self.checkpoint = checkpoint
        self.step = step
        self.reason = reason
        self.skipped = skipped
        self.captured = Milestone("captured")
        self.committed = Milestone("committed")
        self.replicated = Milestone("replicated")
        self.error: BaseException | None = None
        self.blocked_seconds = 0.0
        self.write_seconds = 0.0
        if skipped:
            refusal = InvalidInputError(f"nothing was saved: {skipped}", kind="save.skipped", hint="save again later")
            for milestone in self._milestones():
                milestone.fail(refusal)

    def _milestones(self) -> tuple[Milestone, Milestone, Milestone]:
        return self.captured, self.committed, self.replicated

    def wait(self, milestone: str = "committed", timeout_seconds: float = DEFAULT_DEADLINE_SECONDS) -> SaveHandle:
        """
        Return once a milestone is reached: ``captured``, ``committed`` or ``replicated``.

        Raises:
            DeadlineError: It was not reached in time.
            PerdureError: The save failed.
        """
        getattr(self, milestone).wait(timeout_seconds)
        return self

    def fail(self, error: BaseException) -> None:
        """End the save: what has not been reached never will be."""
        self.error = error
        for milestone in self._milestones():
            milestone.fail(error)


@dataclass(frozen=True, slots=True)
class WriterStatistics:
    """Counts of a writer since it began."""

    submitted: int
    failed: int
    in_flight: int


class Writer:
    """
    One thread that runs jobs in order, each of which owns an arena.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._free: queue.SimpleQueue[Arena] = queue.SimpleQueue()
        for _ in range(ARENA_COUNT):
            self._free.put(Arena())
        self._jobs: queue.SimpleQueue[tuple[SaveHandle, Arena, Callable[[], None]] | None] = queue.SimpleQueue()
        self._idle = threading.Condition()
        self._in_flight = 0
        self._submitted = 0
        self._failed = 0
        self._thread: threading.Thread | None = None

    def take_arena(self, timeout_seconds: float = 0.0) -> Arena | None:
        """A free arena, or None if there is none within the time. Give it to `submit` or back with `return_arena`."""
        try:
            return self._free.get(timeout=timeout_seconds) if timeout_seconds else self._free.get_nowait()
        except queue.Empty:
            return None

    def return_arena(self, arena: Arena) -> None:
        """Give back an arena that nothing refers to any more."""
        self._free.put(arena)

    def submit(self, handle: SaveHandle, arena: Arena, job: Callable[[], None]) -> None:
        """Run ``job`` in the background; its error ends the handle, its success reaches ``committed``."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="perdure-writer", daemon=True)
            self._thread.start()
        with self._idle:
            self._in_flight += 1
            self._submitted += 1
        self._jobs.put((handle, arena, job))

    def statistics(self) -> WriterStatistics:
        """Counts so far."""
        with self._idle:
            return WriterStatistics(self._submitted, self._failed, self._in_flight)

    def drain(self, timeout_seconds: float = DEFAULT_DEADLINE_SECONDS) -> None:
        """
        Return once every submitted job has ended.

        Raises:
            DeadlineError: Some are still running.
        """
        with self._idle:
            if not self._idle.wait_for(lambda: self._in_flight == 0, timeout_seconds):
                raise DeadlineError(
                    f"cannot finish: {self._in_flight} saves are still being written after {timeout_seconds:g} s",
                    kind="save.deadline",
                    hint="look at the disk; the checkpoints committed before are safe",
                    waited_seconds=timeout_seconds,
                    holder="the background writer",
                )

    def close(self, timeout_seconds: float = DEFAULT_DEADLINE_SECONDS) -> None:
        """Finish what was submitted and end the thread."""
        self.drain(timeout_seconds)
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(timeout_seconds)
            self._thread = None

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            handle, arena, job = item
            began = self._clock()
            try:
                job()
            except BaseException as error:  # noqa: BLE001 - the top of a thread: the handle carries it to the trainer
                handle.write_seconds = self._clock() - began
                handle.fail(error)
            else:
                handle.write_seconds = self._clock() - began
                handle.committed.reach()
                handle.replicated.reach()
            finally:
                self._free.put(arena)
                with self._idle:
                    self._failed += handle.error is not None
                    self._in_flight -= 1
                    if self._in_flight < 0:
                        raise InternalError("more saves ended than began", kind="writer.count")
                    self._idle.notify_all()
