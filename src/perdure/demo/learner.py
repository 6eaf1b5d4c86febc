"""
The learner of the demo: PPO whose every state is perdure's to keep.

What makes it survive is what any training would write: `perdure.open`, `track`, `counters`, `boundary`. What makes it a
leader is `run.learner`, which gives out weights and lets samples in.
"""

from __future__ import annotations

import queue
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

import perdure
from perdure import Every, Last
from perdure.demo.ppo import improve, make_networks
from perdure.demo.process import is_undisturbed, serve, tell
from perdure.demo.rollout import Rollout, side_by_side
from perdure.demo.settings import Settings
from perdure.errors import DeadlineError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn

    from perdure.cluster.inbox import Evaluation, Sample
    from perdure.cluster.learner import Learner
    from perdure.run import Run

_WAIT_SECONDS = 1.0
_LONGEST_WAIT_SECONDS = 60.0
_EPISODES_REMEMBERED = 50
_FEATURES, _ACTIONS = 4, 2
_LAST_RATE_SHARE = 0.1


def learn(settings: Settings) -> None:
    """Train to the last update, from wherever the newest checkpoint is, and have the result evaluated."""
    with open_run(settings) as run:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(settings.seed)
        policy, value = make_networks(_FEATURES, _ACTIONS)
        optimizer = torch.optim.Adam(
            [*policy.parameters(), *value.parameters()], settings.hyperparameters.rate, eps=1e-5
        )
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, _LAST_RATE_SHARE, settings.updates)
        returns: list[float] = []
        run.track(policy=policy, value=value, optimizer=optimizer, scheduler=scheduler, returns=returns)
        count = run.counters(global_step=0, updates=0)
        run.restore()

        steps = {count.updates: count.global_step}
        evaluations: queue.SimpleQueue[Evaluation] = queue.SimpleQueue()
        lead = run.learner(
            learner_step=count.updates, max_staleness=settings.max_staleness, on_evaluation=evaluations.put
        )
        with lead as learner:
            learner.publish(weights_of(policy), count.updates)
            # Not `run.loop`, because how many updates it takes is not known beforehand.
            run.boundary(moved=False)
            while count.updates < settings.updates or not is_undisturbed():
                samples = collect(run, learner, settings.enough_samples)
                batch = side_by_side([Rollout.from_arrays(sample.arrays) for sample in samples])
                improve(policy, value, optimizer, batch, settings.hyperparameters)
                scheduler.step()
                count.updates += 1
                count.global_step += batch.steps
                learner.publish(weights_of(policy), count.updates)
                steps[count.updates] = count.global_step
                remember(returns, samples)
                report(run, learner, samples, returns)
                while not evaluations.empty():
                    record(run, evaluations.get_nowait(), steps)
                run.boundary()
            run.finish()
            conclude(run, evaluations, steps)
            learner.dismiss()


def open_run(settings: Settings) -> Run:
    """Open the run that the supervisor has named."""
    return perdure.open(
        save=Every(steps=settings.save_every_steps),
        keep=Last(settings.keep),
        # The demo wants its checkpoints at known points of progress, whatever a slow disk may make them cost.
        budget=None,
        timing=settings.timing,
        algorithm="ppo",
    )


def weights_of(policy: nn.Module) -> dict[str, NDArray[np.float32]]:
    """Return the policy's parameters as arrays; borrowed."""
    return {name: tensor.numpy() for name, tensor in policy.state_dict().items()}


def collect(run: Run, learner: Learner, enough: int) -> list[Sample]:
    """
    Wait for a batch: all that has come once there is enough, or after a second, whatever there is.

    A stop asked for meanwhile is obeyed at once.

    Raises:
        DeadlineError: The actors have sent nothing for a minute.
    """
    for _ in range(round(_LONGEST_WAIT_SECONDS / _WAIT_SECONDS)):
        samples = learner.collect(samples=enough, timeout_seconds=_WAIT_SECONDS)
        while more := learner.collect(samples=1, timeout_seconds=0.0):
            samples += more
        if samples:
            return samples
        run.boundary(moved=False)
    raise DeadlineError(
        f"cannot train: no sample came in {_LONGEST_WAIT_SECONDS:g} s",
        kind="demo.no-samples",
        hint="see the logs of the actors",
        waited_seconds=_LONGEST_WAIT_SECONDS,
        holder="actors",
    )


def remember(returns: list[float], samples: list[Sample]) -> None:
    """Note the returns of the episodes that ended in a batch; the oldest make room."""
    for sample in samples:
        ended = sample.info["returns"]
        assert isinstance(ended, list)
        returns += ended
    del returns[:-_EPISODES_REMEMBERED]


def report(run: Run, learner: Learner, samples: list[Sample], returns: list[float]) -> None:
    """Record an update, and tell those who watch."""
    mean = float(np.mean(returns)) if returns else 0.0
    run.metric("train/return", mean)
    statistics = learner.statistics()
    tell(
        "update",
        update=statistics.learner_step,
        step=run.global_step,
        value=mean,
        generation=samples[-1].stamp.generation,
        life=run.report.generation,
        senders={sample.stamp.member: sample.stamp.incarnation for sample in samples},
        age=statistics.learner_step - 1 - min(sample.stamp.learner_step for sample in samples),
        dropped=nonzero({**statistics.dropped, **statistics.withheld}),
    )


def nonzero(counts: Mapping[str, int]) -> dict[str, int]:
    """Leave out what has not happened."""
    return {name: count for name, count in counts.items() if count}


def record(run: Run, evaluation: Evaluation, steps: Mapping[int, int]) -> None:
    """Record an evaluation under the step of the weights that it is true of, and tell those who watch."""
    update = evaluation.stamp.learner_step
    value = evaluation.metrics["return"]
    run.metric("eval/return", value, step=steps[update])
    tell("evaluation", update=update, step=steps[update], value=value)


def conclude(run: Run, evaluations: queue.SimpleQueue[Evaluation], steps: Mapping[int, int]) -> None:
    """
    Wait until the last weights have been evaluated.

    Args:
        run: The run.
        evaluations: What the evaluator has found out.
        steps: Environment steps by update, up to the last.

    Raises:
        DeadlineError: The evaluator has said nothing for a minute.
    """
    update = -1
    while update < max(steps):
        try:
            evaluation = evaluations.get(timeout=_LONGEST_WAIT_SECONDS)
        except queue.Empty as error:
            raise DeadlineError(
                f"cannot say how good the policy is: no evaluation came in {_LONGEST_WAIT_SECONDS:g} s",
                kind="demo.no-evaluation",
                hint="see the log of the evaluator",
                waited_seconds=_LONGEST_WAIT_SECONDS,
                holder="evaluator",
            ) from error
        record(run, evaluation, steps)
        update = evaluation.stamp.learner_step


if __name__ == "__main__":
    sys.exit(serve(learn))
