"""
A learner's side of the lease protocol: who is a member, what to answer, whose lease has ended.

Like `membership` it waits for nothing: times and messages come in, messages go out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from perdure.cluster.wire import Answer, Beat, FromMember, Leave, Register, Want
from perdure.core.fencing import Announcement
from perdure.core.leases import Lease, LeaseTable, Loss, Outcome, Timing, Verdict
from perdure.core.restarts import Phase


@dataclass(frozen=True, slots=True)
class Member:
    """A member as its learner sees it."""

    name: str
    role: str
    incarnation: str
    phase: Phase
    progress: int
    silent_seconds: float
    """Time since its last message."""
    held: int
    """Items that it held back when it last beat."""


@dataclass(frozen=True, slots=True)
class Post:
    """A message on its way to one peer."""

    peer: bytes
    answer: Answer


@dataclass(frozen=True, slots=True)
class Heard:
    """What follows from a message or from the passing of time."""

    posts: tuple[Post, ...] = ()
    losses: tuple[Loss, ...] = ()
    joined: Lease | None = None
    """The lease that was granted just now."""
    left: str | None = None
    """The member that gave its lease back."""
    fenced: str | None = None
    """The member whose incarnation was told for the first time that it is over."""


class Grantor:
    """
    Grants leases to the members of a run and keeps what they say of themselves. Not thread-safe.

    Args:
        run: Name of the run.
        timing: How long members may be silent.
        now: When the grantor begins.
    """

    def __init__(self, run: str, timing: Timing, now: float) -> None:
        self._run = run
        self._timing = timing
        self._table = LeaseTable(timing)
        self._looked_at = now
        self._peers: dict[str, bytes] = {}
        self._reports: dict[str, Beat] = {}
        self._told: dict[str, str] = {}
        self._wants: dict[str, tuple[int, int]] = {}
        self.lost_count = 0
        """Leases that ended without being given back."""
        self.withheld: Counter[str] = Counter(overflowed=0, undone=0)
        """What members say that they dropped before it was sent, by reason."""
        self.is_stopping = False
        """Whether members are asked to stop."""

    def hear(self, message: FromMember, peer: bytes, announcement: Announcement, now: float) -> Heard:
        """Take in a message of a member."""
        is_new = isinstance(message, Register) and message.incarnation not in self._table.holders().values()
        outcome = self._judge(message, now)
        notices = self._end(outcome, announcement)
        answer = Post(peer, self._answer(message.incarnation, message.number, outcome.verdict, announcement))
        if outcome.verdict is not Verdict.OK:
            return Heard((answer, *notices), outcome.losses, fenced=self._told_now(message, outcome.verdict))
        if isinstance(message, Leave):
            self._forget(message.member)
            return Heard(notices, outcome.losses, left=message.member)
        self._peers[message.member] = peer
        if isinstance(message, Want):
            self._wants[message.member] = (message.lineage, message.version)
            return Heard(notices, outcome.losses)  # the answer is the weights
        joined = self._table.leases[message.member] if is_new else None
        return Heard((answer, *notices), outcome.losses, joined)

    def look(self, announcement: Announcement, now: float) -> Heard:
        """
        Let time pass; to be called several times a beat.

        After a time in which the grantor itself did not look, because its process or machine was frozen, everybody
        starts afresh: they may well have been talking.
        """
        if now - self._looked_at > self._timing.lease_seconds / 2:
            self._table = self._table.grace(now)
        self._looked_at = now
        table, losses = self._table.expire(now)
        outcome = Outcome(table, Verdict.OK, losses)
        return Heard(self._end(outcome, announcement), losses)

    def tell_all(self, announcement: Announcement) -> tuple[Post, ...]:
        """Return the messages that tell every member of an announcement, unasked."""
        return tuple(
            Post(self._peers[member], self._answer(str(lease.incarnation), 0, Verdict.OK, announcement))
            for member, lease in self._table.leases.items()
        )

    def take_wants(self, lineage: int, version: int) -> tuple[bytes, ...]:
        """Return, and forget, the peers that asked for weights older than the given ones."""
        waiting = [member for member, known in self._wants.items() if known < (lineage, version)]
        for member in waiting:
            del self._wants[member]
        return tuple(self._peers[member] for member in waiting)

    def holders(self) -> dict[str, str]:
        """Member name to the incarnation that holds its lease."""
        return self._table.holders()

    def members(self, now: float) -> tuple[Member, ...]:
        """Return the members that hold a lease, by name."""
        return tuple(
            Member(
                name,
                lease.role,
                str(lease.incarnation),
                lease.phase,
                lease.progress,
                silent_seconds=now - lease.heard_at,
                held=self._reports[name].held if name in self._reports else 0,
            )
            for name, lease in sorted(self._table.leases.items())
        )

    def _judge(self, message: FromMember, now: float) -> Outcome:
        match message:
            case Register():
                return self._table.register(message.member, message.role, message.life, now)
            case Beat():
                outcome = self._table.beat(message.member, message.life, message.phase, message.progress, now)
                if outcome.verdict is Verdict.OK:
                    self._note(message)
                return outcome
            case Leave():
                return self._table.leave(message.member, message.life, now)
            case _:
                return self._table.look_up(message.member, message.life, now)

    def _note(self, beat: Beat) -> None:
        former = self._reports.get(beat.member)
        is_same = former is not None and former.incarnation == beat.incarnation
        for reason, count in (("overflowed", beat.overflowed), ("undone", beat.undone)):
            self.withheld[reason] += max(0, count - (getattr(former, reason) if is_same else 0))
        self._reports[beat.member] = beat

    def _end(self, outcome: Outcome, announcement: Announcement) -> tuple[Post, ...]:
        """Adopt the table; returns what tells the lost that they are."""
        self._table = outcome.table
        posts = []
        for loss in outcome.losses:
            self.lost_count += 1
            peer = self._forget(loss.lease.member)
            answer = self._answer(str(loss.lease.incarnation), 0, Verdict.FENCED, announcement)
            posts.append(Post(peer, answer))
        return tuple(posts)

    def _forget(self, member: str) -> bytes:
        self._wants.pop(member, None)
        self._reports.pop(member, None)
        return self._peers.pop(member)

    def _told_now(self, message: FromMember, verdict: Verdict) -> str | None:
        if verdict is not Verdict.FENCED or self._told.get(message.member) == message.incarnation:
            return None
        self._told[message.member] = message.incarnation
        return message.member

    def _answer(self, incarnation: str, number: int, verdict: Verdict, announcement: Announcement) -> Answer:
        return Answer(
            run=self._run,
            incarnation=incarnation,
            number=number,
            verdict=verdict,
            announcement=announcement,
            is_stopping=self.is_stopping,
        )
