"""
Repairing a run: what can be put right from whole copies, what has to be put aside, and doing it.

A damaged file is replaced by a copy that has the committed digest: another checkpoint of the run may have it, one that
was put aside, or another place that holds the run, such as a backup. Nothing that still counts is ever removed: a
checkpoint that cannot be mended goes to quarantine, whole as it lies. One whose files are what was committed is no
business of a repair, whatever a restore may think of it; only where nothing else is left to be restored, the newest of
those in quarantine comes back if it can be read: what was wrong may have been the disk or the program.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from perdure.core.manifest import FileEntry, Manifest
from perdure.errors import CorruptionError, FormatError, NotFoundError, PerdureError, StoreError
from perdure.files.reading import read_verified
from perdure.inspection.documents import Document
from perdure.inspection.losing import can_lose, commit_without, newest_aside
from perdure.inspection.readability import unreadable
from perdure.inspection.verification import CheckpointCheck, Level, OnProgress, check_all
from perdure.store.layout import MANIFEST_FILE, QUARANTINE, SNAPSHOTS
from perdure.store.mending import replace_content, replace_manifest
from perdure.store.store import Checkpoint, Damage, Store, manifest_of


class Repair(str, Enum):
    """What is to become of a damaged checkpoint."""

    MEND = "mend"
    """Every damaged file has a whole copy."""
    PUT_ASIDE = "put aside"
    """It goes to quarantine."""
    GO_ON = "go on without"
    """It is committed anew without the replay segments that are lost, and goes to quarantine as it is."""
    BRING_BACK = "bring back"
    """It is whole, and leaves quarantine."""


@dataclass(frozen=True, slots=True)
class RepairRow(Document):
    """One damaged directory under ``snapshots/``, or one in ``quarantine/`` that is to be brought back."""

    directory: str
    global_step: int | None
    action: Repair
    sources: Mapping[str, Path]
    """Where the whole copy of each damaged file lies, by its path in the checkpoint; ``manifest.json`` is one."""
    lost: tuple[str, ...]
    """Damaged files of which no copy was found."""
    problems: tuple[PerdureError, ...]
    can_lose: bool = False
    """Whether all that is lost are transitions of replay buffers, which a repair can go on without."""
    put_aside_because: str = ""
    """Why it is in quarantine, of one that is to be brought back."""


@dataclass(frozen=True, slots=True)
class RepairPlan(Document):
    """What a repair would do."""

    run: str
    directory: Path
    copies_from: tuple[Path, ...]
    """Other places of the run that were searched."""
    rows: tuple[RepairRow, ...]
    """Empty if nothing is damaged."""
    whole: int
    """Checkpoints that nothing is wrong with."""

    @property
    def is_mendable(self) -> bool:
        """Whether nothing has to be put aside for good."""
        return all(row.action is not Repair.PUT_ASIDE for row in self.rows)


@dataclass(frozen=True, slots=True)
class RepairResult(Document):
    """What a repair did."""

    run: str
    mended: tuple[str, ...]
    """Names of directories."""
    put_aside: Mapping[str, Path]
    """Where each that could not be mended is now."""
    gone_on: Mapping[str, str]
    """What each that went on without something is now: the names of both directories."""
    brought_back: tuple[str, ...]
    """Names of directories that have left quarantine."""


class _Copies:
    """
    Finds whole copies of files. What has the right length is read, at most once; nothing else is trusted.

    Args:
        store: The run.
        others: Directories of the same run elsewhere.
    """

    def __init__(self, store: Store, others: Sequence[Path]) -> None:
        self._store = store
        self._roots = [
            path
            for run in (store.directory, *others)
            for folder in (run / SNAPSHOTS, run / QUARANTINE)
            for path in _directories(folder)
        ]
        self._others = [path for run in others for path in _directories(run / SNAPSHOTS)]
        self._found: dict[str, Path] = {}

    def manifest(self, name: str) -> tuple[Path, Manifest] | None:
        """The directory and manifest of a whole copy of a checkpoint elsewhere."""
        for directory in self._others:
            if directory.name == name:
                with contextlib.suppress(CorruptionError, FormatError, StoreError):
                    content = self._store.read_manifest(directory)
                    return directory, manifest_of(directory, content, self._store.keys)
        return None

    def find(self, entry: FileEntry) -> Path | None:
        """Where a whole copy of a file lies."""
        if entry.digest in self._found:
            return self._found[entry.digest]
        for root in self._roots:
            candidate = root / entry.path
            # Files keep their place from checkpoint to checkpoint, and segments that wander keep their name.
            paths = [candidate] if candidate.is_file() else list(root.rglob(Path(entry.path).name))
            for path in paths:
                if self._is_whole(path, entry):
                    self._found[entry.digest] = path
                    return path
        return None

    def _is_whole(self, path: Path, entry: FileEntry) -> bool:
        try:
            read_verified(self._store.files, path.parent, FileEntry(path.name, entry.bytes, entry.digest))
        except (CorruptionError, StoreError):
            return False
        return True


def place_of(run: str, where: Path) -> Path:
    """
    Return the directory of a run in another place: the one that is given, or the one of the run's name in it.

    Raises:
        NotFoundError: Kind ``run.not-found``.
    """
    for directory in (where, where / run):
        if (directory / SNAPSHOTS).is_dir():
            return directory
    raise NotFoundError(
        f"cannot take copies of run {run} from {where}: it is neither a run's directory nor holds that of {run}",
        kind="run.not-found",
        hint="name the directory of the copy, or of the store that holds it",
        name=str(where),
    )


def _directories(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())


def plan_repair(
    store: Store, run: str, others: Sequence[Path], on_progress: OnProgress, *, without_lost: bool
) -> RepairPlan:
    """
    Look for damage, and for whole copies of what is damaged; reads only.

    Args:
        store: The run.
        run: Its name.
        others: Directories of the same run elsewhere: a backup, another tier.
        on_progress: Told the bytes checked so far and the bytes to check.
        without_lost: Whether to go on without transitions of which no whole copy is left.

    Raises:
        FormatError: A manifest is of a newer schema, or unsigned though a key is set.
        StoreError: The run may not be read.
    """
    found, broken = store.scan()
    aside = newest_aside(store)
    if aside is not None and all(aside.manifest.order > checkpoint.manifest.order for checkpoint in found):
        # A start has put it aside, and nothing was saved since.
        found = [*found, aside]
    checks, _, _ = check_all(store, found, Level.HASH, on_progress)
    by_directory = {checkpoint.directory: checkpoint for checkpoint in found}
    copies = _Copies(store, others)
    rows = [_file_row(store, by_directory[check.directory], check, copies) for check in checks if not check.restores]
    rows = [_willing(row) if without_lost else row for row in rows if _is_at_stake(store, row)]
    rows += [_directory_row(damage, copies) for damage in broken]
    whole = sum(check.restores for check in checks if check.directory.parent == store.snapshots)
    if aside in found and not whole and any(check.restores for check in checks if check.directory == aside.directory):
        rows += _returning_rows(store, aside)
    return RepairPlan(run, store.directory, tuple(others), tuple(rows), whole)


def _returning_rows(store: Store, aside: Checkpoint) -> list[RepairRow]:
    """A plan to bring a checkpoint back whose bytes are right, if its components can be read as well."""
    if unreadable(store, aside):
        return []
    why = store.read_json(f"{QUARANTINE}/{aside.directory.name}.json") or {}
    step, reason = aside.manifest.global_step, str(why.get("reason", ""))
    return [RepairRow(aside.directory.name, step, Repair.BRING_BACK, {}, (), (), put_aside_because=reason)]


def _is_at_stake(store: Store, row: RepairRow) -> bool:
    """What lies in quarantine stays there, unless it can be brought back."""
    return row.can_lose or (store.snapshots / row.directory).exists()


def _willing(row: RepairRow) -> RepairRow:
    return replace(row, action=Repair.GO_ON) if row.can_lose else row


def _file_row(store: Store, checkpoint: Checkpoint, check: CheckpointCheck, copies: _Copies) -> RepairRow:
    entries = [entry for entry in checkpoint.manifest.files if entry.path in check.damaged_files]
    row = _row(checkpoint.directory.name, checkpoint.manifest, entries, {}, check.problems, copies)
    return replace(row, can_lose=can_lose(store, checkpoint, row.lost))


def _directory_row(damage: Damage, copies: _Copies) -> RepairRow:
    name = damage.directory.name
    elsewhere = copies.manifest(name)
    if elsewhere is None or damage.directory.is_symlink() or not damage.directory.is_dir():
        return RepairRow(name, None, Repair.PUT_ASIDE, {}, (MANIFEST_FILE,), (damage.error,))
    directory, manifest = elsewhere
    # Its own files cannot be told whole or not before it has a manifest, so that all are brought from the copy.
    return _row(name, manifest, manifest.files, {MANIFEST_FILE: directory / MANIFEST_FILE}, (damage.error,), copies)


def _row(
    name: str,
    manifest: Manifest,
    entries: Sequence[FileEntry],
    known: Mapping[str, Path],
    problems: Sequence[PerdureError],
    copies: _Copies,
) -> RepairRow:
    found = {entry.path: copies.find(entry) for entry in entries}
    lost = tuple(path for path, source in found.items() if source is None)
    sources = {**known, **{path: source for path, source in found.items() if source is not None}}
    is_mendable = bool(sources) and not lost
    action = Repair.MEND if is_mendable else Repair.PUT_ASIDE
    return RepairRow(name, manifest.global_step, action, sources, lost, tuple(problems))


def execute_repair(store: Store, plan: RepairPlan, at: Callable[[], str]) -> RepairResult:
    """
    Carry out a plan.

    A crash leaves each file as it was or whole, so that the same command can be given again.

    Args:
        store: The run.
        plan: What to do.
        at: Gives the time, for the run's history.

    Raises:
        CorruptionError: A copy is not whole any more; what was mended before stays so.
        StoreError: The disk refuses.
    """
    mended, aside, gone_on, brought_back = [], {}, {}, []
    for row in plan.rows:
        directory = store.snapshots / row.directory
        if row.action is Repair.MEND:
            _mend(store, directory, row)
            mended.append(row.directory)
            event = {"event": "repaired", "checkpoint": row.directory, "files": sorted(row.sources)}
        elif row.action is Repair.BRING_BACK:
            brought_back.append(store.bring_back(store.directory / QUARANTINE / row.directory).name)
            event = {"event": "repaired", "checkpoint": brought_back[-1]}
        elif row.action is Repair.GO_ON:
            gone_on[row.directory] = _go_on(store, row, at)
            event = {"event": "repaired", "checkpoint": gone_on[row.directory], "without": sorted(row.lost)}
        elif not directory.exists():
            continue  # it lies in quarantine already
        else:
            reason = row.problems[0].message if row.problems else "it cannot be mended"
            aside[row.directory] = store.quarantine(directory, reason, at())
            event = {"event": "quarantined", "checkpoint": row.directory, "reason": reason}
        with contextlib.suppress(StoreError):  # a disk too full for a line of history is mended all the same
            store.events.append({"at": at(), **event, "by": "repair"})
    return RepairResult(plan.run, tuple(mended), aside, gone_on, tuple(brought_back))


def _go_on(store: Store, row: RepairRow, at: Callable[[], str]) -> str:
    """Commit a checkpoint without what is lost, then put the damaged one aside; returns the new directory's name."""
    directory = store.snapshots / row.directory
    if directory.exists():
        damaged = Checkpoint(directory, manifest_of(directory, store.read_manifest(directory), store.keys))
    else:
        found = newest_aside(store)
        assert found is not None, "planned from the same directories"
        damaged = found
    renewed = commit_without(store, damaged, row.lost, row.sources, at())
    if directory.exists():
        store.quarantine(directory, row.problems[0].message, at())
    return renewed.directory.name


def _mend(store: Store, directory: Path, row: RepairRow) -> None:
    sources = dict(row.sources)
    copy = sources.pop(MANIFEST_FILE, None)
    content = store.read_manifest(copy.parent if copy is not None else directory)
    manifest = manifest_of(directory, content, store.keys)
    checkpoint = Checkpoint(directory, manifest)
    for path, source in sources.items():
        entry = manifest.file(path)
        assert entry is not None, "planned from the same manifest"
        replace_content(store, checkpoint, entry, source)
    if copy is not None:
        replace_manifest(store, directory, content)  # last: without it the directory is no checkpoint
