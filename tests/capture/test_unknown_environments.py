"""Environments about whose state nothing is known, and ways to make it known."""

from __future__ import annotations

import socket
from typing import Any

import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.vector import SyncVectorEnv

from perdure.capture.environments import (
    Level,
    capture_environment,
    environment_level,
    level_of,
    register_environment,
    restore_environment,
)
from perdure.errors import IncompatibleError, InvalidInputError
from tests.capture.lives import Counting, Remembering, assert_exact, cartpole, draws, exact, seed_spaces, travelled


class ByAttributes(Counting):
    """Registered by the names of its attributes; has something opaque beside them."""


class ByFunctions(Counting):
    """Registered with functions."""


class ByPlainAttributes(Counting):
    """Registered without saying more."""


class ByMethods(Counting):
    """Hands over its state itself."""

    def get_state(self) -> Any:
        """Give the state."""
        return {"count": self.count, 3: b"three", "level": self.level}

    def set_state(self, state: Any) -> None:
        """Take the state."""
        assert state[3] == b"three"
        self.count, self.level = state["count"], state["level"]


class ByOtherMethods(Counting):
    """Has methods of these names that are something else, as MuJoCo environments do."""

    def get_state(self) -> Any:
        """Give the state."""
        return self.count

    def set_state(self, qpos: Any, qvel: Any) -> None:
        """Take the state."""
        self.count = qpos + qvel


register_environment(ByAttributes, ["count", "level"])
register_environment(ByPlainAttributes)
register_environment(
    ByFunctions,
    get_state=lambda env: [env.count, env.level],
    set_state=lambda env, state: vars(env).update(count=state[0], level=state[1]),
)


@pytest.mark.parametrize("cls", [ByAttributes, ByFunctions, ByPlainAttributes, ByMethods])
def test_an_environment_whose_state_is_declared_continues_exactly(cls: type[Counting]) -> None:
    """Attributes, functions or methods that hold the state make any environment level E0, in any stack."""
    extra = None if cls is ByPlainAttributes else object()
    original, target = (wrappers.TimeLimit(wrappers.Autoreset(cls(extra)), 15) for _ in range(2))
    original.unwrapped.level = 2
    assert assert_exact(original, target, steps=60) == {"fresh", "reset", "middle", "ended"}


@pytest.mark.parametrize("cls", [Counting, ByOtherMethods])
def test_an_unknown_environment_is_reset_with_its_statistics_kept(cls: type[Counting]) -> None:
    """What is known survives; the episode is cut with the seed that was asked for, and the new observation is given."""
    original, target = (wrappers.NormalizeObservation(wrappers.RecordEpisodeStatistics(cls())) for _ in range(2))
    seed_spaces(original, 3)
    original.reset(seed=1)
    for _ in range(25):
        if original.step(1)[2]:
            original.reset()
    tree = travelled(capture_environment(original))
    level, reason = level_of(tree)
    assert (level, environment_level(original)) == (Level.E3, (level, reason))
    assert reason.startswith(f"{cls.__qualname__} is not an environment whose state is known")
    target.reset(seed=9)
    restored = restore_environment(target, tree, reset_seed=42, component="envs")
    assert (restored.restored, restored.grade) == ("reset", "statistical")
    assert restored.note == f"envs was reset with seed 42, its episode is cut and its observation changed: {reason}"
    first, info = original.reset(seed=42)
    assert exact(restored.observation) == exact(first)
    assert restored.info == info
    assert exact(target.obs_rms.mean) == exact(original.obs_rms.mean)
    assert exact(list(target.env.return_queue)) == exact(list(original.env.return_queue))
    assert exact(draws(target)) == exact(draws(original))


def test_an_unknown_environment_of_another_form_is_refused() -> None:
    """Level E3 compares wrappers and spaces as E0 does."""
    tree = capture_environment(wrappers.TimeLimit(Counting(), 10))
    with pytest.raises(IncompatibleError, match="TimeLimit"):
        restore_environment(Counting(), tree, reset_seed=0)


def test_sub_environments_that_are_unknown_are_reset_together() -> None:
    """One unknown sub-environment makes the whole vector environment level E3."""
    original, target = (SyncVectorEnv([Counting, Counting]) for _ in range(2))
    original.reset(seed=1)
    restored = restore_environment(target, capture_environment(original), reset_seed=6)
    assert exact(restored.observation) == exact(original.reset(seed=6)[0])


class Connected(CartPoleEnv):
    """A known environment with something unknown about it."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = [1, 2]
        self.connection = socket.socket()


class Slotted:
    """A helper with its own way of handing over its state."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def get_state(self) -> Any:
        """Give the state."""
        return self.value

    def set_state(self, state: Any) -> None:
        """Take the state."""
        self.value = state


def test_what_is_unknown_about_a_known_class_is_named() -> None:
    """An attribute that a subclass adds is captured if it is plain, and named in the reason if it is not."""
    env = Connected()
    level, reason = environment_level(env)
    env.connection.close()
    assert (level, reason) == (Level.E3, "Connected.connection is a socket.socket")
    circle: list[Any] = []
    circle.append(circle)
    for held, said in ((circle, "holds itself"), ({1, 2}, "builtins.set"), (np.array([object()]), "array of object")):
        assert said in environment_level(Remembering(cartpole(), held))[1]
    several = Remembering(Remembering(Remembering(Remembering(cartpole(), {1}), 1j), frozenset()), object())
    assert environment_level(several)[1].endswith("and 1 more")


def test_a_state_that_is_not_plain_is_named() -> None:
    """An object that hands over something else than plain data is not taken at its word."""
    reason = environment_level(Remembering(cartpole(), Slotted(object())))[1]
    assert reason == "the state that Slotted hands over is a builtins.object"


def test_helpers_that_hand_over_their_state_are_restored_in_place() -> None:
    """An object in an attribute that has get_state and set_state keeps its identity."""
    held = Slotted(2)
    target = Remembering(cartpole(), held)
    restore_environment(target, capture_environment(Remembering(cartpole(), Slotted(5))), reset_seed=0)
    assert target.held is held
    assert held.value == 5


def test_registering_asks_for_one_way_of_capture() -> None:
    """Attributes and functions exclude each other, and functions come in pairs."""
    for arguments in ({"get_state": str}, {"attributes": ["a"], "get_state": str, "set_state": str}):
        with pytest.raises(InvalidInputError, match="cannot register Counting"):
            register_environment(Counting, **arguments)


class AddingToDeclared(ByAttributes):
    """Inherits from a class that was declared by names; what it adds is not covered."""


def test_a_subclass_of_a_declared_class_is_not_covered() -> None:
    """Names that were declared for a class say nothing of its subclasses."""
    assert "adds to ByAttributes" in environment_level(AddingToDeclared())[1]
