"""What one run of the demo came to: its curves, its faults, its counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perdure.demo.acts import LEARNER
from perdure.demo.incidents import Event, Incident


@dataclass(frozen=True, slots=True)
class Happening:
    """An event and when it happened."""

    at: float
    """Seconds since the session began."""
    event: Event


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a learning curve."""

    seconds: float
    """Since the run's first update."""
    update: int
    step: int
    value: float
    """Mean return of the last episodes of training, or of an evaluation's."""


@dataclass(frozen=True, slots=True)
class Training:
    """One run of the demo, looked back on."""

    name: str
    exit_code: int
    began_at: float
    """Second of the session at which the first update was done: where the curves begin."""
    curve: tuple[Point, ...]
    """One point an update, in the order in which they were made: after a rollback some are made again."""
    evaluations: tuple[Point, ...]
    seconds: float
    """Time from the first update to the last that was planned, for good: what two runs are compared by."""
    generation: int
    """The last one."""
    checkpoints_saved: int
    samples_dropped: Mapping[str, int]
    """By reason."""
    incidents: tuple[Incident, ...] = ()
    faults_missing: int = 0
    """Faults that were planned and did not come about before the run was over."""

    @property
    def whole_seconds(self) -> float:
        """Time from the first update to the last."""
        return self.curve[-1].seconds if self.curve else 0.0

    @property
    def final_return(self) -> float | None:
        """Mean return of the last weights; None if they were not evaluated."""
        if not self.curve or not self.evaluations or self.evaluations[-1].update != self.curve[-1].update:
            return None
        return self.evaluations[-1].value

    @property
    def seconds_lost(self) -> float:
        """Time from each fault of the learner until training was beyond where it had been hit."""
        return sum(
            incident.caught_up_at - incident.began_at
            for incident in self.incidents
            if incident.act.member == LEARNER and incident.caught_up_at is not None
        )


def look_back(
    name: str,
    exit_code: int,
    happenings: Sequence[Happening],
    *,
    updates: int,
    samples_dropped: Mapping[str, int],
    incidents: Sequence[Incident] = (),
    faults_missing: int = 0,
) -> Training:
    """Make of everything that was heard of a run, which was planned to make so many updates, what it came to."""
    made = [each for each in happenings if each.event["event"] == "update"]
    evaluations = [each for each in happenings if each.event["event"] == "evaluation"]
    began_at = made[0].at if made else 0.0
    curve = tuple(_point(each, began_at) for each in made)
    return Training(
        name,
        exit_code,
        began_at,
        curve=curve,
        evaluations=tuple(_point(each, began_at) for each in evaluations),
        seconds=_seconds_to(curve, updates),
        generation=made[-1].event["generation"] if made else 0,
        checkpoints_saved=sum(each.event["event"] == "saved" for each in happenings),
        samples_dropped=samples_dropped,
        incidents=tuple(incidents),
        faults_missing=faults_missing,
    )


def _seconds_to(curve: Sequence[Point], update: int) -> float:
    """Say when a curve came to an update, the last time that it did, as a rollback can undo it; its end, if never."""
    before = (0, *(point.update for point in curve))
    arrivals = [point.seconds for last, point in zip(before, curve, strict=False) if last < update <= point.update]
    return arrivals[-1] if arrivals else curve[-1].seconds if curve else 0.0


def _point(happening: Happening, began_at: float) -> Point:
    event = happening.event
    return Point(happening.at - began_at, event["update"], event["step"], event["value"])
