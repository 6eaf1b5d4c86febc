"""
Committing: what happens to a capture behind training's back, in the writer's thread.

Nothing here touches what training touches. A capture becomes a checkpoint in the memory tier, if there is one, then on
the disk; then what the keep policy no longer keeps is removed, and the log is told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perdure.capture.snapshot import Capture, content_part
from perdure.capture.writer import SaveHandle
from perdure.core.component import ContentPart, ElsewherePart, LinkPart, Part
from perdure.core.manifest import ComponentEntry, Cut, FileEntry, Manifest, Origin, lowest_grade
from perdure.core.retention import KeepPolicy, plan_retention
from perdure.core.saving import widen
from perdure.errors import PerdureError, StoreError
from perdure.files.publish import remove_tree
from perdure.files.shared import SharedFolder
from perdure.files.writing import digest_of
from perdure.pacing import Pace
from perdure.store.layout import META_FILE, STAGING
from perdure.store.store import Checkpoint, Store
from perdure.surroundings import Surroundings
from perdure.tiers.memory import discard
from perdure.tiers.room import HostRoom
from perdure.tiers.tiered import Tiered
from perdure.writership import Writership


@dataclass(frozen=True, slots=True)
class Taken:
    """
    A save whose capture has been taken.

    Attributes:
        handle: What becomes of it.
        cut: The point that it belongs to.
        sequence: Its number within the generation.
        metrics: Newest values when it was taken.
        capture: What was captured; lies in an arena.
        meta: Makes the content of ``meta.json``.
        interval_seconds: Time since the save of its tier before.
    """

    handle: SaveHandle
    cut: Cut
    sequence: int
    metrics: Mapping[str, float]
    capture: Capture
    meta: Callable[[], bytes]
    interval_seconds: float


class Committer:
    """
    Commits the saves of one run.

    Args:
        store: The run directory.
        memory: The memory tier, if there is one.
        run: The run's name.
        keep: What to keep; None keeps all.
        algorithm: Named in manifests.
        writership: Says which generation this is, and guards the moment in which a checkpoint becomes visible.
        surroundings: Time and versions.
    """

    def __init__(
        self,
        store: Store,
        memory: Store | None,
        run: str,
        *,
        keep: KeepPolicy | None,
        algorithm: str | None,
        writership: Writership,
        surroundings: Surroundings,
    ) -> None:
        self._store = store
        self._memory = memory
        self._run = run
        self._keep = keep
        self._algorithm = algorithm
        self._writership = writership
        self._surroundings = surroundings
        self._links: dict[str, set[str]] = {}
        self._untold: deque[dict[str, Any]] = deque()
        self._arenas: Path | None = None
        self._parent: str | None = None
        self._origin: Origin | None = None
        self.saved_metrics: dict[str, tuple[float, float]] = {}
        """Lowest and highest value of each metric among the checkpoints so far."""

    def begin(self, restored: Checkpoint | None) -> None:
        """Go on from a restore, or from nothing."""
        for checkpoint in self._store.checkpoints():
            self.saved_metrics = widen(self.saved_metrics, checkpoint.manifest.metrics)
        if restored is not None:
            self._parent = restored.manifest.id
            self._origin = restored.manifest.origin

    # Called in the training thread

    def expect(self, taken: Taken) -> None:
        """Protect what a save that is under way will link to; called before it is submitted."""
        self._links[taken.handle.checkpoint] = {
            source.relative_to(self._store.snapshots).parts[0] for source in taken.capture.linked
        }

    def note_event(self, event: str, **fields: Any) -> None:
        """
        Have something told in the log when the writer gets on.

        Not at once: a disk that holds the writer up would hold up whoever writes to the log as well.
        """
        self._untold.append(
            {"at": self._surroundings.now(), "event": event, "generation": self._writership.generation, **fields}
        )

    # Called in the writer's thread, or when that has ended

    def tell(self) -> None:
        """Append to the log what has not been told yet."""
        # The disk that refuses a save refuses the note as well; the handle and the warning still say it.
        with suppress(StoreError):
            while self._untold:
                self._store.events.append(self._untold[0])
                self._untold.popleft()

    def commit(self, taken: Taken, pace: Pace) -> None:
        """Make a capture a checkpoint on the disk, then clean up behind it."""
        began = self._surroundings.monotonic()
        self._links.pop(taken.handle.checkpoint)
        try:
            draft, parts = self._complete(taken)
            if self._memory is not None and not taken.capture.is_lent:
                # First: should the learner die while the disk is being written, the next start ends what it began.
                parts = _with_digests(parts, self._try_memory(draft, parts))
            checkpoint = self._store.commit(draft, parts, self._writership.guard)
        except BaseException as error:
            taken.capture.aborted()
            self._note_failure(taken.handle, error)
            raise
        manifest = checkpoint.manifest
        taken.capture.committed(checkpoint.directory, {entry.path: entry for entry in manifest.files})
        self._parent = manifest.id
        self.saved_metrics = widen(self.saved_metrics, manifest.metrics)
        seconds = self._surroundings.monotonic() - began
        self._learn(taken, seconds, pace)
        self._note_saved(taken.handle, manifest, seconds, pace)
        self._note_interval(manifest, pace)
        self.tell()
        # Whoever waits for the save need not wait for what goes because of it.
        taken.handle.committed.reach()
        taken.handle.replicated.reach()
        self._clean_up(checkpoint)

    def commit_to_memory(self, taken: Taken, pace: Pace) -> None:
        """Make a capture a checkpoint in the memory tier alone."""
        began = self._surroundings.monotonic()
        self._links.pop(taken.handle.checkpoint)
        try:
            manifest = self._put_in_memory(*self._complete(taken))
        except BaseException as error:
            taken.capture.aborted()
            self._note_failure(taken.handle, error, tier="ram")
            raise
        taken.capture.aborted()  # as far as the disk goes: what later saves there link to is what it was
        seconds = self._surroundings.monotonic() - began
        self._learn(taken, seconds, pace)
        self._note_interval(manifest, pace, tier="ram")
        self.tell()

    def finish_write(self, handle: SaveHandle, checkpoint: Checkpoint) -> None:
        """Write a checkpoint to the disk that only memory has: its learner died before that was done."""
        manifest = checkpoint.manifest
        tiers = Tiered(self._store, self._memory, self._surroundings.new_id)
        try:
            tiers.write_to_disk(checkpoint, self._writership.guard)
        except BaseException as error:
            self._note_failure(handle, error)
            raise
        self.note_event("write-finished", checkpoint=manifest.id, step=manifest.global_step)
        self.tell()

    def arena_folder(self) -> SharedFolder:
        """Where arenas are files of the memory tier's file system; it goes with what interrupted saves leave there."""
        assert self._memory is not None
        self._arenas = self._memory.directory / STAGING / f"arenas-{self._surroundings.new_id()}"
        return SharedFolder(self._memory.files, self._arenas)

    def leave_memory(self) -> None:
        """Give the memory tier's memory back, unless it has what the disk has not."""
        if self._memory is None:
            return
        newest = self._memory.checkpoints()[:1]
        known = {checkpoint.manifest.id for checkpoint in self._store.checkpoints()}
        if all(checkpoint.manifest.id in known for checkpoint in newest):
            discard(self._memory)
        elif self._arenas is not None:
            remove_tree(self._memory.files, self._arenas)

    def _complete(self, taken: Taken) -> tuple[Manifest, tuple[Part, ...]]:
        """What a capture becomes, once it is whole: the draft of its manifest, and its files."""
        taken.capture.beside.settle()
        taken.handle.captured.reach()
        stored = taken.capture.store()
        parts = [part for each in stored for part in each.parts]
        draft = self._draft(taken, tuple(each.entry for each in stored))
        return draft, (*parts, content_part(META_FILE, taken.meta()))

    def _draft(self, taken: Taken, entries: tuple[ComponentEntry, ...]) -> Manifest:
        return Manifest(
            run=self._run,
            id=taken.handle.checkpoint,
            global_step=taken.cut.global_step,
            generation=self._writership.generation,
            sequence=taken.sequence,
            parent=self._parent,
            cut=taken.cut,
            reason=taken.handle.reason,
            created_at=self._surroundings.now(),
            algorithm=self._algorithm,
            versions=self._surroundings.versions(),
            host=self._surroundings.host(),
            grade=lowest_grade([entry.grade for entry in entries]),
            metrics=dict(taken.metrics),
            origin=self._origin,
            components=entries,
        )

    def _forget_older_memory(self, on_disk: Checkpoint) -> None:
        """Give memory back that holds less than a checkpoint on the disk does."""
        if self._memory is not None:
            for checkpoint in self._memory.checkpoints():
                if checkpoint.manifest.order < on_disk.manifest.order:
                    self._memory.remove(checkpoint)

    def _try_memory(self, draft: Manifest, parts: tuple[Part, ...]) -> tuple[FileEntry, ...]:
        """The files that are in memory now, if it had room."""
        try:
            return self._put_in_memory(draft, parts).files
        except StoreError as error:
            # A full memory tier costs the saves to it, not those to the disk.
            self.note_event("save-failed", step=draft.global_step, checkpoint=draft.id, kind=error.kind, tier="ram")
            return ()

    def _put_in_memory(self, draft: Manifest, parts: tuple[Part, ...]) -> Manifest:
        assert self._memory is not None
        room = HostRoom(self._surroundings.available_memory_bytes)
        placed = room.admit([_in_memory(part) for part in parts])
        checkpoint = self._memory.commit(draft, placed, self._writership.guard)
        for older in self._memory.checkpoints()[1:]:
            self._memory.remove(older)
        return checkpoint.manifest

    def _note_failure(self, handle: SaveHandle, error: BaseException, **fields: Any) -> None:
        kind = error.kind if isinstance(error, PerdureError) else "internal"
        self.note_event("save-failed", step=handle.step, checkpoint=handle.checkpoint, kind=kind, **fields)
        self.tell()

    def _learn(self, taken: Taken, seconds: float, pace: Pace) -> None:
        pace.learn(
            taken.handle.reason,
            blocked_seconds=taken.handle.blocked_seconds,
            write_seconds=seconds,
            interval_seconds=taken.interval_seconds,
        )

    def _note_saved(self, handle: SaveHandle, manifest: Manifest, seconds: float, pace: Pace) -> None:
        self.note_event(
            "saved",
            checkpoint=manifest.id,
            step=manifest.global_step,
            reason=manifest.reason,
            bytes=manifest.total_bytes,
            blocked_seconds=round(handle.blocked_seconds, 6),
            write_seconds=round(seconds, 6),
            **pace.chosen,
        )

    def _note_interval(self, manifest: Manifest, pace: Pace, **fields: Any) -> None:
        if pace.has_news():
            self.note_event(
                "interval-changed",
                step=manifest.global_step,
                cost_seconds=round(pace.cost.seconds, 6),
                bytes_per_second=round(manifest.total_bytes / max(pace.cost.write_seconds, 1e-9)),
                **pace.chosen,
                **fields,
            )

    def _clean_up(self, newest: Checkpoint) -> None:
        """Remove what is no longer kept or wanted; a failure costs space and is told, it undoes no save."""
        try:
            self._forget_older_memory(newest)
            if self._keep is not None:  # a run that keeps everything comes to have a thousand manifests to read
                self._remove_unkept(self._keep)
        except PerdureError as error:
            self.note_event("retention-failed", error=error.message)
        self.tell()

    def _remove_unkept(self, keep: KeepPolicy) -> None:
        found = {checkpoint.manifest.id: checkpoint for checkpoint in self._store.checkpoints()}
        pins = {key: name for name, key in self._store.pins().items()}
        linked = set().union(*self._links.values())
        needed = [key for key, checkpoint in found.items() if checkpoint.directory.name in linked]
        plan = plan_retention([checkpoint.manifest for checkpoint in found.values()], keep, pins, needed)
        for manifest in plan.remove:
            self._store.remove(found[manifest.id])
            self.note_event("removed", checkpoint=manifest.id, step=manifest.global_step)


def _with_digests(parts: tuple[Part, ...], entries: Iterable[FileEntry]) -> tuple[Part, ...]:
    """The same files with what the memory tier has found out about them."""
    digests = {entry.path: entry.digest for entry in entries}
    return tuple(
        replace(part, digest=digests.get(part.path)) if isinstance(part, ContentPart) else part for part in parts
    )


def _in_memory(part: Part) -> Part:
    """A file as the memory tier has it: the capture under another name, or, if the disk has it, not at all."""
    if isinstance(part, LinkPart):
        return ElsewherePart(part.path, part.entry)
    if not isinstance(part, ContentPart) or part.shared is None:
        return part
    (content,) = part.chunks()
    return LinkPart(part.path, part.shared, FileEntry(part.path, part.size_bytes, digest_of(content)))
