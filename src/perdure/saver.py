"""
The saver: decides at each boundary whether to save, captures, and has the rest done in the background.

All of its methods are called in the training thread. What runs behind is `_commit`, which touches nothing that training
touches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from perdure.capture.snapshot import Capture, content_part, take_capture
from perdure.capture.writer import SaveHandle, Writer
from perdure.core.component import Component, LinkPart
from perdure.core.manifest import Cut, Manifest, Origin, lowest_grade, short_id
from perdure.core.retention import KeepPolicy, plan_retention
from perdure.core.saving import Budget, Save, SaveContext, SavePolicy, decide_save, widen
from perdure.errors import PerdureError, StoreError
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


@dataclass(frozen=True, slots=True)
class _Since:
    """Where the last save or restore was."""

    step: int
    seconds: float


class Saver:
    """
    Saves one run.

    Args:
        store: The run directory.
        run: The run's name.
        components: What is captured, by name; looked at anew at every save.
        meta: Fixes the content of ``meta.json`` as of now; what it gives makes the bytes, in the background.
        policy: When to save; None saves only when asked.
        keep: What to keep; None keeps all.
        budget: Share of time that saving may cost; None for no limit.
        algorithm: Named in manifests.
        writership: Says which generation this is, and guards the moment in which a checkpoint becomes visible.
        surroundings: Time and ids.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        components: Mapping[str, Component],
        meta: Callable[[], Callable[[], bytes]],
        *,
        policy: SavePolicy | None,
        keep: KeepPolicy | None,
        budget: Budget | None,
        algorithm: str | None,
        writership: Writership,
        surroundings: Surroundings,
    ) -> None:
        self._store = store
        self._run = run
        self._components = components
        self._meta = meta
        self._policy = policy
        self._keep = keep
        self._budget = budget
        self._algorithm = algorithm
        self._writership = writership
        self._surroundings = surroundings
        self._writer = Writer(surroundings.monotonic)
        self._handles: list[SaveHandle] = []
        self._links: dict[str, set[str]] = {}
        self._counts = {"saved": 0, "failed": 0, "skipped": 0}
        self._blocked_seconds = 0.0
        self._since = _Since(0, surroundings.monotonic())
        self._sequence = 0
        self._parent: str | None = None
        self._origin: Origin | None = None
        self._saved_metrics: dict[str, tuple[float, float]] = {}

    def begin(self, step: int, restored: Checkpoint | None) -> None:
        """Start counting from a restore, or from nothing."""
        self._since = _Since(step, self._surroundings.monotonic())
        for checkpoint in self._store.checkpoints():
            self._saved_metrics = widen(self._saved_metrics, checkpoint.manifest.metrics)
        if restored is not None:
            self._parent = restored.manifest.id
            self._origin = restored.manifest.origin

    def decide(self, step: int, metrics: Mapping[str, float], *, moved: bool, stop: bool, final: bool) -> Save | None:
        """Whether to save at this boundary."""
        context = SaveContext(
            steps=step - self._since.step,
            seconds=self._surroundings.monotonic() - self._since.seconds,
            metrics=metrics,
            saved=self._saved_metrics,
            moved=moved,
            stop_requested=stop,
            final=final,
            stretch=self._budget.stretch if self._budget else 1.0,
        )
        decision = decide_save(self._policy, context)
        return decision if isinstance(decision, Save) else None

    def save(
        self, cut: Cut, reason: str, metrics: Mapping[str, float], *, wait_for_arena_seconds: float = 0.0
    ) -> SaveHandle:
        """
        Capture everything as of now and have it committed in the background.

        Returns once the live objects may change again. If both arenas are still being written nothing is saved; the
        handle says so.

        Raises:
            InvalidInputError: Something tracked cannot be stored.
        """
        began = self._surroundings.monotonic()
        arena = self._writer.take_arena(wait_for_arena_seconds)
        if arena is None:
            self._counts["skipped"] += 1
            self._store.events.append(
                self._event("save-skipped", step=cut.global_step, reason="both buffers are in use")
            )
            return SaveHandle("", cut.global_step, reason, skipped="both buffers are still being written")
        try:
            capture = take_capture(self._components, arena)
            meta = self._meta()
        except BaseException:
            self._writer.return_arena(arena)
            raise
        handle = SaveHandle(self._surroundings.new_id(), cut.global_step, reason)
        values = dict(metrics)
        handle.captured.reach()
        interval = began - self._since.seconds
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
        self._since = _Since(cut.global_step, began)
        return handle

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
            parts = (*capture.parts, content_part(META_FILE, meta()))
            checkpoint = self._store.commit(draft(capture), parts, self._writership.guard)
        except BaseException:
            capture.aborted()
            raise
        manifest = checkpoint.manifest
        capture.committed(checkpoint.directory, {entry.path: entry for entry in manifest.files})
        seconds = self._surroundings.monotonic() - began
        self._parent = manifest.id
        self._saved_metrics = widen(self._saved_metrics, manifest.metrics)
        # Only intervals of our own are ours to stretch: what asked, improved or stopped came when it came.
        if self._budget is not None and manifest.reason.startswith("every-"):
            self._budget = self._budget.after(handle.blocked_seconds + seconds, interval_seconds)
        self._store.events.append(
            self._event(
                "saved",
                checkpoint=manifest.id,
                step=manifest.global_step,
                reason=manifest.reason,
                bytes=manifest.total_bytes,
                blocked_seconds=round(handle.blocked_seconds, 6),
                write_seconds=round(seconds, 6),
                stretch=self._budget.stretch if self._budget else 1.0,
            )
        )
        self._clean_up()

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

        Returns:
            Handles that ended, in order, and the stretch factor now.
        """
        ended = [handle for handle in self._handles if handle.committed.is_set() or handle.error is not None]
        self._handles = [handle for handle in self._handles if handle not in ended]
        for handle in ended:
            self._counts["failed" if handle.error is not None else "saved"] += 1
            if handle.error is not None:
                kind = handle.error.kind if isinstance(handle.error, PerdureError) else "internal"
                self._store_failure(handle, kind)
        return ended, self._budget.stretch if self._budget else 1.0

    def _store_failure(self, handle: SaveHandle, kind: str) -> None:
        try:
            self._store.events.append(
                self._event("save-failed", step=handle.step, checkpoint=handle.checkpoint, kind=kind)
            )
        except StoreError:
            # The disk that refused the save refuses the note as well; the handle and the warning still say it.
            return

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

    def statistics(self) -> SaverStatistics:
        """Counts and costs so far."""
        return SaverStatistics(
            saved=self._counts["saved"],
            failed=self._counts["failed"],
            skipped=self._counts["skipped"],
            in_flight=self._writer.statistics().in_flight,
            blocked_seconds=self._blocked_seconds,
            stretch=self._budget.stretch if self._budget else 1.0,
        )

    def _event(self, event: str, **fields: Any) -> dict[str, Any]:
        return {"at": self._surroundings.now(), "event": event, "generation": self._writership.generation, **fields}


def describe_failure(handle: SaveHandle) -> str:
    """A failed save in one line for people."""
    return f"save {short_id(handle.checkpoint)} at step {handle.step:,} failed: {handle.error}"
