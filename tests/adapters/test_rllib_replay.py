"""RLlib's replay buffers by themselves: what a save writes, what a restore brings back, whatever has been evicted."""

import random
from dataclasses import replace

import pytest

pytest.importorskip(
    "ray.rllib", reason="the extra rllib is not installed; `make test-rllib` makes an environment of it"
)

import numpy as np
from gymnasium.spaces import Box
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.replay_buffers.episode_replay_buffer import EpisodeReplayBuffer
from ray.rllib.utils.replay_buffers.multi_agent_episode_buffer import MultiAgentEpisodeReplayBuffer
from ray.rllib.utils.replay_buffers.prioritized_episode_buffer import PrioritizedEpisodeReplayBuffer

import perdure
from perdure.adapters import _rllib_replay
from perdure.adapters._rllib_replay import Replay
from perdure.errors import IncompatibleError, NothingRestorableError
from tests.canonical import canonical

pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray, about itself
SPACE = Box(-1, 1, (3,), np.float32)
BUFFERS = [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer]


@pytest.fixture(autouse=True)
def small_bundles(monkeypatch):
    monkeypatch.setattr(_rllib_replay, "BUNDLE_STEPS", 30)


class World:
    """Environments whose episodes come to a buffer in chunks, as runners bring them."""

    def __init__(self, seed, count=3):
        self._chance = random.Random(seed)
        self._numbers = np.random.default_rng(seed)
        self._count = count
        self._running = [self._begin() for _ in range(count)]

    def _begin(self):
        episode = SingleAgentEpisode(observation_space=SPACE, action_space=SPACE)
        episode.add_env_reset(self._draw(), infos={"begun": True} if self._chance.random() < 0.3 else {})
        return episode

    def _draw(self):
        return self._numbers.standard_normal(3).astype(np.float32)

    def play(self, buffer, chunks):
        for _ in range(chunks):
            index = self._chance.randrange(self._count)
            episode, has_ended = self._running[index], self._chance.random() < 0.4
            for left in reversed(range(self._chance.randrange(1, 12))):
                outputs = {"weights_seq_no": 3, "logits": self._draw()}
                end = has_ended and not left
                episode.add_env_step(self._draw(), self._draw(), 0.5, {}, terminated=end, extra_model_outputs=outputs)
            buffer.add(episode)
            self._running[index] = self._begin() if has_ended else episode.cut()
        if isinstance(buffer, PrioritizedEpisodeReplayBuffer):
            buffer.sample(num_items=8, n_step=1)
            buffer.update_priorities(self._numbers.random(8).astype(np.float32))


def state_of(buffer):
    return canonical(buffer.get_state() | {"generator": buffer.rng.bit_generator.state})


def opened(tmp_path, buffer):
    run = perdure.open(tmp_path, run="r", save=None, keep=perdure.Last(2), budget=None, quiet=True)
    run.track(replay=Replay(buffer))
    return run


def save(tmp_path, buffer, fill):
    """Restore what there is, fill the buffer further, and save it."""
    with opened(tmp_path, buffer) as run:
        run.restore()
        fill(buffer)
        run.save().wait()


def bundles_of(tmp_path):
    """Inodes of the bundles of the newest checkpoint, by name."""
    folder = next((tmp_path / "r" / "latest").resolve().rglob("rest.json")).parent
    return {path.name: path.stat().st_ino for path in folder.iterdir() if path.stem != "rest"}


@pytest.mark.parametrize("buffer_class", BUFFERS)
@pytest.mark.parametrize("seed", range(3))
def test_a_buffer_comes_back_as_it_was(tmp_path, buffer_class, seed):
    """Saved at any time, while episodes run, end and are evicted, a buffer is restored bit by bit."""
    world, buffer = World(seed), buffer_class(capacity=150)
    for _ in range(6):
        other = buffer_class(capacity=150)
        with opened(tmp_path, other) as run:
            run.restore()
            if run.report.checkpoint:
                assert state_of(other) == state_of(buffer)
            world.play(other, 10)
            run.save().wait()
            world.play(other, 10)
            run.save().wait()
        buffer = other


def test_an_ended_episode_is_written_once(tmp_path):
    """Later saves link the bundles of earlier ones, also after a restore, until their episodes are evicted."""
    world, buffer = World(0), EpisodeReplayBuffer(capacity=10_000)
    with opened(tmp_path, buffer) as run:
        run.restore()
        world.play(buffer, 60)
        run.save().wait()
        first = bundles_of(tmp_path)
        world.play(buffer, 20)
        run.save().wait()
        second = bundles_of(tmp_path)
    restored = EpisodeReplayBuffer(capacity=10_000)
    save(tmp_path, restored, lambda it: world.play(it, 20))
    third = bundles_of(tmp_path)

    assert len(first) > 10
    assert first.items() < second.items() < third.items()


