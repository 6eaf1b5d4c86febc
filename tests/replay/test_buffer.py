"""What a RingBuffer promises to the training that uses it."""

import subprocess
import sys

import numpy as np
import pytest

from perdure.errors import InvalidInputError
from perdure.replay import Prioritized, RingBuffer, Roles


def filled(count, capacity=20, n_envs=1, **settings):
    """A buffer whose rewards are row number times ten plus environment, with ends every 6 rows."""
    columns = {"obs": (np.float32, (2,)), "next_obs": (np.float32, (2,)), "reward": (np.float32, ())}
    buffer = RingBuffer(
        capacity, columns | {"terminated": (bool, ()), "truncated": (bool, ())}, n_envs=n_envs, **settings
    )
    for row in range(count):
        value = row * 10 + np.arange(n_envs)
        pair = np.stack([value, value], axis=1)
        ends = np.full(n_envs, row % 6 == 5)
        buffer.add(obs=pair, next_obs=pair + 10, reward=value, terminated=ends & (row % 12 == 5), truncated=ends)
    return buffer


def test_the_newest_transitions_stay():
    """A full ring holds the newest rows, in ring order from the tail to the head."""
    buffer = filled(27)
    assert (len(buffer), buffer.capacity, buffer.total_count) == (20, 20, 27)
    assert buffer.state.head_position == buffer.state.tail_position == 7
    held = buffer.columns["reward"][:, 0]
    assert sorted(held.tolist()) == [row * 10.0 for row in range(7, 27)]
    assert held[7] == 70.0


def test_batches_equal_single_rows():
    """Adding many rows at once leaves the ring as adding them one by one does, also beyond its capacity."""
    values = np.arange(55.0, dtype=np.float32)
    one, many = RingBuffer(20, {"x": (np.float32, ())}), RingBuffer(20, {"x": (np.float32, ())})
    for value in values:
        one.add(x=value)
    many.add_batch(x=values[:3])
    many.add_batch(x=values[3:])
    assert one.state == many.state
    assert np.array_equal(one.columns["x"], many.columns["x"])


def test_an_example_describes_the_columns():
    """A buffer can be made from one transition, as arrays or numbers."""
    buffer = RingBuffer(4, {"obs": np.zeros((3, 2), np.uint8), "reward": 0.5, "done": False}, n_envs=2)
    assert {n: (a.dtype.name, a.shape) for n, a in buffer.columns.items()} == {
        "obs": ("uint8", (2, 2, 3, 2)),
        "reward": ("float64", (2, 2)),
        "done": ("bool", (2, 2)),
    }


@pytest.mark.parametrize(
    "row",
    [
        {"obs": np.zeros(3, np.float32)},
        {"obs": np.zeros(3, np.float32), "n": 1, "more": 1},
        {"obs": np.zeros(4, np.float32), "n": 1},
        {"obs": np.zeros((1, 1, 3), np.float32), "n": 1},
        {"obs": np.zeros(3, np.complex64), "n": 1},
        {"obs": np.zeros(3, np.float32), "n": 300},
        {"obs": np.zeros(3, np.float32), "n": "x"},
    ],
)
def test_a_row_that_does_not_fit_changes_nothing(row):
    """A row of other columns, shapes, kinds or ranges is refused as a whole."""
    buffer = RingBuffer(4, {"obs": (np.float32, (3,)), "n": (np.uint8, ())})
    with pytest.raises(InvalidInputError) as caught:
        buffer.add(**row)
    assert caught.value.kind == "replay.row-differs"
    assert len(buffer) == 0


@pytest.mark.parametrize(
    ("capacity", "columns", "n_envs", "kind"),
    [
        (0, {"x": (float, ())}, 1, "replay.invalid-capacity"),
        (10, {"x": (float, ())}, 3, "replay.invalid-capacity"),
        (10, {}, 1, "replay.no-columns"),
        (10, {"x": (object, ())}, 1, "replay.unsupported-dtype"),
        (10, {"x": (np.dtype(">f4"), ())}, 1, "replay.unsupported-dtype"),
        (10, {"../x": (float, ())}, 1, "name.invalid"),
    ],
)
def test_what_cannot_be_kept_is_named_at_once(capacity, columns, n_envs, kind):
    """Impossible sizes, names and types are refused when the buffer is made."""
    with pytest.raises(InvalidInputError) as caught:
        RingBuffer(capacity, columns, n_envs=n_envs)
    assert caught.value.kind == kind


def test_samples_are_whole_transitions_and_follow_the_generator():
    """All columns of a sample belong together, and equal generators give equal samples."""
    one, other = filled(37, n_envs=2, rng=11), filled(37, n_envs=2, rng=np.random.default_rng(11))
    batch, same = one.sample(200), other.sample(200)
    assert np.array_equal(batch.indices, same.indices)
    assert np.array_equal(batch["obs"][:, 0], batch["reward"])
    assert np.array_equal(batch["next_obs"], batch["obs"] + 10)
    assert set(batch["reward"].tolist()) == {row * 10.0 + env for row in range(27, 37) for env in range(2)}
    assert np.array_equal(batch.weights, np.ones(200))
    assert np.array_equal(batch.discount == 0, batch["terminated"])


