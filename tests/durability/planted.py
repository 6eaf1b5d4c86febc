"""
Planted bugs: perdure with one mistake each, of the kind that real systems have shipped, and the tier that must see it.

A proof that finds none of them would prove nothing.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import perdure.core.manifest
import perdure.core.sealing
import perdure.core.tensorfile
import perdure.files.publish
import perdure.files.reading
import perdure.files.writing
import perdure.store.store
import perdure.testing.scenario
from perdure.core.component import ContentPart, Part
from perdure.core.manifest import FileEntry, Manifest, encode_manifest
from perdure.core.names import checkpoint_directory_name
from perdure.core.retention import plan_retention
from perdure.errors import PerdureError, StoreError
from perdure.files.door import Files
from perdure.files.together import Together
from perdure.files.writing import digest_of
from perdure.store.layout import LATEST, MANIFEST_FILE, SNAPSHOTS, STAGING
from perdure.store.store import Checkpoint, Guard, Store
from perdure.testing import ENOSPC, FAILED_SYNC, SHORT_WRITE, check_order
from tests.durability.damage import explore_damage, keep
from tests.durability.imports import find_dangers
from tests.durability.tiers import Report, explore_family, explore_workload, fail_every_call, record, workspace
from tests.durability.workloads import WORKLOADS

Plant = Callable[[], AbstractContextManager[object]]
Problems = Callable[[], Sequence[str]]
ROOT = Path(__file__).parents[2]
_store, _publish, _writing = perdure.store.store, perdure.files.publish, perdure.files.writing


@dataclass(frozen=True)
class Bug:
    """A mistake, and the tier that has to find it."""

    tier: str
    plant: Plant
    problems: Problems


# Ways to plant


@contextmanager
def put(place: object, **values: object) -> Iterator[None]:
    """Replace attributes for a while."""
    before = {name: getattr(place, name) for name in values}
    for name, value in values.items():
        setattr(place, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(place, name, value)


def as_store(planted: type[Store]) -> Plant:
    """Let scenarios use another store."""
    return lambda: put(perdure.testing.scenario, Store=planted)


class Altered:
    """A file system of which some calls do something else."""

    def __init__(self, files: Files, **calls: Callable[..., Any]) -> None:
        self._files = files
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        return self._calls.get(name, getattr(self._files, name))


def writes_with(alter: Callable[[Files], Files]) -> Plant:
    """Let files be written through an altered file system."""
    real = _writing.write_file

    def write_file(files: Files, *rest: Any) -> str:
        return real(alter(files), *rest)

    @contextmanager
    def plant() -> Iterator[None]:
        with put(_store, write_file=write_file), put(_publish, write_file=write_file):
            yield

    return plant


def _nothing(*_: object) -> None:
    return None


def _never_syncs(files: Files) -> Files:
    return Altered(files, sync=_nothing)  # type: ignore[return-value]


def _syncs_again(together: Together, descriptor: int) -> None:
    try:
        together._files.sync(descriptor)
    except OSError:
        together._files.sync(descriptor)


def _renames_only(files: Files, staging: Path, target: Path) -> None:
    files.rename(staging, target)


def _replaces_in_place(
    files: Files, path: Path, content: bytes, temporary: Path, instead_of: Sequence[Path] = ()
) -> None:
    for name in (path, *instead_of):
        if files.status(name) is not None:
            files.unlink(name)
    _writing.write_file(files, path, len(content), [memoryview(content)])
    files.sync_directory(path.parent)


def _trusts_what_exists(files: Files, paths: Iterable[Path]) -> None:
    for path in paths:
        if not path.is_dir():
            _trusts_what_exists(files, [path.parent])
            files.make_directory(path)
            files.sync_directory(path.parent)


def _leaves_what_it_could_not_sync(files: Files, paths: Iterable[Path]) -> None:
    for path in paths:
        with _publish.explained("make directory", path):
            if not path.is_dir():
                _leaves_what_it_could_not_sync(files, [path.parent])
                files.make_directory(path)
            files.sync_directory(path.parent)


def _syncs_without_a_look(_files: Files, descriptor: int) -> None:
    os.fsync(descriptor)


# Stores with a mistake


def _parts_written(store: Store, staging: Path, parts: Sequence[Part]) -> tuple[FileEntry, ...]:
    folders = _publish.make_folders(store.files, staging, [part.path for part in parts])
    entries = tuple(store._place(store.files, staging, part) for part in parts)
    _publish.sync_folders(store.files, staging, folders)
    return entries


def _write_manifest(store: Store, directory: Path, manifest: Manifest) -> None:
    content = encode_manifest(manifest)
    _writing.write_file(store.files, directory / MANIFEST_FILE, len(content), [memoryview(content)])
    store.files.sync_directory(directory)


def _entries(parts: Sequence[Part]) -> tuple[FileEntry, ...]:
    return tuple(
        FileEntry(part.path, part.size_bytes, digest_of(b"".join(part.chunks())))
        for part in parts  # type: ignore[union-attr]
    )


class PublishesBeforeItsManifest(Store):
    """The directory is visible, and whoever looks now finds no checkpoint in it."""

    def commit(self, draft: Manifest, parts: Sequence[Part], guard: Guard) -> Checkpoint:
        name = checkpoint_directory_name(draft.global_step, draft.id)
        staging, target = self.directory / STAGING / name, self.snapshots / name
        self.files.make_directory(staging)
        manifest = msgspec.structs.replace(draft, files=_parts_written(self, staging, parts))
        _publish.publish_directory(self.files, staging, target)
        _write_manifest(self, target, manifest)
        _publish.replace_symlink(self.files, self.directory / LATEST, f"{SNAPSHOTS}/{name}", f".new-{draft.id}")
        return Checkpoint(target, manifest)


class WritesItsManifestFirst(Store):
    """A manifest that is there says nothing of the files that should be there by then."""

    def commit(self, draft: Manifest, parts: Sequence[Part], guard: Guard) -> Checkpoint:
        name = checkpoint_directory_name(draft.global_step, draft.id)
        staging, target = self.directory / STAGING / name, self.snapshots / name
        self.files.make_directory(staging)
        manifest = msgspec.structs.replace(draft, files=_entries(parts))
        _write_manifest(self, staging, manifest)
        _parts_written(self, staging, parts)
        _publish.publish_directory(self.files, staging, target)
        return Checkpoint(target, manifest)


class PointsBeforeItPublishes(Store):
    """``latest`` names what is not there yet."""

    def commit(self, draft: Manifest, parts: Sequence[Part], guard: Guard) -> Checkpoint:
        name = checkpoint_directory_name(draft.global_step, draft.id)
        _publish.replace_symlink(self.files, self.directory / LATEST, f"{SNAPSHOTS}/{name}", f".new-{draft.id[::-1]}")
        return super().commit(draft, parts, guard)


class ReusesItsStaging(Store):
    """What a failed save left is taken for what this one would write."""

    def _place(self, files: Files, staging: Path, part: Part) -> FileEntry:
        left = self.directory / STAGING / f"left-{part.path.replace('/', '-')}"
        if isinstance(part, ContentPart) and left.exists():
            self.files.rename(left, staging / part.path)
            return _entries([part])[0]
        return super()._place(files, staging, part)

    def _give_up(self, staging: Path) -> None:
        for path in staging.rglob("*"):
            if path.is_file():
                left = f"left-{path.relative_to(staging).as_posix().replace('/', '-')}"
                self.files.rename(path, staging.with_name(left))
        super()._give_up(staging)


class RemovesInPlace(Store):
    """A checkpoint that is being removed is visible with half of its files."""

    def remove(self, checkpoint: Checkpoint) -> None:
        _publish.remove_tree(self.files, checkpoint.directory)
        self.files.sync_directory(self.snapshots)


class SwallowsErrors(Store):
    """A full disk is reported as a success."""

    def commit(self, draft: Manifest, parts: Sequence[Part], guard: Guard) -> Checkpoint:
        try:
            return super().commit(draft, parts, guard)
        except StoreError:
            return Checkpoint(self.snapshots / "lost", draft)


class AcknowledgesFirst(Store):
    """What is acknowledged is committed with the save after it."""

    def commit(self, draft: Manifest, parts: Sequence[Part], guard: Guard) -> Checkpoint:
        before, self._waiting = getattr(self, "_waiting", None), (draft, parts, guard)
        if before is not None:
            super().commit(*before)
        return Checkpoint(self.snapshots / checkpoint_directory_name(draft.global_step, draft.id), draft)


class ForgetsPins(Store):
    """Nobody knows of pins when it is cleaned up."""

    def pins(self) -> dict[str, str]:
        return {}


class RemovesLeftoversAtOnce(Store):
    """What a killed removal left is removed while its rename can still be lost."""

    def remove_leftovers(self) -> int:
        names = self.files.names(self.directory / STAGING)
        for name in names:
            _publish.remove_tree(self.files, self.directory / STAGING / name)
        return len(names)

    def create(self, run: str, created_at: str, keep: str | None = None) -> None:
        if self.identity() is None:
            super().create(run, created_at, keep)


class RemovesBelowAnUncertainName(Store):
    """A removal whose rename could not be synced is taken up where it ended."""

    def remove(self, checkpoint: Checkpoint) -> None:
        grave = self.directory / STAGING / f"removed-{checkpoint.directory.name}"
        _publish.publish_directory(self.files, checkpoint.directory, grave)
        _publish.remove_tree(self.files, grave)

    def _bury(self, path: Path) -> None:
        _publish.remove_tree(self.files, path)


# Tiers


def crash(workload: str) -> Problems:
    """Crash states of a workload."""
    return lambda: _collect(lambda report: explore_workload(workload, report))


def family(name: str, stride: int) -> Problems:
    """Crash states after kills and failed calls."""
    return lambda: _collect(lambda report: explore_family(name, stride, report))


def failing(act: str, *faults: Any) -> Problems:
    """Failing calls of an act."""
    return lambda: _collect(lambda report: fail_every_call(act, report, faults))


def damaged() -> Sequence[str]:
    """Damaged files."""
    return _collect(explore_damage)


def order(workload: str) -> Problems:
    """The rules of order."""
    return lambda: check_order(record(WORKLOADS[workload]).operations, lambda mark: mark[1].acknowledged)


def machine() -> Sequence[str]:
    """The state machine."""
    from tests.durability.test_store_machine import StoreMachine

    unshrunk = settings(StoreMachine.TestCase.settings, max_examples=30, phases=[Phase.generate], print_blob=False)
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            run_state_machine_as_test(StoreMachine, settings=unshrunk)
        except (AssertionError, PerdureError) as error:
            return [repr(error)]
    return []


def rounds(bug: str, *arguments: str) -> Problems:
    """Real processes that are killed, or real power cuts."""

    def problems() -> Sequence[str]:
        command = [sys.executable, "-m", "tests.durability.planted", bug, *arguments]
        ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200, cwd=ROOT)
        if not ended.stdout:
            raise RuntimeError(ended.stderr)
        return msgspec.json.decode(ended.stdout.encode(), type=dict)["violations"]

    return problems


def _collect(explore: Callable[[Report], object]) -> Sequence[str]:
    report = Report(stops_early=True)
    try:
        explore(report)
    except PerdureError as error:
        return [*report.violations, repr(error)]
    return report.violations


def follows_a_link() -> Sequence[str]:
    """Hostile: a link in the place of a file."""
    with workspace() as root:
        kept = keep(root)
        path = kept.newer.directory / "meta.json"
        path.rename(root / "outside")
        path.symlink_to(root / "outside")
        try:
            kept.store.read(kept.newer, "meta.json")
        except PerdureError:
            return []
        return ["a link was followed"]


def removes_through_a_link() -> Sequence[str]:
    """Hostile: a link among what is removed."""
    with workspace() as root:
        kept = keep(root)
        (root / "outside").mkdir()
        (root / "outside" / "precious").touch()
        (root / "run" / "staging" / "link").symlink_to(root / "outside")
        with contextlib.suppress(OSError):
            kept.store.remove_leftovers()
        return [] if (root / "outside" / "precious").exists() else ["what a link leads to was removed"]


def leads_outside() -> Sequence[str]:
    """Hostile: a manifest with a path that leads outside."""
    with workspace() as root:
        kept = keep(root)
        forged = msgspec.structs.replace(kept.newer.manifest, files=(FileEntry("../x", 1, "blake3:" + "0" * 64),))
        (kept.newer.directory / MANIFEST_FILE).write_bytes(encode_manifest(forged))
        found, _ = kept.store.scan()
        return [entry.path for checkpoint in found for entry in checkpoint.manifest.files if ".." in entry.path]


def bombs() -> Sequence[str]:
    """Hostile: a header that claims to be huge."""
    try:
        return [str(perdure.core.tensorfile.header_bytes((2**40).to_bytes(8, "little"), 2**50, "x"))]
    except PerdureError:
        return []


def pickles() -> Sequence[str]:
    """The import lint on a loader that unpickles."""
    return [
        what for _, what in find_dangers("import pickle\n\ndef load(path):\n    return pickle.load(open(path, 'rb'))\n")
    ]


def _opens_anything(self: Files, root: Path, relative: str) -> tuple[int, int]:
    descriptor = os.open(root / relative, os.O_RDONLY)
    return descriptor, os.fstat(descriptor).st_size


def _removes_anything(files: Files, root: Path) -> None:
    for path in root.iterdir():
        if stat.S_ISDIR(path.stat().st_mode):
            _removes_anything(files, path)
        else:
            files.unlink(path)
    files.remove_directory(root)


def _believes_sizes(files: Files, root: Path, entry: FileEntry, *_: object) -> memoryview:
    descriptor = perdure.files.reading.open_checked(files, root, entry)
    content = bytearray(entry.bytes)
    perdure.files.reading.Reader(files, descriptor, len(content)).fill(memoryview(content), 0)
    files.close(descriptor)
    return memoryview(content)


def _believes_anything(files: Files, root: Path, entry: FileEntry, *_: object) -> memoryview:
    return memoryview((root / entry.path).read_bytes())


def _unsealed(content: bytes) -> bytes | None:
    return b"{" + content[content.find(b",") + 1 :]


BUGS: Mapping[str, Bug] = {
    "the parent is not synced after the rename": Bug(
        "crash states", lambda: put(_store, publish_directory=_renames_only), crash("one_save")
    ),
    "files are not synced": Bug("crash states", writes_with(_never_syncs), crash("one_save")),
    "folders are not synced": Bug("crash states", lambda: put(_store, sync_folders=_nothing), crash("one_save")),
    "it is visible before its manifest": Bug("crash states", as_store(PublishesBeforeItsManifest), crash("one_save")),
    "the pointer comes before the checkpoint": Bug("order", as_store(PointsBeforeItPublishes), order("two_saves")),
    "it is acknowledged before it is durable": Bug("crash states", as_store(AcknowledgesFirst), crash("two_saves")),
    "checkpoints are removed in place": Bug("crash states", as_store(RemovesInPlace), crash("keep_the_last")),
    "small files are replaced in place": Bug(
        "crash states", lambda: put(_store, replace_file=_replaces_in_place), crash("markers_replaced")
    ),
    "a staging directory is used again after an error": Bug(
        "crash states", as_store(ReusesItsStaging), family("disk full and it goes on", 3)
    ),
    "a failed sync is tried again": Bug(
        "crash states", lambda: put(Together, _sync_file=_syncs_again), family("sync fails and it goes on", 1)
    ),
    "a directory that exists is taken for durable": Bug(
        "crash states",
        lambda: put(_store, ensure_directories=_trusts_what_exists),
        family("killed in its first start", 1),
    ),
    "leftovers are removed at once": Bug(
        "crash states", as_store(RemovesLeftoversAtOnce), family("killed in save and retention", 2)
    ),
    "a directory whose name could not be synced stays": Bug(
        "crash states",
        lambda: put(_store, ensure_directories=_leaves_what_it_could_not_sync),
        family("sync fails in its first start", 1),
    ),
    "a removal goes on below an uncertain name": Bug(
        "crash states", as_store(RemovesBelowAnUncertainName), family("sync fails in save and retention", 1)
    ),
    "the manifest is written first": Bug("order", as_store(WritesItsManifestFirst), order("one_save")),
    "a short write is taken for a whole one": Bug(
        "failing calls",
        lambda: put(_writing, write_all=lambda files, descriptor, data: files.write(descriptor, data)),
        failing("save", SHORT_WRITE),
    ),
    "a full disk is swallowed": Bug("failing calls", as_store(SwallowsErrors), failing("save", ENOSPC)),
    "a failed sync is swallowed": Bug("failing calls", as_store(SwallowsErrors), failing("save", FAILED_SYNC)),
    "files stay open after an error": Bug(
        "failing calls", lambda: put(Together, _abandon=lambda _: None), failing("save", FAILED_SYNC)
    ),
    "sizes are believed": Bug("damage", lambda: put(_store, read_verified=_believes_sizes), damaged),
    "files are believed": Bug("damage", lambda: put(_store, read_verified=_believes_anything), damaged),
    "seals are believed": Bug("damage", lambda: put(perdure.core.manifest, unseal=_unsealed), damaged),
    "links are followed": Bug("hostile input", lambda: put(Files, open_beneath=_opens_anything), follows_a_link),
    "links are removed through": Bug(
        "hostile input", lambda: put(_store, remove_tree=_removes_anything), removes_through_a_link
    ),
    "paths are believed": Bug(
        "hostile input", lambda: put(perdure.core.manifest, check_path=lambda value, what: value), leads_outside
    ),
    "headers of any size are read": Bug(
        "hostile input", lambda: put(perdure.core.tensorfile, MAXIMUM_HEADER_BYTES=2**62), bombs
    ),
    "pickles are loaded": Bug("import lint", ExitStack, pickles),
    "pins are forgotten when it is cleaned up": Bug(
        "state machine",
        lambda: put(
            perdure.testing.scenario,
            plan_retention=lambda manifests, policy, pins: plan_retention(manifests, policy, {}),
        ),
        machine,
    ),
    "the newest is the one with the highest step": Bug(
        "state machine",
        lambda: put(Manifest, order=property(lambda manifest: (manifest.global_step, manifest.sequence))),
        machine,
    ),
    "it is acknowledged before it is durable, killed": Bug(
        "kills", as_store(AcknowledgesFirst), rounds("it is acknowledged before it is durable", "--rounds", "40")
    ),
    "names are not synced, for real": Bug(
        "power cuts",
        # Without the hint's sync as well: on a file system with a journal each sync makes all names before it durable.
        lambda: put(_store, publish_directory=_renames_only, replace_symlink=_nothing),
        rounds("names are not synced, for real", "--on", "ext4", "--rounds", "40"),
    ),
    "files are not synced, for real": Bug(
        "power cuts",
        writes_with(_never_syncs),
        rounds("files are not synced", "--on", "ext4", "--rounds", "80"),
    ),
}

FOUND_BY_CHANCE: Mapping[str, Bug] = {
    "a directory's sync is believed": Bug("power cuts", lambda: put(Files, sync=_syncs_without_a_look), list)
}
"""Bugs for which a real disk has to fail at the right moment: planted by hand, with as many rounds as it takes."""


if __name__ == "__main__":
    from perdure.testing.rounds import main

    with {**BUGS, **FOUND_BY_CHANCE}[sys.argv[1]].plant():
        sys.exit(main(sys.argv[2:]))
