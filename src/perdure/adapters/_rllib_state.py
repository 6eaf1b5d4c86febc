"""RLlib's algorithm, learners, environment runners and replay buffer as components."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.utils.schedules.scheduler import Scheduler

from perdure.adapters._rllib_plain import pack, unpack
from perdure.capture import environments
from perdure.capture.environments.snapshot import fill, take
from perdure.capture.numbers import GlobalGenerators
from perdure.capture.objects import does_not_fit
from perdure.core.manifest import Grade
from perdure.core.names import Section
from perdure.errors import DeadlineError

_MODULE = "rl_module"
_ANSWER_SECONDS = 120.0
"""A runner is idle when it is asked."""
_COUNTS = ("_iteration", "_time_total", "_timesteps_total", "_episodes_total")
_PROVEN = frozenset({"PPO"})
"""Algorithms of which a test has shown that a resume is exact."""


class AlgorithmState:
    """
    An algorithm's counts and metrics; schedules follow from its counts of steps.

    Args:
        algorithm: Borrowed, between two iterations; restored in place.
    """

    section = Section.STATE

    def __init__(self, algorithm: Any) -> None:
        self._algorithm = algorithm
        self.kind = f"rllib.{type(algorithm).__name__}"
        # Asynchronous algorithms even have samples in flight, which nobody can ask for.
        self.grade = Grade.EXACT if type(algorithm).__name__ in _PROVEN else Grade.STATISTICAL

    def capture(self) -> object:
        """Counts, and every statistic of the metrics logger."""
        algorithm = self._algorithm
        return {
            "counts": {name: getattr(algorithm, name, None) for name in _COUNTS},
            "counters": dict(algorithm._counters),  # noqa: SLF001 - none of it has a public name
            "metrics": pack(algorithm.metrics.get_state()),
        }

    def check(self, tree: object) -> None:
        """Nothing: settings belong to the program."""

    def restore(self, tree: object) -> str:
        """Set counts and metrics."""
        assert isinstance(tree, dict)
        for name, value in tree["counts"].items():
            setattr(self._algorithm, name, value)
        self._algorithm._counters.update(tree["counters"])  # noqa: SLF001
        self._algorithm.metrics.set_state(unpack(tree["metrics"]))
        return ""


class Learners:
    """
    All learners: nets, targets, optimizers, and coefficients that the framework's own state leaves out.

    Args:
        algorithm: Its learner group is borrowed; all learners hold the same.
    """

    kind = "rllib.learners"
    section = Section.MODEL
    grade = Grade.EXACT

    def __init__(self, algorithm: Any) -> None:
        self._group = algorithm.learner_group

    def capture(self) -> object:
        """The group's state; arrays are borrowed."""
        coefficients = _first(self._group.foreach_learner(_coefficients))
        return {"group": pack(self._group.get_state()), "coefficients": coefficients}

    def check(self, tree: object) -> None:
        """Refuse other modules, or parameters of other shapes."""
        assert isinstance(tree, dict)
        live, saved = _shapes(self._group.get_state()), _shapes(tree["group"])
        for parameter in sorted(live.keys() | saved.keys()):
            here, there = live.get(parameter), saved.get(parameter)
            if here != there:
                raise does_not_fit("the learner", f"{parameter} was {there} and is {here} here", here, there)

    def restore(self, tree: object) -> str:
        """Set the state of every learner."""
        assert isinstance(tree, dict)
        self._group.set_state(unpack(tree["group"]))
        self._group.foreach_learner(partial(_set_coefficients, saved=unpack(tree["coefficients"])))
        return ""


def _shapes(state: Any) -> dict[str, tuple[int, ...]]:
    modules = state["learner"][_MODULE]
    return {
        f"{module}.{name}": tuple(value.shape)
        for module, values in modules.items()
        for name, value in values.items()
        if hasattr(value, "shape")
    }


def _first(results: Any) -> Any:
    return next(iter(results)).get()


def _held(learner: Any) -> list[tuple[str, Any, Any]]:
    """Coefficients that change while training: their names, and the dictionaries and keys they stand under."""
    return [
        (f"{attribute}.{key}", owner, key)
        for attribute, owner in vars(learner).items()
        if isinstance(owner, dict) and (attribute.startswith("curr_") or attribute.endswith("_schedulers_per_module"))
        for key in list(owner)
    ]


