"""RLlib's environment runners as components: the local one and all remote ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

from perdure.adapters._rllib_plain import pack, unpack
from perdure.capture import environments
from perdure.capture.environments.snapshot import fill, take
from perdure.capture.numbers import GlobalGenerators
from perdure.core.component import Shortfall
from perdure.core.manifest import Grade
from perdure.core.names import Section
from perdure.errors import DeadlineError

_MODULE = "rl_module"
_ANSWER_SECONDS = 120.0
"""A runner is idle when it is asked."""


class Runners:
    """
    All environment runners of a group, local and remote: environments, running episodes, connectors, random streams.

    Args:
        name: Named in errors.
        group: Borrowed; idle.
        learners: What weights come from.
        doubt: Why they cannot be said to go on exactly; empty if that has been shown.
    """

    kind = "rllib.runners"
    section = Section.ENVIRONMENT

    def __init__(self, name: str, group: Any, learners: Any, doubt: str = "") -> None:
        self._name = name
        self._group = group
        self._learners = learners
        self._doubt = doubt
        self.grade = Grade.STATISTICAL

    def _ask(self, functions: Sequence[Callable[[Any], Any]], *, of_all: bool = True) -> list[Any]:
        """
        Have every runner called with a function of its own, the local one first.

        Args:
            functions: One for each runner.
            of_all: Whether a runner that has been lost is an error; its answer is None otherwise.
        """
        local = self._group.local_env_runner
        answers = [] if local is None else [functions[0](local)]
        remote = functions[len(answers) :]
        if remote:
            found = dict(
                self._group.foreach_env_runner(
                    [partial(_answer, function=function) for function in remote],
                    local_env_runner=False,
                    timeout_seconds=_ANSWER_SECONDS,
                )
            )
            numbers = range(1, len(remote) + 1)
            silent = [number for number in numbers if number not in found]
            # Ray has noticed that a lost runner is lost, and starts it anew if it was told to.
            if silent and (of_all or set(silent) & set(self._group.healthy_env_runner_ids())):
                raise DeadlineError(
                    f"cannot reach {self._name}: {len(silent)} of {len(functions)} did not answer",
                    kind="rllib.runner-silent",
                    hint="look at Ray's log of the runner; the same command continues from the newest checkpoint",
                    waited_seconds=_ANSWER_SECONDS,
                    holder=self._name,
                )
            answers += [found.get(number) for number in numbers]
        return answers

    def _count(self) -> int:
        return int(self._group.num_remote_env_runners()) + (self._group.local_env_runner is not None)

    def capture(self) -> object:
        """What every runner holds, in the order of its number; None for one that has been lost."""
        runners = self._ask([capture_runner] * self._count(), of_all=False)
        reasons = sorted({reason for runner in runners for reason in _reasons(runner)})
        unproven = sorted({found for runner in runners if runner and (found := runner.get("unproven", ""))})
        self.grade = Grade.STATISTICAL if reasons or unproven or self._doubt else Grade.EXACT
        return {"runners": runners, "reasons": reasons, "unproven": unproven}

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

        If there is another number of them, all get connectors and counts, and all begin new episodes; so does one that
        had been lost.
        """
        assert isinstance(tree, dict)
        saved = tree["runners"]
        self._group.sync_weights(
            from_worker_or_learner_group=self._learners, inference_only=True, timeout_seconds=_ANSWER_SECONDS
        )
        any_of_them = next((one for one in saved if one is not None), None)
        anew = partial(restore_connectors, saved=any_of_them)
        if len(saved) != self._count():
            self._ask([anew] * self._count())
            return Shortfall(f"{len(saved)} runners were saved and there are {self._count()}: episodes begin anew")
        self._ask([anew if one is None else partial(restore_runner, saved=one) for one in saved])
        if tree["reasons"]:
            return f"episodes begin anew: {'; '.join(tree['reasons'])}"
        return "; ".join([*tree.get("unproven", ()), *filter(None, [self._doubt])])


def _answer(runner: Any, *, function: Callable[[Any], Any]) -> tuple[int, Any]:
    return runner.worker_index, function(runner)


def _reasons(runner: dict[str, Any] | None) -> list[str]:
    return ["a runner had been lost"] if runner is None else list(runner["reasons"])


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
        "unproven": environments.unproven_of(tree),
        "needs_reset": runner._needs_initial_reset,  # noqa: SLF001 - none of it has a public name
        # Of every first reset, and that is one in each evaluation.
        "seed": runner._seed,  # noqa: SLF001
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


def check_runner(runner: Any, *, saved: dict[str, Any] | None, name: str) -> Exception | None:
    """Compare one runner's environment, in its own process; gives the error, which would end the process if raised."""
    if saved is None or saved.get("environment") is None or getattr(runner, "env", None) is None:
        return None
    try:
        environments.check(runner.env, saved["environment"], name)
    except Exception as error:  # noqa: BLE001 - it is not swallowed: the driver raises it
        return error
    return None


def restore_connectors(runner: Any, *, saved: dict[str, Any] | None) -> None:
    """Give a runner the connectors and counts of another one, and have it begin new episodes."""
    if saved is not None:  # or all had been lost
        runner.set_state({key: value for key, value in unpack(saved["own"]).items() if key != _MODULE})
    _begin_anew(runner)


def restore_runner(runner: Any, *, saved: dict[str, Any]) -> None:
    """Bring one runner to its state, in its own process."""
    own = unpack(saved["own"])
    runner._weights_seq_no = 0  # noqa: SLF001 - or it would take older weights for stale ones
    runner.set_state(own)
    if saved["streams"] is not None:
        GlobalGenerators().restore(saved["streams"])
    if saved.get("environment") is None:
        _begin_anew(runner)
        return
    fill(runner.env, saved["environment"])
    runner._seed = saved["seed"]  # noqa: SLF001
    runner._needs_initial_reset = saved["needs_reset"]  # noqa: SLF001
    runner._cached_to_module = unpack(saved["carried"])  # noqa: SLF001
    runner._shared_data = unpack(saved["shared"])  # noqa: SLF001
    runner._ongoing_episodes = [unpack(episode) for episode in saved["episodes"]]  # noqa: SLF001
    runner._done_episodes_for_metrics = [unpack(episode) for episode in saved["for_metrics"]["done"]]  # noqa: SLF001
    ongoing = {key: [unpack(chunk) for chunk in chunks] for key, chunks in saved["for_metrics"]["ongoing"].items()}
    runner._ongoing_episodes_for_metrics = defaultdict(list, ongoing)  # noqa: SLF001
    runner.metrics.set_state(unpack(saved["metrics"]))
    if saved["reasons"] and not saved["needs_reset"]:
        _begin_anew(runner)


def _begin_anew(runner: Any) -> None:
    """Have a runner begin new episodes, and not those that its seed began the run with."""
    runner._needs_initial_reset = True  # noqa: SLF001
    if runner._seed is not None:  # noqa: SLF001
        steps = runner.num_env_steps_sampled_lifetime
        runner._seed = environments.derive_reset_seed(str(runner._seed), str(runner.worker_index), steps)  # noqa: SLF001
