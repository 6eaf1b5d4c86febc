"""Proven: every class that is called exact without a probe is taken through a life here, and none but those."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces, wrappers
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector

from perdure.capture.environments import Level, register_environment
from perdure.capture.environments.proven import PROVEN, is_proven, layers_of
from perdure.capture.environments.traits import know
from perdure.gymnasium import NewWorld
from tests.capture.lives import assert_exact, cartpole, make_one, makers

STEPS = 24
IMAGE = spaces.Box(0, 255, (16, 16, 3), np.uint8)


def drawn() -> gym.Env:
    """An environment that is seen as a picture."""
    return wrappers.AddRenderObservation(make_one_drawn(), render_only=True)


def make_one_drawn() -> gym.Env:
    """One that can be drawn."""
    return gym.make("CartPole-v1", render_mode="rgb_array", max_episode_steps=12)


def small_picture() -> gym.Env:
    """The picture, small."""
    return wrappers.ResizeObservation(drawn(), (16, 24))


def vectors(wrap: Callable[[Any], Any], name: str = "Pendulum-v1") -> Callable[[], Any]:
    """A vector environment in a wrapper."""
    return lambda: wrap(SyncVectorEnv(makers(name), autoreset_mode=AutoresetMode.NEXT_STEP))


def scaled(env: Any, module: Any) -> Any:
    """Rescale observations that have bounds."""
    return module.RescaleObservation(env, np.float32(-1), np.float32(1))


def dictionary(env: gym.Env) -> gym.Env:
    """Observations by name."""
    space = spaces.Dict(a=env.observation_space, b=env.observation_space)
    return wrappers.TransformObservation(env, lambda seen: {"a": seen, "b": 2 * seen}, space)


def pictures_in_a_vector() -> Any:
    """Small pictures of several environments."""
    return SyncVectorEnv([small_picture] * 2)


def pendulum() -> gym.Env:
    """Continuous actions and bounded observations."""
    return gym.make("Pendulum-v1", max_episode_steps=12)


def mujoco(name: str) -> Callable[[], gym.Env]:
    """A simulator, short."""
    return lambda: gym.make(f"{name}-v5", max_episode_steps=12)


EXAMPLES: dict[str, Callable[[], Any]] = {
    **{f"{name}Env": mujoco(name) for name in ("Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup")},
    **{f"{name}Env": mujoco(name) for name in ("InvertedDoublePendulum", "InvertedPendulum", "Pusher", "Reacher")},
    **{f"{name}Env": mujoco(name) for name in ("Swimmer", "Walker2d")},
    "AcrobotEnv": lambda: make_one("Acrobot-v1"),
    "CartPoleEnv": lambda: make_one("CartPole-v1"),
    "CartPoleVectorEnv": lambda: gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point"),
    "Continuous_MountainCarEnv": lambda: make_one("MountainCarContinuous-v0"),
    "MountainCarEnv": lambda: make_one("MountainCar-v0"),
    "PendulumEnv": lambda: make_one("Pendulum-v1"),
    "BlackjackEnv": lambda: make_one("Blackjack-v1"),
    "CliffWalkingEnv": lambda: make_one("CliffWalking-v1"),
    "FrozenLakeEnv": lambda: make_one("FrozenLake-v1"),
    "TaxiEnv": lambda: make_one("Taxi-v4"),
    "SyncVectorEnv": vectors(lambda envs: envs),
    "AsyncVectorEnv": lambda: AsyncVectorEnv(makers("CartPole-v1")),
    "Autoreset": lambda: wrappers.Autoreset(make_one("CartPole-v1")),
    "OrderEnforcing": lambda: make_one("CartPole-v1"),
    "PassiveEnvChecker": lambda: make_one("CartPole-v1"),
    "TimeLimit": lambda: make_one("CartPole-v1"),
    "RecordEpisodeStatistics": lambda: wrappers.RecordEpisodeStatistics(make_one("CartPole-v1")),
    "AddWhiteNoise": lambda: wrappers.AddWhiteNoise(make_one_drawn(), 0.3),
    "ObstructView": lambda: wrappers.ObstructView(make_one_drawn(), 0.3, 2),
    "RenderCollection": lambda: wrappers.RenderCollection(make_one_drawn()),
    "RepeatAction": lambda: wrappers.RepeatAction(make_one("CartPole-v1"), num_repeats=2),
    "StickyAction": lambda: wrappers.StickyAction(make_one("CartPole-v1"), 0.5),
    "DelayObservation": lambda: wrappers.DelayObservation(make_one("CartPole-v1"), delay=2),
    "FrameStackObservation": lambda: wrappers.FrameStackObservation(make_one("CartPole-v1"), 3),
    "MaxAndSkipObservation": lambda: wrappers.MaxAndSkipObservation(make_one("CartPole-v1"), skip=2),
    "NormalizeObservation": lambda: wrappers.NormalizeObservation(make_one("CartPole-v1")),
    "RunningMeanStd": lambda: wrappers.NormalizeObservation(make_one("CartPole-v1")),
    "TimeAwareObservation": lambda: wrappers.TimeAwareObservation(make_one("CartPole-v1")),
    "NormalizeReward": lambda: wrappers.NormalizeReward(make_one("CartPole-v1")),
    "ClipAction": lambda: wrappers.ClipAction(pendulum()),
    "DiscretizeAction": lambda: wrappers.DiscretizeAction(pendulum(), 5),
    "RescaleAction": lambda: wrappers.RescaleAction(pendulum(), np.float32(-1), np.float32(1)),
    "TransformAction": lambda: wrappers.TransformAction(pendulum(), lambda a: a / 2, spaces.Box(-1, 1, (1,))),
    "AddRenderObservation": drawn,
    "DiscretizeObservation": lambda: wrappers.DiscretizeObservation(pendulum(), 4),
    "DtypeObservation": lambda: wrappers.DtypeObservation(pendulum(), np.float64),
    "FilterObservation": lambda: wrappers.FilterObservation(dictionary(pendulum()), ["a"]),
    "FlattenObservation": lambda: wrappers.FlattenObservation(pendulum()),
    "GrayscaleObservation": lambda: wrappers.GrayscaleObservation(small_picture()),
    "RescaleObservation": lambda: scaled(pendulum(), wrappers),
    "ReshapeObservation": lambda: wrappers.ReshapeObservation(pendulum(), (3, 1)),
    "ResizeObservation": small_picture,
    "TransformObservation": lambda: dictionary(pendulum()),
    "ClipReward": lambda: wrappers.ClipReward(pendulum(), -1, 1),
    "TransformReward": lambda: wrappers.TransformReward(pendulum(), lambda reward: 2 * reward),
    "vector.RecordEpisodeStatistics": vectors(vector.RecordEpisodeStatistics),
    "vector.DictInfoToList": vectors(vector.DictInfoToList),
    "vector.NormalizeObservation": vectors(vector.NormalizeObservation),
    "vector.NormalizeReward": vectors(vector.NormalizeReward),
    "vector.ClipAction": vectors(vector.ClipAction),
    "vector.RescaleAction": vectors(lambda envs: vector.RescaleAction(envs, np.float32(-1), np.float32(1))),
    "vector.TransformAction": vectors(lambda envs: vector.TransformAction(envs, lambda action: action / 2)),
    "vector.VectorizeTransformAction": vectors(lambda envs: vector.VectorizeTransformAction(envs, wrappers.ClipAction)),
    "vector.DtypeObservation": vectors(lambda envs: vector.DtypeObservation(envs, np.float64)),
    "vector.FilterObservation": lambda: vector.FilterObservation(
        SyncVectorEnv([lambda: dictionary(pendulum())] * 2), ["a"]
    ),
    "vector.FlattenObservation": vectors(vector.FlattenObservation),
    "vector.GrayscaleObservation": lambda: vector.GrayscaleObservation(pictures_in_a_vector()),
    "vector.RescaleObservation": vectors(lambda envs: scaled(envs, vector)),
    "vector.ReshapeObservation": vectors(lambda envs: vector.ReshapeObservation(envs, (3, 1))),
    "vector.ResizeObservation": lambda: vector.ResizeObservation(pictures_in_a_vector(), (8, 8)),
    "vector.TransformObservation": vectors(lambda envs: vector.TransformObservation(envs, lambda seen: 2 * seen)),
    "vector.VectorizeTransformObservation": vectors(
        lambda envs: vector.VectorizeTransformObservation(envs, wrappers.ReshapeObservation, shape=(3, 1))
    ),
    "vector.ClipReward": vectors(lambda envs: vector.ClipReward(envs, -1, 1)),
    "vector.TransformReward": vectors(lambda envs: vector.TransformReward(envs, lambda reward: 2 * reward)),
    "vector.VectorizeTransformReward": vectors(
        lambda envs: vector.VectorizeTransformReward(envs, wrappers.ClipReward, min_reward=-1, max_reward=1)
    ),
}
BY_ACTIONS = {
    "CarRacing": lambda: gym.make("CarRacing-v3", max_episode_steps=12),
    "LunarLander": lambda: gym.make("LunarLander-v3", max_episode_steps=12),
    "BipedalWalker": lambda: NewWorld(gym.make("BipedalWalker-v3", max_episode_steps=12)),
    "NewWorld": lambda: NewWorld(gym.make("BipedalWalker-v3", max_episode_steps=12)),
}
ELSEWHERE = frozenset({"AtariEnv", "AtariPreprocessing", "RecordVideo"})
"""Taken through their lives by `test_simulators` and by `test_environments`."""
NEEDS = {"mujoco": "mujoco", "box2d": "Box2D", "ale_py": "ale_py"}


def _name(module: str, qualname: str) -> str:
    name = qualname.removesuffix("._SingleEnv")
    return f"vector.{name}" if ".wrappers.vector." in module else name


NAMES = [(module, name) for module, names in PROVEN.items() for name in sorted(names) if name not in ELSEWHERE]


@pytest.mark.parametrize(("module", "qualname"), NAMES, ids=[_name(*each) for each in NAMES])
@pytest.mark.filterwarnings("ignore::UserWarning:gymnasium", "ignore::UserWarning:pygame")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:overflow encountered in cast:RuntimeWarning")
def test_a_proven_class_continues_exactly(module: str, qualname: str) -> None:
    """A life that goes through the class comes out the same after each restore, and needs no probe to be exact."""
    for part, package in NEEDS.items():
        if part in module or (part == "box2d" and qualname == "NewWorld"):
            pytest.importorskip(package)
    if "Render" in qualname or "Resize" in qualname or "Grayscale" in qualname:
        pytest.importorskip("cv2")
    make = {**EXAMPLES, **BY_ACTIONS}[_name(module, qualname)]
    level = Level.E1 if _name(module, qualname) in BY_ACTIONS else Level.E0
    original, target = make(), make()
    try:
        _assert_has(original, module, qualname)
        assert "middle" in assert_exact(original, target, STEPS, level)
    finally:
        original.close()
        target.close()


def _assert_has(env: Any, module: str, qualname: str) -> None:
    cls: Any = importlib.import_module(module)
    for part in qualname.split("."):
        cls = getattr(cls, part)
    single = next(iter(getattr(env.unwrapped, "envs", [env])))
    waiting, seen = [*layers_of(env), *layers_of(single)], []
    while waiting:
        value = waiting.pop()
        seen.append(type(value))
        waiting += [held for held in vars(value).values() if hasattr(held, "__dict__") and not isinstance(held, type)]
        if len(seen) > 2000:
            break
    assert cls in seen
    assert is_proven(cls)


class Heavier(CartPoleEnv):
    """Adds an attribute to a class that is known."""


def test_a_subclass_is_not_proven() -> None:
    """What is shown of a class is not shown of what somebody makes of it."""
    assert is_proven(CartPoleEnv)
    assert not is_proven(Heavier)


def test_what_a_program_registers_is_its_own_word() -> None:
    """A registration takes the place of our proof, unless it is ours."""

    class Mine(CartPoleEnv):
        pass

    know(Mine, ["state"])
    assert is_proven(Mine)
    register_environment(Mine, ["state"])
    assert not is_proven(Mine)


def test_an_environment_in_proven_wrappers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subclass in any stack makes the whole unproven, and the reason names it and what to run."""
    from perdure.capture.environments import capture_environment, unproven_of

    assert unproven_of(capture_environment(cartpole())) == ""
    reason = unproven_of(capture_environment(wrappers.TimeLimit(Heavier(), 9)))
    assert "no test has shown that Heavier goes on exactly" in reason
    assert "perdure doctor --env" in reason
