"""What goes wrong in the demo, and when."""

import pytest

from perdure.chaos import DeleteNewestCheckpoint, Freeze, Kill, Thaw
from perdure.demo.acts import plan_acts


@pytest.mark.parametrize("updates", [40, 60, 400, 5000])
def test_every_fault_comes_at_an_update_of_its_own(updates):
    """Faults begin one after the other, with time before the first and after the last."""
    moments = [act.begins_at for act in plan_acts(updates)]
    assert moments == sorted(set(moments))
    assert 0 < moments[0]
    assert moments[-1] <= 0.75 * updates


def test_everything_that_is_promised_goes_wrong():
    """The learner is killed, an actor is killed, an actor is frozen and thawed, the newest checkpoint is deleted."""
    faults = [planned.fault for act in plan_acts(400) for planned in act.schedule.planned]
    assert faults == [
        Kill("learner"),
        Kill("actor-1"),
        Freeze("actor-2"),
        Thaw("actor-2"),
        Kill("learner"),
        DeleteNewestCheckpoint(),
    ]
