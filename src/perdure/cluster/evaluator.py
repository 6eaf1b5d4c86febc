"""The evaluator's end of a cluster: it finds out how good the learner's weights are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from perdure.cluster.outbox import Item
from perdure.cluster.role import Role, Weights
from perdure.cluster.sockets import CONTROL
from perdure.cluster.wire import EvaluationResult, Stamped
from perdure.core.fencing import Stamp


@final
class Evaluator(Role):
    """
    Evaluates the weights of a run's learner.

    Results travel beside the samples, so that a learner that is busy training, or done with it, still gets them. An
    evaluation that takes longer than `Timing.running_seconds` calls `progress` on the way.
    """

    _role = "evaluator"
    _outlet_name = CONTROL

    def report(self, metrics: Mapping[str, float], weights: Weights) -> None:
        """
        Hand a result over for sending. Results of weights that a recovery undid are dropped.

        Args:
            metrics: What was found out, by name; copied.
            weights: Which weights it is true of.

        Raises:
            InvalidInputError: A name is empty or too long, or there are too many.
            FencedError: Kind ``member.fenced``: this incarnation is over.
        """
        values = {name: float(value) for name, value in metrics.items()}

        def compose(stamp: Stamp) -> Stamped:
            return EvaluationResult(
                run=stamp.run,
                generation=stamp.generation,
                member=stamp.member,
                incarnation=stamp.incarnation,
                sequence=stamp.sequence,
                learner_step=stamp.learner_step,
                metrics=values,
            )

        self._hand_over(Item(weights.lineage, weights.learner_step, compose), timeout_seconds=0.0)
