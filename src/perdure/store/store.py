"""
The store: what lies in a run directory, and how a checkpoint gets in and out of it.

Manifests are the truth. A checkpoint is a directory under ``snapshots/`` whose name and manifest are valid; ``latest``
is a hint for people that nothing here reads. What is half written lies under ``staging/``, where no reader looks.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from perdure.core.component import ContentPart, DeferredPart, ElsewherePart, LinkPart, Part
from perdure.core.keys import Keyring
from perdure.core.manifest import (
    MAXIMUM_MANIFEST_BYTES,
    NO_KEYS,
    SCHEMA_VERSION,
    FileEntry,
    Manifest,
    decode_manifest,
    encode_manifest,
)
from perdure.core.names import (
    check_path,
    check_segment,
    checkpoint_directory_name,
    parse_checkpoint_directory_name,
)
from perdure.core.sealing import seal, unseal
from perdure.errors import (
    AlreadyExistsError,
    CorruptionError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    PerdureError,
    StoreError,
)
from perdure.files.door import Files, explained
from perdure.files.publish import (
    ensure_directories,
    make_folders,
    publish_directory,
    remove_tree,
    replace_file,
    replace_symlink,
    swap_file,
    sync_folders,
)
from perdure.files.reading import damaged, follow_nobody, open_checked, read_small, read_verified
from perdure.files.together import Together, sync_threads
from perdure.files.writing import write_file
from perdure.store.layout import (
    EVENTS_FILE,
    LATEST,
    MANIFEST_FILE,
    MAXIMUM_SMALL_FILE_BYTES,
    METRICS_FILE,
    PINS,
    QUARANTINE,
    RUN_FILE,
    SNAPSHOTS,
    STAGING,
    TEMPORARY_PREFIX,
)
from perdure.store.log import Log

SPARE_BYTES = 16 * 1024 * 1024
"""Space that a save leaves free: for the manifest, directories and the file system's own needs."""

Ready = ContentPart | LinkPart | ElsewherePart
"""A file whose length is known."""

Guard = Callable[[], AbstractContextManager[object]]
"""Opens a block in which this process is known to be the run's only writer."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A committed checkpoint: its directory and its manifest."""

    directory: Path
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Damage:
    """A directory under ``snapshots/`` that is not a usable checkpoint, and why."""

    directory: Path
    error: PerdureError


