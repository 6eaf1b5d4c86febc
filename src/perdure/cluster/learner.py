"""
The learner's end of a cluster: it leads the run, grants leases, hands out weights and takes samples in.

One background thread owns every socket and every lease; the methods only exchange values with it, so that nothing a
training loop does delays an answer to a member, and no member can make the training loop wait beyond its deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import final

from perdure.cluster.grantor import Member
from perdure.cluster.identity import boot_clock
from perdure.cluster.inbox import Inbox, Sample
from perdure.cluster.monitor import Monitor
from perdure.cluster.service import OnEvaluation, OnEvent, Published, Service
from perdure.cluster.sockets import Waker
from perdure.cluster.wire import Arrays, frames_of, pack
from perdure.core.fencing import DEFAULT_MAX_STALENESS_STEPS, GateState
from perdure.core.leases import Timing
from perdure.core.names import check_segment
from perdure.errors import FencedError, InvalidInputError

DEFAULT_CAPACITY_SAMPLES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What a learner has counted since it began. ``received == taken + queued + sum of dropped``."""

    generation: int
    learner_step: int
    version: int
    """Newest weight version, 0 before the first."""
    received: int
    """Well-formed samples that arrived."""
    taken: int
    """Samples that `Learner.collect` returned."""
    queued: int
    dropped: Mapping[str, int]
    """Samples turned away at the gate or outdated in the queue, by `perdure.core.fencing.Reason`."""
    malformed: Mapping[str, int]
    """Messages that were none, by `perdure.cluster.wire.Malformation`."""
    withheld: Mapping[str, int]
    """Samples that actors dropped instead of sending them: ``overflowed`` or ``undone``."""
    evaluations: int
    evaluations_dropped: Mapping[str, int]
    members_live: int
    members_lost: int
    """Leases that ended without being given back."""
    callback_errors: int
    """Exceptions out of the callbacks; each is also logged."""


@final
class Learner:
    """
    Leads a run's actors and evaluators on this machine.

    A learner that is superseded stops answering, and its methods raise. A crash leaves a socket's name behind, which
    the next learner takes over; members hold back their samples until it has published weights.

    Args:
        run_directory: Where the run lives; members find the learner by it.
        run: Name of the run.
        generation: Minted for this learner, so that no other one has it.
        mint: Given a reason, mints and returns a newer generation, durably; raises `FencedError` if this learner was
            superseded. Called from the background thread when a member is lost.
        learner_step: Steps made so far: those of the checkpoint that was restored.
        timing: Alike in all processes of the run.
        max_staleness: Learner steps by which a sample's policy may be behind.
        capacity_samples: Samples queued here before actors are made to wait.
        clock: Seconds since boot, including suspension.
        on_event: Called from the background thread as ``on_event(name, **fields)`` with ``member-joined``,
            ``member-left``, ``member-lost``, ``member-fenced``, ``generation-minted``, ``mint-failed`` and
            ``samples-dropped``.
        on_evaluation: Called from the background thread with every evaluation that passes the gate.

    Raises:
        StoreError: The sockets cannot be made.
        InvalidInputError: The run's name cannot be used, or the path of the sockets is too long.
    """

    def __init__(
        self,
        run_directory: Path,
        run: str,
        *,
        generation: int,
        mint: Callable[[str], int],
        learner_step: int = 0,
        timing: Timing | None = None,
        max_staleness: int = DEFAULT_MAX_STALENESS_STEPS,
        capacity_samples: int = DEFAULT_CAPACITY_SAMPLES,
        clock: Callable[[], float] = boot_clock,
        on_event: OnEvent | None = None,
        on_evaluation: OnEvaluation | None = None,
    ) -> None:
        check_segment(run, "run name")
        self._waker = Waker()
        gate = GateState(run, generation, learner_step, max_staleness=max_staleness)
        self._inbox = Inbox(gate, capacity_samples, self._waker.wake)
        self._publishing = Monitor("the learner's weights")
        self._service = Service(
            run_directory,
            run,
            self._inbox,
            mint=mint,
            timing=timing or Timing(),
            clock=clock,
            waker=self._waker,
            on_event=on_event,
            on_evaluation=on_evaluation,
        )

    @property
    def generation(self) -> int:
        """The generation whose samples are let in; it rises whenever a member is lost."""
        return self._inbox.announcement.generation

    def publish(self, arrays: Arrays, learner_step: int) -> int:
        """
        Make a new weight version the newest; members that wait for one get it at once.

        Args:
            arrays: By name; copied before this returns.
            learner_step: Steps that the learner had made when it was at these weights; never goes back.

        Returns:
            The version, counted from 1 in each learner.

        Raises:
            InvalidInputError: An array cannot travel, or the step goes back.
            FencedError: This learner was superseded.
        """
        specs, copies = pack(arrays)
        with self._publishing:
            lineage = self._inbox.advance(learner_step)
            version = self._service.published.version + 1
            self._service.published = Published(lineage, version, learner_step, specs, frames_of(copies))
        self._waker.wake()
        return version

    def advance(self, learner_step: int) -> None:
        """
        Tell the gate how far the learner is, where not every step publishes weights.

        Raises:
            InvalidInputError: The step goes back.
            FencedError: This learner was superseded.
        """
        self._inbox.advance(learner_step)

    def collect(self, *, samples: int = 1, rows: int = 0, timeout_seconds: float) -> list[Sample]:
        """
        Take admitted samples, oldest first, as soon as there are enough.

        Every sample returned is of the current generation and within the staleness bound at this moment.

        Args:
            samples: At least so many.
            rows: With at least so many rows together.
            timeout_seconds: Longest wait.

        Returns:
            The samples; the caller owns them. Empty if there were not enough in time: what is there stays queued.

        Raises:
            FencedError: This learner was superseded.
        """
        return self._inbox.take(samples, rows, timeout_seconds)

    def announce(self, generation: int, learner_step: int) -> None:
        """
        Begin again at an earlier or later step, after a recovery inside this process.

        What is queued is dropped. Members hold back what they collect until `publish` has been called.

        Args:
            generation: Minted for this recovery.
            learner_step: Steps of the checkpoint that was restored.

        Raises:
            InvalidInputError: The generation is not newer than the current one.
            FencedError: This learner was superseded.
        """
        self._inbox.resume(generation, learner_step)
        self._waker.wake()

    def dismiss(self) -> None:
        """Ask every member, present or to come, to stop."""
        self._service.dismiss()

    def fence(self, error: FencedError) -> None:
        """Stop leading: answer no member any more and make every method raise ``error``."""
        self._inbox.fail(error)
        self._waker.wake()

    def members(self) -> tuple[Member, ...]:
        """Return the members that hold a lease."""
        return self._service.members()

    def statistics(self) -> Statistics:
        """Return the counts so far."""
        return Statistics(version=self._service.published.version, **self._inbox.counts(), **self._service.counts())

    def close(self) -> None:
        """
        Stop leading and give the sockets back; closing twice is harmless.

        Members are not told to stop, that is what `dismiss` does: they wait for the next learner.
        """
        self._inbox.fail(
            InvalidInputError("cannot use a learner that was closed", kind="learner.closed", field="learner")
        )
        self._service.stop()

    def __enter__(self) -> Learner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
