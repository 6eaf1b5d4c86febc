"""When faults happen: a plan that is a value, followed one fault after the other."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perdure.chaos.faults import Fault


@dataclass(frozen=True, slots=True)
class Reached:
    """The run has come this far, in whatever the schedule counts; a schedule means: or further."""

    progress: int


@dataclass(frozen=True, slots=True)
class Died:
    """A member's process is dead for certain."""

    member: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The learner has ended a member's lease."""

    member: str


Moment = Reached | Died | Lost
"""Something that happens to a run, and what a fault waits for."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault and what it waits for."""

    when: Moment
    fault: Fault

    def is_due(self, now: Moment) -> bool:
        """Say whether this moment is the one that is waited for."""
        if isinstance(self.when, Reached) and isinstance(now, Reached):
            return now.progress >= self.when.progress
        return now == self.when


@dataclass(frozen=True, slots=True)
class Schedule:
    """Faults in their order. Only the first one waits; the others wait for it."""

    planned: tuple[Planned, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to go wrong."""
        return not self.planned

    def due(self, now: Moment) -> Fault | None:
        """Return the fault whose moment this is, if it is the next one's."""
        return self.planned[0].fault if self.planned and self.planned[0].is_due(now) else None

    def after_next(self) -> Schedule:
        """Return the schedule once the next fault has happened."""
        return replace(self, planned=self.planned[1:])
