"""What environments and wrappers hold: every plain value survives, and what was shared is shared again."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

import numpy as np
import pytest

from perdure.capture.environments import capture_environment, restore_environment
from tests.capture.lives import Remembering, cartpole, exact, travelled


@pytest.mark.parametrize(
    "value",
    [
        np.array("text"),
        np.array([b"ab", b"c"]),
        np.arange(24).reshape(2, 3, 4).transpose(1, 2, 0)[:, ::2],
        np.arange(4, dtype=">i2"),
        np.array([1 + 2j]),
        np.str_("suit"),
        np.longdouble(1) / 3,
        np.float16(0.1),
        {"~": 1},
        {(1, "a"): [float("nan"), -0.0]},
        OrderedDict(b=1, a=2),
        deque([np.int32(1), np.int32(2)], 4),
        deque([1, None]),
        2**200,
        b"",
        (),
    ],
    ids=repr,
)
def test_plain_values_come_back_alike(value: Any) -> None:
    """Type, bits and order in memory of every plain value survive."""
    target = Remembering(cartpole(), 0)
    restore_environment(target, travelled(capture_environment(Remembering(cartpole(), value))), reset_seed=0)
    assert exact(target.held) == exact(value)
    if isinstance(value, np.ndarray):
        assert np.argsort(target.held.strides).tolist() == np.argsort(value.strides).tolist()
    if isinstance(value, deque):
        assert target.held.maxlen == value.maxlen


def test_what_is_shared_is_shared_again() -> None:
    """A generator or array that two places hold is one object after a restore, whatever the target had."""
    original, target = (Remembering(cartpole(), []) for _ in range(2))
    original.reset(seed=1)
    original.action_space._np_random = original.unwrapped.np_random
    original.held = [original.unwrapped.state]
    original.top = original
    target.top = target
    restore_environment(target, travelled(capture_environment(original)), reset_seed=0)
    assert target.action_space._np_random is target.unwrapped.np_random
    assert target.held[0] is target.unwrapped.state
    assert target.top is target
    assert target.unwrapped.np_random is not original.unwrapped.np_random