def test_a_sample_is_a_copy():
    """Nothing that happens to a batch reaches the buffer."""
    buffer = filled(5)
    buffer.sample(50)["obs"][:] = -1
    assert buffer.columns["obs"].min() == 0


def test_n_step_samples_end_where_their_window_ends():
    """Reward, next observation, end and discount of an n-step sample are those of its last step."""
    batch = filled(27).sample(300, n_step=3, discount=0.5)
    rows = batch["obs"][:, 0] / 10
    until_end = 5 - rows % 6
    steps = np.minimum(np.minimum(3, until_end + 1), 27 - rows)
    expected = sum(np.where(k < steps, 0.5**k * (rows + k) * 10, 0) for k in range(3))
    assert np.allclose(batch["reward"], expected)
    assert np.allclose(batch["next_obs"][:, 0], (rows + steps) * 10)
    last = rows + steps - 1
    assert np.allclose(batch.discount, np.where(last % 12 == 5, 0, 0.5**steps))


def test_sequences_and_episodes_stay_within_one_episode():
    """Sequences and episodes hold consecutive steps of one environment."""
    buffer = filled(37, capacity=40, n_envs=2)
    batch = buffer.sample_sequences(100, 4)
    assert batch["obs"].shape == (100, 4, 2)
    steps = np.diff(batch["reward"], axis=1)
    assert np.all(steps[batch.is_valid[:, 1:]] == 10)
    episodes = buffer.episodes()
    assert sum(len(episode.slots) for episode in episodes) == len(buffer)
    for episode in episodes:
        rewards = buffer.read(episode)["reward"]
        assert np.all(np.diff(rewards) == 10)
        assert np.all(rewards % 10 == episode.environment)


def test_priorities_decide_how_often_a_transition_is_drawn():
    """Samples come in proportion to priority to the power of alpha, and weights undo it fully at beta 1."""
    buffer = filled(4, capacity=4, prioritized=Prioritized(alpha=1.0, epsilon=0.0), rng=1)
    buffer.update_priorities(np.arange(4), [1.0, 0.0, 3.0, 4.0])
    batch = buffer.sample(8000, beta=1.0)
    assert np.allclose(np.bincount(batch.indices, minlength=4) / 8000, [1 / 8, 0, 3 / 8, 4 / 8], atol=0.001)
    assert np.allclose(batch.weights, np.array([1.0, np.nan, 1 / 3, 1 / 4])[batch.indices])


def test_new_transitions_get_the_largest_priority():
    """A transition that was never sampled is as likely as the one with the largest priority so far."""
    buffer = filled(3, capacity=4, prioritized=Prioritized(alpha=0.5, epsilon=0.0), rng=1)
    buffer.update_priorities(np.arange(3), [1.0, 16.0, 4.0])
    buffer.add_batch(**{name: array[:1, 0] for name, array in buffer.columns.items()})
    assert buffer.mutable["priority"].ravel().tolist() == [1.0, 4.0, 2.0, 4.0]


@pytest.mark.parametrize("bad", [[-1.0], [np.nan], [np.inf]])
def test_priorities_that_are_no_numbers_are_refused(bad):
    """A negative or not finite priority is an error, not a broken tree."""
    buffer = filled(3, prioritized=Prioritized())
    with pytest.raises(InvalidInputError, match="negative or no number"):
        buffer.update_priorities(np.array([0]), bad)
    with pytest.raises(InvalidInputError, match="not prioritized"):
        filled(3).update_priorities(np.array([0]), [1.0])


def test_an_empty_buffer_says_so():
    """Sampling before anything was added is an error of its own kind."""
    with pytest.raises(InvalidInputError) as caught:
        filled(0).sample(1)
    assert caught.value.kind == "replay.empty"
    with pytest.raises(InvalidInputError, match="no column 'gain'"):
        filled(3, roles=Roles(reward="gain")).sample(1, n_step=2)


def test_tensors_share_memory():
    """A column is given to torch without a copy, and so is a batch."""
    torch = pytest.importorskip("torch")
    buffer = filled(5)
    view = buffer.torch("obs")
    assert view.shape == (20, 1, 2)
    buffer.add(obs=[9, 9], next_obs=[0, 0], reward=0, terminated=False, truncated=False)
    assert view[5, 0].tolist() == [9, 9]
    batch = buffer.sample(3)
    tensors = batch.torch()
    assert torch.is_tensor(tensors["obs"])
    batch["obs"][:] = 5
    assert tensors["obs"].min() == 5


@pytest.mark.process
def test_importing_replay_does_not_import_torch():
    """Whoever does without torch does not wait for it."""
    code = "import sys, perdure.replay; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
