"""
Stable-Baselines3's vector environments: their wrappers, their sub-environments, and those in worker processes.

Importing this makes SB3's classes known to `perdure.capture.environments`, here and in every worker that is asked for
its state.
"""

from __future__ import annotations

import inspect
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.monitor import Monitor, ResultsWriter
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecCheckNan,
    VecEnv,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
    VecVideoRecorder,
)
from stable_baselines3.common.vec_env.stacked_observations import StackedObservations

from perdure.adapters._sb3_logs import read_file, rewrite_file
from perdure.capture.environments import describe, level_of, unproven_of
from perdure.capture.environments.plain import Tree
from perdure.capture.environments.snapshot import check, fill, take
from perdure.capture.environments.traits import know
from perdure.core.manifest import Grade
from perdure.core.names import Section
from perdure.errors import DeadlineError, InternalError, PerdureError

_ENTRY = "_perdure_serve"
_ANSWER_SECONDS = 60.0
"""A worker is idle when it is asked, so answers take milliseconds."""

# The buffers for observations, rewards and infos of a step are written before they are read, so they are no state.
_STATE_OF: dict[type, tuple[str, ...]] = {
    DummyVecEnv: ("envs", "_seeds", "_options"),
    SubprocVecEnv: ("_seeds", "_options"),
    VecNormalize: ("venv", "obs_rms", "ret_rms", "returns", "old_obs", "old_reward"),
    VecFrameStack: ("venv", "stacked_obs"),
    VecMonitor: ("venv", "episode_returns", "episode_lengths", "episode_count", "t_start", "results_writer"),
    VecTransposeImage: ("venv",),
    VecExtractDictObs: ("venv",),
    VecCheckNan: ("venv",),
    VecVideoRecorder: ("venv", "step_id"),
    StackedObservations: ("stacked_obs", "sub_stacked_observations"),
    RunningMeanStd: ("mean", "var", "count"),
}
_MONITOR_LISTS = {"rewards": float, "episode_returns": float, "episode_lengths": int, "episode_times": float}
_MONITOR_VALUES = ("needs_reset", "total_steps", "current_reset_info", "t_start")


def _log_of(writer: ResultsWriter) -> Tree:
    return read_file(writer.file_handler)


def _set_log(writer: ResultsWriter, content: Tree) -> None:
    rewrite_file(writer.file_handler, content)


def _monitor_state(monitor: Any) -> Tree:
    # As arrays: a long run has a million episodes.
    lists: dict[str, Any] = {name: np.array(getattr(monitor, name), kind) for name, kind in _MONITOR_LISTS.items()}
    values = {name: getattr(monitor, name) for name in _MONITOR_VALUES}
    return {**lists, **values, "log": None if monitor.results_writer is None else _log_of(monitor.results_writer)}


def _set_monitor_state(monitor: Any, state: Tree) -> None:
    for name in _MONITOR_LISTS:
        setattr(monitor, name, state[name].tolist())
    for name in _MONITOR_VALUES:
        setattr(monitor, name, state[name])
    # Logging may be turned on or off between two starts.
    if monitor.results_writer is not None and state["log"] is not None:
        _set_log(monitor.results_writer, state["log"])


for _class, _names in _STATE_OF.items():
    know(_class, _names)
know(ResultsWriter, get_state=_log_of, set_state=_set_log)
know(Monitor, get_state=_monitor_state, set_state=_set_monitor_state)


def _know_loaded_wrappers() -> None:
    """Make known what sb3-contrib adds, if the program uses it: a function that masks actions is no state."""
    module = sys.modules.get("sb3_contrib.common.wrappers.action_masker")
    if module is not None:
        know(module.ActionMasker, ())


class VectorEnvironment:
    """
    A stack of SB3's vector environments as a component.

    Args:
        name: Named in errors.
        env: Borrowed; restored in place.
        begin_anew: Resets the environment if a part of it cannot be captured; None leaves such a part as it is.
    """

    section = Section.ENVIRONMENT
    kind = "sb3.environment"

    def __init__(
        self,
        name: str,
        env: VecEnv,
        begin_anew: Callable[[], None] | None = None,
    ) -> None:
        _know_loaded_wrappers()
        self._name = name
        self._env = env
        self._begin_anew = begin_anew
        self._workers = Workers(env.unwrapped, name) if isinstance(env.unwrapped, SubprocVecEnv) else None
        self.grade = Grade.EXACT
        self.detail: dict[str, Any] = {}
        # Environments that are captured by what they have done are watched from the first look on.
        self.capture()

    def capture(self) -> object:
        """The states of all wrappers and sub-environments; arrays are borrowed."""
        stack = take(self._env)
        workers = [] if self._workers is None else self._workers.capture()
        reason = next((reason for _, reason in map(level_of, [stack, *workers]) if reason), "")
        unproven = next(filter(None, map(unproven_of, [stack, *workers])), "")
        self.grade = Grade.STATISTICAL if reason or unproven else Grade.EXACT
        self.detail = {**describe(self._env, stack), "unproven": unproven}
        return {"stack": stack, "workers": workers, "reason": reason, "unproven": unproven}

    def check(self, tree: object) -> None:
        """Refuse other classes, wrappers, spaces or arguments, wherever the sub-environments live."""
        assert isinstance(tree, dict)
        check(self._env, tree["stack"], self._name)
        if self._workers is not None:
            self._workers.check(tree["workers"])

    def restore(self, tree: object) -> str:
        """Bring everything to the state; what cannot be captured begins anew."""
        assert isinstance(tree, dict)
        fill(self._env, tree["stack"])
        if self._workers is not None:
            self._workers.restore(tree["workers"])
        if not tree["reason"]:
            return str(tree.get("unproven", ""))
        if self._begin_anew is None:
            return f"{self._name} is not captured: {tree['reason']}"
        self._begin_anew()
        return f"was reset, its episodes are cut: {tree['reason']}"


