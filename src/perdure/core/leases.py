"""
Leases that members hold from a learner, as a table that is a value: every change returns another table.

The grantor ends a lease some time after it *received* the last beat; the holder stops acting earlier, counted from when
it *sent* the last beat that was answered. So whatever the network does, the holder stops first, as long as the two
clocks run at rates within 30:25 of each other. No time of one process is ever compared with a time of another.

A lease that has ended is never revived, and of two lives of one member only the younger can hold its lease: an
incarnation's birth is remembered when its lease ends, and whoever is not younger than that is fenced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum

from perdure.core.restarts import Phase
from perdure.errors import InvalidInputError

HOLDER_SHARE = 25 / 30
"""Part of a lease for which its holder acts on it."""

_INCARNATION = re.compile(r"([0-9a-f]{32})\.(\d{1,10})\.(\d{1,19})\.([0-9a-f]{8})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How often members beat, and for how long they may be silent. All in seconds."""

    beat_seconds: float = 5.0
    """Time between two beats."""
    lease_seconds: float = 30.0
    """Time after the last beat received at which a lease ends."""
    starting_seconds: float = 300.0
    """Longest time without progress while a member starts; imports and compilers are slow."""
    restoring_seconds: float = 3600.0
    """Longest time without progress while it restores."""
    running_seconds: float = 30.0
    """Longest time without progress while it runs."""
    saving_seconds: float = 600.0
    """Longest time without progress while it saves."""
    draining_seconds: float = 120.0
    """Longest time without progress while it stops."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if not getattr(self, each.name) > 0:
                raise _bad_timing(each.name, getattr(self, each.name), "more than 0")
        if self.holder_seconds <= self.beat_seconds:
            raise _bad_timing("lease_seconds", self.lease_seconds, "several times beat_seconds")

    @property
    def holder_seconds(self) -> float:
        """Time after sending its last answered beat at which a holder stops acting."""
        return self.lease_seconds * HOLDER_SHARE

    def silence_seconds(self, phase: Phase) -> float:
        """Longest time for which beats without progress count in a phase."""
        return {
            Phase.STARTING: self.starting_seconds,
            Phase.RESTORING: self.restoring_seconds,
            Phase.RUNNING: self.running_seconds,
            Phase.SAVING: self.saving_seconds,
            Phase.DRAINING: self.draining_seconds,
        }[phase]


def _bad_timing(name: str, value: float, expected: str) -> InvalidInputError:
    return InvalidInputError(
        f"cannot use {value!r} as {name}: expected {expected}", kind="config.bad-value", field=name
    )


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One life of a process, or of a role within it; told from every other one on any machine."""

    boot: str
    """The kernel's boot id, 32 hexadecimal digits."""
    pid: int
    born_nanoseconds: int
    """When it began, by the machine's clock since boot."""
    nonce: str
    """8 random hexadecimal digits."""

    def __str__(self) -> str:
        """Return the form in which it travels and names files."""
        return f"{self.boot}.{self.pid}.{self.born_nanoseconds}.{self.nonce}"

    @classmethod
    def parse(cls, text: str) -> Incarnation | None:
        """Return the incarnation that ``text`` names, or None if it names none."""
        match = _INCARNATION.fullmatch(text)
        return cls(match[1], int(match[2]), int(match[3]), match[4]) if match else None

    def is_younger_than(self, other: Incarnation) -> bool:
        """Say whether it began after ``other``; across reboots the one that speaks now is the younger."""
        return self.boot != other.boot or self.born_nanoseconds > other.born_nanoseconds


class Verdict(str, Enum):
    """Answer to a member's message."""

    OK = "ok"
    """The lease is held."""
    FENCED = "fenced"
    """The incarnation's time is over; it must stop."""
    UNKNOWN = "unknown"
    """No such lease was ever granted here: the grantor is new. Register."""


class Cause(str, Enum):
    """Why a lease ended that was not given back."""

    SILENT = "silent"
    """No beat came for the length of the lease."""
    STALLED = "stalled"
    """Beats came, but without progress for longer than the phase allows."""
    SUPERSEDED = "superseded"
    """A younger incarnation of the member registered."""


@dataclass(frozen=True, slots=True)
class Lease:
    """One member's lease. Times are the grantor's."""

    member: str
    role: str
    incarnation: Incarnation
    phase: Phase
    progress: int
    heard_at: float
    """When its last message was received."""
    moved_at: float
    """When its phase or progress last changed."""

    def overdue(self, timing: Timing, now: float) -> Cause | None:
        """Say why the lease has ended by ``now``, if it has."""
        if now - self.heard_at >= timing.lease_seconds:
            return Cause.SILENT
        if now - self.moved_at >= timing.silence_seconds(self.phase):
            return Cause.STALLED
        return None


