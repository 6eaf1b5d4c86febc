"""
An actor of the demo: plays with the newest weights and sends what it saw.

It has no state that is worth saving. A new incarnation plays with a random stream of its own, because repeating the
former one's would feed the learner the same games twice.
"""

from __future__ import annotations

import sys
import zlib
from typing import TYPE_CHECKING

import numpy as np

import perdure
from perdure.demo.policy import Policy
from perdure.demo.process import member_name, restart_count, serve
from perdure.demo.rollout import Environments
from perdure.demo.settings import Settings

if TYPE_CHECKING:
    from perdure.cluster.role import Weights

_WAIT_SECONDS = 1.0


def act(settings: Settings) -> None:
    """Collect samples until the learner asks to stop, or this incarnation is fenced."""
    name = member_name()
    generator = np.random.default_rng([settings.seed, zlib.crc32(name.encode()), restart_count()])
    environments = Environments(settings.environments, generator)
    with perdure.open(timing=settings.timing) as run, run.actor(name) as actor:
        weights, policy, ahead = None, None, 0
        while not actor.should_stop:
            may_play = policy is not None and ahead < settings.most_ahead
            newer = actor.weights(weights, timeout_seconds=0.0 if may_play else _WAIT_SECONDS)
            if newer is not None:
                ahead = still_ahead(ahead, weights, newer)
                weights, policy = newer, Policy.from_arrays(newer.arrays)
            elif not may_play:
                continue
            assert policy is not None
            assert weights is not None
            rollout, returns = environments.collect(policy, settings.rollout_steps, generator)
            actor.send(rollout.arrays(), weights, {"returns": [*returns]})
            run.progress(weights.learner_step)
            ahead += 1


def still_ahead(ahead: int, before: Weights | None, now: Weights) -> int:
    """
    Say how many samples an actor is ahead once newer weights are there: each update has used up one of each actor.

    A learner that has resumed has lost what was on its way.
    """
    if before is None or before.lineage != now.lineage:
        return 0
    return max(0, ahead - (now.learner_step - before.learner_step))


if __name__ == "__main__":
    sys.exit(serve(act))