class Workers:
    """
    The sub-environments of a `SubprocVecEnv`, captured and restored inside their workers.

    SB3's own messages carry the requests: a function is set as an attribute of the outermost wrapper and called, and
    finds the environment in the frame of the worker's loop. Workers are told to leave Ctrl-C to the parent: a run that
    stops at the next boundary needs them until then.

    Args:
        env: Between two steps.
        component: Name that errors give.
        clock: Measures waits; seconds, monotonic.
        answer_seconds: How long a worker may take to answer.
    """

    def __init__(
        self,
        env: SubprocVecEnv,
        component: str,
        clock: Callable[[], float] = time.monotonic,
        answer_seconds: float = _ANSWER_SECONDS,
    ) -> None:
        self._env = env
        self._component = component
        self._clock = clock
        self._answer_seconds = answer_seconds
        self._ask([("shield", None)] * env.num_envs)

    def capture(self) -> list[Tree]:
        """
        Capture every sub-environment.

        Raises:
            DeadlineError: A worker is dead or silent.
        """
        return self._ask([("capture", None)] * self._env.num_envs)

    def check(self, trees: Sequence[Tree]) -> None:
        """Compare every sub-environment with what was captured of it."""
        self._ask([("check", (tree, f"{self._component}[{index}]")) for index, tree in enumerate(trees)])

    def restore(self, trees: Sequence[Tree]) -> None:
        """Bring every sub-environment to its state."""
        self._ask([("restore", tree) for tree in trees])

    def _ask(self, requests: Sequence[tuple[str, Any]]) -> list[Any]:
        deadline = self._clock() + self._answer_seconds
        pipes = self._env.remotes
        for index, (pipe, request) in enumerate(zip(pipes, requests, strict=False)):
            self._talk(index, pipe.send, ("set_attr", (_ENTRY, serve)))
            self._talk(index, pipe.send, ("env_method", (_ENTRY, request, {})))
        answers = []
        for index, (pipe, _) in enumerate(zip(pipes, requests, strict=False)):
            self._receive(index, pipe, deadline)
            answers.append(self._receive(index, pipe, deadline))
        for answer in answers:
            if isinstance(answer, PerdureError):
                raise answer
        return answers

    def _receive(self, index: int, pipe: Any, deadline: float) -> Any:
        if not self._talk(index, pipe.poll, max(0.0, deadline - self._clock())):
            raise DeadlineError(
                f"cannot reach the sub-environments: worker {index} did not answer in {self._answer_seconds:g} s",
                kind="environment.worker-silent",
                hint="close the vector environment and build it again",
                waited_seconds=self._answer_seconds,
                holder=f"worker {index}",
            )
        return self._talk(index, pipe.recv)

    def _talk(self, index: int, action: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return action(*arguments)
        except (EOFError, OSError) as error:
            raise DeadlineError(
                f"cannot reach the sub-environments: worker {index} is dead",
                kind="environment.worker-dead",
                hint="close the vector environment and build it again",
                holder=f"worker {index}",
            ) from error


def serve(kind: str, value: Any) -> Any:
    """
    Answer one request inside a worker process; called by the worker's loop, in whose frame the environment is.

    Returns:
        The answer, or the error that the parent is to raise: raised here it would end the worker.
    """
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    try:
        env = frame.f_back.f_locals["env"]
        del vars(env)[_ENTRY]
        _know_loaded_wrappers()
        return _ANSWERS[kind](env, value)
    except PerdureError as error:
        return error
    except Exception as error:  # noqa: BLE001 - it is not swallowed: the parent raises it
        return InternalError(
            f"cannot {kind} a sub-environment: {type(error).__name__}: {error}", kind="environment.worker-error"
        )


def _shield(_: Any, __: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _check(env: Any, value: tuple[Tree, str]) -> None:
    check(env, *value)


def _restore(env: Any, tree: Tree) -> None:
    fill(env, tree)


_ANSWERS: Mapping[str, Callable[[Any, Any], Any]] = {
    "shield": _shield,
    "capture": lambda env, _: take(env),
    "check": _check,
    "restore": _restore,
}
