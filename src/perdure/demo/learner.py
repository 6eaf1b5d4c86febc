"""
The learner of the demo: PPO whose every state is perdure's to keep.

What makes it survive is what any training would write: `perdure.open`, `track`, `counters`, `loop`. What makes it a
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
from perdure.cluster.inbox import Evaluation, Sample
from perdure.cluster.learner import Learner
from perdure.demo.ppo import improve, make_networks
from perdure.demo.process import serve, tell
from perdure.demo.rollout import Rollout, side_by_side
from perdure.demo.settings import Settings
from perdure.errors import DeadlineError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn

    from perdure.run import Run

_WAIT_SECONDS = 1.0
_LONGEST_WAIT_SECONDS = 60.0
_EPISODES_REMEMBERED = 50
_FEATURES, _ACTIONS = 4, 2


def learn(settings: Settings) -> None:
    """Train to the last update, from wherever the newest checkpoint is, and have the result evaluated."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(settings.seed)
    policy, value = make_networks(_FEATURES, _ACTIONS)
    rate = settings.hyperparameters.rate
    optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()], lr=rate, eps=1e-5)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, settings.updates)
    returns: list[float] = []
    evaluations: queue.SimpleQueue[Evaluation] = queue.SimpleQueue()

    save, keep = Every(seconds=settings.save_seconds), Last(settings.keep)
    with perdure.open(save=save, keep=keep, timing=settings.timing, algorithm="ppo") as run:
        run.track(policy=policy, value=value, optimizer=optimizer, scheduler=scheduler, returns=returns)
        count = run.counters(global_step=0, updates=0)
        run.restore()
        lead = run.learner(
            learner_step=count.updates, max_staleness=settings.max_staleness, on_evaluation=evaluations.put
        )
        with lead as learner:
            learner.publish(weights_of(policy), count.updates)
            for _ in run.loop(0, settings.updates):
                samples = collect(run, learner, settings.samples)
                batch = side_by_side([Rollout.from_arrays(sample.arrays) for sample in samples])
                improve(policy, value, optimizer, batch, settings.hyperparameters)
                scheduler.step()
                count.updates += 1
                count.global_step += batch.steps
                learner.publish(weights_of(policy), count.updates)
                remember(returns, samples)
                report(run, learner, samples, returns)
                while not evaluations.empty():
                    record(run, evaluations.get_nowait(), settings)
            conclude(run, evaluations, settings)
            learner.dismiss()


def weights_of(policy: nn.Module) -> dict[str, NDArray[np.float32]]:
    """Return the policy's parameters as arrays; borrowed."""
    return {name: tensor.numpy() for name, tensor in policy.state_dict().items()}


def collect(run: Run, learner: Learner, count: int) -> list[Sample]:
    """
    Wait for a batch; a stop asked for meanwhile ends the process at once, since nothing has changed since the last save.

    Raises:
        DeadlineError: The actors have sent nothing for a minute.
    """
    for _ in range(round(_LONGEST_WAIT_SECONDS / _WAIT_SECONDS)):
        samples = learner.collect(samples=count, timeout_seconds=_WAIT_SECONDS)
        if samples:
            return samples
        run.boundary(moved=False)
    raise DeadlineError(
        f"cannot train: no {count} samples came in {_LONGEST_WAIT_SECONDS:g} s",
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


def record(run: Run, evaluation: Evaluation, settings: Settings) -> None:
    """Record an evaluation under the step of the weights that it is true of, and tell those who watch."""
    update = evaluation.stamp.learner_step
    value = evaluation.metrics["return"]
    step = update * settings.steps_per_update
    run.metric("eval/return", value, step=step)
    tell("evaluation", update=update, step=step, value=value)


def conclude(run: Run, evaluations: queue.SimpleQueue[Evaluation], settings: Settings) -> None:
    """
    Wait until the last weights have been evaluated.

    Raises:
        DeadlineError: The evaluator has said nothing for a minute.
    """
    update = -1
    while update < settings.updates:
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
        record(run, evaluation, settings)
        update = evaluation.stamp.learner_step


if __name__ == "__main__":
    sys.exit(serve(learn))