def _coefficients(learner: Any, *_: Any) -> dict[str, Any]:
    found = {}
    for name, owner, key in _held(learner):
        value = owner[key]._curr_value if isinstance(owner[key], Scheduler) else owner[key]  # noqa: SLF001 - no public name
        if isinstance(value, torch.Tensor):
            found[name] = value.detach().cpu()
    return found


def _set_coefficients(learner: Any, *__: Any, saved: dict[str, Any]) -> None:
    # They are made when they are first asked for, and what is not there yet is asked for here.
    for name, value in saved.items():
        attribute, _, key = name.partition(".")
        found = getattr(learner, attribute)[key]
        (found._curr_value if isinstance(found, Scheduler) else found).data.copy_(value)  # noqa: SLF001


class Runners:
    """
    All environment runners of a group, local and remote: environments, running episodes, connectors, random streams.

    Args:
        name: Named in errors.
        group: Borrowed; idle.
        learners: What weights come from.
    """

    kind = "rllib.runners"
    section = Section.ENVIRONMENT

    def __init__(self, name: str, group: Any, learners: Any) -> None:
        self._name = name
        self._group = group
        self._learners = learners
        self.grade = Grade.STATISTICAL

    def _ask(self, functions: list[Callable[[Any], Any]]) -> list[Any]:
        """Have every runner called with a function of its own, the local one first."""
        local = self._group.local_env_runner
        answers = [] if local is None else [functions[0](local)]
        remote = functions[len(answers) :]
        if remote:
            answers += self._group.foreach_env_runner(remote, local_env_runner=False, timeout_seconds=_ANSWER_SECONDS)
        if len(answers) != len(functions):
            raise DeadlineError(
                f"cannot reach {self._name}: {len(functions) - len(answers)} of {len(functions)} did not answer",
                kind="rllib.runner-silent",
                hint="look at Ray's log of the runner; the same command continues from the newest checkpoint",
                waited_seconds=_ANSWER_SECONDS,
                holder=self._name,
            )
        return answers

    def _count(self) -> int:
        return int(self._group.num_remote_env_runners()) + (self._group.local_env_runner is not None)

    def capture(self) -> object:
        """What every runner holds, in the order of its number."""
        runners = self._ask([capture_runner] * self._count())
        reasons = sorted({reason for runner in runners for reason in runner["reasons"]})
        # What is captured of remote runners is all that is known of them, but only for local ones has it been proven.
        is_proven = not reasons and not self._group.num_remote_env_runners()
        self.grade = Grade.EXACT if is_proven else Grade.STATISTICAL
        return {"runners": runners, "reasons": reasons}

    def check(self, tree: object) -> None:
        """Refuse environments that do not fit."""
        assert isinstance(tree, dict)
        saved = tree["runners"]
        if len(saved) == self._count():
            for problem in self._ask([partial(check_runner, saved=one, name=self._name) for one in saved]):
                if problem is not None:
                    raise problem

    def restore(self, tree: object) -> str:
        """
        Bring every runner to its state.

        If there is another number of them, all get connectors and counts, and all begin new episodes.
        """
        assert isinstance(tree, dict)
        saved = tree["runners"]
        self._group.sync_weights(
            from_worker_or_learner_group=self._learners, inference_only=True, timeout_seconds=_ANSWER_SECONDS
        )
        if len(saved) != self._count():
            self._ask([partial(restore_connectors, saved=saved[0])] * self._count())
            return f"{len(saved)} runners were saved and there are {self._count()}: episodes begin anew"
        self._ask([partial(restore_runner, saved=one) for one in saved])
        return f"episodes begin anew: {'; '.join(tree['reasons'])}" if tree["reasons"] else ""


