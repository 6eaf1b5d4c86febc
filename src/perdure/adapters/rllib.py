"""
RLlib's new API stack: one callbacks class makes an algorithm resumable.

Between two iterations of ``Algorithm.train`` nothing is under way in a synchronous algorithm: learners have updated,
runners wait. What RLlib saves of that by itself is taken from there; running episodes, environments, random streams of
every process and the replay buffer are taken beside it.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any, ClassVar

from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME

from perdure.adapters._rllib_replay import Replay
from perdure.adapters._rllib_runners import Runners
from perdure.adapters._rllib_state import AlgorithmState, Learners
from perdure.errors import InvalidInputError
from perdure.opening import open as open_run
from perdure.run import Run

STEP_COUNTER = "global_step"
_BESIDE = "an evaluation beside the training begins with the weights of that moment, which a clock decides"
_FREE = "RLlib gives remote evaluation runners counts and statistics only if they happen to be free"


class Checkpointing(RLlibCallback):  # type: ignore[misc] # types of Ray are not looked at
    """
    Saves an algorithm into a run and continues it; made by `checkpointing`.

    Restores when the algorithm has been built, on the learners and on *all* runners; saves between two iterations;
    saves the end in ``Algorithm.stop``, unless an error has left an iteration half done.
    """

    options: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.run: Run | None = None
        """The run, in the process of the algorithm; None in those of runners."""
        self._is_at_rest = True

    def on_algorithm_init(self, *, algorithm: Any, **_: Any) -> None:
        """Open the run, restore the algorithm, and see to it that its end is saved."""
        if not algorithm.config.enable_env_runner_and_connector_v2:
            raise InvalidInputError(
                "cannot save an algorithm of RLlib's old API stack",
                kind="rllib.old-stack",
                hint="leave api_stack(...) out of the configuration: the new stack is the default",
                field="api_stack",
            )
        with ExitStack() as undone:
            self.run = run = open_run(**_options_for(algorithm, type(self).options))
            undone.callback(run.close)
            _track(run, algorithm)
            run.boundary(moved=False)
            undone.pop_all()
        self._watch(algorithm)

    def _watch(self, algorithm: Any) -> None:
        """Notice when an iteration begins, and when the algorithm is stopped."""
        step, clean_up = algorithm.training_step, algorithm.cleanup

        def begin() -> Any:
            self._is_at_rest = False
            return step()

        def end() -> None:
            # Once: what comes after it is the algorithm's own.
            algorithm.cleanup = clean_up
            assert self.run is not None
            try:
                if self._is_at_rest:
                    self.run.finish()
            finally:
                self.run.close()
                clean_up()

        algorithm.training_step, algorithm.cleanup = begin, end

    def on_train_result(self, *, algorithm: Any, **_: Any) -> None:
        """Save if it is time to; stop if the run was asked to."""
        assert self.run is not None
        self._is_at_rest = True
        sampled = algorithm.metrics.peek((ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME), default=0)
        self.run.counters().global_step = int(sampled)
        self.run.boundary()


def _track(run: Run, algorithm: Any) -> None:
    """Make an algorithm's parts known to a run."""
    learners = algorithm.learner_group
    run.track(algorithm=AlgorithmState(algorithm), learners=Learners(algorithm))
    if algorithm.env_runner_group is not None:
        run.track(runners=Runners("the runners", algorithm.env_runner_group, learners))
    if algorithm.eval_env_runner_group is not None:
        doubt = _FREE if algorithm.eval_env_runner_group.num_remote_env_runners() else ""
        doubt = _BESIDE if algorithm.config.evaluation_parallel_to_training else doubt
        evaluation = Runners("the evaluation runners", algorithm.eval_env_runner_group, learners, doubt)
        run.track({"evaluation-runners": evaluation})
    replay = getattr(algorithm, "local_replay_buffer", None)
    if replay is not None:
        run.track(replay=Replay(replay, algorithm.config.policy_mapping_fn))
    run.counters(**{STEP_COUNTER: 0})


def _options_for(algorithm: Any, options: dict[str, Any]) -> dict[str, Any]:
    name = options.get("run")
    return {**options, "run": name(algorithm)} if callable(name) else options


def checkpointing(where: str | os.PathLike[str] | None = None, **options: Any) -> type[Checkpointing]:
    """
    Make the callbacks class that saves an algorithm into a run.

    Args:
        where: Directory that holds runs; made absolute, because Ray works in directories of its own.
        options: As for `perdure.open`; ``run`` may be a function from the algorithm to a name, for trials of Tune.

    Example:
        >>> config.callbacks(perdure.rllib.checkpointing("runs", run="ppo"))  # doctest: +SKIP
        >>> algorithm = config.build_algo()  # doctest: +SKIP
        >>> while algorithm.iteration < 100:  # doctest: +SKIP
        ...     algorithm.train()
        >>> algorithm.stop()  # doctest: +SKIP
    """
    absolute = None if where is None else os.path.abspath(where)  # noqa: PTH100 - a path that need not exist
    return type("Checkpointing", (Checkpointing,), {"options": {"where": absolute, **options}})