class Store:
    """
    One run directory.

    Args:
        directory: The run's directory.
        files: The file system.
        new_id: Gives 32 random hex digits.
        keys: What manifests are signed with, and must be signed with to be read.
    """

    def __init__(self, directory: Path, files: Files, new_id: Callable[[], str], keys: Keyring = NO_KEYS) -> None:
        self.directory = directory
        self.files = files
        self.keys = keys
        self.events = Log(files, directory / EVENTS_FILE)
        self.metrics = Log(files, directory / METRICS_FILE)
        self.new_id = new_id
        self._sync_threads = sync_threads()

    @property
    def snapshots(self) -> Path:
        """Where committed checkpoints lie."""
        return self.directory / SNAPSHOTS

    # Opening

    def exists(self) -> bool:
        """Whether the directory holds a run."""
        return self.snapshots.is_dir() or (self.directory / RUN_FILE).is_file()

    def create(self, run: str, created_at: str, keep: str | None = None) -> None:
        """
        Make the run's directories, or check those that are there.

        Args:
            run: The run's name.
            created_at: When, if it is new.
            keep: The keep policy as text, for those who clean up from outside; what is recorded stays if None.

        Raises:
            StoreError: They cannot be made, or a file is in the way.
            FormatError: The run was written by a newer perdure.
        """
        folders = (SNAPSHOTS, STAGING, QUARANTINE, PINS)
        ensure_directories(self.files, [self.directory / folder for folder in folders])
        with explained("sync directory", self.snapshots):
            # What is visible must stay so: a save may have been killed before it could sync the new name.
            self.files.sync_directory(self.snapshots)
        known = self.identity()
        identity = known or {"schema_version": SCHEMA_VERSION, "run": run, "created_at": created_at}
        wanted = identity if keep is None else {**identity, "keep": keep}
        if wanted != known:
            self._replace_json(self.directory / RUN_FILE, wanted)

    def identity(self) -> dict[str, Any] | None:
        """
        What ``run.json`` says, or None if it is missing or unreadable; manifests can stand in for it.

        Raises:
            FormatError: Kind ``run.newer-schema``.
        """
        content = self.read_json(RUN_FILE)
        version = content.get("schema_version") if content else None
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise FormatError(
                f"cannot use run directory {self.directory}: its schema is version {version} "
                f"and this perdure reads up to {SCHEMA_VERSION}",
                kind="run.newer-schema",
                hint="upgrade perdure",
                path=str(self.directory),
                schema_version=version,
                supported_version=SCHEMA_VERSION,
            )
        return content

    def remove_leftovers(self) -> int:
        """
        Remove what interrupted saves, clean-ups and replacements left, and put ``latest`` right.

        Only the run's writer may call this. Returns how many things were left.
        """
        leftovers = [self.directory / STAGING / name for name in self.names(self.directory / STAGING)]
        for folder in (self.directory, self.directory / PINS, self.directory / QUARANTINE):
            leftovers += [folder / name for name in self.names(folder) if name.startswith(TEMPORARY_PREFIX)]
        if leftovers:
            # A removal may have been killed before its rename was durable. If the rename were lost and what is done
            # next were not, a checkpoint would be there again without its files.
            for folder in (self.directory / STAGING, self.snapshots):
                with explained("sync directory", folder):
                    self.files.sync_directory(folder)
        for path in leftovers:
            self._bury(path)
        self._point_latest()
        return len(leftovers)

    def latest(self) -> str | None:
        """What the hint ``latest`` says, such as ``snapshots/step-…``; None if there is none."""
        with explained("read", self.directory / LATEST):
            return self.files.link_content(self.directory / LATEST)

    def _point_latest(self) -> None:
        """
        Let ``latest`` name the newest checkpoint, or be gone if there is none.

        While something cannot be read nobody knows which is the newest, and the hint stays as it is.
        """
        found, broken = self.scan()
        if any(isinstance(damage.error, StoreError) for damage in broken):
            return
        if not found:
            self.remove_file(LATEST)
            return
        # Also if it says so already: that may be what a failed or killed save left, and not durable.
        content = f"{SNAPSHOTS}/{found[0].directory.name}"
        replace_symlink(self.files, self.directory / LATEST, content, f"{TEMPORARY_PREFIX}{self.new_id()}")

    def _forget_latest(self, directory: Path) -> None:
        """Let ``latest`` not name a checkpoint that is no more."""
        if self.latest() == f"{SNAPSHOTS}/{directory.name}":
            self._point_latest()

    def names(self, folder: Path) -> list[str]:
        """
        Names in a folder of the run, sorted; none if there is no such folder.

        Raises:
            StoreError: It cannot be read.
        """
        with explained("list", folder):
            return self.files.names(folder)

    # Reading

    def checkpoints(self) -> list[Checkpoint]:
        """
        Committed checkpoints with valid manifests, newest first; their files are not looked at.

        Raises:
            StoreError: A manifest could not be read. That is no damage: what it says may be the newest of all.
        """
        found, broken = self.scan()
        for damage in broken:
            if isinstance(damage.error, StoreError):
                raise damage.error
        return found

    def scan(self) -> tuple[list[Checkpoint], list[Damage]]:
        """
        Look at every directory under ``snapshots/``.

        Returns:
            The checkpoints, newest first, and the directories that are none.

        Raises:
            FormatError: A manifest is of a newer schema; nothing is guessed about it.
            StoreError: A manifest cannot be read for a reason that is not its own.
        """
        found: list[Checkpoint] = []
        broken: list[Damage] = []
        for name in self.names(self.snapshots):
            directory = self.snapshots / name
            try:
                found.append(Checkpoint(directory, self._read_manifest(directory)))
            except (CorruptionError, StoreError) as error:
                # A disk that cannot give the bytes back has lost them; anything else, such as too many open files,
                # says nothing about the checkpoint.
                if isinstance(error, StoreError) and error.kind != "store.broken":
                    raise
                broken.append(Damage(directory, error))
        found.sort(key=lambda checkpoint: checkpoint.manifest.order, reverse=True)
        return found, broken

    def _read_manifest(self, directory: Path) -> Manifest:
        return manifest_of(directory, self.read_manifest(directory), self.keys)

    def read_manifest(self, directory: Path) -> bytes:
        """
        Read what the manifest of a directory under ``snapshots/`` holds, whoever wrote it.

        Raises:
            CorruptionError: There is none that could be a checkpoint's.
            StoreError: It cannot be read.
        """
        parsed = parse_checkpoint_directory_name(directory.name)
        if parsed is None:
            raise damaged(directory, "its name is not that of a checkpoint", "step-…", directory.name)
        with explained("look at", directory):
            status = self.files.status(directory)
        if status is None or not stat.S_ISDIR(status.st_mode):
            raise damaged(directory, "it is no directory", "a directory", "a link or a file")
        content = read_small(self.files, directory, MANIFEST_FILE, MAXIMUM_MANIFEST_BYTES)
        if content is None:
            raise damaged(directory, "it has no manifest", MANIFEST_FILE, "nothing")
        return content

    def read(
        self, checkpoint: Checkpoint, path: str, follow: Callable[[memoryview], None] = follow_nobody
    ) -> memoryview:
        """
        Read one file of a checkpoint, verified; the memory is the caller's.

        Args:
            checkpoint: Whose file.
            path: Which.
            follow: Called with each piece that has been read, in order and unverified.

        Raises:
            CorruptionError: It is gone or not what was committed.
            NotFoundError: The checkpoint has no such file.
        """
        return read_verified(self.files, checkpoint.directory, _entry(checkpoint, path), follow)

    def open(self, checkpoint: Checkpoint, path: str) -> int:
        """Open one file of a checkpoint, its length checked and its bytes not."""
        return open_checked(self.files, checkpoint.directory, _entry(checkpoint, path))

    def verify(self, checkpoint: Checkpoint, *, digests: bool) -> list[PerdureError]:
        """Check that every file is there with its length, and with ``digests`` also every byte; returns the damage."""
        problems: list[PerdureError] = []
        for entry in checkpoint.manifest.files:
            try:
                if digests:
                    read_verified(self.files, checkpoint.directory, entry)
                else:
                    self.files.close(open_checked(self.files, checkpoint.directory, entry))
            except (CorruptionError, StoreError) as error:
                problems.append(error)
        return problems

    # Committing

    def commit(self, draft: Manifest, parts: Sequence[Part], guard: Guard) -> Checkpoint:
        """
        Write a checkpoint and make it visible; durable when this returns.

        Args:
            draft: The manifest without its files.
            parts: The files.
            guard: Held while the checkpoint becomes visible; raises `FencedError` if this process may not commit.

        Returns:
            The checkpoint, with the manifest as readers see it.

        Raises:
            StoreError: It could not be written, or not be made durable for certain. Nothing is visible of it or, if the
                error came after the commit point, all of it; earlier checkpoints are untouched either way.
            FencedError: A newer generation took over; nothing is visible.
            InvalidInputError: Kind ``name.invalid`` or ``manifest.refused``: no reader would accept it; nothing is
                visible.
        """
        for part in parts:
            check_path(part.path, "file path")
        name = checkpoint_directory_name(draft.global_step, draft.id)
        staging = self.directory / STAGING / name
        # What is known is asked for before anything is written; what is not, once it is known.
        announced = announced_bytes(parts)
        self._check_space(announced)
        with explained("make directory", staging):
            self.files.make_directory(staging)
        try:
            folders = make_folders(self.files, staging, [part.path for part in parts])
            with Together(self.files, self._sync_threads) as files:
                entries = []
                for part in parts:
                    entries.append(self._place(files, staging, self._made(part, announced)))
                    announced -= announced_bytes([part])
                whole = msgspec.structs.replace(draft, files=tuple(entries))
                manifest, content = checked_manifest(whole, staging, self.keys)
                # Last: a directory without a manifest is not a checkpoint, whatever else is in it.
                write_file(files, staging / MANIFEST_FILE, len(content), [memoryview(content)])
                sync_folders(files, staging, folders)
                files.settle()
            with guard():
                self._publish(staging, self.snapshots / name)
        except BaseException:
            self._give_up(staging)
            raise
        checkpoint = Checkpoint(self.snapshots / name, manifest)
        replace_symlink(self.files, self.directory / LATEST, f"{SNAPSHOTS}/{name}", f"{TEMPORARY_PREFIX}{draft.id}")
        return checkpoint

    def _publish(self, directory: Path, target: Path) -> None:
        """Give a directory another name within the run; the two folders that are changed are synced side by side."""
        with Together(self.files, self._sync_threads) as files:
            publish_directory(files, directory, target)
            files.settle()

    def _check_space(self, content_bytes: int) -> None:
        needed = SPARE_BYTES + content_bytes
        with explained("look at", self.directory):
            free = self.files.free_bytes(self.directory)
        if free < needed:
            raise StoreError(
                f"cannot save to {self.directory}: {needed:,} bytes are needed and {free:,} are free",
                kind="store.full",
                hint="free some space, or keep fewer checkpoints (`perdure gc`)",
                path=str(self.directory),
                errno_name="ENOSPC",
            )

    def _made(self, part: Part, still_to_come: int) -> Ready:
        """The part itself, or what it has yet to be made into, if there is room for that and for all that follows."""
        if not isinstance(part, DeferredPart):
            return part
        made = part.make()
        self._check_space(still_to_come + made.size_bytes)
        return made

    def _place(self, files: Files, staging: Path, part: Ready) -> FileEntry:
        target = staging / part.path
        if isinstance(part, ContentPart):
            digest = write_file(files, target, part.size_bytes, part.chunks(), part.digest)
            return FileEntry(part.path, part.size_bytes, digest)
        if isinstance(part, LinkPart):
            with explained("link", part.source):
                self.files.link(part.source, target)
        return FileEntry(part.path, part.entry.bytes, part.entry.digest)

    def _give_up(self, staging: Path) -> None:
        # The space is wanted back at once, above all when the disk is full. If even this fails the directory stays
        # where nobody reads it until the next start; the error that matters is the one being raised.
        try:
            remove_tree(self.files, staging)
        except StoreError:
            return

    # Removing

    def remove(self, checkpoint: Checkpoint) -> None:
        """
        Remove a checkpoint: it is invisible at once and for ever, its space follows.

        A crash in between leaves a directory in staging, which the next start removes.
        """
        grave = self.directory / STAGING / f"removed-{checkpoint.directory.name}"
        try:
            self._publish(checkpoint.directory, grave)
        except StoreError:
            # Nothing may be deleted below a name that is not certain, and no later sync makes it so.
            with suppress(OSError):
                self.files.rename(grave, checkpoint.directory)
            raise
        self._forget_latest(checkpoint.directory)
        self._bury(grave)

    def _bury(self, path: Path) -> None:
        """
        Remove what may have been a checkpoint, its manifest first.

        If the sync of its new name failed, nothing that is done later makes that name certain. Should a power cut bring
        the old one back, it is then the name of no checkpoint rather than that of one without its files.
        """
        manifest = path / MANIFEST_FILE
        with explained("remove", manifest):
            # Not behind a link: `latest` is replaced by way of one that leads to a checkpoint.
            is_directory = (status := self.files.status(path)) is not None and stat.S_ISDIR(status.st_mode)
            if is_directory and self.files.status(manifest) is not None:
                self.files.unlink(manifest)
                self.files.sync_directory(path)
        remove_tree(self.files, path)

    def quarantine(self, directory: Path, reason: str, at: str) -> Path:
        """Put a directory that must not be used aside, with the reason beside it; returns where it went."""
        target = self.directory / QUARANTINE / f"{directory.name}-{self.new_id()[:8]}"
        note = {"directory": directory.name, "reason": reason, "at": at}
        self._replace_json(target.with_suffix(".json"), note)
        publish_directory(self.files, directory, target)
        self._forget_latest(directory)
        return target

    def bring_back(self, directory: Path) -> Path:
        """Make a checkpoint that was put aside visible again, under the name that it had; returns where it is."""
        target = self.snapshots / directory.name.rpartition("-")[0]
        publish_directory(self.files, directory, target)
        self.remove_file(f"{QUARANTINE}/{directory.name}.json")
        self._point_latest()
        return target

    def quarantined(self) -> list[dict[str, Any]]:
        """The notes on what was put aside."""
        names = [name for name in self.names(self.directory / QUARANTINE) if name.endswith(".json")]
        return [note for name in names if (note := self.read_json(f"{QUARANTINE}/{name}"))]

    # Pins

    def pins(self) -> dict[str, str]:
        """
        Checkpoint ids by pin name.

        Raises:
            CorruptionError: Kind ``pin.damaged``: a pin cannot be read, so nobody knows what it protects.
        """
        found: dict[str, str] = {}
        for name in self.names(self.directory / PINS):
            if not name.endswith(".json"):
                continue
            content = self.read_json(f"{PINS}/{name}")
            if content is None or not isinstance(content.get("checkpoint"), str):
                raise CorruptionError(
                    f"cannot read pin {name.removesuffix('.json')!r}: its file is damaged",
                    kind="pin.damaged",
                    hint="pin the checkpoint again under this name, after removing the file",
                    path=str(self.directory / PINS / name),
                )
            found[name.removesuffix(".json")] = content["checkpoint"]
        return found

    def pin(self, checkpoint: Checkpoint, name: str) -> None:
        """
        Protect a checkpoint from every clean-up, under a name.

        Raises:
            AlreadyExistsError: Kind ``pin.exists``: the name pins another checkpoint.
        """
        check_segment(name, "pin name")
        current = self.pins().get(name)
        if current not in (None, checkpoint.manifest.id):
            raise AlreadyExistsError(
                f"cannot pin {checkpoint.manifest.id[:8]} as {name!r}: the name pins {str(current)[:8]}",
                kind="pin.exists",
                hint=f"choose another name, or remove the pin first (`perdure pin --remove {name}`)",
                name=name,
            )
        self._replace_json(self.directory / PINS / f"{name}.json", {"checkpoint": checkpoint.manifest.id})

    def unpin(self, name: str) -> None:
        """
        Take a pin away.

        Raises:
            NotFoundError: Kind ``pin.not-found``.
        """
        if not self.remove_file(f"{PINS}/{name}.json"):
            raise NotFoundError(
                f"cannot remove pin {name!r}: there is none of that name",
                kind="pin.not-found",
                hint="`perdure ls` shows pins",
                name=name,
            )

    # Small JSON files

    def read_json(self, relative: str) -> dict[str, Any] | None:
        """A small JSON object, or None if it is missing, damaged or not one: none of them is worth a run."""
        try:
            content = read_small(self.files, self.directory, relative, MAXIMUM_SMALL_FILE_BYTES)
        except CorruptionError:
            return None
        document = unseal(content) if content is not None else None
        if document is None:
            return None
        try:
            value = json.loads(document)
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None

    def replace_json(self, relative: str, value: Mapping[str, Any], *, instead_of: Iterable[str] = ()) -> None:
        """
        Write a small JSON object in the place of what was there, atomically and durably.

        Args:
            relative: Where.
            value: The object.
            instead_of: Files beside it that it supersedes; a crash may leave both.
        """
        self._replace_json(self.directory / relative, value, [self.directory / name for name in instead_of])

    def note_json(self, relative: str, value: Mapping[str, Any]) -> None:
        """Write a small JSON object for other processes to read: atomically, and not to survive a power cut."""
        path = self.directory / relative
        swap_file(self.files, path, _sealed_json(value), path.with_name(f"{TEMPORARY_PREFIX}{self.new_id()}"))

    def remove_file(self, relative: str) -> bool:
        """Remove a small file, durably; returns whether it was there."""
        path = self.directory / relative
        with explained("remove", path):
            present = self.files.status(path) is not None
            if present:
                self.files.unlink(path)
            # Also if it was gone: whoever removed it may have been killed before that was durable.
            self.files.sync_directory(path.parent)
        return present

    def _replace_json(self, path: Path, value: Mapping[str, Any], instead_of: Sequence[Path] = ()) -> None:
        temporary = path.with_name(f"{TEMPORARY_PREFIX}{self.new_id()}")
        replace_file(self.files, path, _sealed_json(value), temporary, instead_of)


