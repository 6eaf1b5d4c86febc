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
    if isinstance(value, dict):
        return {key: exact(item) for key, item in value.items() if key != "t"}
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(exact, value)]
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return [value.shape, exact(value.tolist())]
        return [str(value.dtype), value.shape, value.tobytes()]
    if isinstance(value, np.generic):
        return [str(value.dtype), value.tobytes()]
    return [type(value).__name__, repr(value)]


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


def advance(env: Any, actions: list[Any], *, until_end: bool = False, needs_reset: bool = False) -> tuple[list[Any], bool]:
    """Step on, resetting where the user has to; returns what came and whether a reset is due."""
    came: list[Any] = []
    for action in actions:
        if needs_reset:
            options = None if needs_reset is True else {"reset_mask": needs_reset}
            came.append(exact(env.reset(options=options)))
        step = env.step(action)
        came.append(exact(step))
        done = np.logical_or(step[2], step[3])
        needs_reset = False
        if np.any(done) and not resets_itself(env):
            needs_reset = done if isinstance(env, gym.vector.VectorEnv) else True
        if until_end and np.any(done):
            break
    return came, needs_reset


MOMENTS = ("fresh", "reset", "middle", "ended")


def drive(env: Any, moment: str, seed: int = 1) -> bool:
    """Bring an environment to a moment of its life; returns whether the user has to reset it next."""
    seed_spaces(env, seed)
    if moment == "fresh":
        return False
    env.reset(seed=seed)
    if moment == "reset":
        return False
    actions = actions_of(env, seed, 3 * EPISODE_STEPS)
    _, needs_reset = advance(env, actions[:7] if moment == "middle" else actions, until_end=moment == "ended")
    return needs_reset


def continue_from(env: Any, moment: str, needs_reset: Any, steps: int = STEPS) -> list[Any]:
    """What comes from this moment on: steps, resets and, last, draws of all generators."""
    came = [exact(env.reset(seed=5))] if moment == "fresh" else []
    came += advance(env, actions_of(env, 9, steps), needs_reset=needs_reset)[0]
    return [*came, exact(draws(env))]


def assert_exact(original: Any, target: Any, moment: str, steps: int = STEPS) -> None:
    """Capture one, restore into the other, which has another history, and compare their futures."""
    needs_reset = drive(original, moment)
    captured = capture_environment(original)
    assert level_of(captured) == (Level.E0, "")
    tree = travelled(captured)
    kept = exact(tree)
    future = continue_from(original, moment, needs_reset, steps)
    drive(target, "middle", seed=77)
    restored = restore_environment(target, tree, reset_seed=0)
    assert (restored.restored, restored.grade, restored.note) == ("exact", "exact", "")
    assert continue_from(target, moment, needs_reset, steps) == future
    assert exact(tree) == kept


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


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("name", ENVIRONMENTS)
@pytest.mark.filterwarnings("ignore::UserWarning:gymnasium", "ignore:overflow encountered in cast:RuntimeWarning")
def test_an_environment_continues_exactly(name: str, stack: str, moment: str) -> None:
    """Every step, reset, info and random draw after a restore equals that of the environment that was captured."""
    assert_exact(build(name, stack), build(name, stack), moment)
