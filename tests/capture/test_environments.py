"""Exact capture of Gymnasium environments: after a restore, every step is the one that would have come."""

from __future__ import annotations

import copy
import json
import os
import random
import signal
import socket
import subprocess
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces, wrappers
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from perdure.capture.environments import (
    Level,
    capture_environment,
    capture_space,
    derive_reset_seed,
    environment_level,
    is_environment,
    is_space,
    level_of,
    register_environment,
    restore_environment,
    restore_space,
)
from perdure.capture.environments.workers import Workers
from perdure.errors import DeadlineError, FormatError, IncompatibleError, InvalidInputError

STEPS = 200
EPISODE_STEPS = 30


# --- helpers ---------------------------------------------------------------------------------------------------------


def travelled(tree: Any) -> Any:
    """Copy a tree as a file would, refusing whatever the contract does not allow in one."""
    if isinstance(tree, dict):
        assert all(type(key) is str for key in tree)
        return {key: travelled(value) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(travelled(value) for value in tree)
    if isinstance(tree, np.ndarray | np.generic):
        assert tree.dtype.kind in "biuf"
        return tree.copy()
    assert tree is None or type(tree) in (bool, int, float, str), type(tree)
    return json.loads(json.dumps(tree))


def exact(value: Any) -> Any:
    """Turn any result into one whose equality means equal types and equal bits; elapsed times are left out."""
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return value.shape, exact(value.tolist())
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, np.generic):
        return value.dtype.str, value.tobytes()
    if isinstance(value, dict):
        return {key: exact(item) for key, item in value.items() if key != "t"}
    if isinstance(value, list | tuple):
        return [type(value), *map(exact, value)]
    return type(value), repr(value)


def layers(env: Any) -> list[Any]:
    """The wrappers from the outside in, and the environment."""
    found = [env]
    while hasattr(found[-1], "env"):
        found.append(found[-1].env)
    return found


def seed_spaces(env: Any, seed: int) -> None:
    """Seed the spaces of every layer."""
    for offset, layer in enumerate(layers(env)):
        layer.action_space.seed(seed + 2 * offset)
        layer.observation_space.seed(seed + 2 * offset + 1)


def draws(env: Any) -> list[Any]:
    """The next draws of every generator of the environment and its spaces."""
    generators = env.unwrapped.np_random
    generators = generators if isinstance(generators, tuple) else (generators,)
    drawn = [generator.random(3) for generator in generators]
    for layer in layers(env):
        drawn += [layer.action_space.sample(), layer.observation_space.sample()]
    return drawn


def actions_of(env: Any, seed: int, count: int) -> list[Any]:
    """A fixed list of actions that draws nothing from the environment's own spaces."""
    space = copy.deepcopy(env.action_space)
    space.seed(seed)
    return [space.sample() for _ in range(count)]


def resets_itself(env: Any) -> bool:
    """Whether stepping on after an end is right."""
    if isinstance(env, gym.vector.VectorEnv):
        return env.metadata["autoreset_mode"] is not AutoresetMode.DISABLED
    return any(isinstance(layer, wrappers.Autoreset) for layer in layers(env))


def live(env: Any, actions: list[Any], start: int = 0, due: Any = None) -> Iterator[tuple[list[Any], Any, bool]]:
    """
    Live from a point on: first the reset, then one step after another, and last a draw from every generator.

    Yields what came at each point, which resets the user has to make next (None: none), and whether an episode ended.
    """
    by_itself, many = resets_itself(env), isinstance(env, gym.vector.VectorEnv)
    for index in range(start, len(actions) + 1):
        came, ended = [], False
        if index == 0:
            came.append(exact(env.reset(seed=5)))
        else:
            if due is not None:
                came.append(exact(env.reset(options={"reset_mask": due} if many else None)))
            result = env.step(actions[index - 1])
            came.append(exact(result))
            done = result[2] | result[3]
            ended = bool(np.any(done))
            due = done if ended and not by_itself else None
        yield came, due, ended
    yield [exact(draws(env))], None, False


Life = tuple[list[Any], list[Any], dict[str, tuple[int, Any, Any]]]


def record(env: Any, steps: int) -> Life:
    """Record a life, with captures before the first reset, right after it, in mid-episode and right after an end."""
    actions, came, captures = actions_of(env, 9, steps), [], {}
    seed_spaces(env, 1)

    def capture(moment: str, due: Any) -> None:
        tree = capture_environment(env)
        assert level_of(tree) == (Level.E0, "")
        captures[moment] = (len(came), due, travelled(tree))

    capture("fresh", None)
    for what, due, ended in live(env, actions):
        came.append(what)
        if len(came) == 1:
            capture("reset", due)
        elif len(came) == 8:
            capture("middle", due)
        elif "ended" not in captures and ended:
            capture("ended", due)
    return actions, came, captures


