"""The actor's end of a cluster: it collects samples with the learner's weights."""

from __future__ import annotations

from typing import final

import numpy as np

from perdure.cluster.outbox import Item
from perdure.cluster.role import Role, Weights
from perdure.cluster.sockets import SAMPLES
from perdure.cluster.wire import Arrays, Info, SampleHeader, Stamped, frames_of, pack
from perdure.core.fencing import Stamp

DEFAULT_SEND_SECONDS = 30.0


@final
class Actor(Role):
    """
    Collects samples for a run's learner.

    While no learner is there, samples are held back, as many as fit, and sent to the next one after it has published
    weights; those of a policy that the recovery undid are dropped. A crash loses what is held and what is under way.

    Example:
        >>> with Actor(directory, "ppo", "actor-0") as actor:  # doctest: +SKIP
        ...     weights = None
        ...     while not actor.should_stop:
        ...         weights = actor.weights(weights, timeout_seconds=30) or weights
        ...         actor.send(rollout(weights.arrays), weights)
    """

    _role = "actor"
    _outlet_name = SAMPLES

    def send(
        self,
        arrays: Arrays,
        weights: Weights,
        info: Info | None = None,
        *,
        timeout_seconds: float = DEFAULT_SEND_SECONDS,
    ) -> None:
        """
        Hand a sample over for sending.

        Waits while too many are held although the learner is there: it is then slower than its actors. When the time
        is over, or while the learner is away, the oldest sample held makes room; it is counted as overflowed.

        Args:
            arrays: By name; copied before this returns.
            weights: Those that the sample was collected with; the oldest of them, if there were several.
            info: Small values to go with them.
            timeout_seconds: Longest wait.

        Raises:
            InvalidInputError: An array or a value cannot travel.
            FencedError: Kind ``member.fenced``: this incarnation is over; nothing of it is let in any more.
        """
        specs, copies = pack(arrays)
        rows = _common_rows(arrays)
        values = info or {}

        def compose(stamp: Stamp) -> Stamped:
            return SampleHeader(
                run=stamp.run,
                generation=stamp.generation,
                member=stamp.member,
                incarnation=stamp.incarnation,
                sequence=stamp.sequence,
                learner_step=stamp.learner_step,
                rows=rows,
                info=values,
                arrays=specs,
            )

        self._hand_over(Item(weights.lineage, weights.learner_step, compose, frames_of(copies)), timeout_seconds)


def _common_rows(arrays: Arrays) -> int:
    lengths = {np.shape(array)[:1] for array in arrays.values()}
    return lengths.pop()[0] if len(lengths) == 1 and () not in lengths else 1
