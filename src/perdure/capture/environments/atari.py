"""
Atari environments (ale-py): the emulator's own snapshot, or the log of the episode.

The emulator's snapshot holds its memory and its generator, but not the action before, which sticky actions repeat. So
a game with sticky actions is captured from the snapshot of its beginning, when there is no action before, and replayed.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from perdure.capture.environments.plain import Tree, generator_from_tree, generator_to_tree
from perdure.capture.environments.replaying import EpisodeLog, Replays
from perdure.capture.environments.traits import Outside
from perdure.errors import IncompatibleError

__all__ = ["Emulator"]


class Emulator:
    """The extension that reaches the emulator behind ``env.ale``."""

    def __init__(self) -> None:
        self._replays = Replays(_GameBeginnings())

    def capture(self, owner: Any) -> Outside:
        """Take the emulator's snapshot, or the log where that does not say everything."""
        if _is_sticky(owner):
            return self._replays.capture(owner)
        return Outside({"snapshot": _snapshot(owner)})

    def check(self, owner: Any, state: Tree, component: str) -> None:
        """Refuse the snapshot of a game with other actions than here."""
        if state is not None and _is_sticky(owner) == ("snapshot" in state):
            words = "without sticky actions", "with sticky actions"
            expected, actual = words["snapshot" not in state], words[_is_sticky(owner)]
            raise IncompatibleError(
                f"cannot restore {component}: the game is {expected} in the checkpoint and {actual} here",
                kind="environment.incompatible",
                hint="build the environment as it was when the checkpoint was written",
                component=component,
                expected=expected,
                actual=actual,
            )

    def restore(self, owner: Any, state: Tree) -> None:
        """Put the snapshot back, or play the game again. The screen shows it after the next step."""
        if state is not None and "snapshot" in state:
            _put_back(owner, state["snapshot"])
        else:
            self._replays.restore(owner, state)


class _GameBeginnings:
    """Games begin with a snapshot, taken when there was no action before."""

    unknown = ""

    def now(self, env: Any) -> Tree:
        return self.after(env, None) if env.ale.getEpisodeFrameNumber() == 0 else None

    def before(self, env: Any, seed: int | None) -> Tree:
        """Nothing: the snapshot after the reset says all."""

    def after(self, env: Any, before: Tree) -> Tree:  # noqa: ARG002 - as `Beginnings` has it
        return {"snapshot": _snapshot(env), "generator": generator_to_tree(env.np_random)}

    def again(self, env: Any, beginning: Tree, options: Any, log: EpisodeLog) -> Any:  # noqa: ARG002 - as above
        env.ale.reset_game()  # forgets the action before
        _put_back(env, beginning["snapshot"])
        vars(env)["_np_random"] = generator_from_tree(beginning["generator"])


def _is_sticky(env: Any) -> bool:
    return bool(env.ale.getFloat("repeat_action_probability") > 0)


def _snapshot(env: Any) -> Any:
    return np.frombuffer(bytearray(env.ale.cloneState(include_rng=True).serialize()), np.uint8)


def _put_back(env: Any, snapshot: Any) -> None:
    env.ale.restoreState(sys.modules["ale_py"].ALEState(snapshot.tobytes()))
