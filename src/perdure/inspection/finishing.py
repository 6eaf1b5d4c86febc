"""Finishing: a checkpoint that only memory has, because its learner died, is written to the disk from outside."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from perdure.cluster.control import Control
from perdure.store.store import Checkpoint, Store
from perdure.tiers.memory import discard, find_memory_store
from perdure.tiers.tiered import Tiered


def finish_write(store: Store, at: Callable[[], str], by: str) -> Checkpoint | None:
    """
    Write the newest checkpoint to the disk if only memory has it, then give the memory back.

    Becomes the run's writer for that time, in a generation of its own: a learner that was only thought dead is fenced,
    and commits neither before nor after. A crash leaves the checkpoint in memory, where the next start finds it.

    Args:
        store: The run.
        at: Gives the time, for the run's history.
        by: Who does it, for the run's history.

    Returns:
        The checkpoint, or None if the disk has everything.

    Raises:
        LeaseHeldError: A learner lives; it looks after its memory itself.
        CorruptionError: What memory holds is damaged; it is left there.
        StoreError: The disk refuses.
    """
    memory = find_memory_store(store, store.new_id)
    tiers = Tiered(store, memory, store.new_id)
    found = tiers.newest_only_in_memory()
    if memory is None or found is None:
        return None
    owner = f"{by} on {socket.gethostname()}:{os.getpid()}"
    with Control(store.directory).acquire(owner, floor=found.manifest.generation, reason="finish a write") as lease:
        # Once more: who held the lease until now may have written it.
        checkpoint = tiers.newest_only_in_memory()
        if checkpoint is None:
            return None
        lease.start_beating()
        tiers.write_to_disk(checkpoint, lease.guard)
        manifest = checkpoint.manifest
        event = {"event": "write-finished", "checkpoint": manifest.id, "step": manifest.global_step, "by": by}
        store.events.append({"at": at(), "generation": lease.generation, **event})
        with lease.guard():
            discard(memory)
        return checkpoint
