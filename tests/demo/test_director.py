"""Which fault is due when, and what becomes of each."""

import pytest

from perdure.chaos import DeleteNewestCheckpoint, Freeze, Kill, Thaw
from perdure.demo.acts import plan_acts
from tests.demo.story import STEPS, Story


@pytest.fixture(scope="module")
def told():
    """The whole story, told once."""
    return Story().told()


def test_all_faults_happen_in_order(told):
    """Each fault is named once, at its moment, in the order of the acts."""
    assert told.faults == [
        Kill("learner"),
        Kill("actor-1"),
        Freeze("actor-2"),
        Thaw("actor-2"),
        Kill("learner"),
        DeleteNewestCheckpoint(),
    ]
    assert [incident.update for incident in told.director.incidents] == [21, 36, 51, 71]
    assert told.director.waiting == ()
    assert told.director.current is None


def test_every_fault_is_recovered(told):
    """With all the evidence in, no incident lacks anything."""
    assert [incident.failures for incident in told.director.incidents] == [()] * 4


def test_times_are_taken_from_events(told):
    """Detection is the first event that names the fault, recovery the first training that is owed to the new life."""
    killed, actor, frozen, deleted = told.director.incidents
    assert killed.detected_at - killed.began_at == pytest.approx(0.02)
    assert killed.back_at - killed.began_at == pytest.approx(0.02 + 5.0 + 0.1)
    assert (killed.detected_by, actor.detected_by, frozen.detected_by) == ("supervisor", "lease", "lease")
    assert frozen.detected_at - frozen.began_at == pytest.approx(1.5)
    # Two updates without the actor, then one with its new life.
    assert frozen.back_at - frozen.began_at == pytest.approx(1.5 + 0.01 + 0.2 + 3 * 0.1)
    assert deleted.steps_lost == killed.steps_lost == 10 * STEPS
    assert deleted.resumed_from == "c6"


def test_a_learner_has_caught_up_when_it_is_beyond_where_it_was_hit(told):
    """Catching up ends with the first update that is further than the one at which the fault came."""
    killed = told.director.incidents[0]
    assert killed.caught_up_at - killed.back_at == pytest.approx(10 * 0.1)


def test_dropped_samples_belong_to_the_last_fault(told):
    """Counts that begin anew in each life of the learner are added up, each to the fault before it."""
    assert [incident.samples_dropped for incident in told.director.incidents] == [
        {"undone": 2},
        {"wrong-generation": 3},
        {"wrong-generation": 3},
        {"undone": 2},
    ]
    assert told.director.samples_dropped == {"undone": 4, "wrong-generation": 6}


def test_a_fault_waits_until_the_one_before_is_recovered():
    """However far training has come, the next act begins only after the recovery."""
    story = Story()
    story.train(21)
    story.update = 60
    story.train(65)
    assert [str(fault) for fault in story.faults] == ["kill learner"]
    assert story.director.current is not None
    story.lose_learner("c1", at_update=11)
    story.train(13)
    assert story.director.current is None
    story.update = 60
    story.train(61)
    assert [str(fault) for fault in story.faults] == ["kill learner", "kill actor-1"]


def test_a_fault_that_could_not_happen_stays_due():
    """Without an injection the fault is named again at the next such moment."""
    story = Story()
    story.train(20)
    update = {**next(each.event for each in story.happenings if each.event["event"] == "update"), "update": 21}
    assert Kill("learner") == story.director.hear(2.0, update) == story.director.hear(2.1, {**update, "update": 22})
    assert story.director.incidents == []


def test_a_run_is_over_when_it_is_beyond_its_last_fault():
    """Neither the last fault nor the recovery is the end, but the first update that was not made before."""
    story = Story()
    assert not story.director.is_over
    story.told()
    assert story.director.is_over
    story = Story(acts=plan_acts(100)[:1])
    story.train(21)
    story.lose_learner("c1", at_update=11)
    story.train(21)
    assert not story.director.is_over
    story.train(22)
    assert story.director.is_over


def test_an_undisturbed_run_has_no_faults():
    """Without acts nothing is ever due."""
    story = Story(acts=())
    story.train(100)
    assert story.faults == []
    assert story.director.incidents == []
    assert story.director.is_over
