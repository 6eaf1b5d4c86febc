"""
PettingZoo: environments for several agents, in turns or in parallel, with their wrappers.

They are captured as Gymnasium's are, by their plain attributes: whose turn it is, rewards that have been earned and not
handed out, who has ended. PettingZoo's own classes are known; one of the user's own is known when it is registered or
has ``get_state()`` and ``set_state(state)``. Anything else is reset. What no test proves is tried out before it is
called exact, as Gymnasium's environments are.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from pettingzoo import AECEnv, ParallelEnv

from perdure.capture import environments
from perdure.capture.environments.snapshot import check, fill, take
from perdure.capture.environments.traits import Traits, know_as, registered
from perdure.core.manifest import Grade
from perdure.core.names import Section
from perdure.errors import InvalidInputError

_PACKAGE = "pettingzoo"
_DRAWING = frozenset({"clock", "font", "icons", "screen", "surf", "window", "window_surface"})
"""Attributes that hold what is shown, which is drawn again."""

_PROVEN = (
    "pettingzoo.classic.connect_four.",
    "pettingzoo.classic.rps.",
    "pettingzoo.classic.tictactoe.",
    "pettingzoo.utils.agent_selector",
    "pettingzoo.utils.conversions",
    "pettingzoo.utils.wrappers.assert_out_of_bounds",
    "pettingzoo.utils.wrappers.order_enforcing",
    "pettingzoo.utils.wrappers.terminate_illegal",
)
"""Modules of which tests show that nothing is lost."""


class Environment:
    """
    A PettingZoo environment as a component: ``run.track(env=perdure.pettingzoo.Environment(env))``.

    Args:
        env: Borrowed, reset once; restored in place, between two steps.
        name: Named in errors.

    Raises:
        InvalidInputError: It is no environment of PettingZoo.
    """

    section = Section.ENVIRONMENT
    kind = "pettingzoo.environment"

    def __init__(self, env: AECEnv | ParallelEnv, name: str = "the environment") -> None:
        if not isinstance(env, AECEnv | ParallelEnv):
            raise InvalidInputError(
                f"cannot track a {type(env).__name__} as an environment of PettingZoo",
                kind="pettingzoo.no-environment",
                hint="track Gymnasium's environments as they are",
                field="env",
            )
        self._env = env
        self._name = name
        self._captures = 0
        self.grade = Grade.EXACT
        self.capture()

    def capture(self) -> object:
        """The state of the environment and all its wrappers; arrays are borrowed."""
        _make_known(self._env)
        tree = take(self._env)
        self.grade = Grade.STATISTICAL if environments.shortcoming_of(tree) else Grade.EXACT
        self._captures += 1
        return {"environment": tree, "captures": self._captures}

    def check(self, tree: object) -> None:
        """Refuse another class or stack of wrappers."""
        assert isinstance(tree, dict)
        check(self._env, tree["environment"], self._name)

    def restore(self, tree: object) -> str:
        """Bring the environment to the state; one that cannot be captured is reset with a seed of its own."""
        assert isinstance(tree, dict)
        self._captures = tree["captures"]
        fill(self._env, tree["environment"])
        reason = tree["environment"]["reason"]
        if not reason:
            return environments.unproven_of(tree["environment"])
        self._env.reset(seed=environments.derive_reset_seed("", self._name, self._captures))
        return f"was reset, its episode is cut: {reason}"


def _make_known(root: Any) -> None:
    """Register the classes of PettingZoo that an environment consists of."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, list | tuple | deque):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()
        elif type(value).__module__.partition(".")[0] == _PACKAGE and hasattr(value, "__dict__"):
            if registered(type(value)) is None:
                is_proven = type(value).__module__.startswith(_PROVEN)
                know_as(type(value), Traits(ignored=_DRAWING, is_ours=is_proven))
            waiting += [item for name, item in vars(value).items() if name not in _DRAWING]
