"""Environments that do not fit what was captured are refused before anything is changed."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest
from gymnasium import spaces, wrappers
from gymnasium.vector import AutoresetMode

from perdure.capture.environments import capture_environment, restore_environment
from perdure.errors import FormatError, IncompatibleError
from tests.capture.lives import cartpole, exact, sync

MISFITS: dict[str, tuple[Any, Any, str, str]] = {
    "id": (cartpole, lambda: gym.make("CartPole-v0", max_episode_steps=500), "CartPole-v1", "CartPole-v0"),
    "class": (lambda: cartpole().unwrapped, lambda: gym.make("Acrobot-v1").unwrapped, "CartPoleEnv", "AcrobotEnv"),
    "argument": (lambda: gym.make("Pendulum-v1", g=9.0), lambda: gym.make("Pendulum-v1", g=2.0), "9.0", "2.0"),
    "missing wrapper": (lambda: wrappers.Autoreset(cartpole()), cartpole, "Autoreset", "TimeLimit"),
    "wrapper order": (
        lambda: wrappers.Autoreset(wrappers.NormalizeReward(cartpole())),
        lambda: wrappers.NormalizeReward(wrappers.Autoreset(cartpole())),
        "Autoreset",
        "NormalizeReward",
    ),
    "wrapper argument": (
        lambda: wrappers.NormalizeReward(cartpole(), gamma=0.9),
        lambda: wrappers.NormalizeReward(cartpole(), gamma=0.99),
        "0.9",
        "0.99",
    ),
    "map": (
        lambda: gym.make("FrozenLake-v1", desc=["SF", "FG"]).unwrapped,
        lambda: gym.make("FrozenLake-v1", desc=["SH", "FG"]).unwrapped,
        "SF",
        "SH",
    ),
    "number": (lambda: sync(2), lambda: sync(3), "2", "3"),
    "mode": (sync, lambda: sync(mode=AutoresetMode.DISABLED), "NextStep", "Disabled"),
    "sub-environment": (sync, lambda: sync(name="Acrobot-v1"), "CartPoleEnv", "AcrobotEnv"),
    "vectorisation": (sync, lambda: gym.make_vec("CartPole-v1", 2, "vector_entry_point"), "Sync", "CartPoleVectorEnv"),
}


@pytest.mark.parametrize("case", MISFITS)
@pytest.mark.filterwarnings("ignore:.*CartPole-v0 is out of date:DeprecationWarning")
def test_an_environment_that_differs_is_refused_and_left_alone(case: str) -> None:
    """The error names the component and both sides, and comes before anything has been changed."""
    make_original, make_target, expected, actual = MISFITS[case]
    original, target = make_original(), make_target()
    target.reset(seed=3)
    before = exact(capture_environment(target))
    with pytest.raises(IncompatibleError) as caught:
        restore_environment(target, capture_environment(original), reset_seed=0, component="envs/train")
    assert caught.value.component == "envs/train"
    assert expected in caught.value.expected
    assert actual in caught.value.actual
    assert exact(capture_environment(target)) == before


class Bounded(gym.Wrapper):
    """A wrapper with a space of its own."""

    def __init__(self, env: gym.Env, high: float) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(-high, high, (4,))


def test_a_space_that_differs_is_refused() -> None:
    """Bounds of a wrapper's own space are compared bit by bit."""
    tree = capture_environment(Bounded(cartpole(), 2.0))
    with pytest.raises(IncompatibleError, match=r"_observation_space\.low is float32\[4\]#"):
        restore_environment(Bounded(cartpole(), 2.5), tree, reset_seed=0)
    with pytest.raises(IncompatibleError, match="TransformReward"):
        restore_environment(wrappers.TransformReward(cartpole(), abs), tree, reset_seed=0)


def test_tables_that_differ_are_refused() -> None:
    """A transition table that no recorded argument tells of is compared by its digest."""
    slippery, firm = (gym.make("FrozenLake-v1", is_slippery=flag).unwrapped for flag in (True, False))
    slippery.spec = firm.spec = None
    with pytest.raises(IncompatibleError, match=r"\.P is"):
        restore_environment(firm, capture_environment(slippery), reset_seed=0)


def test_a_newer_form_is_refused() -> None:
    """A tree that a later version has written is not guessed at."""
    env = cartpole()
    with pytest.raises(FormatError) as caught:
        restore_environment(env, {**capture_environment(env), "format": 99}, reset_seed=0)
    assert (caught.value.schema_version, caught.value.supported_version) == (99, 1)


def test_another_version_of_gymnasium_is_noted() -> None:
    """Attributes that are new in the live version stay, and the user is told."""
    original, target = cartpole(), cartpole()
    original.reset(seed=1)
    target.unwrapped.new_in_this_version = 3
    tree = {**capture_environment(original), "gymnasium": "1.0.0"}
    restored = restore_environment(target, tree, reset_seed=0)
    assert (restored.restored, restored.grade) == ("continued", "exact")
    assert "captured under gymnasium 1.0.0" in restored.note
    assert target.unwrapped.new_in_this_version == 3
