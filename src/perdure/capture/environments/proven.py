"""
What has been proven: the classes whose capture the tests of this package show to be exact, one by one.

Whatever is not named here may be captured just as well; it is not called exact until a probe has shown it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Literal

from perdure.capture.environments.traits import registered

__all__ = ["PROVEN", "Role", "Unit", "is_proven", "layers_of", "layers_with", "role_of"]

Role = Literal["environment", "vector", "turns", "together", ""]
"""Gymnasium's environments, single or vector; PettingZoo's, in which agents act in turns or together."""

PROVEN: dict[str, frozenset[str]] = {
    module: frozenset(names.split())
    for module, names in {
        "ale_py.env": "AtariEnv",
        "gymnasium.envs.box2d.bipedal_walker": "BipedalWalker",
        "gymnasium.envs.box2d.car_racing": "CarRacing",
        "gymnasium.envs.box2d.lunar_lander": "LunarLander",
        "gymnasium.envs.classic_control.acrobot": "AcrobotEnv",
        "gymnasium.envs.classic_control.cartpole": "CartPoleEnv CartPoleVectorEnv",
        "gymnasium.envs.classic_control.continuous_mountain_car": "Continuous_MountainCarEnv",
        "gymnasium.envs.classic_control.mountain_car": "MountainCarEnv",
        "gymnasium.envs.classic_control.pendulum": "PendulumEnv",
        "gymnasium.envs.mujoco.ant_v5": "AntEnv",
        "gymnasium.envs.mujoco.half_cheetah_v5": "HalfCheetahEnv",
        "gymnasium.envs.mujoco.hopper_v5": "HopperEnv",
        "gymnasium.envs.mujoco.humanoid_v5": "HumanoidEnv",
        "gymnasium.envs.mujoco.humanoidstandup_v5": "HumanoidStandupEnv",
        "gymnasium.envs.mujoco.inverted_double_pendulum_v5": "InvertedDoublePendulumEnv",
        "gymnasium.envs.mujoco.inverted_pendulum_v5": "InvertedPendulumEnv",
        "gymnasium.envs.mujoco.pusher_v5": "PusherEnv",
        "gymnasium.envs.mujoco.reacher_v5": "ReacherEnv",
        "gymnasium.envs.mujoco.swimmer_v5": "SwimmerEnv",
        "gymnasium.envs.mujoco.walker2d_v5": "Walker2dEnv",
        "gymnasium.envs.toy_text.blackjack": "BlackjackEnv",
        "gymnasium.envs.toy_text.cliffwalking": "CliffWalkingEnv",
        "gymnasium.envs.toy_text.frozen_lake": "FrozenLakeEnv",
        "gymnasium.envs.toy_text.taxi": "TaxiEnv",
        "gymnasium.vector.async_vector_env": "AsyncVectorEnv",
        "gymnasium.vector.sync_vector_env": "SyncVectorEnv",
        "gymnasium.wrappers.atari_preprocessing": "AtariPreprocessing",
        "gymnasium.wrappers.common": "Autoreset OrderEnforcing PassiveEnvChecker RecordEpisodeStatistics TimeLimit",
        "gymnasium.wrappers.rendering": "AddWhiteNoise ObstructView RecordVideo RenderCollection",
        "gymnasium.wrappers.stateful_action": "RepeatAction StickyAction",
        "gymnasium.wrappers.stateful_observation": (
            "DelayObservation FrameStackObservation MaxAndSkipObservation NormalizeObservation TimeAwareObservation"
        ),
        "gymnasium.wrappers.stateful_reward": "NormalizeReward",
        "gymnasium.wrappers.transform_action": "ClipAction DiscretizeAction RescaleAction TransformAction",
        "gymnasium.wrappers.transform_observation": (
            "AddRenderObservation DiscretizeObservation DtypeObservation FilterObservation FlattenObservation "
            "GrayscaleObservation RescaleObservation ReshapeObservation ResizeObservation TransformObservation"
        ),
        "gymnasium.wrappers.transform_reward": "ClipReward TransformReward",
        "gymnasium.wrappers.utils": "RunningMeanStd",
        "gymnasium.wrappers.vector.common": "RecordEpisodeStatistics",
        "gymnasium.wrappers.vector.dict_info_to_list": "DictInfoToList",
        "gymnasium.wrappers.vector.stateful_observation": "NormalizeObservation",
        "gymnasium.wrappers.vector.stateful_reward": "NormalizeReward",
        "gymnasium.wrappers.vector.vectorize_action": (
            "ClipAction RescaleAction TransformAction VectorizeTransformAction VectorizeTransformAction._SingleEnv"
        ),
        "gymnasium.wrappers.vector.vectorize_observation": (
            "DtypeObservation FilterObservation FlattenObservation GrayscaleObservation RescaleObservation "
            "ReshapeObservation ResizeObservation TransformObservation VectorizeTransformObservation "
            "VectorizeTransformObservation._SingleEnv"
        ),
        "gymnasium.wrappers.vector.vectorize_reward": "ClipReward TransformReward VectorizeTransformReward",
        "perdure.gymnasium": "NewWorld",
    }.items()
}
"""Classes by module. A test takes an environment through each of them."""


@dataclass(slots=True)
class Unit:
    """An environment, or another thing of whose capture a proof may be needed."""

    layers: list[Any]
    """From the outermost one inwards."""
    needed: int = 0
    """How many of the layers, from the outermost one, a proof has to speak of at least; 0 if none is needed."""


_ROLES: dict[Role, tuple[str, ...]] = {
    "environment": ("gymnasium", "Env"),
    "vector": ("gymnasium", "vector", "VectorEnv"),
    "turns": ("pettingzoo", "AECEnv"),
    "together": ("pettingzoo", "ParallelEnv"),
}
_WRAPPED = ("env", "aec_env")
"""Attributes under which wrappers and converters hold what they wrap."""
_roles: dict[type, Role] = {}
_named: dict[type, bool] = {}


def is_proven(cls: type) -> bool:
    """Tell whether tests show that what is captured of a class is all of its state; of no subclass but itself."""
    declared = registered(cls)
    if declared is not None:
        return declared.is_ours
    if cls not in _named:
        is_space = cls.__module__.startswith("gymnasium.spaces.")
        _named[cls] = is_space or cls.__qualname__ in PROVEN.get(cls.__module__, ())
    return _named[cls]


def role_of(value: object) -> Role:
    """Tell what kind of environment the value is, wrapped or not; '' if it is something else. Imports nothing."""
    cls = type(value)
    if cls not in _roles:
        found = (role for role, name in _ROLES.items() if _is_a(cls, *name))
        _roles[cls] = next(found, "")
    return _roles[cls]


def _is_a(cls: type, package: str, *names: str) -> bool:
    parent: Any = sys.modules.get(package)
    for name in names:
        parent = getattr(parent, name, None)
    return isinstance(parent, type) and issubclass(cls, parent)


def layers_with(layers: list[Any], value: object) -> list[Any]:
    """
    Return the layers of one environment after a step inwards.

    Args:
        layers: From the outermost one on, as far as the walk has come.
        value: What comes next; another environment, such as a part of a vector environment, begins layers of its own.
    """
    role = role_of(value)
    if not role:
        return layers
    return [*layers, value] if layers and _is_of_one_stack(role_of(layers[-1]), role) else [value]


def _is_of_one_stack(outer: Role, inner: Role) -> bool:
    return outer == inner or {outer, inner} == {"turns", "together"}


def layers_of(env: Any) -> list[Any]:
    """Return an environment and what it wraps, from the outside in."""
    found: list[Any] = []
    while env is not None and all(env is not known for known in found):
        found.append(env)
        held = getattr(env, "__dict__", {})
        env = next((held[name] for name in _WRAPPED if held.get(name) is not None), None)
    return found
