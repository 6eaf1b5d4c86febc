"""
The probe: whether an environment continues exactly is found out by trying, and not by whether it can be pickled.

One process lives an environment and captures it at several moments; another one, which has never seen it, gives an
environment of its own another history, restores each capture, and takes the same actions. What a class keeps in its
module, or a library behind it, is not in the second process, so a capture that lacks it is found out.
"""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from perdure.capture.environments.certificates import CERTIFICATES, Certificate, Subject, subject_of
from perdure.capture.environments.drivers import Driver, driver_of
from perdure.capture.environments.replaying import same
from perdure.errors import DeadlineError, InvalidInputError, PerdureError

__all__ = ["DEFAULT_STEPS", "Maker", "probe"]

DEFAULT_STEPS = 200
DEADLINE_SECONDS = 600.0
_SEED = 5
_OTHER_SEED = 99
_CONTINUED_STEPS = 60
"""Steps compared after each restore."""
_OTHER_STEPS = 23
"""Steps that the second environment lives before each restore, so that it has another history."""


@dataclass(frozen=True, slots=True)
class Maker:
    """
    How to make an environment in any process.

    Attributes:
        name: An id of Gymnasium (``CartPole-v1``, ``package:Env-v0``), or ``module:function`` for one that returns a
            an environment with all its wrappers, single or vector.
        arguments: Passed to either.
    """

    name: str
    arguments: Mapping[str, Any]

    def __call__(self) -> Any:
        """
        Make one.

        Raises:
            InvalidInputError: There is no such environment, or it cannot be made with these arguments.
        """
        import gymnasium

        module, _, function = self.name.rpartition(":")
        try:
            _register_known(self.name)
            made = getattr(importlib.import_module(module), function, None) if module else None
            return made(**self.arguments) if callable(made) else gymnasium.make(self.name, **self.arguments)
        except Exception as error:  # whatever a constructor raises, it is the environment that cannot be made
            raise InvalidInputError(
                f"cannot make environment {self.name}: {type(error).__name__}: {error}",
                kind="environment.unmakeable",
                hint="give an id that gymnasium.make knows, or module:function",
                field="env",
            ) from error


def _register_known(name: str) -> None:
    if name.startswith("ALE/") or "NoFrameskip" in name:
        import ale_py
        import gymnasium

        gymnasium.register_envs(ale_py)


@dataclass(frozen=True, slots=True)
class _Moment:
    """A capture, and what came after it."""

    name: str
    tree: Any
    is_ended: bool
    actions: list[Any]
    outcomes: list[Any]


@dataclass(frozen=True, slots=True)
class _Record:
    subject: Subject
    level: str
    reason: str
    is_repeatable: bool
    moments: list[_Moment]


def probe(
    maker: Callable[[], Any], *, steps: int = DEFAULT_STEPS, deadline_seconds: float = DEADLINE_SECONDS
) -> Certificate:
    """
    Try how exactly an environment can be captured.

    Args:
        maker: Makes one; called in other processes, each of which gets it by its pickle.
        steps: To live before the last capture.
        deadline_seconds: For each of the two processes.

    Returns:
        ``E0`` or ``E1`` if every restore continued bit for bit, by its state or by living the episode again; ``E2`` if
        only the first outcome after a restore differed; ``E3`` if there is no capture, but a reset with a seed begins
        the same episode each time; ``E4`` if a capture claimed to be exact and was not, or nothing is repeatable.

    Raises:
        InvalidInputError: The environment cannot be made, or fails by itself.
        DeadlineError: It took too long.
    """
    record: _Record = _elsewhere(_record, deadline_seconds, maker, steps)
    if record.level == "E3":
        level = "E3" if record.is_repeatable else "E4"
        doubt = "" if record.is_repeatable else "; and a reset with a seed does not begin the same episode again"
        return Certificate(record.subject, level, record.reason + doubt, 0)
    verdicts: list[tuple[str, int, int, str]] = _elsewhere(_continue, deadline_seconds, maker, record.moments)
    compared = sum(count for _, count, _, _ in verdicts)
    broken = [(name, first, what) for name, _, first, what in verdicts if first >= 0]
    if not broken:
        return Certificate(record.subject, record.level, record.reason, compared)
    name, first, what = max(broken, key=lambda each: each[1])
    where = "in its first step" if first == 0 else f"from step {first + 1} on"
    reason = f"restored {name}, it continues otherwise {where}: {what}"
    return Certificate(record.subject, "E2" if first == 0 else "E4", reason, compared)


