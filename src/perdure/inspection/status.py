"""How a run is doing: is anything wrong, what would a restart resume from, who is at work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.core.leases import Timing
from perdure.core.manifest import short_id
from perdure.core.restarts import EXIT_DONE, EXIT_STOPPED
from perdure.inspection.documents import Document
from perdure.inspection.listing import CheckpointSummary, RunListing
from perdure.inspection.presence import Around, MemberSeen, MemorySeen, RestoreBegun, WriterSeen, members_seen
from perdure.inspection.verification import in_brief

_GOOD_ENDS = (EXIT_DONE, EXIT_STOPPED)
_EVENTS_SHOWN = 5
_SAVES_OF_SPACE = 2
"""Room for fewer further saves than this is worth a warning."""


@dataclass(frozen=True, slots=True)
class RunStatus(Document):
    """One run at one moment."""

    run: str
    directory: Path
    state: str
    """See `state_of`."""
    problems: tuple[str, ...]
    """What is wrong, the worst first."""
    newest: CheckpointSummary | None
    restorable: CheckpointSummary | None
    """The newest of which nothing is missing: what a restart would use, if memory has no newer one."""
    in_memory: MemorySeen | None
    at_risk_seconds: float | None
    """Age of `restorable` while something writes to the run: the work that would be lost now."""
    restore_seconds: float | None
    """Time that the last restore took."""
    checkpoints: int
    size_bytes: int
    free_bytes: int
    generation: int | None
    writer: WriterSeen | None
    supervisor_pid: str | None
    members: tuple[MemberSeen, ...]
    restoring: tuple[RestoreBegun, ...]
    staging: tuple[str, ...]
    quarantined: tuple[Mapping[str, Any], ...]
    damaged_directories: tuple[str, ...]
    last_events: tuple[Mapping[str, Any], ...]
    """The newest few, oldest first; routine removals are left out."""

    @property
    def is_lost(self) -> bool:
        """Whether there have been checkpoints and none can be restored."""
        return self.restorable is None and bool(self.checkpoints or self.damaged_directories or self.quarantined)


def state_of(around: Around, *, has_checkpoints: bool) -> str:
    """
    Return the state of a run in a word or two.

    ``training``, ``restoring``, ``silent`` (the writer is there and gives no sign of life), ``restarting`` (only the
    supervisor is there), ``interrupted`` (a restore died), ``stopped`` or ``empty``.
    """
    if around.writer is not None:
        silent_seconds = around.writer.silent_seconds or 0.0
        if silent_seconds > Timing().lease_seconds:
            return "silent"
        return "restoring" if around.restoring else "training"
    if around.supervisor_pid is not None:
        return "restarting"
    if around.restoring:
        return "interrupted"
    return "stopped" if has_checkpoints else "empty"


def describe_run(
    listing: RunListing, around: Around, events: Sequence[Mapping[str, Any]], free_bytes: int
) -> RunStatus:
    """Put together what was seen of a run; ``events`` come oldest first."""
    state = state_of(around, has_checkpoints=bool(listing.checkpoints))
    restorable = listing.restorable
    known = [checkpoint.generation for checkpoint in listing.checkpoints]
    return RunStatus(
        run=listing.run,
        directory=listing.directory,
        state=state,
        problems=tuple(_problems(listing, around, state, events, free_bytes)),
        newest=listing.newest,
        restorable=restorable,
        in_memory=around.in_memory,
        at_risk_seconds=restorable.age_seconds if restorable and around.has_writer else None,
        restore_seconds=_last_restore_seconds(events),
        checkpoints=len(listing.checkpoints),
        size_bytes=listing.size_bytes,
        free_bytes=free_bytes,
        generation=max([*known, *([around.generation] if around.generation is not None else [])], default=None),
        writer=around.writer,
        supervisor_pid=around.supervisor_pid,
        members=members_seen(events) if around.supervisor_pid is not None else (),
        restoring=around.restoring,
        staging=around.staging,
        quarantined=around.quarantined,
        damaged_directories=tuple(damage.directory for damage in listing.damaged_directories),
        last_events=tuple([each for each in events if each.get("event") != "removed"][-_EVENTS_SHOWN:]),
    )


def _problems(
    listing: RunListing, around: Around, state: str, events: Sequence[Mapping[str, Any]], free_bytes: int
) -> list[str]:
    found = [
        f"checkpoint {short_id(checkpoint.id)} is damaged: {in_brief(checkpoint.problems[0], checkpoint.directory)}"
        for checkpoint in listing.checkpoints
        if not checkpoint.restores
    ]
    found += [
        f"a directory is no checkpoint: {in_brief(damage.problem, listing.directory)}"
        for damage in listing.damaged_directories
    ]
    if listing.restorable is None and around.quarantined:
        found.append("every checkpoint there was is in quarantine: `perdure repair` shows what can be brought back")
    if state == "silent" and around.writer is not None:
        found.append(f"the writer {around.writer.owner} has been silent for {around.writer.silent_seconds:.0f} s")
    if state == "interrupted":
        found += [_interrupted(restore) for restore in around.restoring]
    if around.control_problem is not None:
        found.append(f"the control database cannot be read ({around.control_problem}): a writer may be there unseen")
    found += [*_troubled_saves(events), *_troubled_members(events)]
    needed = listing.newest.new_bytes if listing.newest else 0
    if free_bytes < _SAVES_OF_SPACE * needed:
        found.append(f"the disk is nearly full: {free_bytes:,} bytes are free and the last save wrote {needed:,}")
    return found


def _last_restore_seconds(events: Sequence[Mapping[str, Any]]) -> float | None:
    seconds = next((each.get("seconds") for each in reversed(events) if each.get("event") == "restored"), None)
    return float(seconds) if isinstance(seconds, (int, float)) else None


def _interrupted(restore: RestoreBegun) -> str:
    where = f" at step {restore.step!r}" if restore.step else ""
    times = "once" if restore.attempts == 1 else f"{restore.attempts} times"
    return f"restoring {short_id(restore.checkpoint)} has killed its process {times}{where}"


def _troubled_saves(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say what is wrong with saving: the trouble since the last save that worked."""
    kinds: list[str] = []
    for event in reversed(events):
        if event.get("event") in ("saved", "started", "restored"):
            break
        if event.get("event") == "save-failed":
            kinds.append(str(event.get("kind", "unknown")))
    if not kinds:
        return []
    return [f"the last {'save' if len(kinds) == 1 else f'{len(kinds)} saves'} failed ({kinds[0]})"]


def _troubled_members(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say who fails again and again without a save in between, and how a supervised run ended if not well."""
    faults: dict[str, list[Mapping[str, Any]]] = {}
    found = []
    for event in reversed(events):
        name = event.get("event")
        if name in ("run-supervised", "saved") or (name == "run-ended" and event.get("exit_code") in _GOOD_ENDS):
            break
        if name == "run-ended":
            found.append(f"the supervised run ended with status {event.get('exit_code')}")
        elif name == "member-fault":
            faults.setdefault(str(event.get("member")), []).append(event)
    for member, (last, *earlier) in faults.items():
        if earlier:
            note = f" ({last['note']})" if last.get("note") else ""
            found.append(f"{member} has failed {len(earlier) + 1} times without a save: {last.get('reason')}{note}")
    return found
