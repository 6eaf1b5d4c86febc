"""A run directory and its memory tier seen as one store: what a restore chooses from."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

import msgspec

from perdure.core.component import ContentPart, LinkPart
from perdure.core.manifest import FileEntry
from perdure.files.door import explained
from perdure.files.reading import damaged
from perdure.store.store import Checkpoint, Damage, Guard, Store


class Tiered(Store):
    """
    Everything is the disk's, but for the checkpoints, which are those of both.

    Args:
        disk: The run directory.
        memory: Its memory tier, or None.
        new_id: Gives 32 random hex digits.
    """

    def __init__(self, disk: Store, memory: Store | None, new_id: Callable[[], str]) -> None:
        super().__init__(disk.directory, disk.files, new_id, disk.keys)
        self._disk = disk
        self._memory = memory

    def scan(self) -> tuple[list[Checkpoint], list[Damage]]:
        """
        Checkpoints of both tiers, newest first; of one that is in both, the copy in memory comes first.

        One in memory that leans on files of the disk is none to restore from; see `settle`.
        """
        if self._memory is None:
            return self._disk.scan()
        in_memory, damaged_in_memory = self._memory.scan()
        on_disk, damaged_on_disk = self._disk.scan()
        whole = [checkpoint for checkpoint in in_memory if not self._absent(checkpoint)]
        found = sorted([*whole, *on_disk], key=lambda checkpoint: checkpoint.manifest.order, reverse=True)
        return found, [*damaged_in_memory, *damaged_on_disk]

    def quarantine(self, directory: Path, reason: str, at: str) -> Path:
        """Put a directory aside within its own tier."""
        return self._tier_of(directory).quarantine(directory, reason, at)

    def remove_leftovers(self) -> int:
        """Remove what interrupted work has left in either tier."""
        left = 0 if self._memory is None else self._memory.remove_leftovers()
        return left + self._disk.remove_leftovers()

    def is_durable(self, checkpoint: Checkpoint) -> bool:
        """Whether the disk has a checkpoint, be it this copy or another."""
        return any(other.manifest.id == checkpoint.manifest.id for other in self._disk.checkpoints())

    def newest_only_in_memory(self) -> Checkpoint | None:
        """The newest checkpoint, if the disk does not have it."""
        if self._memory is None:
            return None
        # What is damaged on either side is no checkpoint, and for a restore to deal with.
        in_memory, on_disk = self._memory.scan()[0][:1], self._disk.scan()[0]
        if not in_memory or in_memory[0].manifest.id in {checkpoint.manifest.id for checkpoint in on_disk}:
            return None
        is_older = any(in_memory[0].manifest.order < checkpoint.manifest.order for checkpoint in on_disk[:1])
        return None if is_older else in_memory[0]

    def settle(self, guard: Guard) -> Checkpoint | None:
        """
        Have the newest checkpoint on the disk, if it is one in memory that leans on files of the disk.

        It is restored from there, so that what is saved next links to files of its own tier.

        Returns:
            The checkpoint that was written to the disk, or None.

        Raises:
            PerdureError: As `write_to_disk`, with the checkpoint still in memory.
        """
        newest = self.newest_only_in_memory()
        if newest is None or not self._absent(newest):
            return None
        self.write_to_disk(newest, guard)
        return newest

    def write_to_disk(self, checkpoint: Checkpoint, guard: Guard) -> None:
        """
        Make a checkpoint of the memory tier one of the disk as well: its learner died before that was done.

        Raises:
            CorruptionError: It is damaged; nothing is visible on the disk.
            FencedError: This process may not commit.
            StoreError: It could not be written, as in `Store.commit`.
        """
        assert self._memory is not None
        absent = self._absent(checkpoint)
        links = self._links_to_disk(absent)
        parts = [
            links[entry]
            if entry in absent
            else ContentPart(entry.path, entry.bytes, partial(_chunks, self._memory, checkpoint, entry.path))
            for entry in checkpoint.manifest.files
        ]
        self._disk.commit(msgspec.structs.replace(checkpoint.manifest, files=()), parts, guard)

    def _absent(self, checkpoint: Checkpoint) -> set[FileEntry]:
        """Files of a checkpoint in memory that do not lie there."""
        with explained("look at", checkpoint.directory):
            return {
                entry
                for entry in checkpoint.manifest.files
                if self.files.status(checkpoint.directory / entry.path) is None
            }

    def _links_to_disk(self, absent: Collection[FileEntry]) -> dict[FileEntry, LinkPart]:
        if not absent:
            return {}
        sources = {
            (entry.digest, entry.bytes): (checkpoint.directory / entry.path, entry)
            for checkpoint in reversed(self._disk.scan()[0])
            for entry in checkpoint.manifest.files
        }
        links = {}
        for entry in absent:
            found = sources.get((entry.digest, entry.bytes))
            if found is None:
                what = "it is neither in memory nor in a checkpoint on the disk"
                raise damaged(entry.path, what, entry.digest, "nothing")
            links[entry] = LinkPart(entry.path, *found)
        return links

    def _tier_of(self, directory: Path) -> Store:
        if self._memory is not None and directory.parent == self._memory.snapshots:
            return self._memory
        return self._disk


def _chunks(store: Store, checkpoint: Checkpoint, path: str) -> tuple[memoryview]:
    return (store.read(checkpoint, path),)