def assert_exact(original: Any, target: Any, steps: int = STEPS) -> set[str]:
    """Record the life of one and let the other, which always has another history, live it from every capture on."""
    actions, came, captures = record(original, steps)
    for moment, (index, due, tree) in captures.items():
        before = exact(tree)
        seed_spaces(target, 77)
        for _ in live(target, actions_of(target, 78, 11)):
            pass
        restored = restore_environment(target, tree, reset_seed=0)
        assert (restored.restored, restored.grade, restored.note) == ("exact", "exact", "")
        for point, (what, *_) in enumerate(live(target, actions, index, due), index):
            assert what == came[point], f"from {moment!r}, at point {point}"
        assert exact(tree) == before
    return set(captures)


# --- single environments ---------------------------------------------------------------------------------------------


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


def statistics(env: gym.Env) -> gym.Env:
    return wrappers.Autoreset(wrappers.RecordEpisodeStatistics(env, buffer_length=5))


def normalised(env: gym.Env) -> gym.Env:
    if isinstance(env.observation_space, spaces.Box):
        env = wrappers.NormalizeObservation(env)
    return wrappers.NormalizeReward(env)


def stacked(env: gym.Env) -> gym.Env:
    env = wrappers.FrameStackObservation(wrappers.DelayObservation(env, delay=2), stack_size=3)
    return wrappers.TimeAwareObservation(env)


def sticky(env: gym.Env) -> gym.Env:
    if isinstance(env.observation_space, spaces.Box):
        env = wrappers.MaxAndSkipObservation(env, skip=2)
    return wrappers.Autoreset(wrappers.StickyAction(env, 0.5, repeat_action_duration=(2, 4)))


def transformed(env: gym.Env) -> gym.Env:
    if isinstance(env.action_space, spaces.Box):
        env = wrappers.ClipAction(wrappers.RescaleAction(env, np.float32(-0.5), np.float32(0.5)))
    if isinstance(env.observation_space, spaces.Box):
        env = wrappers.DtypeObservation(env, np.float64)
    env = wrappers.FlattenObservation(env)
    return wrappers.TransformReward(wrappers.ClipReward(env, -0.5, 0.5), lambda reward: 3 * reward)


STACKS = {
    "bare": lambda env: env.unwrapped,
    "made": lambda env: env,
    "statistics": statistics,
    "normalised": normalised,
    "stacked": stacked,
    "sticky": sticky,
    "transformed": transformed,
    "holding": lambda env: wrappers.Autoreset(Holding(env)),
}
ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {"sutton_barto_reward": True},
    "Pendulum-v1": {},
    "Acrobot-v1": {},
    "MountainCar-v0": {},
    "MountainCarContinuous-v0": {},
    "FrozenLake-v1": {"map_name": "8x8"},
    "CliffWalking-v1": {"is_slippery": True},
    "Taxi-v4": {"is_rainy": True, "fickle_passenger": True},
    "Blackjack-v1": {},
}


def build(name: str, stack: str) -> gym.Env:
    return STACKS[stack](gym.make(name, max_episode_steps=EPISODE_STEPS, **ENVIRONMENTS[name]))


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("name", ENVIRONMENTS)
@pytest.mark.filterwarnings("ignore::UserWarning:gymnasium", "ignore:overflow encountered in cast:RuntimeWarning")
def test_an_environment_continues_exactly(name: str, stack: str) -> None:
    """Every step, reset, info and random draw after a restore equals that of the environment that was captured."""
    moments = assert_exact(build(name, stack), build(name, stack))
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


# --- vector environments ---------------------------------------------------------------------------------------------


def vector_statistics(envs: gym.vector.VectorEnv) -> gym.vector.VectorEnv:
    envs = wrappers.vector.RecordEpisodeStatistics(envs, buffer_length=5)
    if envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP:  # Gymnasium's observation wrappers refuse it.
        return wrappers.vector.NormalizeReward(envs)
    return wrappers.vector.NormalizeReward(wrappers.vector.NormalizeObservation(envs))


def vector_transformed(envs: gym.vector.VectorEnv) -> gym.vector.VectorEnv:
    envs = wrappers.vector.DictInfoToList(wrappers.vector.ClipReward(envs, -0.5, 0.5))
    if isinstance(envs.single_action_space, spaces.Box):
        envs = wrappers.vector.ClipAction(envs)
    if envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP:
        envs = wrappers.vector.FlattenObservation(envs)
    return envs


VECTOR_STACKS = {"bare": lambda envs: envs, "statistics": vector_statistics, "transformed": vector_transformed}


def make_one(name: str, index: int = 0) -> gym.Env:
    return gym.make(name, max_episode_steps=EPISODE_STEPS + 3 * index, **ENVIRONMENTS[name])


def makers(name: str, count: int = 2) -> list[Any]:
    return [lambda index=index: make_one(name, index) for index in range(count)]


