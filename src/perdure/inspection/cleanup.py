"""
Cleaning up a run that may be training: the plan, and carrying it out from a process that holds no lease.

That is safe because a removal is one rename, so that nobody ever sees half a checkpoint, and because a plan leaves the
live writer everything it may still need: the newest checkpoint, the one that a save in flight may be linking to, what
is being restored, and what is pinned. The newest one also has to be whole before anything older may go.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perdure.core.retention import KeepPolicy, merge_reasons, plan_retention
from perdure.errors import ConflictError, StoreError
from perdure.inspection.documents import Document, age_seconds
from perdure.inspection.space import freed_bytes, look_at_files
from perdure.inspection.verification import Level, OnProgress, check_all
from perdure.store.store import Checkpoint, Store


@dataclass(frozen=True, slots=True)
class PlanRow(Document):
    """What is to become of one checkpoint."""

    id: str
    global_step: int
    created_at: str
    age_seconds: float | None
    size_bytes: int
    action: str
    """``keep`` or ``remove``."""
    why: str


@dataclass(frozen=True, slots=True)
class GcPlan(Document):
    """What a clean-up would do."""

    run: str
    policy: str | None
    """As text; None where the run records none and none was given, so that everything is kept."""
    rows: tuple[PlanRow, ...]
    """Newest first."""
    freed_bytes: int
    """What the disk gains: files that no other checkpoint shares."""

    @property
    def removed(self) -> tuple[PlanRow, ...]:
        """The rows of checkpoints that are to go, newest first."""
        return tuple(row for row in self.rows if row.action == "remove")


@dataclass(frozen=True, slots=True)
class GcResult(Document):
    """What a clean-up did."""

    run: str
    removed: tuple[str, ...]
    """Ids."""
    spared: Mapping[str, str]
    """Why a checkpoint stayed although the plan would have it go, by id."""


@dataclass(frozen=True, slots=True)
class InUse:
    """What no clean-up may touch at this moment."""

    pins: Mapping[str, str]
    """Ids by pin name."""
    restoring: tuple[str, ...]
    """Ids of checkpoints whose restore has begun and not ended."""
    has_writer: bool
    """Whether a process is, or may be, writing to the run."""


def plan(
    store: Store,
    run: str,
    checkpoints: Sequence[Checkpoint],
    policy: KeepPolicy | None,
    policy_text: str | None,
    in_use: InUse,
    wall_seconds: float,
    on_progress: OnProgress,
) -> GcPlan:
    """
    Plan a clean-up of ``checkpoints``, which come newest first; reads only.

    If something is to go, the newest checkpoint is read and verified first; should it be damaged, the newest one that
    is whole is kept as well.
    """
    reasons = reasons_to_keep(checkpoints, policy, in_use)
    if len(reasons) < len(checkpoints):
        whole = _newest_whole(store, checkpoints, on_progress)
        if whole is None:
            reasons = merge_reasons([reasons, {each.manifest.id: "nothing is whole" for each in checkpoints}])
        elif whole is not checkpoints[0]:
            reasons = merge_reasons([reasons, {whole.manifest.id: "newest whole"}])
    rows = tuple(_row(checkpoint, reasons.get(checkpoint.manifest.id), wall_seconds) for checkpoint in checkpoints)
    gone = [look_at_files(store.files, each) for each in checkpoints if each.manifest.id not in reasons]
    return GcPlan(run, policy_text, rows, freed_bytes(gone))


def reasons_to_keep(checkpoints: Sequence[Checkpoint], policy: KeepPolicy | None, in_use: InUse) -> dict[str, str]:
    """Return why each checkpoint stays, by id, whatever their files look like; ``checkpoints`` come newest first."""
    manifests = [checkpoint.manifest for checkpoint in checkpoints]
    kept = plan_retention(manifests, policy, pins_by_id(in_use.pins), in_use.restoring).keep
    # Two saves can be in flight, and the second one links to what was newest when the first one was captured.
    linked = {manifest.id: "may be linked to" for manifest in manifests[1:2] if in_use.has_writer}
    return merge_reasons([kept, {key: reason for key, reason in linked.items() if key not in kept}])


def pins_by_id(pins: Mapping[str, str]) -> dict[str, str]:
    """Return the pin names of each checkpoint, joined, by its id."""
    return merge_reasons([{checkpoint: name} for name, checkpoint in sorted(pins.items())])


def _newest_whole(store: Store, checkpoints: Sequence[Checkpoint], on_progress: OnProgress) -> Checkpoint | None:
    for checkpoint in checkpoints:
        found, _, _ = check_all(store, [checkpoint], Level.HASH, on_progress)
        if found and found[0].restores:
            return checkpoint
    return None


def _row(checkpoint: Checkpoint, reason: str | None, wall_seconds: float) -> PlanRow:
    manifest = checkpoint.manifest
    action, why = ("keep", reason) if reason else ("remove", "no rule keeps it")
    age = age_seconds(manifest.created_at, wall_seconds)
    return PlanRow(manifest.id, manifest.global_step, manifest.created_at, age, manifest.total_bytes, action, why)


def execute(store: Store, plan: GcPlan, in_use: InUse, at: str) -> GcResult:
    """
    Carry out a plan, oldest checkpoint first.

    What has come into use since the plan was made is spared. A crash leaves each checkpoint either whole or gone; what
    is left of one in staging goes at the run's next start.

    Args:
        store: The run.
        plan: What to do.
        in_use: What must not be touched, as of now.
        at: The time, for the run's history.

    Raises:
        ConflictError: Kind ``gc.plan-outdated``: nothing that the plan keeps is there any more.
        StoreError: A removal failed; the ones before it are done.
    """
    present = {checkpoint.manifest.id: checkpoint for checkpoint in store.checkpoints()}
    if plan.removed and not any(row.id in present for row in plan.rows if row.action == "keep"):
        raise ConflictError(
            f"cannot clean up run {plan.run}: the checkpoints that were to stay are gone",
            kind="gc.plan-outdated",
            hint="plan again (`perdure gc`)",
        )
    used = {
        **dict.fromkeys(in_use.restoring, "a restore of it has begun"),
        **{key: f"pinned as {names}" for key, names in pins_by_id(in_use.pins).items()},
    }
    removed, spared = [], {}
    for row in reversed(plan.removed):
        if row.id in used:
            spared[row.id] = used[row.id]
        elif row.id not in present or not _remove(store, present[row.id]):
            spared[row.id] = "already gone"
        else:
            removed.append(row.id)
            _record(store, row, at)
    return GcResult(plan.run, tuple(removed), spared)


def _remove(store: Store, checkpoint: Checkpoint) -> bool:
    """Remove a checkpoint; return False if the run's writer was faster."""
    try:
        store.remove(checkpoint)
    except StoreError as error:
        if error.kind == "store.missing":
            return False
        raise
    return True


def _record(store: Store, row: PlanRow, at: str) -> None:
    # A disk too full for a line of history is the very reason to go on removing.
    with contextlib.suppress(StoreError):
        store.events.append({"at": at, "event": "removed", "checkpoint": row.id, "step": row.global_step, "by": "gc"})
