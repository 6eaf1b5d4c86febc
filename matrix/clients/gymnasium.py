"""
A plugin for Gymnasium's own tests: their environments make detours, and the tests must not notice.

    python -m pytest -p matrix.clients.gymnasium tests/envs tests/vector      (in a checkout of theirs)

Before some of the steps that a test takes, its environment is captured, takes a few steps that nobody asked for, is
restored, takes them again, and is restored again; where its specification allows, a new environment takes them too.
The steps must come out the same each time, and the test has to find its environment as it left it.
"""

from __future__ import annotations

import copy
import functools
import os
import random
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv

from perdure.capture.environments import (
    Level,
    capture_environment,
    is_environment,
    level_of,
    restore_environment,
)
from perdure.capture.environments.certificates import subject_of
from perdure.capture.environments.drivers import plain
from perdure.capture.environments.replaying import same

_DETOURS = 4
"""Most detours of one environment; the first is before its first step. One that lives episodes again counts twice."""
_STEPS = 6
_UNSEEN = frozenset({"RecordVideo", "RenderCollection", "AddRenderObservation"})
"""Wrappers that keep or draw pictures, which are not captured: a detour would show in them."""

Method = Callable[..., Any]


class Client:
    """Sends environments on detours while their tests run, and counts them."""

    def __init__(self) -> None:
        self._chance = random.Random(0)  # noqa: S311 - no secret
        self._process = os.getpid()
        self._is_inside = False
        self._made: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._counts: Counter[str] = Counter()
        self._reset: Counter[str] = Counter()

    def pytest_configure(self) -> None:
        """Begin, with the classes that there are and those that there will be."""
        # The detours are the trial: no processes beside them.
        os.environ["PERDURE_PROBE"] = "never"
        for root in (gymnasium.Env, VectorEnv):
            for cls in _with_subclasses(root):
                self._watch(cls)
            root.__init_subclass__ = classmethod(self._watching)  # type: ignore[assignment]

    def _watching(self, cls: type, **arguments: Any) -> None:
        super(gymnasium.Env if issubclass(cls, gymnasium.Env) else VectorEnv, cls).__init_subclass__(**arguments)
        self._watch(cls)

    def _watch(self, cls: Any) -> None:
        if "step" in vars(cls):
            cls.step = self._watched(cls.step, self._step)
        if "reset" in vars(cls):
            cls.reset = self._watched(cls.reset, self._first_reset)

    def _watched(self, method: Method, instead: Callable[[Any, Method], Method]) -> Method:
        @functools.wraps(method)
        def watched(env: Any, *arguments: Any, **named: Any) -> Any:
            if self._is_inside or os.getpid() != self._process:
                return method(env, *arguments, **named)
            with self._inside():
                return instead(env, functools.partial(method, env))(*arguments, **named)

        return watched

    @contextmanager
    def _inside(self) -> Iterator[None]:
        self._is_inside = True
        try:
            yield
        finally:
            self._is_inside = False

    def _first_reset(self, env: Any, reset: Method) -> Method:
        if env in self._made:
            return reset
        self._made[env] = 0
        self._counts["environments"] += 1
        capture_environment(env)
        return env.reset  # a log may stand before it now  # type: ignore[no-any-return]

    def _step(self, env: Any, step: Method) -> Method:
        made = self._made.get(env, _DETOURS)
        if made < _DETOURS and (not made or self._chance.random() < 1 / 8):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # theirs, about steps that their test has not taken
                self._made[env] = made + (2 if self._detour(env) is Level.E1 else 1)
        return step

    def _detour(self, env: Any) -> Level:
        layers = {type(layer).__name__ for layer in _layers(env)}
        if layers & _UNSEEN:
            return Level.E3
        level, reason = level_of(capture_environment(env))
        if level is Level.E3:
            self._reset[reason] += 1
            return level
        for layer in _layers(env):
            _settle(layer.action_space)
            _settle(layer.observation_space)
        tree = copy.deepcopy(capture_environment(env))
        actions = _actions(env)
        expected = _walk(env, actions)
        restore_environment(env, tree, reset_seed=0)
        found = _walk(env, actions)
        restore_environment(env, tree, reset_seed=0)
        self._counts[level.value] += 1
        _must_be_same(env, found, expected, "itself")
        twin = _twin(env)
        if twin is not None:
            _walk(twin, _actions(twin))
            restore_environment(twin, tree, reset_seed=0)
            _must_be_same(env, _walk(twin, actions), expected, "a new one")
            self._counts["twin"] += 1
            twin.close()
        return level

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say how many detours there were: a client that makes none proves nothing."""
        by_level = ", ".join(f"{self._counts[level.value]} of {level.value}" for level in (Level.E0, Level.E1))
        environments, twins = self._counts["environments"], self._counts["twin"]
        terminalreporter.write_line(
            f"perdure: {environments} environments, detours: {by_level}; {twins} were taken by a new one as well"
        )
        for reason, times in self._reset.most_common():
            terminalreporter.write_line(f"perdure: {times} x not captured: {reason}")


def _with_subclasses(cls: type) -> Iterator[type]:
    yield cls
    for each in cls.__subclasses__():
        yield from _with_subclasses(each)


def _layers(env: Any) -> Iterator[Any]:
    yield env
    for each in (*getattr(env, "envs", ()), vars(env).get("env")):
        if is_environment(each):
            yield from _layers(each)


def _settle(space: Any) -> None:
    """Make the generators that a space would make of nothing at its first draw: those are different each time."""
    _ = space.np_random
    parts = getattr(space, "spaces", ())
    for part in parts.values() if isinstance(parts, dict) else parts:
        _settle(part)


def _actions(env: Any) -> list[Any]:
    space = copy.deepcopy(env.action_space)
    space.seed(1)
    return [space.sample() for _ in range(_STEPS)]


def _walk(env: Any, actions: list[Any]) -> list[Any]:
    """Everything that comes of some actions, an error included."""
    outcomes: list[Any] = []
    for action in actions:
        try:
            *outcome, info = env.step(copy.deepcopy(action))
        except Exception as error:  # noqa: BLE001 - a test may have an environment that fails
            return [*outcomes, type(error).__name__]
        outcomes.append([*map(plain, outcome), sorted(map(str, info))])
        is_ended = np.any(outcome[2]) or np.any(outcome[3])
        if is_ended and isinstance(env, VectorEnv):
            if env.metadata.get("autoreset_mode") == AutoresetMode.DISABLED:
                return outcomes
        elif is_ended:
            outcomes.append(plain(env.reset()[0]))
    return outcomes


def _twin(env: Any) -> Any:
    spec = getattr(env, "spec", None)
    if spec is None or env.render_mode is not None or not isinstance(env, gymnasium.Env):
        return None
    try:
        twin = gymnasium.make(spec)
    except Exception:  # noqa: BLE001 - a test may have a specification that makes nothing
        return None
    if subject_of(twin) != subject_of(env):
        return None
    twin.reset(seed=99)
    return twin


def _must_be_same(env: Any, found: list[Any], expected: list[Any], where: str) -> None:
    if not same(found, expected):
        pytest.fail(f"{env} restored into {where} continues otherwise:\n{found}\n{expected}")


def pytest_configure(config: Any) -> None:
    """Register the client, and begin."""
    config.pluginmanager.register(Client())