@pytest.mark.parametrize("stack", VECTOR_STACKS)
@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Blackjack-v1", "Taxi-v4"])
def test_a_vector_environment_continues_exactly(name: str, mode: AutoresetMode, stack: str) -> None:
    """A pending autoreset is state: whichever the mode, every sub-environment goes on as it would have."""
    if stack != "bare" and name in ("Blackjack-v1", "Taxi-v4"):
        pytest.skip("its observations are no arrays to transform")
    original, target = (VECTOR_STACKS[stack](SyncVectorEnv(makers(name), autoreset_mode=mode)) for _ in range(2))
    assert "ended" in assert_exact(original, target, steps=80)


@pytest.mark.parametrize("stack", VECTOR_STACKS)
def test_a_natively_vectorised_environment_continues_exactly(stack: str) -> None:
    """Gymnasium's own vectorised CartPole is captured like any other, with the resets it owes."""
    original, target = (
        VECTOR_STACKS[stack](gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point"))
        for _ in range(2)
    )
    assert "ended" in assert_exact(original, target)


ASYNC_KINDS = {
    "shared": {},
    "piped": {"shared_memory": False},
    "same-step": {"autoreset_mode": AutoresetMode.SAME_STEP},
    "disabled": {"autoreset_mode": AutoresetMode.DISABLED, "shared_memory": False},
}


@pytest.mark.process
@pytest.mark.parametrize("kind", ASYNC_KINDS)
def test_an_asynchronous_vector_environment_continues_exactly(kind: str) -> None:
    """The autoreset that is pending in a worker's loop is captured and comes back in another worker's loop."""
    original, target = (vector_statistics(AsyncVectorEnv(makers("Pendulum-v1"), **ASYNC_KINDS[kind])) for _ in range(2))
    try:
        assert assert_exact(original, target, steps=80) >= {"fresh", "reset", "middle", "ended"}
    finally:
        original.close()
        target.close()


@pytest.mark.process
def test_an_asynchronous_vector_environment_of_composite_observations_continues_exactly() -> None:
    """Observations that are tuples, in memory shared with the workers, are filled in place."""
    original, target = (AsyncVectorEnv(makers("Blackjack-v1")) for _ in range(2))
    try:
        assert "ended" in assert_exact(original, target, steps=40)
    finally:
        original.close()
        target.close()


def own_worker(*arguments: Any) -> None:
    from gymnasium.vector.async_vector_env import _async_worker

    _async_worker(*arguments)


@pytest.mark.process
def test_an_asynchronous_vector_environment_says_when_it_cannot_be_reached() -> None:
    """A worker function of its own, a pending step and a closed environment are level E3, each with its reason."""
    envs = AsyncVectorEnv(makers("CartPole-v1", 1), worker=own_worker)
    try:
        level, reason = environment_level(envs)
        assert level is Level.E3
        assert "worker function of its own" in reason
        restored = restore_environment(envs, capture_environment(envs), reset_seed=4)
        assert exact(restored.observation) == exact(envs.reset(seed=4)[0])
    finally:
        envs.close()
    envs = AsyncVectorEnv(makers("CartPole-v1", 1))
    try:
        envs.reset(seed=1)
        whole = capture_environment(envs)
        envs.step_async(np.array([0]))
        assert "pending step" in environment_level(envs)[1]
        with pytest.raises(InvalidInputError, match="pending step"):
            restore_environment(envs, whole, reset_seed=0)
        envs.step_wait()
    finally:
        envs.close()
    assert "is closed" in environment_level(envs)[1]


@pytest.mark.process
def test_a_worker_that_does_not_answer_is_named() -> None:
    """No wait for a worker is without end: a frozen one is named, and so is a dead one."""
    envs = AsyncVectorEnv(makers("CartPole-v1", 2))
    frozen = envs.processes[1]
    try:
        os.kill(frozen.pid, signal.SIGSTOP)
        with pytest.raises(DeadlineError, match="worker 1 did not answer") as caught:
            Workers(answer_seconds=0.2).capture(envs)
        assert caught.value.holder == "worker 1"
        assert "pending call" in environment_level(envs)[1]
        os.kill(frozen.pid, signal.SIGKILL)
        frozen.join(10)
        envs._state = type(envs._state).DEFAULT
        with pytest.raises(DeadlineError, match="worker 1 is dead"):
            capture_environment(envs)
    finally:
        envs._state = type(envs._state).DEFAULT
        envs.close(terminate=True)


@pytest.mark.process
def test_misfits_in_workers_are_found_before_anything_is_changed() -> None:
    """A sub-environment that differs is reported by the worker it lives in, and every worker goes on."""
    original = AsyncVectorEnv(makers("Pendulum-v1"))
    target = AsyncVectorEnv([lambda: make_one("Pendulum-v1"), lambda: make_one("Pendulum-v1")])
    try:
        original.reset(seed=1)
        target.reset(seed=2)
        before = exact(capture_environment(target))
        with pytest.raises(IncompatibleError, match=r"envs\[1\]") as caught:
            restore_environment(target, capture_environment(original), reset_seed=0, component="envs")
        assert (caught.value.expected, caught.value.actual) == ("33", "30")
        assert exact(capture_environment(target)) == before
    finally:
        original.close()
        target.close()
