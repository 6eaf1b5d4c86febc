"""Playing, and what is kept of it."""

import numpy as np
import pytest

from perdure.demo.policy import Policy
from perdure.demo.rollout import Environments, Rollout, side_by_side

LEANS_LEFT = Policy(((np.zeros((2, 4), np.float32), np.array([9.0, -9.0], np.float32)),))
BALANCES = Policy(
    ((np.array([[-0.5, -1.0, -10.0, -3.0], [0.5, 1.0, 10.0, 3.0]], np.float32), np.zeros(2, np.float32)),)
)
"""Pushes towards the side to which the pole leans, which balances for long."""


@pytest.fixture
def environments():
    """Three CartPoles."""
    return Environments(3, np.random.default_rng(0))


def test_a_rollout_has_a_row_for_every_step(environments):
    """A rollout has the shape (steps, environments) and survives its way through plain arrays."""
    rollout, _ = environments.collect(LEANS_LEFT, 20, np.random.default_rng(1))
    assert rollout.observations.shape == rollout.successors.shape == (20, 3, 4)
    assert {array.shape[:2] for array in rollout.arrays().values()} == {(20, 3)}
    assert rollout.steps == 60
    again = Rollout.from_arrays(rollout.arrays())
    assert all(np.array_equal(again.arrays()[name], array) for name, array in rollout.arrays().items())


def test_a_step_begins_where_the_one_before_ended(environments):
    """What was seen next is what is seen, unless an episode ended between the two."""
    rollout, _ = environments.collect(LEANS_LEFT, 40, np.random.default_rng(1))
    goes_on = ~rollout.ended[:-1]
    assert np.array_equal(rollout.successors[:-1][goes_on], rollout.observations[1:][goes_on])
    assert rollout.terminated.any()
    fallen = rollout.successors[rollout.terminated]
    assert (np.abs(fallen[:, 2]) > 0.2).all()
    assert (np.abs(rollout.observations[1:][rollout.ended[:-1]]) < 0.06).all()


def test_returns_are_those_of_whole_episodes(environments):
    """The returns reported are the lengths of the episodes that ended, wherever rollouts were cut."""
    lengths, totals = [0, 0, 0], []
    reported = []
    for _ in range(4):
        rollout, returns = environments.collect(LEANS_LEFT, 7, np.random.default_rng(1))
        reported += returns
        for row in rollout.ended:
            for i, ended in enumerate(row):
                lengths[i] += 1
                if ended:
                    totals.append(float(lengths[i]))
                    lengths[i] = 0
    assert reported == totals
    assert totals


def test_rollouts_stand_side_by_side(environments):
    """A batch of rollouts has the environments of all of them, each with its own history."""
    first, _ = environments.collect(LEANS_LEFT, 5, np.random.default_rng(1))
    second, _ = environments.collect(LEANS_LEFT, 5, np.random.default_rng(2))
    batch = side_by_side([first, second])
    assert batch.steps == first.steps + second.steps
    assert np.array_equal(batch.observations[:, :3], first.observations)
    assert np.array_equal(batch.observations[:, 3:], second.observations)


def test_an_evaluation_plays_one_whole_episode_in_each(environments):
    """An evaluation gives one return for each environment, the same for the same weights as far as play goes."""
    bad, good = environments.evaluate(LEANS_LEFT), environments.evaluate(BALANCES)
    assert len(bad) == len(good) == 3
    assert all(8 <= total <= 11 for total in bad)
    assert all(total > 100 for total in good)


def test_the_generator_decides_everything():
    """Two sets of environments with generators of one seed play the same games."""
    played = [
        Environments(2, np.random.default_rng(7)).collect(BALANCES, 30, np.random.default_rng(8))[0] for _ in range(2)
    ]
    assert np.array_equal(played[0].observations, played[1].observations)
    assert np.array_equal(played[0].actions, played[1].actions)
