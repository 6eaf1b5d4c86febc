"""
Environments whose state cannot be read, only lived again: where an episode began, and every action since.

A log hangs on the environment and sees each reset and step. A capture is the log of the running episode; a restore
begins that episode once more, takes the same actions, and compares the last observation. An episode that began before
there was a log cannot be captured, so logs are attached when an environment is first looked at.
"""

from __future__ import annotations

import copy
from typing import Any, Protocol

import numpy as np

from perdure.capture.environments.plain import Tree
from perdure.capture.environments.snapshot import fill, take
from perdure.capture.environments.traits import Outside
from perdure.errors import IncompatibleError

__all__ = ["LOGGED", "Beginnings", "EpisodeLog", "Replays", "same"]

_LOG = "_perdure_log"
LOGGED = (_LOG, "step", "reset")
"""Attributes of an environment that is being logged."""
MAXIMUM_ACTIONS = 200_000
"""An episode that is longer is not logged to its end: replaying it would take longer than anybody waits."""
_UNSEEN = "runs an episode that began before perdure saw the environment; the next one is captured"


class Beginnings(Protocol):
    """What the episodes of a class begin with. A beginning is plain data."""

    unknown: str
    """Why an episode of which `after` says nothing cannot be captured."""

    def now(self, env: Any) -> Tree:
        """Return the beginning of an episode of which nothing has happened yet; None if that is not so."""

    def before(self, env: Any, seed: int | None) -> Tree:
        """Return what is to be known just before a reset."""

    def after(self, env: Any, before: Tree) -> Tree:
        """Return the beginning of the episode, just after its reset; None if more than that decides what comes."""

    def again(self, env: Any, beginning: Tree, options: dict[str, Any] | None, log: EpisodeLog) -> Any:
        """Begin that episode again; return its first observation, or None if it shows after the next step only."""


class Replays:
    """
    The extension of a class that is captured by its log.

    Args:
        beginnings: What its episodes begin with.
    """

    def __init__(self, beginnings: Beginnings) -> None:
        self._beginnings = beginnings

    def capture(self, owner: Any) -> Outside:
        """Take the log of the running episode; the last observation and the actions are borrowed."""
        log = self._log_of(owner)
        if log.doubt:
            return Outside(None, [f"{type(owner).__qualname__} {log.doubt}"])
        tree = take(log.content())
        return Outside(tree, [f"{type(owner).__qualname__} {tree['reason']}"] if tree["reason"] else [], replays=True)

    def check(self, owner: Any, state: Tree, component: str) -> None:
        """Nothing to compare: whether the episode comes out the same is seen when it has been lived again."""

    def restore(self, owner: Any, state: Tree) -> None:
        """
        Live the episode again.

        Raises:
            IncompatibleError: It comes out otherwise than it did.
        """
        log = self._log_of(owner)
        if state is not None:
            log.replay(fill(None, state))

    def _log_of(self, owner: Any) -> EpisodeLog:
        found = vars(owner).get(_LOG)
        if found is None:
            found = EpisodeLog(owner, self._beginnings)
            vars(owner).update({_LOG: found, "step": found.step, "reset": found.reset})
        assert isinstance(found, EpisodeLog)
        return found


class EpisodeLog:
    """
    The running episode of one environment.

    Args:
        env: Its methods ``step`` and ``reset`` are then to be replaced by those of the log.
        beginnings: What its episodes begin with.
    """

    def __init__(self, env: Any, beginnings: Beginnings) -> None:
        self._env = env
        self._beginnings = beginnings
        self._step, self._reset = env.step, env.reset
        self._is_resetting = False
        self._beginning = beginnings.now(env)
        self._options: Any = None
        self._actions: list[Any] = []
        self._last: Any = None
        self.doubt = "" if self._beginning is not None else _UNSEEN

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the environment; a new episode begins."""
        before = self._beginnings.before(self._env, seed)
        self.doubt = "is being reset"
        outcome = self.plain_reset(seed=seed, options=options)
        self._beginning = self._beginnings.after(self._env, before)
        self._options, self._actions, self._last = options, [], copy.deepcopy(outcome[0])
        self.doubt = "" if self._beginning is not None else self._beginnings.unknown
        return outcome

    def plain_reset(self, **arguments: Any) -> Any:
        """Reset the environment, and log nothing: some environments make steps while they are being reset."""
        self._is_resetting = True
        try:
            return self._reset(**arguments)
        finally:
            self._is_resetting = False

    def step(self, action: Any) -> Any:
        """Step the environment."""
        outcome = self._step(action)
        if not self._is_resetting and not self.doubt:
            self._actions.append(copy.deepcopy(action))
            self._last = copy.deepcopy(outcome[0])
            if len(self._actions) > MAXIMUM_ACTIONS:
                self.doubt, self._actions = f"is in an episode of more than {MAXIMUM_ACTIONS:,} steps", []
        return outcome

    def content(self) -> dict[str, Any]:
        """Everything that the episode is; borrowed."""
        arrays = [np.asarray(action) for action in self._actions]
        is_uniform = len({(array.dtype, array.shape) for array in arrays}) == 1
        return {
            "beginning": self._beginning,
            "options": self._options,
            "actions": np.stack(arrays) if is_uniform else self._actions,
            "last": self._last,
        }

    def replay(self, content: dict[str, Any]) -> None:
        """
        Live an episode again.

        Raises:
            IncompatibleError: Its last observation is another one than it was.
        """
        observation = self._beginnings.again(self._env, content["beginning"], content["options"], self)
        for action in content["actions"]:
            observation = self._step(action)[0]
        if observation is not None and content["last"] is not None and not same(observation, content["last"]):
            raise IncompatibleError(
                f"cannot restore {type(self._env).__qualname__}: its episode of {len(content['actions'])} steps comes "
                "out otherwise when it is lived again",
                kind="environment.replay-differs",
                hint="use the machine and the versions that the checkpoint was written with, or resume without the "
                "environment",
                component=type(self._env).__qualname__,
                expected="the last observation",
                actual="another one",
            )
        self._beginning, self._options, self._last = content["beginning"], content["options"], content["last"]
        self._actions = list(content["actions"])
        self.doubt = ""


def same(one: Any, other: Any) -> bool:
    """Whether two plain values are the same, bit for bit."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray | np.generic) and isinstance(other, np.ndarray | np.generic):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and one.tobytes() == other.tobytes()
    return type(one) is type(other) and (one == other or (one != one and other != other))  # noqa: PLR0124 - nan
