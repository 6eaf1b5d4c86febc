"""Schedules of faults."""

import pytest

from perdure.chaos import DeleteNewestCheckpoint, Died, Freeze, Kill, Lost, Planned, Reached, Schedule, Thaw

SCHEDULE = Schedule(
    (
        Planned(Reached(10), Kill("learner")),
        Planned(Died("learner"), DeleteNewestCheckpoint()),
        Planned(Lost("actor-2"), Thaw("actor-2")),
    )
)


@pytest.mark.parametrize(
    ("when", "now", "is_due"),
    [
        (Reached(10), Reached(9), False),
        (Reached(10), Reached(10), True),
        (Reached(10), Reached(11), True),
        (Reached(10), Died("learner"), False),
        (Died("learner"), Died("learner"), True),
        (Died("learner"), Died("actor-1"), False),
        (Died("actor-1"), Lost("actor-1"), False),
        (Lost("actor-1"), Lost("actor-1"), True),
    ],
)
def test_a_fault_is_due_at_its_moment_alone(when, now, is_due):
    """A fault is due when its moment comes, or when progress has gone beyond it."""
    assert is_due == Planned(when, Kill("x")).is_due(now)


def test_faults_happen_in_order():
    """A later fault waits for the earlier ones, even when its moment comes first."""
    assert SCHEDULE.due(Died("learner")) is None
    assert Kill("learner") == SCHEDULE.due(Reached(12))
    rest = SCHEDULE.after_next()
    assert DeleteNewestCheckpoint() == rest.due(Died("learner"))
    assert rest.after_next().due(Reached(1000)) is None


def test_a_fault_stays_due_until_it_has_happened():
    """Asking does not use a fault up."""
    assert SCHEDULE.due(Reached(10)) == SCHEDULE.due(Reached(11))


def test_a_schedule_ends():
    """A schedule is over once all of its faults have happened, and then nothing is due."""
    rest = SCHEDULE.after_next().after_next().after_next()
    assert rest.is_over
    assert not SCHEDULE.is_over
    assert rest.due(Reached(1000)) is None


def test_faults_describe_themselves():
    """A fault's text says what goes wrong and to whom."""
    described = [str(fault) for fault in (Kill("a"), Freeze("a"), Thaw("a"), DeleteNewestCheckpoint())]
    assert described == ["kill a", "freeze a", "thaw a", "delete the newest checkpoint"]
