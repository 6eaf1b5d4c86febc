"""One run, looked at from outside: what there is, whether it is whole, what a clean-up would do."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perdure.core.keeping import keep_text, parse_keep
from perdure.core.keys import Keyring
from perdure.core.manifest import Manifest, short_id
from perdure.core.retention import KeepPolicy
from perdure.core.selectors import select
from perdure.errors import CorruptionError, LeaseHeldError, NotFoundError, NothingRestorableError, PerdureError
from perdure.files.door import Files, explained
from perdure.inspection import cleanup, renewal, repair
from perdure.inspection.cleanup import GcPlan, GcResult, InUse, reasons_to_keep
from perdure.inspection.documents import rfc3339
from perdure.inspection.listing import CheckpointDetail, CheckpointSummary, RunListing, component_summaries, summaries
from perdure.inspection.presence import look_around
from perdure.inspection.renewal import RenewalPlan
from perdure.inspection.repair import RepairPlan, RepairResult, place_of
from perdure.inspection.status import RunStatus, describe_run
from perdure.inspection.stores import open_run
from perdure.inspection.verification import Level, OnProgress, VerifyReport, check_all, directory_damages
from perdure.store.keyfile import environment_keys
from perdure.store.layout import META_FILE
from perdure.store.store import Checkpoint, Damage

KEEP_KEY = "keep"
"""Key of ``run.json`` under which a run records its keep policy, as text."""


def _tell_nobody(_done_bytes: int, _total_bytes: int) -> None:
    """Take progress and drop it."""


class RunView:
    """
    One run, from outside. Only what executes a plan, pins or records writes, and nothing takes the run's lease.

    Args:
        root: The store.
        run: The run's name.
        files: The file system.
        wall_seconds: Seconds since the epoch, for ages.
        clock_seconds: Monotonic seconds, for durations.
        new_id: Gives 32 random hex digits.
        keys: What manifests must be signed with; by default those that ``PERDURE_KEY_FILE`` names.

    Raises:
        NotFoundError: Kind ``store.not-found`` or ``run.not-found``.
        FormatError: Kind ``run.newer-schema``.
        StoreError: The store is no directory, or may not be read.
    """

    def __init__(
        self,
        root: Path | str,
        run: str,
        *,
        files: Files | None = None,
        wall_seconds: Callable[[], float] = time.time,
        clock_seconds: Callable[[], float] = time.monotonic,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
        keys: Keyring | None = None,
    ) -> None:
        self.run = run
        self._files = files or Files()
        self._wall_seconds = wall_seconds
        self._clock_seconds = clock_seconds
        known = environment_keys(self._files, os.environ) if keys is None else keys
        self._store = open_run(self._files, Path(root), run, new_id, known)
        self.directory = self._store.directory

    def listing(self) -> RunListing:
        """
        List the checkpoints, newest first, with what they share and why they are kept.

        Raises:
            FormatError: Kind ``manifest.newer-schema``.
            StoreError: The run may not be read.
        """
        found, damages = self._scan()
        policy, in_use = self._recorded_policy(), self._in_use()
        kept = reasons_to_keep(found, policy, in_use)
        with explained("look at", self._store.snapshots):
            checkpoints = summaries(self._files, found, kept, in_use.pins, self._wall_seconds())
            damaged = directory_damages(self._files, damages)
        return RunListing(
            run=self.run,
            directory=self.directory,
            checkpoints=checkpoints,
            damaged_directories=damaged,
            keep=keep_text(policy) if policy is not None else None,
            size_bytes=sum(checkpoint.new_bytes for checkpoint in checkpoints),
            logical_bytes=sum(checkpoint.size_bytes for checkpoint in checkpoints),
        )

    def checkpoints(self) -> tuple[CheckpointSummary, ...]:
        """Return the committed checkpoints, newest first; see `listing`."""
        return self.listing().checkpoints

    def show(self, selector: str = "latest") -> CheckpointDetail:
        """
        Describe one checkpoint.

        Raises:
            NotFoundError: Kind ``checkpoint.not-found``.
            InvalidInputError: Kind ``checkpoint.ambiguous``.
        """
        checkpoint = self._select(selector, self._scan()[0])
        manifest = checkpoint.manifest
        summary = next((each for each in self.checkpoints() if each.id == manifest.id), None)
        if summary is None:
            raise _gone(manifest)
        return CheckpointDetail(
            run=self.run,
            checkpoint=summary,
            algorithm=manifest.algorithm,
            versions=manifest.versions,
            host=manifest.host,
            origin=manifest.origin,
            components=component_summaries(manifest),
            files=manifest.files,
            meta=self._meta(checkpoint),
        )

    def verify(
        self, selector: str = "all", level: Level = Level.HASH, on_progress: OnProgress = _tell_nobody
    ) -> VerifyReport:
        """
        Check one checkpoint, or all of them and what else lies among them.

        Args:
            selector: ``all`` or a selection word.
            level: How deep.
            on_progress: Told the bytes checked so far and the bytes to check.

        Raises:
            NothingRestorableError: Kind ``run.empty``: there is nothing to check.
            NotFoundError: Kind ``checkpoint.not-found``.
        """
        began = self._clock_seconds()
        found, damages = self._scan()
        is_all = selector == "all"
        chosen = found if is_all else [self._select(selector, found)]
        with explained("look at", self._store.snapshots):
            damaged = directory_damages(self._files, damages) if is_all else ()
        if not chosen and not damaged:
            raise NothingRestorableError(
                f"cannot verify run {self.run}: it has no checkpoint",
                kind="run.empty",
                hint=f"`perdure status {self.run}` shows what the run is doing",
                name=self.run,
            )
        with explained("look at", self._store.snapshots):
            checks, file_count, byte_count = check_all(self._store, chosen, level, on_progress)
        seconds = self._clock_seconds() - began
        return VerifyReport(self.run, self.directory, level, tuple(checks), damaged, file_count, byte_count, seconds)

    def events(self) -> list[dict[str, Any]]:
        """
        Return the run's history, oldest first.

        Raises:
            StoreError: It may not be read.
        """
        return list(self._store.events.read())

    def status(self) -> RunStatus:
        """
        Say how the run is doing: what would be restored, what is wrong, who is at work on it.

        Raises:
            FormatError: Kind ``manifest.newer-schema``.
            StoreError: The run may not be read.
        """
        with explained("look at", self.directory):
            around = look_around(self._files, self._store)
            free_bytes = self._files.free_bytes(self.directory)
        return describe_run(self.listing(), around, self.events(), free_bytes)

    def plan_gc(self, policy: KeepPolicy | None = None, on_progress: OnProgress = _tell_nobody) -> GcPlan:
        """
        Plan a clean-up; reads only.

        Args:
            policy: What to keep; by default what the run records, and if that is nothing, everything.
            on_progress: Told the bytes of the newest checkpoint that have been verified, and its size.
        """
        chosen = policy if policy is not None else self._recorded_policy()
        text = keep_text(chosen) if chosen is not None else None
        found, now = self._scan()[0], self._wall_seconds()
        return cleanup.plan(self._store, self.run, found, chosen, text, self._in_use(), now, on_progress)

    def execute(self, plan: GcPlan) -> GcResult:
        """
        Carry out a plan of `plan_gc`; what has come into use since is spared.

        Raises:
            ConflictError: Kind ``gc.plan-outdated``.
            StoreError: A removal failed; the ones before it are done.
        """
        with explained("clean up", self.directory):
            return cleanup.execute(self._store, plan, self._in_use(), rfc3339(self._wall_seconds()))

    def plan_renewal(self, *, trust_unsigned: bool = False) -> RenewalPlan:
        """
        Plan to bring manifests to the current schema and under the current key; reads only.

        Args:
            trust_unsigned: Whether manifests that no known key has signed are to be signed.
        """
        with explained("read", self._store.snapshots):
            return renewal.plan_renewal(self._store, self.run, trust_unsigned=trust_unsigned)

    def execute_renewal(self, plan: RenewalPlan) -> dict[str, PerdureError]:
        """
        Carry out a plan of `plan_renewal`; a crash leaves each manifest as it was or renewed.

        Returns:
            Why a manifest could not be renewed after all, by its directory's name.

        Raises:
            LeaseHeldError: Kind ``run.at-work``: a process is writing to the run.
            StoreError: The disk refuses; what was renewed before stays so.
        """
        self._require_nobody("migrate")
        return renewal.execute_renewal(self._store, plan)

    def plan_repair(
        self, others: Sequence[Path] = (), on_progress: OnProgress = _tell_nobody, *, without_lost: bool = False
    ) -> RepairPlan:
        """
        Look for damage, and for whole copies of what is damaged; reads only.

        Args:
            others: Other places of the run, such as a backup: the run's directory there, or one that holds it.
            on_progress: Told the bytes checked so far and the bytes to check.
            without_lost: Whether to go on without transitions of which no whole copy is left.

        Raises:
            NotFoundError: Kind ``run.not-found``: one of the places does not hold the run.
        """
        places = [place_of(self.run, Path(other)) for other in others]
        with explained("read", self._store.snapshots):
            return repair.plan_repair(self._store, self.run, places, on_progress, without_lost=without_lost)

    def execute_repair(self, plan: RepairPlan) -> RepairResult:
        """
        Carry out a plan of `plan_repair`; after a crash, plan and do it again.

        Raises:
            LeaseHeldError: Kind ``run.at-work``: a process is writing to the run.
            CorruptionError: A copy is not whole any more; what was mended before stays so.
            StoreError: The disk refuses.
        """
        self._require_nobody("repair")
        return repair.execute_repair(self._store, plan, lambda: rfc3339(self._wall_seconds()))

    def record(self, event: str, **fields: Any) -> None:
        """
        Add a line to the run's history.

        Raises:
            StoreError: It could not be written.
        """
        self._store.events.append({"at": rfc3339(self._wall_seconds()), "event": event, **fields})

    def _require_nobody(self, what: str) -> None:
        with explained("look at", self.directory):
            around = look_around(self._files, self._store)
        if around.has_writer:
            owner = around.writer.owner if around.writer else around.supervisor_pid or "somebody"
            raise LeaseHeldError(
                f"cannot {what} run {self.run}: {owner} is at work on it",
                kind="run.at-work",
                hint=f"stop it first (`perdure status {self.run}` shows what is running)",
                owner=owner,
            )

    def pins(self) -> dict[str, str]:
        """Return checkpoint ids by pin name."""
        with explained("read", self.directory):
            return self._store.pins()

    def pin(self, selector: str, name: str) -> str:
        """
        Protect a checkpoint from every clean-up, durably.

        Returns:
            The checkpoint's id.

        Raises:
            AlreadyExistsError: Kind ``pin.exists``.
            NotFoundError: There is no such checkpoint, or a clean-up took it at this moment.
        """
        checkpoint = self._select(selector, self._scan()[0])
        self._store.pin(checkpoint, name)
        with explained("look at", checkpoint.directory):
            is_gone = self._files.status(checkpoint.directory) is None
        if is_gone:
            self._store.unpin(name)
            raise _gone(checkpoint.manifest)
        return checkpoint.manifest.id

    def unpin(self, name: str) -> None:
        """
        Take a pin away.

        Raises:
            NotFoundError: Kind ``pin.not-found``.
        """
        self._store.unpin(name)

    def _scan(self) -> tuple[list[Checkpoint], list[Damage]]:
        with explained("read", self._store.snapshots):
            return self._store.scan()

    def _select(self, selector: str, checkpoints: list[Checkpoint]) -> Checkpoint:
        by_id = {checkpoint.manifest.id: checkpoint for checkpoint in checkpoints}
        return by_id[select(selector, [checkpoint.manifest for checkpoint in checkpoints], self.pins()).id]

    def _recorded_policy(self) -> KeepPolicy | None:
        text = (self._store.identity() or {}).get(KEEP_KEY)
        return parse_keep(text) if isinstance(text, str) else None

    def _in_use(self) -> InUse:
        with explained("look at", self.directory):
            around = look_around(self._files, self._store)
        return InUse(self.pins(), tuple(restore.checkpoint for restore in around.restoring), around.has_writer)

    def _meta(self, checkpoint: Checkpoint) -> Mapping[str, Any] | None:
        try:
            content = json.loads(bytes(self._store.read(checkpoint, META_FILE)))
        except (CorruptionError, NotFoundError, ValueError):
            return (
                None  # `verify` says what is wrong with it; everything else about the checkpoint is still worth showing
            )
        return content if isinstance(content, dict) else None


def _gone(manifest: Manifest) -> NotFoundError:
    return NotFoundError(
        f"cannot find checkpoint {short_id(manifest)} any more: a clean-up has just removed it",
        kind="checkpoint.not-found",
        hint="`perdure ls` lists what there is",
        name=manifest.id,
    )
