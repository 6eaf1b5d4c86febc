"""Simulators whose state is not in attributes: MuJoCo, Atari and Box2D continue exactly, or say why not."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.vector import SyncVectorEnv

from perdure.capture.environments import Level, capture_environment, environment_level, level_of, restore_environment
from perdure.errors import IncompatibleError, InvalidInputError
from perdure.gymnasium import NewWorld
from tests.capture.lives import assert_exact, exact, travelled

ale_py = pytest.importorskip("ale_py")
pytest.importorskip("mujoco")
pytest.importorskip("Box2D")
gym.register_envs(ale_py)

SHORT = 40


def make(name: str, **options: Any) -> gym.Env:
    """A short-lived environment with statistics around."""
    return wrappers.RecordEpisodeStatistics(gym.make(name, max_episode_steps=12, **options))


MUJOCO = ["Ant-v5", "HalfCheetah-v5", "Hopper-v5", "Humanoid-v5", "InvertedPendulum-v5", "Swimmer-v5", "Reacher-v5"]


@pytest.mark.parametrize("name", MUJOCO)
def test_mujoco_continues_exactly(name: str) -> None:
    """Observations, rewards and infos are those that would have come, from the first step after the restore on."""
    moments = assert_exact(make(name), make(name), SHORT)

    assert moments == {"fresh", "reset", "middle", "ended"}


def test_a_changed_model_of_mujoco_is_state() -> None:
    """Masses and options that the program changed are restored, and what another one changed is undone."""
    original, target = make("Hopper-v5"), make("Hopper-v5")
    original.unwrapped.model.body_mass[1] *= 2
    original.unwrapped.model.opt.timestep = 0.003
    target.unwrapped.model.geom_friction[:] *= 3
    assert_exact(original, target, SHORT)

    assert target.unwrapped.model.opt.timestep == 0.003
    assert np.array_equal(original.unwrapped.model.geom_friction, target.unwrapped.model.geom_friction)


def test_mujoco_of_another_size_is_refused() -> None:
    """The data of one model does not go into another, and nothing is changed."""
    tree = capture_environment(gym.make("Hopper-v5"))
    tree["graph"]["attributes"]["env"]["attributes"]["env"]["attributes"]["env"]["extension"]["layout"] = "other"
    with pytest.raises(IncompatibleError, match="other fields"):
        restore_environment(gym.make("Hopper-v5"), tree, reset_seed=0)


BOX2D = {
    "LunarLander-v3": {"enable_wind": True},
    "CarRacing-v3": {"lap_complete_percent": 0.5},
}


@pytest.mark.parametrize("name", BOX2D)
def test_box2d_continues_exactly_by_its_actions(name: str) -> None:
    """The episode is lived again from its generator, whoever reset the environment, and how often."""
    moments = assert_exact(make(name, **BOX2D[name]), make(name, **BOX2D[name]), 14, Level.E1)

    assert moments == {"fresh", "reset", "middle", "ended"}


def test_an_episode_that_nobody_saw_begin_is_not_captured() -> None:
    """What happened before perdure saw the environment is unknown; the next episode is captured."""
    env = make("LunarLander-v3")
    env.reset(seed=1)
    env.step(0)
    level, reason = environment_level(env)
    assert level is Level.E3
    assert "began before perdure saw" in reason
    env.reset()
    assert environment_level(env) == (Level.E1, "")


def test_a_first_reset_with_a_seed_is_found_out() -> None:
    """An environment that has had nothing but its first reset is captured, for its seed leads to the same place."""
    env = make("LunarLander-v3")
    env.reset(seed=3)

    assert environment_level(env) == (Level.E1, "")


def test_a_world_that_outlives_its_episodes_is_not_called_captured() -> None:
    """BipedalWalker's physics depends on all episodes before, so it is reset, and the reason says what helps."""
    env = gym.make("BipedalWalker-v3")
    assert environment_level(env) == (Level.E1, "")  # nothing has happened in its world
    env.reset(seed=1)
    level, reason = environment_level(env)

    assert level is Level.E3
    assert "keeps one Box2D world" in reason
    assert "perdure.gymnasium.NewWorld" in reason


def test_an_environment_that_is_first_seen_in_a_world_of_many_episodes_is_not_called_captured() -> None:
    """That its last reset had a seed proves nothing: the world remembers the episode before."""
    env = gym.make("BipedalWalker-v3")
    env.reset(seed=1)
    env.step(env.action_space.sample())
    env.reset(seed=1)

    assert environment_level(env)[0] is Level.E3


@pytest.mark.parametrize("name", ["BipedalWalker-v3", "BipedalWalkerHardcore-v3"])
def test_a_walker_with_a_world_for_each_episode_continues_exactly(name: str) -> None:
    """Wrapped, BipedalWalker is captured like other Box2D environments."""
    original, target = (NewWorld(make(name)) for _ in range(2))

    assert assert_exact(original, target, SHORT, Level.E1) == {"fresh", "reset", "middle", "ended"}


