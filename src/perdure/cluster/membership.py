"""
A member's side of the lease protocol: what to say to the learner, what its answers mean, whether to act on them.

Nothing here waits, reads a clock or touches a socket: times and messages come in, messages go out. A member beats as
long as it lives. When no learner answers it holds back what it has, and goes on once one does; only a learner that says
so ends it, because only the learner can tell a member that was frozen from one whose learner was away.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from perdure.cluster.wire import Answer, Beat, FromMember, Leave, Register, Want, WeightsHeader
from perdure.core.fencing import Announcement
from perdure.core.leases import Incarnation, Timing, Verdict, may_act
from perdure.core.restarts import Phase
from perdure.errors import FencedError

_REMEMBERED_MESSAGES = 64
_NOTHING = Announcement(generation=0, lineage=0, resumed_step=0)


@dataclass(frozen=True, slots=True)
class Condition:
    """What a member says of itself in a beat."""

    phase: Phase
    progress: int
    held: int = 0
    overflowed: int = 0
    undone: int = 0


class Membership:
    """
    One incarnation's tie to whichever learner leads the run. Not thread-safe.

    Args:
        run: Name of the run.
        member: Name of the member, unique in the run.
        role: ``actor`` or ``evaluator``.
        incarnation: This life of the member.
        timing: As the learner's.
    """

    def __init__(self, run: str, member: str, role: str, incarnation: Incarnation, timing: Timing) -> None:
        self._run = run
        self._member = member
        self._role = role
        self._incarnation = str(incarnation)
        self._timing = timing
        self._number = 0
        self._sent: deque[tuple[int, float]] = deque(maxlen=_REMEMBERED_MESSAGES)
        self._is_registered = False
        self._answered_sent_at = -math.inf
        self._heard_at = -math.inf
        self._call_at = -math.inf
        self._want: tuple[int, int] | None = None
        self._want_at = -math.inf
        self._weights_lineage = 0
        self.announcement = _NOTHING
        """The newest one heard; generation 0 before the first."""
        self.is_stopping = False
        """Whether the learner asked its members to stop."""
        self.fenced: FencedError | None = None
        """Set once the learner has said that this incarnation is over."""

    def may_act(self, now: float) -> bool:
        """Say whether the lease, as far as this side can know, is held."""
        return self._is_registered and self.fenced is None and may_act(self._timing, self._answered_sent_at, now)

    def may_send(self, now: float) -> bool:
        """Say whether data may go to the learner: the lease is held, and weights of its present lineage are here."""
        return self.may_act(now) and self._weights_lineage == self.announcement.lineage

    def due(self, now: float, condition: Condition) -> list[FromMember]:
        """Return the messages to send now."""
        if self.fenced:
            return []
        messages: list[FromMember] = []
        if now >= self._call_at:
            interval = self._timing.beat_seconds if self._is_registered else self._timing.beat_seconds / 5
            self._call_at = now + interval
            messages.append(self._beat(now, condition) if self._is_registered else self._registration(now))
        if self._want is not None and now >= self._want_at and self.may_act(now):
            self._want_at = now + self._timing.lease_seconds  # often enough: it is lost with its connection alone
            lineage, version = self._want
            messages.append(
                Want(
                    run=self._run,
                    member=self._member,
                    incarnation=self._incarnation,
                    number=self._count(now),
                    lineage=lineage,
                    version=version,
                )
            )
        return messages

    def due_at(self) -> float:
        """Say when `due` will next return something, as far as is known now."""
        return min(self._call_at, self._want_at if self._want is not None else math.inf)

    def hear(self, answer: Answer, now: float) -> bool:
        """
        Take in an answer; returns whether it concerned this member.

        What comes from an older generation than one already heard is a superseded learner's and means nothing.
        """
        is_mine = answer.run == self._run and answer.incarnation == self._incarnation
        if not is_mine or answer.announcement.generation < self.announcement.generation:
            return False
        self.announcement = answer.announcement
        self.is_stopping = answer.is_stopping
        self._heard_at = now
        if answer.verdict is Verdict.FENCED:
            self.fenced = FencedError(
                f"cannot go on as {self._member}: the learner has ended this incarnation's lease",
                kind="member.fenced",
                hint="stop this process; start a new one to rejoin",
                current_generation=answer.announcement.generation,
            )
        elif answer.verdict is Verdict.UNKNOWN:
            self.void(now)
        else:
            self._renew(answer.number)
        return True

    def hear_weights(self, header: WeightsHeader, now: float) -> bool:
        """Take in that weights have arrived; returns whether they are of use."""
        if header.run != self._run or header.announcement.generation < self.announcement.generation:
            return False
        self.announcement = header.announcement
        self._heard_at = now
        self._weights_lineage = header.announcement.lineage
        self._want = None
        return True

    def want(self, lineage: int, version: int) -> None:
        """Ask for weights newer than those named until some come."""
        if self._want != (lineage, version):
            self._want = (lineage, version)
            self._want_at = -math.inf

    def void(self, now: float) -> None:
        """Take it that the learner heard of is gone: stop acting, and register with whoever is there."""
        self._is_registered = False
        self._answered_sent_at = -math.inf
        self._call_at = now
        self._want_at = -math.inf

    def is_unheard(self, since: float, now: float) -> bool:
        """Say whether, since some time, no learner was heard for longer than a lease can be acted on."""
        return now - max(since, self._heard_at) >= self._timing.holder_seconds

    def farewell(self, now: float) -> Leave:
        """Return the message that gives the lease back."""
        return Leave(run=self._run, member=self._member, incarnation=self._incarnation, number=self._count(now))

    def _renew(self, number: int) -> None:
        sent_at = next((sent_at for sent, sent_at in self._sent if sent == number), None)
        if sent_at is not None:
            self._is_registered = True
            self._answered_sent_at = max(self._answered_sent_at, sent_at)

    def _registration(self, now: float) -> Register:
        return Register(
            run=self._run,
            member=self._member,
            incarnation=self._incarnation,
            number=self._count(now),
            role="evaluator" if self._role == "evaluator" else "actor",
        )

    def _beat(self, now: float, condition: Condition) -> Beat:
        return Beat(
            run=self._run,
            member=self._member,
            incarnation=self._incarnation,
            number=self._count(now),
            phase=condition.phase,
            progress=condition.progress,
            held=condition.held,
            overflowed=condition.overflowed,
            undone=condition.undone,
        )

    def _count(self, now: float) -> int:
        self._number += 1
        self._sent.append((self._number, now))
        return self._number
