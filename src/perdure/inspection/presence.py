"""Who is at work on a run and what interrupted work has left, found out without disturbing anybody."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.cluster.control import LOCKS_NAME
from perdure.cluster.identity import boot_clock, boot_id
from perdure.cluster.ledger import BeatStamp
from perdure.core.leases import Incarnation
from perdure.files.door import Files
from perdure.files.lockfile import probe
from perdure.inspection.documents import Document
from perdure.store.layout import CONTROL_FILE, PROGRESS_FILE, STAGING
from perdure.store.store import Store
from perdure.supervise.claims import LOCK_FILE
from perdure.tiers.memory import find_memory_store
from perdure.tiers.tiered import Tiered

RESTORING_PREFIX = "restoring."
_INTERRUPTED = "a commit was interrupted, which the next start undoes"
"""What it means that SQLite wants to write before it reads."""
_PATIENCE_SECONDS = 2.0
"""Longest wait for a commit that is being made; longer ones are reported, not waited for."""


@dataclass(frozen=True, slots=True)
class WriterSeen(Document):
    """The process that may commit to the run; it is alive."""

    owner: str
    """``HOST:PID``."""
    generation: int
    silent_seconds: float | None
    """Time since its last sign of life; None if it runs on another machine or before a reboot of this one."""


@dataclass(frozen=True, slots=True)
class RestoreBegun(Document):
    """A restore that has begun and not ended: either it is going on, or it has killed its process."""

    checkpoint: str
    attempts: int
    step: str | None
    """The recovery step that it has come to."""


@dataclass(frozen=True, slots=True)
class MemberSeen(Document):
    """A member of the supervised run, by what its supervisor and learner have reported."""

    member: str
    role: str
    state: str
    at: str
    """When it came into this state."""
    faults: int
    """Unplanned ends since the supervisor started."""


@dataclass(frozen=True, slots=True)
class MemorySeen(Document):
    """The newest checkpoint, where only this machine's shared memory has it."""

    checkpoint: str
    global_step: int
    at: str
    """When it was saved."""


@dataclass(frozen=True, slots=True)
class Around:
    """What lies and lives around the checkpoints of a run."""

    generation: int | None
    """The newest that was minted here; None if the control database is missing or cannot be read."""
    writer: WriterSeen | None
    control_problem: str | None
    """Why the control database could not be read, so that a writer may be there unseen."""
    supervisor_pid: str | None
    restoring: tuple[RestoreBegun, ...]
    staging: tuple[str, ...]
    """Names of what is being written or removed; without a writer it is left over and goes at the next start."""
    quarantined: tuple[Mapping[str, Any], ...]
    in_memory: MemorySeen | None
    """What a restart on this machine would resume from instead of the disk's newest."""

    @property
    def has_writer(self) -> bool:
        """Whether a process is, may be, or is about to be writing to the run."""
        return bool(self.writer or self.control_problem or self.supervisor_pid)


def look_around(files: Files, store: Store) -> Around:
    """
    Look at everything but the checkpoints.

    Raises:
        StoreError: It may not be read.
    """
    generation, writer, problem = _read_control(files, store.directory)
    supervisor = probe(store.directory / LOCK_FILE)
    return Around(
        generation=generation,
        writer=writer,
        control_problem=problem,
        supervisor_pid=supervisor.content.decode("ascii", "replace") if supervisor.is_held else None,
        restoring=_restores_begun(store),
        staging=tuple(store.names(store.directory / STAGING)),
        quarantined=tuple(store.quarantined()),
        in_memory=_seen_in_memory(store),
    )


def _seen_in_memory(store: Store) -> MemorySeen | None:
    tiers = Tiered(store, find_memory_store(store, store.new_id), store.new_id)
    newest = tiers.newest_only_in_memory()
    if newest is None:
        return None
    return MemorySeen(newest.manifest.id, newest.manifest.global_step, newest.manifest.created_at)


def _restores_begun(store: Store) -> tuple[RestoreBegun, ...]:
    progress = store.read_json(PROGRESS_FILE) or {}
    found = []
    for name in store.names(store.directory):
        marker = store.read_json(name) if name.startswith(RESTORING_PREFIX) else None
        if marker and isinstance(marker.get("checkpoint"), str):
            step = progress.get("step") if progress.get("checkpoint") == marker["checkpoint"] else None
            attempts = marker.get("attempts")
            found.append(RestoreBegun(marker["checkpoint"], attempts if isinstance(attempts, int) else 1, step))
    return tuple(found)


def _read_control(files: Files, directory: Path) -> tuple[int | None, WriterSeen | None, str | None]:
    """Read the newest generation and the living writer; the third is why that was not possible."""
    path = directory / CONTROL_FILE
    if files.status(path) is None:
        return None, None, None
    try:
        # mode=ro: SQLite then neither makes the file nor rolls an interrupted commit back; the next writer does that.
        address = f"{path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=_PATIENCE_SECONDS)) as connection:
            (newest,) = connection.execute("SELECT max(generation) FROM generations").fetchone()
            row = connection.execute("SELECT incarnation, owner, generation FROM writer").fetchone()
    except sqlite3.Error as error:
        return None, None, _INTERRUPTED if "readonly" in str(error) else str(error)
    incarnation = Incarnation.parse(row[0]) if row else None
    if incarnation is None:
        return newest, None, None
    # Only the lock of a writer that the database names may be probed: one that is just being made could be disturbed.
    seen = probe(directory / LOCKS_NAME / f"{incarnation}.lock")
    writer = WriterSeen(row[1], row[2], _silence(incarnation, seen.content)) if seen.is_held else None
    return newest, writer, None


def _silence(incarnation: Incarnation, content: bytes) -> float | None:
    stamp = BeatStamp.decode(content)
    if stamp is None or incarnation.boot != boot_id():
        return None
    return max(boot_clock() - stamp.boot_seconds, 0.0)


_STATES = {
    "member-started": "alive",
    "member-running": "alive",
    "member-joined": "alive",
    "member-fault": "down",
    "member-lost": "lost",
    "member-fenced": "fenced",
    "member-waiting": "waits to restart",
    "member-gave-up": "given up",
    "member-done": "done",
    "member-stopped": "stopped",
    "member-left": "left",
}


def members_seen(events: Iterable[Mapping[str, Any]]) -> tuple[MemberSeen, ...]:
    """
    Return the members of a supervised run as its events leave them, by name.

    Args:
        events: Oldest first. Those before the present supervisor's start do not count.
    """
    found: dict[str, MemberSeen] = {}
    for event in events:
        name = event.get("event")
        if name in ("run-supervised", "run-ended"):
            found.clear()
        member = event.get("member")
        if name not in _STATES or not isinstance(member, str):
            continue
        before = found.get(member)
        role = event.get("role") or (before.role if before else "")
        faults = (before.faults if before else 0) + (name == "member-fault")
        found[member] = MemberSeen(member, str(role), _STATES[str(name)], str(event.get("at", "")), faults)
    return tuple(found[member] for member in sorted(found))