def _sealed_json(value: Mapping[str, Any]) -> bytes:
    return seal(json.dumps(value, indent=1, sort_keys=True).encode() + b"\n")


def announced_bytes(parts: Iterable[Part]) -> int:
    """What files will take whose length is known before they are made."""
    return sum(part.size_bytes for part in parts if isinstance(part, ContentPart))


@lru_cache(maxsize=32)  # clean-ups and starts look at the same checkpoints again and again, and these never change
def manifest_of(directory: Path, content: bytes, keys: Keyring) -> Manifest:
    """
    Decode the manifest of a directory and check that it is that directory's.

    Raises:
        CorruptionError: It is not, or no manifest at all.
        FormatError: It is of a newer schema, or lacks a signature by one of ``keys``.
    """
    manifest = decode_manifest(content, str(directory / MANIFEST_FILE), keys)
    if directory.name != checkpoint_directory_name(manifest.global_step, manifest.id):
        actual = checkpoint_directory_name(manifest.global_step, manifest.id)
        raise damaged(directory, "its manifest belongs to another directory", directory.name, actual)
    return manifest


def checked_manifest(manifest: Manifest, directory: Path, keys: Keyring) -> tuple[Manifest, bytes]:
    """Encode a manifest, and read it as any reader will: one that would be refused later is refused now."""
    content = encode_manifest(manifest, keys)
    try:
        if parse_checkpoint_directory_name(directory.name) is None:
            raise damaged(directory, "its name is not that of a checkpoint", "step-…", directory.name)
        return decode_manifest(content, MANIFEST_FILE, keys), content
    except CorruptionError as error:
        raise InvalidInputError(
            f"cannot save {directory.name}: no reader would accept its manifest ({error.message})",
            kind="manifest.refused",
            hint="use fewer or larger files, smaller details, and plain names and numbers",
            field="manifest",
        ) from error


def _entry(checkpoint: Checkpoint, path: str) -> FileEntry:
    entry = checkpoint.manifest.file(path)
    if entry is None:
        raise NotFoundError(
            f"cannot read {path} of checkpoint {checkpoint.manifest.id[:8]}: it has no such file",
            kind="checkpoint.no-such-file",
            name=path,
        )
    return entry