def capture_runner(runner: Any) -> dict[str, Any]:
    """Capture one runner, in its own process."""
    found: dict[str, Any] = {
        "own": pack(runner.get_state()),
        "streams": None if _is_driver(runner) else GlobalGenerators().capture(),
        "reasons": [],
    }
    if not isinstance(runner, SingleAgentEnvRunner):
        found["reasons"].append(f"the episodes of a {type(runner).__name__} are not captured")
        return found
    if runner.env is None:
        return found
    tree = take(runner.env)
    found["reasons"] += [reason] if (reason := environments.level_of(tree)[1]) else []
    return {
        **found,
        "environment": tree,
        "needs_reset": runner._needs_initial_reset,  # noqa: SLF001 - none of it has a public name
        "carried": pack(runner._cached_to_module),  # noqa: SLF001
        # What connectors on the way in left for those on the way out of the next step.
        "shared": pack(runner._shared_data),  # noqa: SLF001
        "episodes": [pack(episode) for episode in runner._ongoing_episodes],  # noqa: SLF001
        "for_metrics": {
            "done": [pack(episode) for episode in runner._done_episodes_for_metrics],  # noqa: SLF001
            "ongoing": {key: list(map(pack, chunks)) for key, chunks in runner._ongoing_episodes_for_metrics.items()},  # noqa: SLF001
        },
        "metrics": pack(runner.metrics.get_state()),
    }


def _is_driver(runner: Any) -> bool:
    """Whether a runner shares its process, and so its streams, with the run."""
    return not runner.worker_index


def check_runner(runner: Any, *, saved: dict[str, Any], name: str) -> Exception | None:
    """Compare one runner's environment, in its own process; gives the error, which would end the process if raised."""
    if saved.get("environment") is None or getattr(runner, "env", None) is None:
        return None
    try:
        environments.check(runner.env, saved["environment"], name)
    except Exception as error:  # noqa: BLE001 - it is not swallowed: the driver raises it
        return error
    return None


def restore_connectors(runner: Any, *, saved: dict[str, Any]) -> None:
    """Give a runner connectors and counts, and have it begin new episodes."""
    runner.set_state({key: value for key, value in unpack(saved["own"]).items() if key != _MODULE})
    runner._needs_initial_reset = True  # noqa: SLF001


def restore_runner(runner: Any, *, saved: dict[str, Any]) -> None:
    """Bring one runner to its state, in its own process."""
    own = unpack(saved["own"])
    runner._weights_seq_no = 0  # noqa: SLF001 - or it would take older weights for stale ones
    runner.set_state(own)
    if saved["streams"] is not None:
        GlobalGenerators().restore(saved["streams"])
    if saved.get("environment") is None or saved["reasons"]:
        runner._needs_initial_reset = True  # noqa: SLF001
        return
    fill(runner.env, saved["environment"])
    runner._needs_initial_reset = saved["needs_reset"]  # noqa: SLF001
    runner._cached_to_module = unpack(saved["carried"])  # noqa: SLF001
    runner._shared_data = unpack(saved["shared"])  # noqa: SLF001
    runner._ongoing_episodes = [unpack(episode) for episode in saved["episodes"]]  # noqa: SLF001
    runner._done_episodes_for_metrics = [unpack(episode) for episode in saved["for_metrics"]["done"]]  # noqa: SLF001
    ongoing = {key: [unpack(chunk) for chunk in chunks] for key, chunks in saved["for_metrics"]["ongoing"].items()}
    runner._ongoing_episodes_for_metrics = defaultdict(list, ongoing)  # noqa: SLF001
    runner.metrics.set_state(unpack(saved["metrics"]))


class Replay:
    """
    A local replay buffer: its episodes, priorities and generator, written whole at each save.

    Args:
        buffer: Borrowed; restored in place.
    """

    kind = "rllib.replay"
    section = Section.BUFFER
    grade = Grade.EXACT

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer

    def capture(self) -> object:
        """What the buffer's own state holds, and its generator, which that leaves out."""
        rng = getattr(self._buffer, "rng", None)
        generator = None if rng is None else rng.bit_generator.state
        return {"class": type(self._buffer).__name__, "own": pack(self._buffer.get_state()), "generator": generator}

    def check(self, tree: object) -> None:
        """Refuse a buffer of another class."""
        assert isinstance(tree, dict)
        here, there = type(self._buffer).__name__, tree["class"]
        if here != there:
            raise does_not_fit("the replay buffer", f"it was a {there} and is a {here} here", here, there)

    def restore(self, tree: object) -> str:
        """Set episodes, priorities and the generator."""
        assert isinstance(tree, dict)
        self._buffer.set_state(unpack(tree["own"]))
        if tree["generator"] is not None:
            self._buffer.rng.bit_generator.state = tree["generator"]
        return ""
