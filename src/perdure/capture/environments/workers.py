"""
Sub-environments that live in the worker processes of an ``AsyncVectorEnv``.

Each is captured and restored inside its worker, by a function of this module that is called through the worker's own
message protocol. Two things live in the worker's loop and not in the environment: whether an autoreset is pending, and
(without shared memory) the last observation. They are read from the loop's frame, and set by letting the loop itself
make a step: for that step the environment's methods are covered by ones that return what is wanted.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from perdure.capture.environments.plain import Tree
from perdure.capture.environments.snapshot import Level, check, fill, take
from perdure.capture.environments.traits import Outside
from perdure.errors import DeadlineError, InternalError, InvalidInputError, PerdureError

__all__ = ["Workers", "serve"]

_ENTRY = "_perdure_serve"
_COVERED = "_perdure_covered"
_UNREAD = "has answers that nobody has read"
_UNKNOWN_LOOP = "runs its workers in a loop that is not known"
_LOOP_VARIABLES = frozenset({"env", "autoreset", "observation", "shared_memory"})

Request = tuple[str, Any]


class Workers:
    """
    The extension that reaches the sub-environments of an ``AsyncVectorEnv``.

    Args:
        clock: Measures waits; seconds, monotonic.
        answer_seconds: How long a worker may take to answer. It is idle when asked, so answers take milliseconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, answer_seconds: float = 60.0) -> None:
        self._clock = clock
        self._answer_seconds = answer_seconds

    def capture(self, owner: Any) -> Outside:
        """
        Capture every sub-environment in its worker.

        Raises:
            DeadlineError: A worker is dead or does not answer.
            InternalError: A worker failed.
        """
        doubt = _own_worker(owner) or _not_idle(owner)
        if doubt:
            return Outside(None, [f"AsyncVectorEnv {doubt}"])
        states = self._ask(owner, [("capture", None)] * owner.num_envs)
        if None in states:
            return Outside(None, [f"AsyncVectorEnv {_UNKNOWN_LOOP}"])
        if not all(isinstance(state, dict) for state in states):  # they were on their way when the pipes were looked at
            return Outside(None, [f"AsyncVectorEnv {_UNREAD}"])
        observations = take(owner.observations)
        reasons = [(f"sub-environment {index}", state["reason"]) for index, state in enumerate(states)]
        reasons.append(("observations", observations["reason"]))
        doubts = [f"{what}: {reason}" for what, reason in reasons if reason]
        replays = any(state["environment"]["level"] == Level.E1.value for state in states)
        unproven = [found for state in states if (found := state["environment"]["unproven"])]
        return Outside({"observations": observations, "workers": states}, doubts, replays, unproven)

    def check(self, owner: Any, state: Tree, component: str) -> None:
        """Compare every sub-environment, in its worker, with what was captured of it."""
        doubt = _not_idle(owner)
        if state is not None and not doubt:
            doubt = _own_worker(owner)
        if state is not None and not doubt:
            trees = [worker["environment"] for worker in state["workers"]]
            fits = self._ask(owner, [("check", (tree, f"{component}[{i}]")) for i, tree in enumerate(trees)])
            doubt = "" if all(fits) else _UNKNOWN_LOOP
        if doubt:
            raise InvalidInputError(
                f"cannot restore {component}: AsyncVectorEnv {doubt}",
                kind="environment.unreachable",
                hint="restore into a freshly built environment, between its steps",
                field=component,
            )

    def restore(self, owner: Any, state: Tree) -> None:
        """Restore every sub-environment in its worker, then the last observations here."""
        if state is None:
            return
        workers = state["workers"]
        # The first step clears a pending autoreset, whatever was the case; the second makes one pending where it was.
        for flags in ([False] * len(workers), [worker["autoreset"] for worker in workers]):
            shown = [(flag, worker["observation"]) for flag, worker in zip(flags, workers, strict=True)]
            self._ask(owner, [("cover", value) for value in shown])
            self._exchange(owner, [[("step", None)]] * len(workers))
        self._ask(owner, [("restore", worker["environment"]) for worker in workers])
        observations = fill(None, state["observations"])
        if owner.shared_memory:
            _copy_into(owner.observations, observations)
        else:
            owner.observations = observations

    def _ask(self, owner: Any, requests: Sequence[Request]) -> list[Any]:
        install: Request = ("_call", ("set_wrapper_attr", (_ENTRY, serve), {}))
        replies = self._exchange(owner, [[install, ("_call", (_ENTRY, request, {}))] for request in requests])
        answers = [answer for _, answer in replies]
        for answer in answers:
            if isinstance(answer, PerdureError):
                raise answer
        return answers

    def _exchange(self, owner: Any, batches: Sequence[Sequence[Request]]) -> list[list[Any]]:
        deadline = self._clock() + self._answer_seconds
        idle = vars(owner)["_state"]
        # If this fails half-way, a later step must be refused and not take one of these replies for its own.
        vars(owner)["_state"] = type(idle).WAITING_CALL
        replies: list[list[Any]] = []
        for index, (pipe, batch) in enumerate(zip(owner.parent_pipes, batches, strict=True)):
            for message in batch:
                _talk(index, pipe.send, message)
        for index, (pipe, batch) in enumerate(zip(owner.parent_pipes, batches, strict=True)):
            replies.append([self._receive(pipe, index, deadline) for _ in batch])
        vars(owner)["_state"] = idle
        return replies

    def _receive(self, pipe: Any, index: int, deadline: float) -> Any:
        if not _talk(index, pipe.poll, max(0.0, deadline - self._clock())):
            raise DeadlineError(
                f"cannot reach the sub-environments: worker {index} did not answer in {self._answer_seconds:g} s",
                kind="environment.worker-silent",
                hint="close the vector environment and build it again",
                waited_seconds=self._answer_seconds,
                holder=f"worker {index}",
            )
        answer, succeeded = _talk(index, pipe.recv)
        if not succeeded:
            raise InternalError(
                f"cannot reach the sub-environments: worker {index} failed and has ended",
                kind="environment.worker-failed",
                hint="its traceback is in the vector environment's error_queue",
            )
        return answer


