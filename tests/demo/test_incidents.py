"""What counts as a recovery, and what does not."""

import pytest

from tests.demo.story import Story


def last(story):
    """The last incident of a story."""
    return story.director.incidents[-1]


def test_a_fault_that_nobody_notices_is_not_recovered():
    """Without any event an incident lacks everything."""
    story = Story()
    story.train(21)
    assert last(story).failures == (
        "nobody noticed",
        "learner did not come back",
        "no new generation was minted",
    )


def test_a_learner_is_back_when_it_trains():
    """A restore alone is no recovery; the update after it is."""
    story = Story()
    story.train(21)
    story.lose_learner("c1", at_update=11)
    assert "learner did not come back" in last(story).failures
    story.train(12)
    assert last(story).failures == ()


def test_an_actor_is_back_when_its_new_life_is_trained_on():
    """Updates without the actor, or with samples of its old life, are no recovery."""
    story = Story()
    story.train(21)
    story.lose_learner("c1", at_update=11)
    story.train(36)
    story.lose_actor("actor-1")
    assert last(story).failures == ("actor-1 did not come back",)
    story.train(story.update + 1)
    assert last(story).failures == ()


def test_samples_of_an_ended_life_are_found_out():
    """An update in the new generation that uses samples of the old life spoils the recovery."""
    story = Story()
    story.train(21)
    story.lose_learner("c1", at_update=11)
    story.train(36)
    story.lose_actor("actor-1")
    story.lives["actor-1"] -= 1
    story.train(story.update + 1)
    story.lives["actor-1"] += 1
    story.train(story.update + 1)
    assert last(story).failures == ("samples of the ended life were trained on",)


def test_samples_that_were_let_in_before_the_new_generation_are_no_intruders():
    """What was taken before the lease ended may still be trained on."""
    story = Story()
    story.train(21)
    story.lose_learner("c1", at_update=11)
    story.train(36)
    story.train(38)
    story.lose_actor("actor-1")
    assert last(story).intruders == 0


@pytest.mark.parametrize(("exit_code", "is_fenced"), [(12, True), (1, False), (None, False)])
def test_a_thawed_actor_has_to_exit_as_fenced(exit_code, is_fenced):
    """A frozen actor must not be killed or crash: it finds out that it is over, and says so with its exit code."""
    story = Story()
    story.train(21)
    story.lose_learner("c1", at_update=11)
    story.train(36)
    story.lose_actor("actor-1")
    story.train(51)
    story.lose_actor("actor-2", exit_code=exit_code)
    story.train(story.update + 1)
    assert is_fenced == (last(story).failures == ())


@pytest.mark.parametrize(("checkpoint", "is_right"), [("c6", True), ("c7", False), ("c5", False)])
def test_a_run_has_to_fall_back_to_the_checkpoint_before(checkpoint, is_right):
    """After the newest checkpoint was deleted, the one before it must be used, and no older one."""
    story = Story()
    story.train(21)
    story.lose_learner("c1", at_update=11)
    story.train(36)
    story.lose_actor("actor-1")
    story.train(51)
    story.lose_actor("actor-2", exit_code=12)
    story.train(71)
    story.lose_learner(checkpoint, at_update=61)
    story.train(62)
    assert is_right == (last(story).failures == ())


def test_an_act_that_did_not_happen_in_full_is_not_recovered():
    """A frozen actor that was never thawed is an incident that lacks something."""
    story = Story()
    story.train(21)
    story.lose_learner("c1", at_update=11)
    story.train(36)
    story.lose_actor("actor-1")
    story.train(55)
    assert "it did not happen in full" in last(story).failures
