"""What goes wrong in the demo, and when: at stated points of progress, one thing after the other."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.chaos import DeleteNewestCheckpoint, Died, Freeze, Kill, Lost, Planned, Reached, Schedule, Thaw

LEARNER = "learner"


@dataclass(frozen=True, slots=True)
class Act:
    """One fault of the demo, in as many strokes as it takes."""

    name: str
    title: str
    """For people; begins with whom it befalls."""
    member: str
    """The member that has to come back."""
    schedule: Schedule

    @property
    def begins_at(self) -> int:
        """Update at which it begins."""
        first = self.schedule.planned[0].when
        assert isinstance(first, Reached)
        return first.progress


def plan_acts(updates: int) -> tuple[Act, ...]:
    """
    Plan the four faults of a run of so many updates.

    They are early enough for the last recovery to be seen, far enough from each other for the curve between them, and
    come about halfway between two checkpoints of `Settings`, so that they lose what a fault loses on average.
    """

    def at(share: float) -> Reached:
        return Reached(round(share * updates))

    return (
        Act("learner-killed", "learner killed", LEARNER, Schedule((Planned(at(0.2125), Kill(LEARNER)),))),
        Act("actor-killed", "actor-1 killed", "actor-1", Schedule((Planned(at(0.3625), Kill("actor-1")),))),
        Act(
            "actor-frozen",
            "actor-2 frozen past its lease, then thawed",
            "actor-2",
            Schedule((Planned(at(0.5125), Freeze("actor-2")), Planned(Lost("actor-2"), Thaw("actor-2")))),
        ),
        Act(
            "checkpoint-deleted",
            "learner killed, newest checkpoint deleted",
            LEARNER,
            Schedule((Planned(at(0.7125), Kill(LEARNER)), Planned(Died(LEARNER), DeleteNewestCheckpoint()))),
        ),
    )