def _talk(index: int, action: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return action(*arguments)
    except (EOFError, OSError) as error:
        raise DeadlineError(
            f"cannot reach the sub-environments: worker {index} is dead",
            kind="environment.worker-dead",
            hint="close the vector environment and build it again",
            holder=f"worker {index}",
        ) from error


def _own_worker(owner: Any) -> str:
    return "" if owner.worker is None else "runs a worker function of its own, whose loop is not known"


def _not_idle(owner: Any) -> str:
    if owner.closed:
        return "is closed"
    if None in owner.parent_pipes:
        return "has lost a worker"
    state = vars(owner)["_state"]
    if state.value != "default":
        return f"waits for a pending {state.value}"
    # A step that failed half-way, for want of an action, leaves answers behind that would be taken for ours.
    # The pipe of a dead worker has its end to be read; that is found out, and told, when the worker is asked.
    waiting = (
        pipe.poll() and process.is_alive() for pipe, process in zip(owner.parent_pipes, owner.processes, strict=False)
    )
    return _UNREAD if any(waiting) else ""


def _copy_into(target: Any, source: Any) -> None:
    if isinstance(target, np.ndarray):
        np.copyto(target, source)
    elif isinstance(target, Mapping):
        for key, part in target.items():
            _copy_into(part, source[key])
    elif isinstance(target, tuple):
        for part, value in zip(target, source, strict=True):
            _copy_into(part, value)


def serve(kind: str, value: Any) -> Any:
    """
    Answer one request inside a worker process; called by the worker's loop, in whose frame the environment is.

    Returns:
        The answer; None if the loop is not the one that is known; or the error that the parent is to raise, since it
        would end the worker if it were raised here.
    """
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    loop = frame.f_back.f_locals
    if not loop.keys() >= _LOOP_VARIABLES:
        return None
    try:
        env = loop["env"]
        _remove_entry(env)
        return _ANSWERS[kind](env, loop, value)
    except PerdureError as error:
        return error
    except Exception as error:  # noqa: BLE001 - it is not swallowed: the parent raises it
        return InternalError(
            f"cannot {kind} a sub-environment: {type(error).__name__}: {error}", kind="environment.worker-error"
        )


def _remove_entry(env: Any) -> None:
    layer = env
    while _ENTRY not in vars(layer):
        layer = layer.env
    del vars(layer)[_ENTRY]


def _capture(env: Any, loop: Mapping[str, Any], _: Any) -> Tree:
    environment, observation = take(env), take(loop["observation"])
    return {
        "environment": environment,
        "autoreset": bool(loop["autoreset"]),
        "observation": observation,
        "reason": environment["reason"] or observation["reason"],
    }


def _check(env: Any, _: Mapping[str, Any], value: tuple[Tree, str]) -> bool:
    tree, component = value
    check(env, tree, component)
    return True


def _cover(env: Any, loop: Mapping[str, Any], value: tuple[bool, Tree]) -> None:
    from gymnasium.wrappers.utils import create_zero_array

    terminated, tree = value
    # In shared memory any observation of the right form will do: the parent writes the true ones afterwards.
    shown = create_zero_array(env.observation_space) if loop["shared_memory"] else fill(None, tree)
    methods = vars(env)
    methods.setdefault(_COVERED, {name: methods[name] for name in ("step", "reset") if name in methods})
    methods["step"] = lambda _action: (shown, 0.0, terminated, False, {})
    methods["reset"] = lambda **_arguments: (shown, {})


def _restore(env: Any, _: Mapping[str, Any], tree: Tree) -> None:
    methods = vars(env)
    del methods["step"], methods["reset"]
    methods.update(methods.pop(_COVERED))
    fill(env, tree)


_ANSWERS: dict[str, Callable[[Any, Mapping[str, Any], Any], Any]] = {
    "capture": _capture,
    "check": _check,
    "cover": _cover,
    "restore": _restore,
}
