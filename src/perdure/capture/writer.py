"""
The background writer: captures go in, commits come out, and training waits for neither.

Two arenas alternate: one is being written while the next save is copied into the other. When both are taken a save is
skipped and counted; it never waits for a disk. Every save ends in a handle that says what became of it.

With a memory tier there is one more, which the newest checkpoint in memory consists of; it rests until there is a newer
one.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from perdure.capture.arena import Arena
from perdure.errors import DeadlineError, InternalError, InvalidInputError
from perdure.files.shared import SharedFolder

ARENA_COUNT = 2
DEFAULT_DEADLINE_SECONDS = 600.0
"""No wait is without an end; a save that takes longer than this has a problem worth an error."""

_NICENESS = 2
"""By how much the writer yields to others: training goes first, and a crowded machine still gets its saves done."""

Clock = Callable[[], float]


Holder = Callable[[], str]
"""Says who it is that others wait for, and what that one is doing."""


def _writer() -> str:
    return "the background writer"


class Milestone:
    """A point on the way of a save: not yet reached, reached, or failed."""

    def __init__(self, name: str, holder: Holder, changed: threading.Condition) -> None:
        self._name = name
        self._holder = holder
        self._changed = changed
        self._has_ended = False
        self._error: BaseException | None = None

    def is_set(self) -> bool:
        """Whether the point has been reached."""
        return self._has_ended and self._error is None

    def wait(self, timeout_seconds: float = DEFAULT_DEADLINE_SECONDS) -> None:
        """
        Return once the point has been reached.

        Raises:
            DeadlineError: It was not reached in time; the save goes on.
            PerdureError: The save failed; the error that ended it.
        """
        with self._changed:
            has_ended = self._changed.wait_for(lambda: self._has_ended, timeout_seconds)
        if not has_ended:
            raise _late(f"cannot wait longer for the save to be {self._name}", timeout_seconds, self._holder())
        if self._error is not None:
            raise self._error

    def reach(self) -> None:
        """Mark the point as reached."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Mark the point as one that will never be reached."""
        with self._changed:
            if not self._has_ended:
                self._error = error
                self._has_ended = True
                self._changed.notify_all()


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

    def __init__(self, checkpoint: str, step: int, reason: str, skipped: str = "", holder: Holder = _writer) -> None:
        self.checkpoint = checkpoint
        self.step = step
        self.reason = reason
        self.skipped = skipped
        changed = threading.Condition()  # one for all: it is made while training waits
        self.captured = Milestone("captured", holder, changed)
        self.committed = Milestone("committed", holder, changed)
        self.replicated = Milestone("replicated", holder, changed)
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

    @property
    def has_ended(self) -> bool:
        """Whether the save is committed or has failed."""
        return self.committed.is_set() or self.error is not None

    def fail(self, error: BaseException) -> None:
        """End the save: what has not been reached never will be."""
        self.error = error
        for milestone in self._milestones():
            milestone.fail(error)


def _late(what: str, waited_seconds: float, holder: str) -> DeadlineError:
    return DeadlineError(
        f"{what}: {waited_seconds:g} s have passed, and it waits for {holder}",
        kind="save.deadline",
        hint="look at the disk; the checkpoints committed before are safe",
        waited_seconds=waited_seconds,
        holder=holder,
    )


@dataclass(frozen=True, slots=True)
class WriterStatistics:
    """What a writer has done since it began, and is doing."""

    submitted: int
    failed: int
    in_flight: int
    arena_bytes: int
    """Host memory that captures lie in."""


@dataclass(frozen=True, slots=True)
class _Job:
    """A capture on its way to the disk."""

    handle: SaveHandle
    arena: Arena | None
    run: Callable[[], None]