def test_a_walker_is_captured_when_it_is_first_seen_after_its_first_reset() -> None:
    """A wrapped walker that was reset with a seed, as Stable-Baselines3 does before callbacks see it, is captured."""
    env = NewWorld(make("BipedalWalker-v3"))
    env.reset(seed=3)

    assert environment_level(env) == (Level.E1, "")


def test_new_worlds_make_episodes_repeatable() -> None:
    """The same seed and the same actions are the same episode, whatever happened before; without the wrapper not so."""
    wrapped, plain = NewWorld(gym.make("BipedalWalker-v3")), gym.make("BipedalWalker-v3")

    assert len({_episode(wrapped, 2) for _ in range(3)}) == 1
    assert _episode(plain, 2) == _episode(wrapped, 2)
    _episode(plain, 1)
    assert _episode(plain, 2) != _episode(wrapped, 2)


def _episode(env: gym.Env, seed: int) -> bytes:
    drawn = np.random.default_rng(seed)
    seen = [env.reset(seed=seed)[0]]
    for _ in range(300):
        observation, _, terminated, truncated, _ = env.step(drawn.uniform(-1, 1, 4).astype(np.float32))
        seen.append(observation)
        if terminated or truncated:
            break
    return np.stack(seen).tobytes()


def test_an_environment_without_a_world_is_refused_a_new_one() -> None:
    """The wrapper says at once that it does not fit."""
    with pytest.raises(InvalidInputError, match="it has none of Box2D"):
        NewWorld(gym.make("CartPole-v1"))


def test_an_episode_that_comes_out_otherwise_is_refused() -> None:
    """A replay that ends with another observation than the recorded one is an error, not a resume."""
    env = make("LunarLander-v3")
    capture_environment(env)
    env.reset(seed=1)
    env.step(2)
    tree = travelled(capture_environment(env))
    layer = tree["graph"]
    while "extension" not in layer:
        layer = layer["attributes"]["env"]
    layer["extension"]["graph"]["actions"] = np.array([0])
    with pytest.raises(IncompatibleError, match="comes out otherwise"):
        restore_environment(make("LunarLander-v3"), tree, reset_seed=0)


def atari(**options: Any) -> gym.Env:
    """Pong as it is trained on."""
    env = gym.make("ALE/Pong-v5", frameskip=1, max_episode_steps=60, **options)
    return wrappers.FrameStackObservation(wrappers.AtariPreprocessing(env, noop_max=0, screen_size=20), 2)


@pytest.mark.parametrize(
    ("options", "level"),
    [({"repeat_action_probability": 0.0}, Level.E0), ({"repeat_action_probability": 0.25}, Level.E1)],
)
def test_atari_continues_exactly(options: dict[str, Any], level: Level) -> None:
    """By the emulator's snapshot without sticky actions, and by living the game again with them."""
    moments = assert_exact(atari(**options), atari(**options), 60, level)

    assert moments == {"fresh", "reset", "middle", "ended"}


def test_atari_with_other_actions_is_refused() -> None:
    """A game without sticky actions is not continued in one with them, nor the other way round."""
    still, sticky = (ale_py.env.AtariEnv("pong", repeat_action_probability=p) for p in (0.0, 0.25))
    for one, other in ((still, sticky), (sticky, still)):
        tree = capture_environment(one)
        with pytest.raises(IncompatibleError, match="sticky actions"):
            restore_environment(other, tree, reset_seed=0)


def test_simulators_in_a_vector_environment_continue_exactly() -> None:
    """Every sub-environment is captured in its own way, and the worst level is that of the whole."""
    original, target = (SyncVectorEnv([lambda: make("Hopper-v5")] * 2) for _ in range(2))
    assert_exact(original, target, 30)
    original, target = (SyncVectorEnv([lambda: make("LunarLander-v3")] * 2) for _ in range(2))
    assert_exact(original, target, 30, Level.E1)


@pytest.mark.process
def test_simulators_in_workers_continue_exactly() -> None:
    """Logs hang on the environments in their own processes."""
    original, target = (gym.make_vec("LunarLander-v3", 2, vectorization_mode="async") for _ in range(2))
    try:
        assert level_of(capture_environment(original)) == (Level.E1, "")
        original.reset(seed=4)
        for _ in range(5):
            original.step(np.array([2, 1]))
        tree = travelled(capture_environment(original))
        target.reset(seed=9)
        assert restore_environment(target, tree, reset_seed=0).grade == "exact"
        for _ in range(100):
            assert exact(original.step(np.array([0, 3]))) == exact(target.step(np.array([0, 3])))
    finally:
        original.close()
        target.close()
