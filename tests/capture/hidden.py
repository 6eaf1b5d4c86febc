"""Environments for the probe, made in processes of their own."""

from __future__ import annotations

import os
import pathlib
import signal

import gymnasium as gym
import numpy as np

from perdure.capture.environments import register_environment

MODULE = {"count": 0}


class InModule(gym.Env):
    """Keeps its state in its module, where no attribute of it shows."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-1e6, 1e6, (1,))
        self.action_space = gym.spaces.Discrete(2)
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        MODULE["count"] = int(self.np_random.integers(100))
        self.steps = 0
        return self._observe(), {}

    def step(self, action):
        MODULE["count"] += 1 + int(action)
        self.steps += 1
        return self._observe(), float(MODULE["count"]), self.steps >= 50, False, {}

    def _observe(self):
        return np.array([MODULE["count"]], np.float32)


class LateReward(InModule):
    """Keeps all of its state but what its next reward is computed from."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.before = [0]

    def reset(self, *, seed=None, options=None):
        gym.Env.reset(self, seed=seed)
        self.steps, self.count, self.before[0] = 0, int(self.np_random.integers(100)), 0
        return self._observe(), {}

    def step(self, action):
        self.count += 1 + int(action)
        self.steps += 1
        reward, self.before[0] = float(self.count - self.before[0]), self.count
        return self._observe(), reward, self.steps >= 50, False, {}

    def _observe(self):
        return np.array([self.count], np.float32)


class Unrepeatable(InModule):
    """Draws from a generator that nobody seeds."""

    def _observe(self):
        return np.random.default_rng().random(1).astype(np.float32)


class Failing(InModule):
    """Cannot take a step."""

    def step(self, action):
        raise RuntimeError("no step today")


class Pickling(gym.Env):
    """Pickles and copies without a complaint, its state included; nobody has said that this is its state."""

    observation_space = gym.spaces.Box(-1e6, 1e6, (1,))
    action_space = gym.spaces.Discrete(2)
    count = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = int(self.np_random.integers(100))
        return np.array([self.count], np.float32), {}

    def step(self, action):
        self.count += 1 + int(action)
        return np.array([self.count], np.float32), 1.0, False, False, {}


class Honest(Pickling):
    """The same, registered, and true."""


class Endless(Pickling):
    """Takes for ever to be reset anywhere but in the process that made it, and tells who it is there."""

    told = ""

    def __init__(self) -> None:
        self.maker = os.getpid()

    def reset(self, *, seed=None, options=None):
        if os.getpid() != self.maker:
            pathlib.Path(self.told).write_text(str(os.getpid()))
            signal.pause()
        return super().reset(seed=seed)


def vector():
    """Environments that reset by themselves."""
    return gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2)


def vector_of_failures():
    """The same, of one that says more of itself than is true."""
    return gym.vector.SyncVectorEnv([InModule] * 2)


register_environment(Endless)
register_environment(Honest)
register_environment(InModule)
register_environment(LateReward, ["count", "steps"])
