"""
A learner's inbox: the gate, and the queue behind it.

Every sample is judged twice, when it arrives and when it is taken, because the queue can hold it past a recovery or
past its shelf life: what `take` returns is of the current generation and fresh enough at that moment. The counts add
up: what was received is what was taken, plus what is queued, plus what was dropped for one reason or another.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from perdure.cluster.monitor import Monitor
from perdure.core.fencing import Accept, Announcement, GateState, Reason, Stamp, admit, recheck
from perdure.errors import InvalidInputError, PerdureError


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """What an actor sent in one piece."""

    stamp: Stamp
    rows: int
    """Common length of its arrays' first axes; 1 where they have none in common."""
    arrays: Mapping[str, NDArray[Any]]
    """Owned by whoever takes the sample: writable, shared with nobody."""
    info: Mapping[str, object]
    """Small values that came with the arrays."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an evaluator found out about a policy."""

    stamp: Stamp
    """Its ``learner_step`` is that of the policy."""
    metrics: Mapping[str, float]


class Inbox:
    """
    Lets samples in, queues them and hands them out. Any thread may call any method.

    Args:
        gate: What the gate begins with; its generation is also the first lineage.
        capacity_samples: Samples queued before senders are made to wait.
        on_room: Called, briefly and from any thread, when there may be room again.
    """

    def __init__(self, gate: GateState, capacity_samples: int, on_room: Callable[[], None]) -> None:
        self._monitor = Monitor("the learner's inbox")
        self._gate = gate
        self._lineage = gate.generation
        self._resumed_step = gate.learner_step
        self._capacity = capacity_samples
        self._on_room = on_room
        self._queue: deque[Sample] = deque()
        self._is_awaited = False
        self._failure: PerdureError | None = None
        self._received = 0
        self._taken = 0
        self._dropped: Counter[Reason] = Counter()
        self._evaluations = 0
        self._evaluations_dropped: Counter[Reason] = Counter()

    @property
    def announcement(self) -> Announcement:
        """What members are to know."""
        with self._monitor:
            return Announcement(self._gate.generation, self._lineage, self._resumed_step)

    def counts(self) -> dict[str, Any]:
        """Return the counts, by the names of `Statistics`' fields."""
        with self._monitor:
            return {
                "generation": self._gate.generation,
                "learner_step": self._gate.learner_step,
                "received": self._received,
                "taken": self._taken,
                "queued": len(self._queue),
                "dropped": {reason.value: self._dropped[reason] for reason in Reason},
                "evaluations": self._evaluations,
                "evaluations_dropped": {reason.value: self._evaluations_dropped[reason] for reason in Reason},
            }

    def seat(self, holders: Mapping[str, str]) -> None:
        """Set who holds leases."""
        with self._monitor:
            self._gate = self._gate.with_holders(holders)

    def adopt(self, generation: int) -> None:
        """Go over to a new generation without a rollback; an older one than the present changes nothing."""
        with self._monitor:
            if generation > self._gate.generation:
                self._move(replace(self._gate, generation=generation))

    def resume(self, generation: int, learner_step: int) -> None:
        """
        Go over to a new generation that begins at some step, wherever the former one had come to.

        Raises:
            InvalidInputError: Kind ``generation.not-new``.
        """
        with self._monitor:
            self._raise_failure()
            if generation <= self._gate.generation:
                raise InvalidInputError(
                    f"cannot announce generation {generation}: {self._gate.generation} is current",
                    kind="generation.not-new",
                    hint="mint a generation first, and announce the one that was returned",
                    field="generation",
                )
            self._lineage = generation
            self._resumed_step = learner_step
            self._move(replace(self._gate, generation=generation, learner_step=learner_step))

    def advance(self, learner_step: int) -> int:
        """
        Set how many steps the learner has made; returns the lineage that they belong to.

        Raises:
            InvalidInputError: Kind ``learner-step.backwards``.
        """
        with self._monitor:
            self._raise_failure()
            if learner_step < self._gate.learner_step:
                raise InvalidInputError(
                    f"cannot go back to learner step {learner_step} from {self._gate.learner_step}",
                    kind="learner-step.backwards",
                    hint="after a rollback, announce a new generation first",
                    field="learner_step",
                )
            self._move(replace(self._gate, learner_step=learner_step))
            return self._lineage

    def offer(self, sample: Sample) -> Reason | None:
        """Let a sample in or turn it away; returns why it was turned away."""
        with self._monitor:
            self._received += 1
            verdict = admit(sample.stamp, self._gate)
            if not isinstance(verdict, Accept):
                self._dropped[verdict.reason] += 1
                return verdict.reason
            self._gate = verdict.state
            self._queue.append(sample)
            self._monitor.notify_all()
            return None

    def judge(self, evaluation: Evaluation) -> Reason | None:
        """Let an evaluation pass or turn it away; returns why it was turned away."""
        with self._monitor:
            verdict = admit(evaluation.stamp, self._gate, bounds_staleness=False)
            if not isinstance(verdict, Accept):
                self._evaluations_dropped[verdict.reason] += 1
                return verdict.reason
            self._gate = verdict.state
            self._evaluations += 1
            return None

    def has_room(self) -> bool:
        """Say whether another sample should be read: while somebody waits for more, however long the queue."""
        with self._monitor:
            return self._is_awaited or len(self._queue) < self._capacity

    def take(self, samples: int, rows: int, timeout_seconds: float) -> list[Sample]:
        """
        Return the oldest samples, at least so many with at least so many rows together, or none if time runs out.

        Raises:
            PerdureError: What `fail` was given.
        """
        with self._monitor:
            self._is_awaited = True
            self._on_room()
            try:
                self._monitor.wait_for(
                    lambda: self._failure is not None or self._count(samples, rows) > 0, timeout_seconds
                )
            finally:
                self._is_awaited = False
            self._raise_failure()
            taken = [self._queue.popleft() for _ in range(self._count(samples, rows))]
            self._taken += len(taken)
            self._on_room()
            return taken

    def fail(self, error: PerdureError) -> None:
        """Make every present and future call that waits or changes something raise; the first error stays."""
        with self._monitor:
            self._failure = self._failure or error
            self._monitor.notify_all()

    def has_failed(self) -> bool:
        """Say whether `fail` was called."""
        with self._monitor:
            return self._failure is not None

    def _raise_failure(self) -> None:
        if self._failure:
            raise self._failure

    def _move(self, gate: GateState) -> None:
        self._gate = gate
        verdicts = [(sample, recheck(sample.stamp, gate)) for sample in self._queue]
        self._queue = deque(sample for sample, reason in verdicts if reason is None)
        self._dropped.update(reason for _, reason in verdicts if reason is not None)
        self._on_room()

    def _count(self, samples: int, rows: int) -> int:
        """How many samples from the front of the queue are enough; 0 if all are not."""
        found = 0
        for number, sample in enumerate(self._queue, 1):
            found += sample.rows
            if number >= samples and found >= rows:
                return number
        return 0