def test_bundles_of_evicted_episodes_are_let_go(tmp_path):
    """A checkpoint has no more bundles than its episodes fill, however long the run is."""
    world, buffer = World(0), EpisodeReplayBuffer(capacity=150)
    with opened(tmp_path, buffer) as run:
        run.restore()
        for _ in range(20):
            world.play(buffer, 10)
            run.save().wait()
            assert len(bundles_of(tmp_path)) <= 2 * (150 // 30 + 2)


def test_a_restore_into_a_buffer_that_holds_episodes_replaces_them(tmp_path):
    """What the buffer held is gone, and restoring twice doubles nothing."""
    saved = EpisodeReplayBuffer(capacity=500)
    save(tmp_path, saved, lambda buffer: World(1).play(buffer, 30))
    other = EpisodeReplayBuffer(capacity=500)
    World(2).play(other, 30)
    for _ in range(2):
        with opened(tmp_path, other) as run:
            run.restore()
        assert state_of(other) == state_of(saved)


def test_several_agents_in_one_buffer(tmp_path):
    """A buffer of multi-agent episodes is kept in bundles as well."""

    def fill(buffer, count):
        for number in range(count):
            episode = MultiAgentEpisode(
                observation_space={"a": SPACE, "b": SPACE}, action_space={"a": SPACE, "b": SPACE}
            )
            values = np.full(3, number / 100, np.float32)
            both = {"a": values, "b": -values}
            episode.add_env_reset(observations=both, infos={"a": {}, "b": {}})
            for step in range(10):
                ended = {"__all__": step == 9}
                episode.add_env_step(both, both, {"a": 1.0, "b": 0.0}, {"a": {}, "b": {}}, terminateds=ended)
            buffer.add(episode)

    buffer = MultiAgentEpisodeReplayBuffer(capacity=100)
    save(tmp_path, buffer, lambda it: fill(it, 15))
    other = MultiAgentEpisodeReplayBuffer(capacity=100)
    with opened(tmp_path, other) as run:
        run.restore()

    assert bundles_of(tmp_path)
    assert [each.id_ for each in other.episodes] == [each.id_ for each in buffer.episodes]
    assert len(other) == len(buffer) == 100
    assert canonical(list(other._module_to_indices.items())) == canonical(list(buffer._module_to_indices.items()))


def test_another_class_of_buffer_is_refused(tmp_path):
    """A uniform buffer does not take a prioritized one's checkpoint, and is as it was."""
    buffer = PrioritizedEpisodeReplayBuffer(capacity=100)
    save(tmp_path, buffer, lambda it: World(0).play(it, 10))
    with (
        opened(tmp_path, EpisodeReplayBuffer(capacity=100)) as run,
        pytest.raises(IncompatibleError, match="Prioritized"),
    ):
        run.restore()


def test_a_bundle_that_is_not_listed_is_missed(tmp_path, monkeypatch):
    """A checkpoint whose table names an episode that no file holds is refused before the buffer is touched."""
    whole = Replay.capture_parts

    def without_first(self, stem):
        taken = whole(self, stem)
        parts = tuple(part for part in taken.parts if "000000." not in part.path)
        return replace(taken, parts=parts, on_committed=lambda *_: None)

    monkeypatch.setattr(Replay, "capture_parts", without_first)
    buffer = EpisodeReplayBuffer(capacity=500)
    save(tmp_path, buffer, lambda it: World(0).play(it, 30))
    other = EpisodeReplayBuffer(capacity=500)
    with opened(tmp_path, other) as run, pytest.raises(NothingRestorableError, match="no bundle holds"):
        run.restore()
    assert not other.episodes


def test_a_damaged_bundle_is_found(tmp_path):
    """A bundle is verified before anything of it is used; the error names the file."""
    buffer = EpisodeReplayBuffer(capacity=500)
    save(tmp_path, buffer, lambda it: World(0).play(it, 30))
    bundle = next((tmp_path / "r" / "latest").resolve().rglob("000000.safetensors"))
    content = bytearray(bundle.read_bytes())
    content[-1] ^= 1
    bundle.write_bytes(content)
    with (
        opened(tmp_path, EpisodeReplayBuffer(capacity=500)) as run,
        pytest.raises(NothingRestorableError, match="000000"),
    ):
        run.restore()
