"""
The saver: decides at each boundary whether to save, captures, and has the rest done in the background.

All of its methods are called in the training thread, and none of them touches a disk. What runs behind is `_commit`,
which touches nothing that training touches.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from perdure.capture.gate import TORN, Gate
from perdure.capture.preflight import expected_bytes
from perdure.capture.snapshot import Capture, content_part, take_capture
from perdure.capture.writer import SaveHandle, Writer
from perdure.core.component import Component, LinkPart
from perdure.core.manifest import Cut, Manifest, Origin, lowest_grade, short_id
from perdure.core.memory import MemoryPlan, plan_memory
from perdure.core.retention import KeepPolicy, plan_retention
from perdure.core.saving import Save, widen
from perdure.errors import PerdureError, StoreError
from perdure.pacing import Pace
from perdure.store.layout import META_FILE
from perdure.store.store import Checkpoint, Store
from perdure.surroundings import Surroundings
from perdure.writership import Writership


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


class Saver:
    """
    Saves one run.

    Args:
        store: The run directory.
        run: The run's name.
        components: What is captured, by name; looked at anew at every save.
        meta: Fixes the content of ``meta.json`` as of now; what it gives makes the bytes, in the background.
        pace: When to save.
        keep: What to keep; None keeps all.
        memory_bytes: Host memory that captures may take; None for no limit.
        algorithm: Named in manifests.
        gate: Optimizers that have agreed to wait for copies made beside training.
        writership: Says which generation this is, and guards the moment in which a checkpoint becomes visible.
        surroundings: Time, ids and memory.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        components: Mapping[str, Component],
        meta: Callable[[], Callable[[], bytes]],
        *,
        pace: Pace,
        keep: KeepPolicy | None,
        memory_bytes: int | None,
        algorithm: str | None,
        gate: Gate,
        writership: Writership,
        surroundings: Surroundings,
    ) -> None:
        self._store = store
        self._run = run
        self._components = components
        self._meta = meta
        self._pace = pace
        self._keep = keep
        self._memory_bytes = memory_bytes
        self._algorithm = algorithm
        self._gate = gate
        self._writership = writership
        self._surroundings = surroundings
        self._writer = Writer(surroundings.monotonic)
        self._handles: list[SaveHandle] = []
        self._links: dict[str, set[str]] = {}
        self._counts = {"saved": 0, "failed": 0, "skipped": 0}
        self._blocked_seconds = 0.0
        self._untold: deque[dict[str, Any]] = deque()
        self._redo: str | None = None
        self._sequence = 0
        self._parent: str | None = None
        self._origin: Origin | None = None
        self._saved_metrics: dict[str, tuple[float, float]] = {}

    def plan_memory(self) -> MemoryPlan:
        """
        Find out what saving will take of the host's memory.

        Raises:
            InvalidInputError: Kind ``memory.too-small``: there is no room for a single capture.
        """
        available = self._surroundings.available_memory_bytes()
        return plan_memory(expected_bytes(self._components.values()), available, self._memory_bytes)

    def begin(self, step: int, restored: Checkpoint | None) -> MemoryPlan:
        """
        Start counting from a restore, or from nothing, and lay out memory for as many captures as there is room for.

        Raises:
            InvalidInputError: Kind ``memory.too-small``.
        """
        plan = self.plan_memory()
        self._writer.provide(plan.arenas, plan.arena_limit_bytes)
        self._pace.restart(step, self._surroundings.monotonic())
        for checkpoint in self._store.checkpoints():
            self._saved_metrics = widen(self._saved_metrics, checkpoint.manifest.metrics)
        if restored is not None:
            self._parent = restored.manifest.id
            self._origin = restored.manifest.origin
        return plan

    def decide(self, step: int, metrics: Mapping[str, float], *, moved: bool, stop: bool, final: bool) -> Save | None:
        """Whether to save at this boundary."""
        seconds = self._surroundings.monotonic()
        due = self._pace.decide(step, seconds, metrics, self._saved_metrics, moved=moved, stop=stop, final=final)
        return due or (Save(self._redo) if self._redo is not None else None)

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
        began = self._surroundings.monotonic()
        arena = self._writer.take_arena(wait_for_arena_seconds)
        if arena is None:
            return self._skip(cut, reason)
        try:
            capture = take_capture(self._components, arena, self._gate)
            meta = self._meta()
        except BaseException:
            self._writer.return_arena(arena)
            raise
        handle = SaveHandle(self._surroundings.new_id(), cut.global_step, reason, holder=self._writer.holder)
        values = dict(metrics)
        if not capture.beside.is_open:
            handle.captured.reach()
        interval = self._pace.since(began)
        handle.blocked_seconds = self._surroundings.monotonic() - began
        self._blocked_seconds += handle.blocked_seconds
        self._links[handle.checkpoint] = {
            part.source.relative_to(self._store.snapshots).parts[0]
            for part in capture.parts
            if isinstance(part, LinkPart)
        }
        self._sequence += 1
        draft = functools.partial(self._draft, handle.checkpoint, self._sequence, cut, reason, values)
        self._writer.submit(handle, arena, lambda: self._commit(handle, draft, capture, meta, interval))
        self._handles.append(handle)
        self._redo = None
        self._pace.restart(cut.global_step, began)
        return handle

    def _skip(self, cut: Cut, reason: str) -> SaveHandle:
        self._counts["skipped"] += 1
        holder = self._writer.holder()
        # Told by the writer when it gets on: a disk that holds it up would hold up whoever writes to a log as well.
        self._untold.append(
            self._event("save-skipped", step=cut.global_step, reason=f"every buffer waits for {holder}")
        )
        skipped = f"every buffer is taken and waits for {holder}"
        return SaveHandle("", cut.global_step, reason, skipped=skipped, holder=self._writer.holder)

    def _draft(
        self, checkpoint: str, sequence: int, cut: Cut, reason: str, metrics: dict[str, float], capture: Capture
    ) -> Manifest:
        return Manifest(
            run=self._run,
            id=checkpoint,
            global_step=cut.global_step,
            generation=self._writership.generation,
            sequence=sequence,
            parent=self._parent,
            cut=cut,
            reason=reason,
            created_at=self._surroundings.now(),
            algorithm=self._algorithm,
            versions=self._surroundings.versions(),
            host=self._surroundings.host(),
            grade=lowest_grade([entry.grade for entry in capture.entries]),
            metrics=metrics,
            origin=self._origin,
            components=capture.entries,
        )

    def _commit(
        self,
        handle: SaveHandle,
        draft: Callable[[Capture], Manifest],
        capture: Capture,
        meta: Callable[[], bytes],
        interval_seconds: float,
    ) -> None:
        """Run in the writer's thread: make the capture a checkpoint, then clean up behind it."""
        began = self._surroundings.monotonic()
        self._links.pop(handle.checkpoint)
        try:
            capture.beside.settle()
            handle.captured.reach()
            parts = (*capture.parts, content_part(META_FILE, meta()))
            checkpoint = self._store.commit(draft(capture), parts, self._writership.guard)
        except BaseException as error:
            capture.aborted()
            kind = error.kind if isinstance(error, PerdureError) else "internal"
            self._untold.append(self._event("save-failed", step=handle.step, checkpoint=handle.checkpoint, kind=kind))
            self._tell()
            raise
        manifest = checkpoint.manifest
        capture.committed(checkpoint.directory, {entry.path: entry for entry in manifest.files})
        self._parent = manifest.id
        self._saved_metrics = widen(self._saved_metrics, manifest.metrics)
        self._learn(handle, manifest, self._surroundings.monotonic() - began, interval_seconds)
        self._tell()
        self._clean_up()

    def _learn(self, handle: SaveHandle, manifest: Manifest, seconds: float, interval_seconds: float) -> None:
        before = (self._pace.stretch, self._pace.interval_seconds)
        self._pace.learn(
            manifest.reason,
            blocked_seconds=handle.blocked_seconds,
            write_seconds=seconds,
            interval_seconds=interval_seconds,
        )
        pace = {"stretch": self._pace.stretch, "interval_seconds": self._pace.interval_seconds}
        self._untold.append(
            self._event(
                "saved",
                checkpoint=manifest.id,
                step=manifest.global_step,
                reason=manifest.reason,
                bytes=manifest.total_bytes,
                blocked_seconds=round(handle.blocked_seconds, 6),
                write_seconds=round(seconds, 6),
                **pace,
            )
        )
        if before != (self._pace.stretch, self._pace.interval_seconds):
            cost = self._pace.cost
            self._untold.append(
                self._event(
                    "interval-changed",
                    step=manifest.global_step,
                    cost_seconds=round(cost.seconds, 6),
                    bytes_per_second=round(manifest.total_bytes / max(cost.write_seconds, 1e-9)),
                    **pace,
                )
            )

    def _tell(self) -> None:
        """Append to the log what has not been told yet; in the writer's thread, or once that is idle."""
        # The disk that refuses a save refuses the note as well; the handle and the warning still say it.
        with suppress(StoreError):
            while self._untold:
                self._store.events.append(self._untold[0])
                self._untold.popleft()

    def _clean_up(self) -> None:
        """Remove what the policy no longer keeps; a failure costs space and is told, it undoes no save."""
        try:
            found = {checkpoint.manifest.id: checkpoint for checkpoint in self._store.checkpoints()}
            pins = {key: name for name, key in self._store.pins().items()}
            needed = [key for key, checkpoint in found.items() if checkpoint.directory.name in self._linked_names()]
            plan = plan_retention([checkpoint.manifest for checkpoint in found.values()], self._keep, pins, needed)
            for manifest in plan.remove:
                self._store.remove(found[manifest.id])
                self._store.events.append(self._event("removed", checkpoint=manifest.id, step=manifest.global_step))
        except PerdureError as error:
            self._store.events.append(self._event("retention-failed", error=error.message))

    def _linked_names(self) -> set[str]:
        """Directories of checkpoints whose files the saves that are under way will link to."""
        return set().union(*self._links.values())

    def collect_finished(self) -> tuple[list[SaveHandle], float]:
        """
        Take the saves that have ended since the last call, and the budget's stretch.

        One that was torn while it was copied beside training is made again at this boundary, and from now on nothing
        is copied beside training any more.

        Returns:
            Handles that ended, in order, and the stretch factor now.
        """
        ended = [handle for handle in self._handles if handle.committed.is_set() or handle.error is not None]
        self._handles = [handle for handle in self._handles if handle not in ended]
        for handle in ended:
            self._counts["failed" if handle.error is not None else "saved"] += 1
            if is_torn(handle):
                self._gate.distrust()
                self._redo = handle.reason
        return ended, self._pace.stretch

    @property
    def busy_seconds(self) -> float:
        """How long the save has been in the making that is being written now; 0 if none is."""
        return self._writer.busy_seconds()

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
        self._tell()

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
        )

    def _event(self, event: str, **fields: Any) -> dict[str, Any]:
        return {"at": self._surroundings.now(), "event": event, "generation": self._writership.generation, **fields}


def is_torn(handle: SaveHandle) -> bool:
    """Whether a save was given up because something wrote to what was being copied beside training."""
    return isinstance(handle.error, PerdureError) and handle.error.kind == TORN


def describe_failure(handle: SaveHandle) -> str:
    """A failed save in one line for people."""
    return f"save {short_id(handle.checkpoint)} at step {handle.step:,} failed: {handle.error}"
