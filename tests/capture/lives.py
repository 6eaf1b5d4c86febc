"""Lives of environments: recorded in one, lived again in another, compared bit by bit."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces, wrappers
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from perdure.capture.environments import Level, capture_environment, level_of, restore_environment

STEPS = 200
EPISODE_STEPS = 30

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


def make_one(name: str, index: int = 0) -> gym.Env:
    """One short-lived environment; with another index, of another length."""
    return gym.make(name, max_episode_steps=EPISODE_STEPS + 3 * index, **ENVIRONMENTS[name])


def makers(name: str, count: int = 2) -> list[Any]:
    """Functions that make environments of different lengths."""
    return [lambda index=index: make_one(name, index) for index in range(count)]


def cartpole(**arguments: Any) -> gym.Env:
    """The environment of most tests."""
    return gym.make("CartPole-v1", **arguments)


def sync(count: int = 2, mode: AutoresetMode = AutoresetMode.NEXT_STEP, name: str = "CartPole-v1") -> SyncVectorEnv:
    """CartPole several times in this process."""
    return SyncVectorEnv(makers(name, count), autoreset_mode=mode)


def vector_statistics(envs: gym.vector.VectorEnv) -> gym.vector.VectorEnv:
    """Wrappers that gather statistics."""
    envs = wrappers.vector.RecordEpisodeStatistics(envs, buffer_length=5)
    if envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP:  # Gymnasium allows it in no other mode.
        envs = wrappers.vector.NormalizeObservation(envs)
    return wrappers.vector.NormalizeReward(envs)


class Counting(gym.Env):
    """An environment of a user's own."""

    def __init__(self, extra: Any = None) -> None:
        self.observation_space = spaces.Box(-10, 10, (2,))
        self.action_space = spaces.Discrete(2)
        self.count = 0
        self.level = 0
        self.extra = extra

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode."""
        super().reset(seed=seed)
        self.count = 0
        return self._observe(), {"level": self.level}

    def step(self, action: Any) -> Any:
        """Count on, and draw the reward."""
        self.count += 1 + int(action)
        return self._observe(), float(self.np_random.random()), self.count >= 10, False, {}

    def _observe(self) -> Any:
        return np.array([self.count, self.np_random.random()], np.float32)


class Remembering(gym.Wrapper):
    """A wrapper that holds a given object."""

    def __init__(self, env: gym.Env, held: Any) -> None:
        super().__init__(env)
        self.held = held


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


def record(env: Any, steps: int, level: Level) -> Life:
    """Record a life, with captures before the first reset, right after it, in mid-episode and right after an end."""
    actions, came, captures = actions_of(env, 9, steps), [], {}
    seed_spaces(env, 1)

    def capture(moment: str, due: Any) -> None:
        tree = capture_environment(env)
        assert level_of(tree) == (level, "")
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


def assert_exact(original: Any, target: Any, steps: int = STEPS, level: Level = Level.E0) -> set[str]:
    """Record the life of one and let the other, which always has another history, live it from every capture on."""
    actions, came, captures = record(original, steps, level)
    for moment, (index, due, tree) in captures.items():
        before = exact(tree)
        seed_spaces(target, 77)
        for _ in live(target, actions_of(target, 78, 11)):
            pass
        restored = restore_environment(target, tree, reset_seed=0)
        if tree["unproven"]:
            assert (restored.restored, restored.grade, restored.note) == ("continued", "statistical", tree["unproven"])
        else:
            assert (restored.restored, restored.grade, restored.note) == ("continued", "exact", "")
        for point, (what, *_) in enumerate(live(target, actions, index, due), index):
            assert what == came[point], f"from {moment!r}, at point {point}"
        assert exact(tree) == before
    return set(captures)
