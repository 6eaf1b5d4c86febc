"""What windows over a ring promise at the ends of episodes and at the seam."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.core.ring import RingState
from perdure.replay.windows import find_episodes, n_step_returns, sequence_slots


def ring_of(total, capacity, end_every):
    """A ring of numbered rows: the state, the rewards and the ends."""
    rewards = np.full((capacity, 1), np.nan)
    ends = np.zeros((capacity, 1), bool)
    for number in range(max(0, total - capacity), total):
        rewards[number % capacity] = number
        ends[number % capacity] = number % end_every == end_every - 1
    state = RingState(capacity, total % capacity, min(total, capacity), total)
    return state, rewards, lambda slots, environments: ends[slots, environments]


@settings(max_examples=100, deadline=None)
@given(
    total=st.integers(1, 60),
    capacity=st.integers(1, 25),
    end_every=st.integers(1, 9),
    steps=st.integers(1, 6),
    data=st.data(),
)
def test_n_step_returns_equal_those_of_the_whole_history(total, capacity, end_every, steps, data):
    """A return sums the rewards up to the end of the episode or the newest row, wherever the ring's seam lies."""
    state, rewards, ends = ring_of(total, capacity, end_every)
    first = data.draw(st.integers(max(0, total - capacity), total - 1))
    expected, number, count = 0.0, first, 0
    while True:
        expected += 0.5**count * number
        count += 1
        if count == steps or number % end_every == end_every - 1 or number + 1 == total:
            break
        number += 1
    slots, environments = np.array([first % capacity]), np.array([0])
    found = n_step_returns(rewards, ends, slots, environments, state, steps=steps, discount=0.5)
    assert found.rewards[0] == pytest.approx(expected)
    assert found.last[0] == number % capacity
    assert found.discounts[0] == 0.5**count


def test_sequences_stop_at_the_end_of_an_episode_and_at_the_newest_row():
    """A sequence repeats its last step once the episode or the ring has ended, and says so."""
    state, _, ends = ring_of(13, 10, 5)
    starts, environments = np.array([8, 2]), np.array([0, 0])
    slots, is_valid = sequence_slots(ends, starts, environments, state, 3)
    assert slots.tolist() == [[8, 9, 9], [2, 2, 2]]
    assert is_valid.tolist() == [[True, True, False], [True, False, False]]


def test_episodes_go_over_the_seam_and_know_what_is_missing():
    """Episodes are cut in order of time; one whose beginning was overwritten and one still going on say so."""
    state, _, ends = ring_of(13, 10, 5)
    found = find_episodes(ends, 1, state)
    assert [episode.slots.tolist() for episode in found] == [[3, 4], [5, 6, 7, 8, 9], [0, 1, 2]]
    assert [episode.begins for episode in found] == [False, True, True]
    assert [episode.ends for episode in found] == [True, True, False]
