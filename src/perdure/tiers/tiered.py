"""A run directory and its memory tier seen as one store: what a restore chooses from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from perdure.core.component import ContentPart
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
        """Checkpoints of both tiers, newest first; of one that is in both, the copy in memory comes first."""
        if self._memory is None:
            return self._disk.scan()
        in_memory, damaged_in_memory = self._memory.scan()
        on_disk, damaged_on_disk = self._disk.scan()
        found = sorted([*in_memory, *on_disk], key=lambda checkpoint: checkpoint.manifest.order, reverse=True)
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
        newest = next(iter(self.checkpoints()), None)
        return None if newest is None or self.is_durable(newest) else newest

    def write_to_disk(self, checkpoint: Checkpoint, guard: Guard) -> None:
        """
        Make a checkpoint of the memory tier one of the disk as well: its learner died before that was done.

        Raises:
            CorruptionError: It is damaged; nothing is visible on the disk.
            FencedError: This process may not commit.
            StoreError: It could not be written, as in `Store.commit`.
        """
        assert self._memory is not None
        parts = [
            ContentPart(entry.path, entry.bytes, partial(_chunks, self._memory, checkpoint, entry.path))
            for entry in checkpoint.manifest.files
        ]
        self._disk.commit(msgspec.structs.replace(checkpoint.manifest, files=()), parts, guard)

    def _tier_of(self, directory: Path) -> Store:
        if self._memory is not None and directory.parent == self._memory.snapshots:
            return self._memory
        return self._disk


def _chunks(store: Store, checkpoint: Checkpoint, path: str) -> tuple[memoryview]:
    return (store.read(checkpoint, path),)
