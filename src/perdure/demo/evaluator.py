"""The evaluator of the demo: plays whole episodes with the likeliest actions, now and then and at the end."""

from __future__ import annotations

import sys

import numpy as np

import perdure
from perdure.demo.policy import Policy
from perdure.demo.process import is_undisturbed, member_name, serve
from perdure.demo.rollout import Environments
from perdure.demo.settings import Settings

_WAIT_SECONDS = 1.0


def evaluate(settings: Settings) -> None:
    """Evaluate until the learner asks to stop."""
    environments = Environments(settings.evaluation_episodes, np.random.default_rng([settings.seed, 1]))
    with perdure.open(timing=settings.timing) as run, run.evaluator(member_name()) as evaluator:
        weights, lineage, due, is_fresh = None, 0, 0, False
        while not evaluator.should_stop:
            newer = evaluator.weights(weights, timeout_seconds=_WAIT_SECONDS)
            if newer is not None:
                weights, is_fresh = newer, True
                if newer.lineage != lineage:  # the learner has resumed, perhaps from before the last evaluation
                    lineage, due = newer.lineage, newer.learner_step
            if weights is None or not is_fresh:
                continue
            # Whether weights are the last ones can turn out after they have come.
            if weights.learner_step >= due or (weights.learner_step >= settings.updates and is_undisturbed()):
                returns = environments.evaluate(Policy.from_arrays(weights.arrays))
                evaluator.report({"return": float(np.mean(returns))}, weights)
                run.progress(weights.learner_step)
                is_fresh, due = False, weights.learner_step + settings.evaluate_every_updates


if __name__ == "__main__":
    sys.exit(serve(evaluate))
