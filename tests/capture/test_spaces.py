"""Spaces alone, and telling environments and spaces from other things."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from gymnasium import spaces, wrappers
from gymnasium.envs.classic_control import CartPoleEnv

from perdure.capture.environments import capture_space, derive_reset_seed, is_environment, is_space, restore_space
from perdure.errors import IncompatibleError
from tests.capture.lives import Counting, cartpole, exact, sync, travelled, vector_statistics


def composite(high: float = 1.0) -> spaces.Space:
    """A space of every kind of space."""
    return spaces.Dict(
        b=spaces.Tuple((spaces.Discrete(5), spaces.MultiDiscrete([3, 4]), spaces.MultiBinary(3))),
        a=spaces.Box(-high, high, (3,), np.float64),
        c=spaces.OneOf((spaces.Text(5), spaces.Sequence(spaces.Discrete(9), stack=True))),
        d=spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3)),
    )


def test_a_space_goes_on_drawing_the_same() -> None:
    """All generators of a composite space are captured; the space and its parts stay the objects they are."""
    original, target = composite(), composite()
    original.seed(3)
    original.sample()
    parts = list(target.spaces.items())
    restore_space(target, travelled(capture_space(original)))
    assert all(target.spaces[key] is part for key, part in parts)
    assert repr([original.sample() for _ in range(20)]) == repr([target.sample() for _ in range(20)])


def test_a_space_that_was_never_drawn_from_has_no_generator_again() -> None:
    """Before its first draw a space has no generator, and a restore takes it away."""
    target = spaces.Discrete(4, seed=3)
    restore_space(target, capture_space(spaces.Discrete(4)))
    assert target._np_random is None


def test_a_space_of_another_form_is_refused() -> None:
    """The place of the difference is named, and nothing is changed."""
    target = composite(high=2.0)
    target.seed(1)
    before = exact(capture_space(target))
    with pytest.raises(IncompatibleError, match=r"actions\.spaces\[a\]"):
        restore_space(target, capture_space(composite()), component="actions")
    assert exact(capture_space(target)) == before


def test_environments_and_spaces_are_told_from_other_things() -> None:
    """Environments, vector environments and wrappers are environments; spaces are spaces; nothing else is either."""
    for env in (cartpole(), wrappers.Autoreset(cartpole()), sync(), vector_statistics(sync()), Counting()):
        assert is_environment(env)
        assert not is_space(env)
    assert is_space(composite())
    for other in (None, 3, CartPoleEnv, composite(), {}):
        assert not is_environment(other)


@pytest.mark.process
def test_gymnasium_is_not_imported_by_asking() -> None:
    """A program without environments does not pay for this module."""
    program = (
        "import sys; from perdure.capture.environments import is_environment, is_space\n"
        "assert not is_environment(3) and not is_space(3) and 'gymnasium' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_reset_seeds_are_derived() -> None:
    """The seed depends on run, component and step alone, and leaves room for the index of a sub-environment."""
    seeds = [derive_reset_seed("run", "envs", step) for step in range(100)]
    assert seeds == [derive_reset_seed("run", "envs", step) for step in range(100)]
    assert len({*seeds, derive_reset_seed("run", "eval", 0), derive_reset_seed("other", "envs", 0)}) == 102
    assert all(0 <= seed < 2**30 for seed in seeds)
