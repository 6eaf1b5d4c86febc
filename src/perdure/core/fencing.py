"""
Who may still speak: stamps on everything that reaches a learner, and the gate that judges them.

The order of the checks is part of the rule. Generation comes before distance: after a rollback every straggler carries
a policy step from a future that was undone, and must be told that it was superseded, not that it is early. A lease is
only a hint of life; what keeps a frozen process from doing harm is this comparison at the resource (Burrows, "The
Chubby lock service", OSDI 2006; Kleppmann, "How to do distributed locking", 2016).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

DEFAULT_MAX_STALENESS_STEPS = 300
"""Learner steps by which a sample's policy may be behind."""


class Reason(str, Enum):
    """Why something was not let in; the codes are stable and only ever added to."""

    WRONG_RUN = "wrong-run"
    WRONG_GENERATION = "wrong-generation"
    FENCED_MEMBER = "fenced-member"
    DUPLICATE = "duplicate"
    STALE = "stale"
    FUTURE = "future"


@dataclass(frozen=True, slots=True)
class Stamp:
    """Where a piece of data comes from."""

    run: str
    """Name of the run."""
    generation: int
    """Generation that its sender worked in when sending it."""
    member: str
    """Name of its sender."""
    incarnation: str
    """Which life of that sender."""
    sequence: int
    """Position among all that this incarnation sent, from 1."""
    learner_step: int
    """Learner steps that the policy behind the data had made."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a learner tells its members about the time they live in."""

    generation: int
    """The one generation whose data is let in."""
    lineage: int
    """Generation in which the learner last resumed; a new generation without a rollback keeps it."""
    resumed_step: int
    """Learner step that it resumed at: what an older lineage did after this step is undone."""

    def keeps(self, lineage: int, learner_step: int) -> bool:
        """
        Say whether a policy of some lineage and step still belongs to the learner's past.

        A policy of an older lineage does if it is no younger than the checkpoint that the learner resumed from. Of two
        rollbacks that a member sleeps through, only the second is judged: the log-probabilities that samples carry
        keep such a sample usable, and a list of all rollbacks is not worth carrying for it.
        """
        return lineage == self.lineage or learner_step <= self.resumed_step


@dataclass(frozen=True, slots=True)
class GateState:
    """What the gate compares stamps with. Never changed in place."""

    run: str
    generation: int
    learner_step: int
    """Steps that the learner has made."""
    holders: Mapping[str, str] = field(default_factory=dict)
    """Member name to the incarnation that holds its lease."""
    watermarks: Mapping[str, int] = field(default_factory=dict)
    """Incarnation to the highest sequence number that was let in from it."""
    max_staleness: int = DEFAULT_MAX_STALENESS_STEPS
    """Learner steps by which a policy may be behind."""

    def with_holders(self, holders: Mapping[str, str]) -> GateState:
        """Return the state under other leases; watermarks of incarnations that hold none are forgotten."""
        living = set(holders.values())
        kept = {incarnation: mark for incarnation, mark in self.watermarks.items() if incarnation in living}
        return replace(self, holders=dict(holders), watermarks=kept)


@dataclass(frozen=True, slots=True)
class Accept:
    """The data may come in."""

    state: GateState
    """The gate afterwards: the same stamp would now be a duplicate."""


@dataclass(frozen=True, slots=True)
class Reject:
    """The data must be dropped and counted."""

    reason: Reason


def admit(stamp: Stamp, state: GateState, *, bounds_staleness: bool = True) -> Accept | Reject:
    """
    Judge data at the gate.

    Args:
        stamp: What the data says of itself.
        state: What is true now.
        bounds_staleness: Whether old policies are turned away; an evaluation of an old policy is not wrong, only late.
    """
    outdated = check_era(stamp, state)
    if outdated:
        return Reject(outdated)
    if state.holders.get(stamp.member) != stamp.incarnation:
        return Reject(Reason.FENCED_MEMBER)
    if stamp.sequence <= state.watermarks.get(stamp.incarnation, 0):
        return Reject(Reason.DUPLICATE)
    distant = check_distance(stamp, state, bounds_staleness=bounds_staleness)
    if distant:
        return Reject(distant)
    return Accept(replace(state, watermarks={**state.watermarks, stamp.incarnation: stamp.sequence}))


def recheck(stamp: Stamp, state: GateState) -> Reason | None:
    """
    Judge a sample again that was let in earlier, before it is trained on: time may have passed it by in the queue.

    Its sender's lease is not looked at: that the sender has since left does not make it wrong.
    """
    return check_era(stamp, state) or check_distance(stamp, state, bounds_staleness=True)


def check_era(stamp: Stamp, state: GateState) -> Reason | None:
    """Say what is wrong with a stamp's run or generation."""
    if stamp.run != state.run:
        return Reason.WRONG_RUN
    if stamp.generation != state.generation:
        return Reason.WRONG_GENERATION
    return None


def check_distance(stamp: Stamp, state: GateState, *, bounds_staleness: bool) -> Reason | None:
    """Say what is wrong with the distance from a stamp's policy to the learner."""
    distance = state.learner_step - stamp.learner_step
    if distance < 0:
        return Reason.FUTURE
    if bounds_staleness and distance > state.max_staleness:
        return Reason.STALE
    return None
