"""The checkpoints of a run as values: what each takes on the disk, and why it is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.core.manifest import FileEntry, Grade, Manifest, Origin
from perdure.errors import PerdureError
from perdure.files.door import Files
from perdure.inspection.documents import Document, age_seconds
from perdure.inspection.space import FileOnDisk, inodes, look_at_files, new_bytes
from perdure.inspection.verification import DirectoryDamage
from perdure.store.store import Checkpoint


@dataclass(frozen=True, slots=True)
class CheckpointSummary(Document):
    """One checkpoint in a list."""

    id: str
    global_step: int
    generation: int
    sequence: int
    created_at: str
    age_seconds: float | None
    reason: str
    """Why it was saved."""
    parent: str | None
    grade: Grade
    metrics: Mapping[str, float]
    directory: Path
    size_bytes: int
    new_bytes: int
    """Bytes of files that no older checkpoint of the run shares."""
    shared_bytes: int
    kept_by: str
    """Why a clean-up keeps it; empty if it would go."""
    pins: tuple[str, ...]
    restores: bool
    """Whether every file is there with its length; `RunView.verify` looks deeper."""
    problems: tuple[PerdureError, ...]


@dataclass(frozen=True, slots=True)
class RunListing(Document):
    """The checkpoints of a run."""

    run: str
    directory: Path
    checkpoints: tuple[CheckpointSummary, ...]
    """Newest first."""
    damaged_directories: tuple[DirectoryDamage, ...]
    keep: str | None
    """The keep policy that the run records, as text."""
    size_bytes: int
    """What the checkpoints take on the disk."""
    logical_bytes: int
    """What they would take if they shared nothing."""

    @property
    def newest(self) -> CheckpointSummary | None:
        """The newest checkpoint, whole or not."""
        return self.checkpoints[0] if self.checkpoints else None

    @property
    def restorable(self) -> CheckpointSummary | None:
        """The newest checkpoint of which nothing is missing: the one that a start would use."""
        return next((checkpoint for checkpoint in self.checkpoints if checkpoint.restores), None)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is damaged, as far as names and lengths tell."""
        return not self.damaged_directories and all(checkpoint.restores for checkpoint in self.checkpoints)


@dataclass(frozen=True, slots=True)
class ComponentSummary(Document):
    """One component of a checkpoint."""

    name: str
    kind: str
    section: str
    grade: Grade
    files: tuple[str, ...]
    size_bytes: int
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CheckpointDetail(Document):
    """Everything about one checkpoint."""

    run: str
    checkpoint: CheckpointSummary
    algorithm: str | None
    versions: Mapping[str, str]
    host: Mapping[str, str]
    origin: Origin | None
    components: tuple[ComponentSummary, ...]
    files: tuple[FileEntry, ...]
    meta: Mapping[str, Any] | None
    """Counters, configuration and the like; None if the checkpoint has none that can be read."""


def summaries(
    files: Files,
    checkpoints: Sequence[Checkpoint],
    kept: Mapping[str, str],
    pins: Mapping[str, str],
    wall_seconds: float,
) -> tuple[CheckpointSummary, ...]:
    """
    Describe checkpoints.

    Args:
        files: The file system.
        checkpoints: Those of one run, newest first. Any that has gone since it was found is left out.
        kept: Why each is kept, by id.
        pins: Checkpoint ids by pin name.
        wall_seconds: Now.
    """
    looks = {checkpoint.manifest.id: look_at_files(files, checkpoint) for checkpoint in checkpoints}
    present = [each for each in checkpoints if _is_present(files, each, looks[each.manifest.id])]
    oldest_first = [each.manifest.id for each in reversed(present)]
    new = dict(zip(oldest_first, new_bytes([looks[key] for key in oldest_first]), strict=True))
    return tuple(
        _summary(each, looks[each.manifest.id], new[each.manifest.id], kept, pins, wall_seconds) for each in present
    )


def _is_present(files: Files, checkpoint: Checkpoint, looks: Sequence[FileOnDisk]) -> bool:
    """Whether a checkpoint is still there: if nothing is wrong with it, it is, and nothing has to be asked."""
    return all(look.problem is None for look in looks) or files.status(checkpoint.directory) is not None


def _summary(
    checkpoint: Checkpoint,
    looks: Sequence[FileOnDisk],
    new: int,
    kept: Mapping[str, str],
    pins: Mapping[str, str],
    wall_seconds: float,
) -> CheckpointSummary:
    manifest = checkpoint.manifest
    problems = tuple(look.problem for look in looks if look.problem is not None)
    return CheckpointSummary(
        id=manifest.id,
        global_step=manifest.global_step,
        generation=manifest.generation,
        sequence=manifest.sequence,
        created_at=manifest.created_at,
        age_seconds=age_seconds(manifest.created_at, wall_seconds),
        reason=manifest.reason,
        parent=manifest.parent,
        grade=manifest.grade,
        metrics=manifest.metrics,
        directory=checkpoint.directory,
        size_bytes=manifest.total_bytes,
        new_bytes=new,
        shared_bytes=sum(inodes(looks).values()) - new,
        kept_by=kept.get(manifest.id, ""),
        pins=tuple(name for name, key in sorted(pins.items()) if key == manifest.id),
        restores=not problems,
        problems=problems,
    )


def component_summaries(manifest: Manifest) -> tuple[ComponentSummary, ...]:
    """Describe the components of a checkpoint."""
    sizes = {entry.path: entry.bytes for entry in manifest.files}
    return tuple(
        ComponentSummary(
            name=entry.name,
            kind=entry.kind,
            section=entry.section.value,
            grade=entry.grade,
            files=entry.files,
            size_bytes=sum(sizes[path] for path in entry.files),
            detail=entry.detail,
        )
        for entry in manifest.components
    )
