"""Single environments with their wrappers: after a restore, every step is the one that would have come."""

from __future__ import annotations

import random
import sys
import types
from collections import OrderedDict, deque
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces, wrappers

from perdure.capture.environments import Level, capture_environment, level_of, restore_environment
from tests.capture.lives import ENVIRONMENTS, EPISODE_STEPS, STEPS, assert_exact, cartpole, exact, travelled


class Holding(gym.Wrapper):
    """A user's wrapper that holds state of many plain kinds."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.rng = np.random.Generator(np.random.Philox(3))
        self.legacy = np.random.RandomState(4)
        self.python = random.Random(5)
        self.total = np.float32(0)
        self.visits: dict[Any, int] = {}
        self.recent: OrderedDict[str, list[float]] = OrderedDict(last=[0.0])
        self.window: deque[float] = deque(maxlen=3)
        self.grid = np.zeros((2, 3)).T
        self.view = self.grid
        self.scale = lambda x: 2 * x

    def step(self, action: Any) -> Any:
        """Let the reward depend on all of the state."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.total = self.total * np.float32(0.9) + np.float32(reward)
        key = (type(action).__name__, int(terminated))
        self.visits[key] = self.visits.get(key, 0) + 1
        self.recent["last"].append(float(self.total))
        self.window.append(float(reward))
        self.grid[:, 0] += 1
        noise = self.rng.normal() + self.legacy.normal() + self.python.gauss(0, 1) + self.rng.spawn(1)[0].random()
        state = float(self.total) + sum(self.visits.values()) + sum(self.window) + len(self.recent["last"])
        return obs, self.scale(state + noise + float(self.view.sum())), terminated, truncated, info


def normalised(env: gym.Env) -> gym.Env:
    """Normalise what can be normalised."""
    if isinstance(env.observation_space, spaces.Box):
        env = wrappers.NormalizeObservation(env)
    return wrappers.NormalizeReward(env)


def stacked(env: gym.Env) -> gym.Env:
    """Keep a queue of observations."""
    env = wrappers.FrameStackObservation(wrappers.DelayObservation(env, delay=2), stack_size=3)
    return wrappers.TimeAwareObservation(env)


def sticky(env: gym.Env) -> gym.Env:
    """Repeat actions at random, keep statistics, reset by itself."""
    if isinstance(env.observation_space, spaces.Box):
        env = wrappers.MaxAndSkipObservation(env, skip=2)
    env = wrappers.StickyAction(env, 0.5, repeat_action_duration=(2, 4))
    return wrappers.Autoreset(wrappers.RecordEpisodeStatistics(env, buffer_length=5))


def transformed(env: gym.Env) -> gym.Env:
    """Transform actions, observations and rewards."""
    if isinstance(env.action_space, spaces.Box):
        env = wrappers.ClipAction(wrappers.RescaleAction(env, np.float32(-0.5), np.float32(0.5)))
    if isinstance(env.observation_space, spaces.Box):
        env = wrappers.DtypeObservation(env, np.float64)
    env = wrappers.FlattenObservation(env)
    return wrappers.TransformReward(wrappers.ClipReward(env, -0.5, 0.5), lambda reward: 3 * reward)


STACKS = {
    "bare": lambda env: env.unwrapped,
    "made": lambda env: env,
    "normalised": normalised,
    "stacked": stacked,
    "sticky": sticky,
    "transformed": transformed,
    "holding": lambda env: wrappers.Autoreset(Holding(env)),
}


def build(name: str, stack: str) -> gym.Env:
    """Make an environment in one of the stacks."""
    return STACKS[stack](gym.make(name, max_episode_steps=EPISODE_STEPS, **ENVIRONMENTS[name]))


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("name", ENVIRONMENTS)
@pytest.mark.filterwarnings("ignore::UserWarning:gymnasium", "ignore:overflow encountered in cast:RuntimeWarning")
def test_an_environment_continues_exactly(name: str, stack: str) -> None:
    """Every step, reset, info and random draw after a restore equals that of the environment that was captured."""
    moments = assert_exact(
        build(name, stack), build(name, stack), steps=STEPS if stack in ("bare", "made") else STEPS // 2
    )
    assert moments >= {"fresh", "reset", "middle"}
    assert "ended" in moments or stack == "bare"


def test_what_is_drawn_continues_exactly() -> None:
    """An environment whose window is open is captured without it, and draws the same picture after a restore."""
    original, target = (gym.make("CartPole-v1", render_mode="rgb_array") for _ in range(2))
    for env, seed in ((original, 1), (target, 2)):
        env.reset(seed=seed)
        env.step(0)
        env.render()
    restore_environment(target, travelled(capture_environment(original)), reset_seed=0)
    assert exact(original.render()) == exact(target.render())


def test_values_that_an_environment_changes_in_mid_run_are_state() -> None:
    """A physical constant that a curriculum has changed comes back as it was at the capture."""
    original, target = gym.make("CartPole-v1"), gym.make("CartPole-v1")
    original.unwrapped.length = 0.75
    restore_environment(target, capture_environment(original), reset_seed=0)
    assert target.unwrapped.length == 0.75


def test_running_episodes_are_timed_on_across_a_restore() -> None:
    """The seconds an episode has run are kept, not the reading of a clock that starts anew with every machine."""
    original, target = (wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1")) for _ in range(2))
    original.reset(seed=1)
    original.episode_start_time = 1000.0
    tree = travelled(capture_environment(original, clock=lambda: 1007.5))
    restore_environment(target, tree, reset_seed=0, clock=lambda: 50.0)
    assert target.episode_start_time == 42.5
    never_started = capture_environment(wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1")))
    restore_environment(target, never_started, reset_seed=0)
    assert target.episode_start_time == -1.0


class SharedSpaces(Holding):
    """Its class defines a space for all of its instances."""

    action_space = spaces.Discrete(2)


def test_generators_of_spaces_that_a_class_defines_are_state() -> None:
    """A space that is an attribute of the class goes on drawing as one of the instance does."""
    env = SharedSpaces(cartpole())
    env.action_space.seed(1)
    tree = capture_environment(env)
    drawn = [env.action_space.sample() for _ in range(20)]
    restore_environment(env, tree, reset_seed=0)
    assert "action_space" not in vars(env)
    assert [env.action_space.sample() for _ in range(20)] == drawn


@pytest.fixture
def films(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """What makes recording environments: the film library itself is not needed before a film is written."""
    monkeypatch.setitem(sys.modules, "moviepy", types.ModuleType("moviepy"))
    folders = iter(range(9))

    def film() -> gym.Env:
        folder = tmp_path / str(next(folders))
        return wrappers.RecordVideo(cartpole(render_mode="rgb_array"), str(folder), lambda episode: episode == 1)

    return film


def test_a_film_in_progress_is_no_obstacle(films: Any) -> None:
    """Episodes go on being counted and recorded; the frames so far and the folder are not state."""
    original, target = films(), films()
    original.reset(seed=1)
    original.reset()
    original.step(0)
    tree = capture_environment(original)
    assert level_of(tree) == (Level.E0, "")
    restore_environment(target, tree, reset_seed=0)
    assert (target.episode_id, target.step_id, target.recording) == (1, 0, True)
    assert target.recorded_frames == []
    assert target.video_folder != original.video_folder
    assert exact(original.step(1)) == exact(target.step(1))
    for env in (original, target):  # Nothing is to be written at the end.
        env.recording, env.recorded_frames = False, []