def _elsewhere(call: Callable[..., Any], deadline_seconds: float, *arguments: Any) -> Any:
    """Call a function in a new process that has imported nothing."""
    pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    try:
        return pool.submit(call, *arguments).result(deadline_seconds)
    except PerdureError:
        raise
    except TimeoutError as error:
        for process in list(pool._processes.values()):  # noqa: SLF001 - the only way to end what never answers
            process.kill()
        raise DeadlineError(
            f"cannot probe the environment: it took longer than {deadline_seconds:g} s",
            kind="environment.probe-deadline",
            hint="probe fewer steps",
            waited_seconds=deadline_seconds,
            holder="the environment",
        ) from error
    except Exception as error:  # whatever an environment raises, or its process dies of, it is what has failed
        raise InvalidInputError(
            f"cannot probe the environment: it fails with {type(error).__name__}: {error}",
            kind="environment.fails",
            hint="make it take random actions of its action space, then probe again",
            field="env",
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _record(maker: Callable[[], Any], steps: int) -> _Record:
    from perdure.capture.environments import capture_environment

    CERTIFICATES.are_consulted = False
    env = maker()
    capture_environment(env)
    driver = driver_of(env, _SEED)
    is_repeatable = _repeats(maker, driver)
    driver.reset(_SEED)
    taken = {"after a reset": (0, _copied(capture_environment(env)), False)}
    actions, outcomes, is_ended = [], [], False
    for number in range(1, steps + _CONTINUED_STEPS + 1):
        actions.append(driver.choose())
        outcome, is_ended = driver.step(actions[-1], after_end=is_ended)
        outcomes.append(outcome)
        moment = _moment(number, steps, is_ended=is_ended, known=taken)
        if moment:
            taken[moment] = (number, _copied(capture_environment(env)), is_ended)
    level, reason = _worst([tree for _, tree, _ in taken.values()])
    moments = [
        _Moment(name, tree, ended, actions[at : at + _CONTINUED_STEPS], outcomes[at : at + _CONTINUED_STEPS])
        for name, (at, tree, ended) in taken.items()
    ]
    subject = subject_of(env)
    env.close()
    return _Record(subject, level, reason, is_repeatable, moments)


def _moment(number: int, steps: int, *, is_ended: bool, known: Mapping[str, Any]) -> str:
    if is_ended and "at an episode's end" not in known:
        return "at an episode's end"
    return {7: "in mid-episode", steps // 2: "half-way", steps: "late"}.get(number, "")


def _repeats(maker: Callable[[], Any], driver: Driver) -> bool:
    env = maker()
    twin = driver_of(env, _SEED)
    is_same = same(twin.reset(_SEED), driver.reset(_SEED))
    is_ended = [False, False]
    for _ in range(_CONTINUED_STEPS):
        action = driver.choose()
        ours, is_ended[0] = driver.step(action, after_end=is_ended[0])
        theirs, is_ended[1] = twin.step(action, after_end=is_ended[1])
        is_same = is_same and same(ours, theirs)
        if is_ended[0] != is_ended[1]:
            break
    env.close()
    return is_same


def _continue(maker: Callable[[], Any], moments: Sequence[_Moment]) -> list[tuple[str, int, int, str]]:
    """For each moment: its name, the steps compared, the last step that differed (-1: none), and in what."""
    from perdure.capture.environments import restore_environment

    CERTIFICATES.are_consulted = False
    env = maker()
    driver = driver_of(env, _OTHER_SEED)
    found = []
    for moment in moments:
        driver.reset(_OTHER_SEED)
        is_ended = False
        for _ in range(_OTHER_STEPS):
            _, is_ended = driver.step(driver.choose(), after_end=is_ended)
        try:
            restore_environment(env, moment.tree, reset_seed=0)
        except PerdureError as error:
            found.append((moment.name, 0, len(moment.actions), error.message))
            continue
        is_ended, last, what = moment.is_ended, -1, ""
        for number, (action, expected) in enumerate(zip(moment.actions, moment.outcomes, strict=True)):
            outcome, is_ended = driver.step(action, after_end=is_ended)
            differing = [name for name in {**expected, **outcome} if not same(outcome.get(name), expected.get(name))]
            if differing:
                last, what = number, ", ".join(differing)
        found.append((moment.name, len(moment.actions), last, what))
    env.close()
    return found


def _copied(tree: Any) -> Any:
    """Arrays of a capture are borrowed until the next step."""
    if isinstance(tree, dict):
        return {key: _copied(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_copied(value) for value in tree)
    return tree.copy() if isinstance(tree, np.ndarray) else tree


def _worst(trees: Sequence[Any]) -> tuple[str, str]:
    found = [(str(tree["level"]), str(tree["reason"])) for tree in trees]
    return max(found, key=lambda each: each[0])
