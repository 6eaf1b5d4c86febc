"""What checkpoints take on the disk: unchanged files are hard links, and count where they appeared first."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from perdure.core.manifest import FileEntry
from perdure.errors import PerdureError
from perdure.files.door import Files, explained
from perdure.files.reading import damaged
from perdure.store.store import Checkpoint

Inode = tuple[int, int]
"""Device and inode number: two names with the same pair are the same file."""


@dataclass(frozen=True, slots=True)
class FileOnDisk:
    """A file of a checkpoint as it lies on the disk."""

    entry: FileEntry
    inode: Inode | None
    """None if nothing is there."""
    size_bytes: int
    links: int
    problem: PerdureError | None
    """Set if it is not a regular file of the committed length."""


def look_at_files(files: Files, checkpoint: Checkpoint) -> tuple[FileOnDisk, ...]:
    """
    Look at every file of a checkpoint without opening any.

    Raises:
        StoreError: The file system refuses to say.
    """
    return tuple(_look(files, checkpoint, entry) for entry in checkpoint.manifest.files)


def _look(files: Files, checkpoint: Checkpoint, entry: FileEntry) -> FileOnDisk:
    path = checkpoint.directory / entry.path
    with explained("look at", path):
        status = files.status(path)
    if status is None:
        return FileOnDisk(entry, None, 0, 0, damaged(path, "it is missing", entry.bytes, "nothing"))
    return FileOnDisk(
        entry, (status.st_dev, status.st_ino), status.st_size, status.st_nlink, _problem(checkpoint, entry, status)
    )


def _problem(checkpoint: Checkpoint, entry: FileEntry, status: os.stat_result) -> PerdureError | None:
    path = checkpoint.directory / entry.path
    if not stat.S_ISREG(status.st_mode):
        return damaged(path, "it is no regular file", entry.bytes, stat.filemode(status.st_mode))
    if status.st_size != entry.bytes:
        what = f"it has {status.st_size} bytes and {entry.bytes} were committed"
        return damaged(path, what, entry.bytes, status.st_size)
    return None


def inodes(looks: Collection[FileOnDisk]) -> dict[Inode, int]:
    """Return the sizes of the different files among some names, in bytes."""
    return {look.inode: look.size_bytes for look in looks if look.inode is not None}


def new_bytes(oldest_first: Sequence[tuple[FileOnDisk, ...]]) -> list[int]:
    """Return for each checkpoint the bytes of those of its files that no older one has."""
    seen: set[Inode] = set()
    result: list[int] = []
    for looks in oldest_first:
        found = inodes(looks)
        result.append(sum(size for inode, size in found.items() if inode not in seen))
        seen |= found.keys()
    return result


def freed_bytes(removed: Sequence[tuple[FileOnDisk, ...]]) -> int:
    """Return the bytes that come free when some checkpoints go: those of files that have no other name."""
    flat = [look for looks in removed for look in looks]
    names: Mapping[Inode | None, int] = Counter(look.inode for look in flat)
    links = {look.inode: look.links for look in flat}
    return sum(size for inode, size in inodes(flat).items() if names[inode] >= links[inode])