@dataclass(frozen=True, slots=True)
class Loss:
    """A lease that ended without being given back."""

    lease: Lease
    cause: Cause


@dataclass(frozen=True, slots=True)
class Outcome:
    """What follows from a message."""

    table: LeaseTable
    """The leases afterwards."""
    verdict: Verdict
    losses: tuple[Loss, ...] = ()
    """Leases that ended by now; each is reported exactly once."""


@dataclass(frozen=True, slots=True)
class LeaseTable:
    """All leases of one grantor. Times passed in must never go back."""

    timing: Timing
    leases: Mapping[str, Lease] = field(default_factory=dict)
    """By member name."""
    ended: Mapping[str, Incarnation] = field(default_factory=dict)
    """Youngest incarnation of each member whose lease has ended."""

    def register(self, member: str, role: str, incarnation: Incarnation, now: float) -> Outcome:
        """
        Ask for a lease; asking again is the same as a beat, so a lost answer fences nobody.

        A younger incarnation ends the lease of an older one at once: its process has been replaced.
        """
        table, losses = self.expire(now)
        verdict = _judge(table, member, incarnation)
        if verdict is Verdict.FENCED:
            return Outcome(table, verdict, losses)
        held = table.leases.get(member)
        if held and held.incarnation == incarnation:
            return Outcome(_with(table, replace(held, heard_at=now)), Verdict.OK, losses)
        if held:
            losses = (*losses, Loss(held, Cause.SUPERSEDED))
            table = _without(table, held)
        lease = Lease(member, role, incarnation, Phase.STARTING, 0, heard_at=now, moved_at=now)
        return Outcome(_with(table, lease), Verdict.OK, losses)

    def beat(self, member: str, incarnation: Incarnation, phase: Phase, progress: int, now: float) -> Outcome:
        """Renew a lease."""
        table, losses = self.expire(now)
        verdict = _judge(table, member, incarnation)
        if verdict is Verdict.OK:
            lease = table.leases[member]
            is_moved = (phase, progress) != (lease.phase, lease.progress)
            moved_at = now if is_moved else lease.moved_at
            table = _with(table, replace(lease, phase=phase, progress=progress, heard_at=now, moved_at=moved_at))
        return Outcome(table, verdict, losses)

    def leave(self, member: str, incarnation: Incarnation, now: float) -> Outcome:
        """Give a lease back; nobody is lost."""
        table, losses = self.expire(now)
        verdict = _judge(table, member, incarnation)
        if verdict is Verdict.OK:
            table = _without(table, table.leases[member])
        return Outcome(table, verdict, losses)

    def look_up(self, member: str, incarnation: Incarnation, now: float) -> Outcome:
        """Say whether a lease is held, without renewing it."""
        table, losses = self.expire(now)
        return Outcome(table, _judge(table, member, incarnation), losses)

    def expire(self, now: float) -> tuple[LeaseTable, tuple[Loss, ...]]:
        """End the leases whose time is over; returns the table without them and who was lost."""
        causes = ((lease, lease.overdue(self.timing, now)) for lease in self.leases.values())
        losses = tuple(Loss(lease, cause) for lease, cause in causes if cause)
        table = self
        for loss in losses:
            table = _without(table, loss.lease)
        return table, losses

    def grace(self, now: float) -> LeaseTable:
        """Give every lease its full time again: for a grantor that was itself away and heard nobody."""
        return replace(
            self,
            leases={member: replace(lease, heard_at=now, moved_at=now) for member, lease in self.leases.items()},
        )

    def holders(self) -> dict[str, str]:
        """Member name to the incarnation that holds its lease, as the gate compares it."""
        return {member: str(lease.incarnation) for member, lease in self.leases.items()}


def _judge(table: LeaseTable, member: str, incarnation: Incarnation) -> Verdict:
    held = table.leases.get(member)
    if held and held.incarnation == incarnation:
        return Verdict.OK
    for other in (held.incarnation if held else None, table.ended.get(member)):
        if other and not incarnation.is_younger_than(other):
            return Verdict.FENCED
    return Verdict.UNKNOWN


def _with(table: LeaseTable, lease: Lease) -> LeaseTable:
    return replace(table, leases={**table.leases, lease.member: lease})


def _without(table: LeaseTable, lease: Lease) -> LeaseTable:
    kept = {member: other for member, other in table.leases.items() if member != lease.member}
    return replace(table, leases=kept, ended={**table.ended, lease.member: lease.incarnation})


def may_act(timing: Timing, answered_sent_at: float, now: float) -> bool:
    """
    Say whether a holder may still act on its lease.

    Args:
        timing: The lease's timing.
        answered_sent_at: When it sent the last beat that was answered; minus infinity if none was. By a clock that
            goes on while the machine sleeps: one that does not would wake up believing in a lease long gone.
        now: The same clock now.
    """
    return now - answered_sent_at < timing.holder_seconds