class Writer:
    """
    One thread that runs jobs in order, each of which owns an arena.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._arenas: list[Arena] = []
        self._free: queue.SimpleQueue[Arena] = queue.SimpleQueue()
        self._resting: Arena | None = None
        self.provide(ARENA_COUNT, None)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._idle = threading.Condition()
        self._in_flight = 0
        self._submitted = 0
        self._failed = 0
        self._current: tuple[SaveHandle, float] | None = None
        self._thread: threading.Thread | None = None

    def provide(self, count: int, limit_bytes: int | None, folder: SharedFolder | None = None) -> None:
        """
        Have so many arenas, empty ones; before the first save.

        Args:
            count: Captures that can be in memory at once, that of the newest checkpoint in memory included.
            limit_bytes: Memory that each may take; None for no limit.
            folder: Where they are files of the memory tier, if there is one.
        """
        self._free = queue.SimpleQueue()
        self._arenas = [Arena(limit_bytes, folder) for _ in range(count)]
        for arena in self._arenas:
            self._free.put(arena)

    def busy_seconds(self) -> float:
        """How long the job has been running that is running now; 0 if none is."""
        current = self._current
        return self._clock() - current[1] if current else 0.0

    def holder(self) -> str:
        """Who it is that others wait for when they wait for the writer."""
        current = self._current
        if current is None:
            return _writer()
        handle, began = current
        seconds = self._clock() - began
        return f"the background writer, {seconds:.0f} s into save {handle.checkpoint[:8]} of step {handle.step:,}"

    def take_arena(self, timeout_seconds: float = 0.0) -> Arena | None:
        """A free arena, or None if there is none within the time. Give it to `submit` or back with `return_arena`."""
        try:
            return self._free.get(timeout=timeout_seconds) if timeout_seconds else self._free.get_nowait()
        except queue.Empty:
            return None

    def return_arena(self, arena: Arena) -> None:
        """Give back an arena that nothing refers to any more."""
        self._free.put(arena)

    def submit(self, handle: SaveHandle, arena: Arena | None, job: Callable[[], None]) -> None:
        """
        Run ``job`` in the background; its error ends the handle, its success reaches ``committed``.

        Args:
            handle: What becomes of it.
            arena: What the job reads from, or None.
            job: Called in the writer's thread.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="perdure-writer", daemon=True)
            self._thread.start()
        with self._idle:
            self._in_flight += 1
            self._submitted += 1
        self._jobs.put(_Job(handle, arena, job))

    def statistics(self) -> WriterStatistics:
        """Counts so far."""
        with self._idle:
            held = sum(arena.size_bytes for arena in self._arenas)
            return WriterStatistics(self._submitted, self._failed, self._in_flight, held)

    def drain(self, timeout_seconds: float = DEFAULT_DEADLINE_SECONDS) -> None:
        """
        Return once every submitted job has ended.

        Raises:
            DeadlineError: Some are still running.
        """
        with self._idle:
            if not self._idle.wait_for(lambda: self._in_flight == 0, timeout_seconds):
                raise _late(f"cannot finish with {self._in_flight} saves in flight", timeout_seconds, self.holder())

    def close(self, timeout_seconds: float = DEFAULT_DEADLINE_SECONDS) -> None:
        """Finish what was submitted and end the thread."""
        self.drain(timeout_seconds)
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(timeout_seconds)
            self._thread = None

    def _work(self) -> None:
        _step_back()
        while (job := self._jobs.get()) is not None:
            began = self._clock()
            self._current = (job.handle, began)
            try:
                job.run()
            except BaseException as error:  # noqa: BLE001 - the top of a thread: the handle carries it to the trainer
                job.handle.write_seconds = self._clock() - began
                job.handle.fail(error)
            else:
                job.handle.write_seconds = self._clock() - began
                job.handle.committed.reach()
                job.handle.replicated.reach()
            finally:
                self._current = None
                if job.arena is not None:
                    self._take_back(job.arena)
                with self._idle:
                    self._failed += job.handle.error is not None
                    self._in_flight -= 1
                    if self._in_flight < 0:
                        raise InternalError("more saves ended than began", kind="writer.count")
                    self._idle.notify_all()

    def _take_back(self, arena: Arena) -> None:
        """Free an arena, or the one before it if the newest checkpoint in memory consists of this one now."""
        free: Arena | None = arena
        if arena.is_relied_on:
            free, self._resting = self._resting, arena
        if free is not None:
            self._free.put(free)


def _step_back() -> None:
    """Let this thread, and those that it starts, run when training leaves them time."""
    thread = threading.get_native_id()
    with suppress(OSError):  # not every sandbox lets a thread be nice
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _NICENESS)
