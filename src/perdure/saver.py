"""
The saver: decides at each boundary whether to save, captures, and has the rest done in the background.

All of its methods are called in the training thread, and none of them touches a disk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from perdure.capture.gate import TORN, Gate
from perdure.capture.preflight import expected_bytes
from perdure.capture.snapshot import take_capture
from perdure.capture.writer import SaveHandle, Writer
from perdure.committing import Committer, Taken
from perdure.core.component import Component
from perdure.core.manifest import Cut, short_id
from perdure.core.memory import MemoryPlan, plan_memory
from perdure.core.saving import Save
from perdure.errors import PerdureError
from perdure.pacing import Pace
from perdure.store.store import Checkpoint
from perdure.surroundings import Surroundings


@dataclass(frozen=True, slots=True)
class SaverStatistics:
    """Counts and costs since the run was opened."""

    saved: int
    failed: int
    skipped: int
    in_flight: int
    blocked_seconds: float
    """Time that training waited for saves, in total."""
    stretch: float
    """Factor by which the budget has lengthened the intervals."""
    arena_bytes: int
    """Host memory that captures lie in."""
    busy_seconds: float
    """How long the save has been in the making that is being written now; 0 if none is."""
    memory_saves: int
    """Saves to the memory tier alone; the others count saves to the disk."""


class Saver:
    """
    Saves one run.

    Args:
        components: What is captured, by name; looked at anew at every save.
        meta: Fixes the content of ``meta.json`` as of now; what it gives makes the bytes, in the background.
        committer: Makes captures checkpoints.
        pace: When to save.
        memory_pace: When to save to the memory tier alone; None for never.
        memory_bytes: Host memory that captures may take; None for no limit.
        gate: Optimizers that have agreed to wait for copies made beside training.
        surroundings: Time, ids and memory.
    """

    def __init__(
        self,
        components: Mapping[str, Component],
        meta: Callable[[], Callable[[], bytes]],
        committer: Committer,
        *,
        pace: Pace,
        memory_pace: Pace | None,
        memory_bytes: int | None,
        gate: Gate,
        surroundings: Surroundings,
    ) -> None:
        self._components = components
        self._meta = meta
        self._committer = committer
        self._pace = pace
        self._memory_pace = memory_pace
        self._memory_bytes = memory_bytes
        self._gate = gate
        self._surroundings = surroundings
        self._writer = Writer(surroundings.monotonic)
        self._handles: list[SaveHandle] = []
        self._memory_handles: list[SaveHandle] = []
        self._counts = {"saved": 0, "failed": 0, "skipped": 0, "memory": 0}
        self._blocked_seconds = 0.0
        self._sequence = 0
        self._redo: str | None = None

    def plan_memory(self) -> MemoryPlan:
        """
        Find out what saving will take of the host's memory.

        Raises:
            InvalidInputError: Kind ``memory.too-small``: there is no room for a single capture.
        """
        available = self._surroundings.available_memory_bytes()
        state_bytes = expected_bytes(self._components.values())
        has_memory_tier = self._memory_pace is not None
        return plan_memory(state_bytes, available, self._memory_bytes, has_memory_tier=has_memory_tier)

    def begin(self, step: int, restored: Checkpoint | None) -> MemoryPlan:
        """
        Start counting from a restore, or from nothing, and lay out memory for as many captures as there is room for.

        Raises:
            InvalidInputError: Kind ``memory.too-small``.
        """
        plan = self.plan_memory()
        folder = self._committer.arena_folder() if self._memory_pace is not None else None
        self._writer.provide(plan.captures, plan.arena_limit_bytes, folder)
        self._restart(step, self._surroundings.monotonic())
        self._committer.begin(restored)
        return plan

    def _restart(self, step: int, seconds: float) -> None:
        self._pace.restart(step, seconds)
        if self._memory_pace is not None:
            self._memory_pace.restart(step, seconds)

    # Deciding

    def decide(
        self,
        step: int,
        metrics: Mapping[str, float],
        *,
        moved: bool,
        stop: bool = False,
        final: bool = False,
        remaining_seconds: float = math.inf,
    ) -> Save | None:
        """Whether to save at this boundary; ``remaining_seconds`` are left if the run was asked to stop."""
        due = self._pace.decide(
            step,
            self._surroundings.monotonic(),
            metrics,
            self._committer.saved_metrics,
            moved=moved,
            stop=stop,
            final=final,
            remaining_seconds=remaining_seconds,
        )
        return due or (Save(self._redo) if self._redo is not None else None)

    def decide_memory(self, step: int, metrics: Mapping[str, float]) -> Save | None:
        """Whether to save to the memory tier at this boundary."""
        if self._memory_pace is None:
            return None
        return self._memory_pace.decide(step, self._surroundings.monotonic(), metrics, {}, moved=True)

    # Saving

    def save(
        self, cut: Cut, reason: str, metrics: Mapping[str, float], *, wait_for_arena_seconds: float = 0.0
    ) -> SaveHandle:
        """
        Capture everything as of now and have it committed in the background.

        Returns once the live objects may change again, but for those that an optimizer of the gate will wait for. If
        all arenas are still being written nothing is saved; the handle says so.

        Raises:
            InvalidInputError: Something tracked cannot be stored.
        """
        taken = self._take(cut, reason, metrics, self._pace, self._committer.commit, wait_for_arena_seconds)
        if taken is None:
            return self._skip(cut, reason)
        self._handles.append(taken.handle)
        self._redo = None
        return taken.handle

    def save_to_memory(self, cut: Cut, reason: str, metrics: Mapping[str, float]) -> None:
        """
        Capture everything as of now and have it committed to the memory tier; nothing happens if no arena is free.

        Raises:
            InvalidInputError: Something tracked cannot be stored.
        """
        assert self._memory_pace is not None
        taken = self._take(cut, reason, metrics, self._memory_pace, self._committer.commit_to_memory)
        if taken is not None:
            self._memory_handles.append(taken.handle)

    def _take(
        self,
        cut: Cut,
        reason: str,
        metrics: Mapping[str, float],
        pace: Pace,
        commit: Callable[[Taken, Pace], None],
        wait_for_arena_seconds: float = 0.0,
    ) -> Taken | None:
        began = self._surroundings.monotonic()
        arena = self._writer.take_arena(wait_for_arena_seconds)
        if arena is None:
            return None
        checkpoint = self._surroundings.new_id()
        try:
            capture = take_capture(self._components, arena, self._gate)
            meta = self._meta()
        except BaseException:
            self._writer.return_arena(arena)
            raise
        handle = SaveHandle(checkpoint, cut.global_step, reason, holder=self._writer.holder)
        if not capture.beside.is_open:
            handle.captured.reach()
        self._sequence += 1
        taken = Taken(handle, cut, self._sequence, dict(metrics), capture, meta, pace.since(began))
        self._committer.expect(taken)
        pace.restart(cut.global_step, began)
        capture.beside.start()
        handle.blocked_seconds = self._surroundings.monotonic() - began
        self._blocked_seconds += handle.blocked_seconds
        self._writer.submit(handle, arena, lambda: commit(taken, pace))
        return taken

    def _skip(self, cut: Cut, reason: str) -> SaveHandle:
        self._counts["skipped"] += 1
        why = f"every buffer is taken and waits for {self._writer.holder()}"
        self._committer.note_event("save-skipped", step=cut.global_step, reason=why)
        return SaveHandle("", cut.global_step, reason, skipped=why, holder=self._writer.holder)

    def finish_write(self, checkpoint: Checkpoint) -> None:
        """Have a checkpoint written to the disk that only the memory tier has."""
        manifest = checkpoint.manifest
        handle = SaveHandle(manifest.id, manifest.global_step, manifest.reason, holder=self._writer.holder)
        handle.captured.reach()
        self._writer.submit(handle, None, lambda: self._committer.finish_write(handle, checkpoint))
        self._handles.append(handle)

    # What became of it

    def collect_finished(self) -> tuple[list[SaveHandle], float]:
        """
        Take the saves that have ended since the last call, and the budget's stretch.

        One that was torn while it was copied beside training is made again at this boundary, and from now on nothing
        is copied beside training any more.

        Returns:
            Handles that ended, in order, and the stretch factor now.
        """
        ended = [handle for handle in self._handles if handle.has_ended]
        self._handles = [handle for handle in self._handles if handle not in ended]
        for handle in ended:
            self._counts["failed" if handle.error is not None else "saved"] += 1
            if is_torn(handle):
                self._gate.distrust()
                self._redo = handle.reason
        return [*ended, *self._failed_in_memory()], self._pace.stretch

    def _failed_in_memory(self) -> list[SaveHandle]:
        """The first save to the memory tier that failed; unless it was torn, the tier is left alone from then on."""
        ended = [handle for handle in self._memory_handles if handle.has_ended]
        self._memory_handles = [handle for handle in self._memory_handles if handle not in ended]
        failed = [handle for handle in ended if handle.error is not None]
        self._counts["memory"] += len(ended) - len(failed)
        if any(is_torn(handle) for handle in failed):
            self._gate.distrust()
        elif failed:
            self._memory_pace = None
        return failed[:1]

    @property
    def busy_seconds(self) -> float:
        """How long the save has been in the making that is being written now; 0 if none is."""
        return self._writer.busy_seconds()

    @property
    def expected_seconds(self) -> float:
        """How long a save takes, by those so far; 0 before the first."""
        return self._pace.cost.seconds

    @property
    def holder(self) -> str:
        """Who saves wait for, and what that one is doing."""
        return self._writer.holder()

    def drain(self, timeout_seconds: float) -> None:
        """
        Wait until nothing is being written.

        Raises:
            DeadlineError: The disk is too slow, or stuck.
        """
        self._writer.drain(timeout_seconds)

    def close(self, timeout_seconds: float) -> None:
        """Finish what is being written and end the writer's thread."""
        self._writer.close(timeout_seconds)
        self._gate.close()
        self._committer.tell()
        self._committer.leave_memory()

    def statistics(self) -> SaverStatistics:
        """Counts and costs so far."""
        writer = self._writer.statistics()
        return SaverStatistics(
            saved=self._counts["saved"],
            failed=self._counts["failed"],
            skipped=self._counts["skipped"],
            in_flight=writer.in_flight,
            blocked_seconds=self._blocked_seconds,
            stretch=self._pace.stretch,
            arena_bytes=writer.arena_bytes,
            busy_seconds=self.busy_seconds,
            memory_saves=self._counts["memory"],
        )


def is_torn(handle: SaveHandle) -> bool:
    """Whether a save was given up because something wrote to what was being copied beside training."""
    return isinstance(handle.error, PerdureError) and handle.error.kind == TORN


def describe_failure(handle: SaveHandle) -> str:
    """A failed save in one line for people."""
    return f"save {short_id(handle.checkpoint)} at step {handle.step:,} failed: {handle.error}"
