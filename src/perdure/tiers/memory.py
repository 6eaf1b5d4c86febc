"""
The memory tier: a store in the host's shared memory, which outlives a process and not a reboot.

It is a run directory like the one on the disk, on a memory file system, so that everything that is true of a checkpoint
there is true here: it is whole or not there, and every byte is checked when it is read. It belongs to one run directory
and to one user; one that belongs to another, such as a run of the same name that has been removed, is thrown away.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from blake3 import blake3

from perdure.errors import StoreError
from perdure.files.door import Files, explained
from perdure.files.publish import remove_tree
from perdure.store.store import Store

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the memory tier is meant to lie there, in a folder of this user's alone
_OWNER_FILE = "owner.json"


class MemoryFiles(Files):
    """A memory file system: it has nothing to sync."""

    waits_for_disk = False

    def begin_sync(self, descriptor: int) -> None:
        """Do nothing."""

    def sync(self, descriptor: int) -> None:
        """Do nothing."""

    def sync_directory(self, path: Path) -> None:
        """Do nothing."""


def find_memory_store(disk: Store, new_id: Callable[[], str]) -> Store | None:
    """
    The memory store that an earlier process left for this run directory, or None.

    Raises:
        StoreError: Kind ``store.forbidden``: something of another user's is in its place.
    """
    store = Store(_place(disk), MemoryFiles(), new_id, disk.keys)
    if not store.exists():
        return None
    _check_owner(store.directory.parent)
    return store if store.read_json(_OWNER_FILE) == _owner(disk) else None


def make_memory_store(disk: Store, new_id: Callable[[], str], created_at: str) -> Store:
    """
    The memory store of this run directory, made if there is none.

    Raises:
        StoreError: It cannot be made, or something of another user's is in its place.
    """
    found = find_memory_store(disk, new_id)
    if found is not None:
        return found
    store = Store(_place(disk), MemoryFiles(), new_id, disk.keys)
    remove_tree(store.files, store.directory)
    store.create(disk.directory.name, created_at)
    _check_owner(store.directory.parent)
    store.replace_json(_OWNER_FILE, _owner(disk))
    return store


def discard(store: Store) -> None:
    """Give the memory of a store back."""
    remove_tree(store.files, store.directory)


def _place(disk: Store) -> Path:
    root = Path(os.environ.get("PERDURE_MEMORY") or _SHARED_MEMORY)
    name = blake3(str(disk.directory.resolve()).encode()).hexdigest()[:32]
    return root / f"perdure-{os.geteuid()}" / name


def _owner(disk: Store) -> dict[str, str]:
    # The directory's number tells a run from one of the same path that was removed before.
    with explained("look at", disk.directory):
        status = disk.files.status(disk.directory)
    number = status.st_ino if status else 0
    created = str((disk.identity() or {}).get("created_at"))
    return {"directory": str(disk.directory.resolve()), "number": str(number), "created_at": created}


def _check_owner(folder: Path) -> None:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise StoreError(
            f"cannot use {folder}: it is not a folder of this user's alone",
            kind="store.forbidden",
            hint="remove it, or open the run without ram=",
            path=str(folder),
            errno_name="EPERM",
        )
