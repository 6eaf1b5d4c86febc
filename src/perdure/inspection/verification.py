"""
Checking checkpoints against their manifests, from a look at the names to a read of every byte.

A file that several checkpoints share is read once. What a live writer removes meanwhile is left out of the report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path

from blake3 import blake3

from perdure.core.manifest import FileEntry
from perdure.errors import CorruptionError, PerdureError, StoreError
from perdure.files.door import Files, explained
from perdure.files.reading import Reader, allocate, damaged, open_checked
from perdure.files.writing import STRIDE_BYTES
from perdure.inspection.documents import Document
from perdure.inspection.readability import unreadable
from perdure.inspection.space import FileOnDisk, Inode, inodes, look_at_files
from perdure.replay.losses import name_losses
from perdure.store.store import Checkpoint, Damage, Store

OnProgress = Callable[[int, int], None]
"""Told the bytes checked so far and the bytes to check in all."""


class Level(str, Enum):
    """How deep a check goes; each level includes the ones before it."""

    META = "meta"
    """Manifests are whole and belong to their directories."""
    SIZES = "sizes"
    """Every file is there and has its length."""
    HASH = "hash"
    """Every byte is the one that was committed."""
    LOAD = "load"
    """Every component can be read: what a restore would find in its files has its form."""


@dataclass(frozen=True, slots=True)
class DirectoryDamage(Document):
    """A directory under ``snapshots/`` that is not a checkpoint."""

    directory: str
    problem: PerdureError


@dataclass(frozen=True, slots=True)
class CheckpointCheck(Document):
    """What was found of one checkpoint."""

    id: str
    global_step: int
    directory: Path
    restores: bool
    """Whether nothing is wrong with it, as far as the level looks."""
    damaged_components: tuple[str, ...]
    damaged_files: tuple[str, ...]
    """Paths of files that are gone or not what was committed; a whole copy would mend them."""
    problems: tuple[PerdureError, ...]


@dataclass(frozen=True, slots=True)
class VerifyReport(Document):
    """What a check found."""

    run: str
    directory: Path
    level: Level
    checkpoints: tuple[CheckpointCheck, ...]
    """The checkpoints that were checked, newest first."""
    damaged_directories: tuple[DirectoryDamage, ...]
    files_checked: int
    """Different files; names of the same file count once."""
    bytes_checked: int
    """Their size. They have been read from level ``hash`` on."""
    seconds: float

    @property
    def is_whole(self) -> bool:
        """Whether no damage was found."""
        return not self.damaged_directories and all(check.restores for check in self.checkpoints)

    @property
    def restores(self) -> bool:
        """Whether any of the checkpoints that were checked can be restored."""
        return any(check.restores for check in self.checkpoints)


def in_brief(problem: PerdureError, directory: Path) -> str:
    """Return what is wrong in a directory that the reader knows of: its path is left out."""
    return problem.message.removeprefix("cannot use ").replace(f"{directory}/", "")


def directory_damages(files: Files, damages: Sequence[Damage]) -> tuple[DirectoryDamage, ...]:
    """Return what is not a checkpoint, but for directories that have gone since the scan."""
    return tuple(
        DirectoryDamage(damage.directory.name, damage.error)
        for damage in damages
        if files.status(damage.directory) is not None
    )


def check_all(
    store: Store, checkpoints: Sequence[Checkpoint], level: Level, on_progress: OnProgress
) -> tuple[list[CheckpointCheck], int, int]:
    """
    Check checkpoints, in their order.

    Returns:
        What was found of each, the number of different files, and their bytes.

    Raises:
        StoreError: The file system refuses to say.
    """
    files = store.files
    if level is Level.META:
        return [_checked(checkpoint, (), {}) for checkpoint in checkpoints], 0, 0
    looks = [look_at_files(files, checkpoint) for checkpoint in checkpoints]
    different = inodes([look for some in looks for look in some])
    reader = _Reader(files, sum(different.values()), on_progress, is_deep=level in (Level.HASH, Level.LOAD))
    found = []
    for checkpoint, some in zip(checkpoints, looks, strict=True):
        problems = {
            look.entry.path: problem for look in some if (problem := look.problem or reader.check(checkpoint, look))
        }
        damaged_files = tuple(problems)
        if level is Level.LOAD and not problems:
            problems = unreadable(store, checkpoint)
        if not problems or files.status(checkpoint.directory) is not None:
            found.append(_checked(checkpoint, damaged_files, _with_losses(store, checkpoint, problems)))
    return found, len(different), sum(different.values())


def _with_losses(
    store: Store, checkpoint: Checkpoint, problems: Mapping[str, PerdureError]
) -> Mapping[str, PerdureError]:
    """Say of damaged replay segments which transitions they hold."""
    if not problems:
        return problems
    files = {entry.path: entry for entry in checkpoint.manifest.files}
    read = partial(store.read, checkpoint)
    return name_losses(checkpoint.manifest.components, files, read, problems)


def _checked(
    checkpoint: Checkpoint, damaged_files: tuple[str, ...], problems: Mapping[str, PerdureError]
) -> CheckpointCheck:
    manifest = checkpoint.manifest
    components = (component.name for component in manifest.components if problems.keys() & set(component.files))
    return CheckpointCheck(
        id=manifest.id,
        global_step=manifest.global_step,
        directory=checkpoint.directory,
        restores=not problems,
        damaged_components=tuple(components),
        damaged_files=damaged_files,
        problems=tuple(problems.values()),
    )


class _Reader:
    """Opens files as a restore would, and if it is a deep one reads each whole, once."""

    def __init__(self, files: Files, total_bytes: int, on_progress: OnProgress, *, is_deep: bool) -> None:
        self._files = files
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._on_progress = on_progress
        self._is_deep = is_deep
        self._digests: dict[Inode | None, str] = {}
        self._buffer = allocate(STRIDE_BYTES)

    def check(self, checkpoint: Checkpoint, look: FileOnDisk) -> PerdureError | None:
        try:
            # Opened in any case: a shared file can have been replaced in one checkpoint alone, and a folder by a link.
            descriptor = open_checked(self._files, checkpoint.directory, look.entry)
            try:
                if self._is_deep and look.inode not in self._digests:
                    self._digests[look.inode] = self._read(checkpoint, descriptor, look.entry)
            finally:
                self._files.close(descriptor)
        except (CorruptionError, StoreError) as error:
            return error
        actual = self._digests[look.inode] if self._is_deep else look.entry.digest
        if actual == look.entry.digest:
            return None
        path = checkpoint.directory / look.entry.path
        return damaged(path, "its bytes are not those that were committed", look.entry.digest, actual)

    def _read(self, checkpoint: Checkpoint, descriptor: int, entry: FileEntry) -> str:
        digest, path = blake3(), checkpoint.directory / entry.path
        reader = Reader(self._files, descriptor, entry.bytes, from_disk=True)
        for start in range(0, entry.bytes, STRIDE_BYTES):
            piece = self._buffer[: entry.bytes - start]
            with explained("read", path):
                reader.fill(piece, start)
            digest.update(piece)
            self._done_bytes += len(piece)
            self._on_progress(self._done_bytes, self._total_bytes)
        return f"blake3:{digest.hexdigest()}"
