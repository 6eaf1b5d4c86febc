"""
What became of each fault: a fold over the events of a run.

Everything is read off events, of the supervisor, of the run's own history and of the learner, each with the second
at which it happened. A fault counts as recovered on evidence alone: not that a process runs again, but that the
learner has trained again, or has trained on samples of the member's new life.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from perdure.chaos import DeleteNewestCheckpoint, Freeze, Injection
from perdure.demo.acts import LEARNER, Act
from perdure.errors import FencedError

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Incident:
    """One fault and its recovery. Times are seconds of the demo's clock."""

    act: Act
    began_at: float
    update: int
    """Updates that the learner had made."""
    step: int
    """Environment steps that it had made."""
    life: str
    """The life of the member that the fault ends: an actor's incarnation, or the generation a learner resumed in."""
    injections: tuple[Injection, ...] = ()
    detected_at: float | None = None
    """When the first event named the fault."""
    detected_by: str = ""
    back_at: float | None = None
    """When the learner had trained again: at all, or on samples of the actor's new life."""
    caught_up_at: float | None = None
    """When it had gone beyond the update at which the fault hit it."""
    exit_code: int | None = None
    """What the member's process exited with; None where a signal ended it."""
    steps_lost: int = 0
    resumed_from: str | None = None
    """The checkpoint that a learner resumed from."""
    generation: int | None = None
    """The generation that was minted because of the fault."""
    samples_dropped: Mapping[str, int] = field(default_factory=dict)
    """Samples turned away until the next fault, by reason."""
    intruders: int = 0
    """Updates that used samples of the ended life in spite of the new generation; must be none."""

    @property
    def failures(self) -> tuple[str, ...]:
        """Say what is missing for this to be a recovery."""
        hit = {type(injection.fault): injection for injection in self.injections}
        deleted = hit.get(DeleteNewestCheckpoint)
        found = {
            "it did not happen in full": len(self.injections) < len(self.act.schedule.planned),
            "nobody noticed": self.detected_at is None,
            f"{self.act.member} did not come back": self.back_at is None,
            "no new generation was minted": self.generation is None,
            "samples of the ended life were trained on": self.intruders > 0,
            "the thawed process did not exit as fenced": Freeze in hit and self.exit_code != FencedError.exit_code,
            "the run did not fall back to the checkpoint before": deleted is not None
            and self.resumed_from != deleted.facts["fallback"],
        }
        return tuple(failure for failure, is_so in found.items() if is_so)

    def heard(self, at: float, event: Event) -> Incident:
        """Return the incident after an event, its own recovery's or another's."""
        if event["event"] == "update":
            return self._trained(at, event)
        if self.back_at is not None:
            return self
        if event.get("member") == self.act.member and event["event"] in ("member-fault", "member-lost"):
            return self._noticed(at, event)
        if self.generation is None and event["event"] == ("restored" if self._is_learners else "generation-minted"):
            return replace(
                self,
                generation=event["generation"],
                resumed_from=event.get("checkpoint"),
                steps_lost=event.get("steps_lost", 0),
            )
        return self

    @property
    def _is_learners(self) -> bool:
        return self.act.member == LEARNER

    def _noticed(self, at: float, event: Event) -> Incident:
        is_first = self.detected_at is None
        return replace(
            self,
            detected_at=at if is_first else self.detected_at,
            detected_by=_witness(event) if is_first else self.detected_by,
            exit_code=event.get("exit_code", self.exit_code),
        )

    def _trained(self, at: float, event: Event) -> Incident:
        life = life_of(self.act.member, event)
        if self.generation is None or event["generation"] < self.generation:
            return self
        if life == self.life:
            return replace(self, intruders=self.intruders + 1)
        back_at = self.back_at if self.back_at is not None or life is None else at
        is_beyond = self.caught_up_at is None and back_at is not None and event["update"] > self.update
        return replace(self, back_at=back_at, caught_up_at=at if is_beyond else self.caught_up_at)


def life_of(member: str, update: Event) -> str | None:
    """Return which life of a member an update is owed to, or None if it has no part in it."""
    if member == LEARNER:
        return str(update["life"])
    sender = update["senders"].get(member)
    return None if sender is None else str(sender)


def _witness(event: Event) -> str:
    return "supervisor" if event["event"] == "member-fault" else "lease"


@dataclass(slots=True)
class Drops:
    """Counts the samples dropped since the last look, over all lives of the learner, each of which begins at 0."""

    life: int | None = None
    seen: Counter[str] = field(default_factory=Counter)

    def since(self, update: Event) -> dict[str, int]:
        """Return the samples dropped since the update before, by reason."""
        now: Counter[str] = Counter(update["dropped"])
        fresh = now - self.seen if update["life"] == self.life else now
        self.life, self.seen = update["life"], now
        return dict(fresh)


def added(counts: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    """Add counts by reason."""
    return dict(Counter(counts) + Counter(more))
