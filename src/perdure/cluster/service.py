"""
The background thread of a learner: it owns every socket and every lease, and answers members whatever training does.

It works in turns. A turn takes in what has arrived, lets time pass for the leases, and sends out what has changed. What
goes wrong in a turn is logged and the next turn follows: a thread that dies would end every lease of the run.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq

from perdure.cluster.grantor import Grantor, Heard, Member, Post
from perdure.cluster.inbox import Evaluation, Inbox, Sample
from perdure.cluster.monitor import Monitor
from perdure.cluster.sockets import CONTROL, SAMPLES, Waker, endpoint_directory, listen, receive, send
from perdure.cluster.wire import (
    ArraySpec,
    Buffer,
    EvaluationResult,
    FromMember,
    Malformation,
    SampleHeader,
    WeightsHeader,
    decode_from_member,
    encode,
    unpack,
)
from perdure.core.leases import Loss, Timing
from perdure.errors import FencedError, PerdureError

logger = logging.getLogger(__name__)

OnEvent = Callable[..., None]
OnEvaluation = Callable[[Evaluation], None]

_LONGEST_TURN_SECONDS = 0.5
_MESSAGES_A_TURN = 256
_JOIN_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Published:
    """A weight version ready to be sent; its memory belongs to it alone."""

    lineage: int
    version: int
    learner_step: int
    specs: list[ArraySpec] = field(default_factory=list)
    frames: list[memoryview] = field(default_factory=list)


class Service:
    """
    Serves the members of one run until stopped or superseded.

    Args:
        run_directory: Where the run lives.
        run: Its name.
        inbox: Where samples and evaluations go, and what knows the generation.
        mint: Mints a newer generation when a member was lost.
        timing: How long members may be silent.
        clock: Seconds since boot.
        waker: What other threads wake this one with.
        on_event: Told what happens, as ``on_event(name, **fields)``.
        on_evaluation: Given evaluations that passed the gate.
    """

    def __init__(
        self,
        run_directory: Path,
        run: str,
        inbox: Inbox,
        *,
        mint: Callable[[str], int],
        timing: Timing,
        clock: Callable[[], float],
        waker: Waker,
        on_event: OnEvent | None,
        on_evaluation: OnEvaluation | None,
    ) -> None:
        self._run = run
        self._inbox = inbox
        self._mint = mint
        self._timing = timing
        self._clock = clock
        self._waker = waker
        self._on_event = on_event
        self._on_evaluation = on_evaluation
        self._monitor = Monitor("the learner's members")
        self._grantor = Grantor(run, timing, clock())
        self._malformed: Counter[Malformation] = Counter()
        self._callback_errors = 0
        self._losses: list[Loss] = []
        self._told = (inbox.announcement, False)
        self._reported: dict[str, int] = {}
        self._report_at = clock()
        self._stopped = threading.Event()
        self.published = Published(inbox.announcement.lineage, version=0, learner_step=0)
        """The newest weights; replaced as a whole by the training thread."""
        directory = endpoint_directory(run_directory)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._control = listen(self._context, zmq.ROUTER, directory / CONTROL)
        self._samples = listen(self._context, zmq.PULL, directory / SAMPLES)
        self._thread = threading.Thread(target=self._serve, name="perdure-learner", daemon=True)
        self._thread.start()

    def dismiss(self) -> None:
        """Ask every member, present or to come, to stop."""
        with self._monitor:
            self._grantor.is_stopping = True
        self._waker.wake()

    def members(self) -> tuple[Member, ...]:
        """Return the members that hold a lease."""
        with self._monitor:
            return self._grantor.members(self._clock())

    def counts(self) -> dict[str, Any]:
        """Return the counts, by the names of `Statistics`' fields."""
        with self._monitor:
            return {
                "malformed": {kind.value: self._malformed[kind] for kind in Malformation},
                "withheld": dict(self._grantor.withheld),
                "members_live": len(self._grantor.holders()),
                "members_lost": self._grantor.lost_count,
                "callback_errors": self._callback_errors,
            }

    def stop(self) -> None:
        """Stop serving and give the sockets back; stopping twice is harmless."""
        self._stopped.set()
        self._waker.wake()
        self._thread.join(_JOIN_SECONDS)

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._waker, zmq.POLLIN)
        poller.register(self._control, zmq.POLLIN)
        try:
            while not self._stopped.is_set() and not self._inbox.has_failed():
                try:
                    self._turn(poller)
                except FencedError as error:
                    self._inbox.fail(
                        error
                    )  # silence is the right answer from now on: it sends members to the successor
                except Exception:  # whatever went wrong, members must be answered
                    logger.exception("cannot finish a turn of serving run %s", self._run)
                    self._stopped.wait(self._timing.beat_seconds / 10)
        finally:
            self._control.close(0)
            self._samples.close(0)
            self._context.term()

    def _turn(self, poller: zmq.Poller) -> None:
        # Samples are not even looked at while the queue is full: that is what makes their senders wait.
        poller.register(self._samples, zmq.POLLIN if self._inbox.has_room() else 0)
        poller.poll(int(1000 * min(_LONGEST_TURN_SECONDS, self._timing.beat_seconds / 2)) + 1)
        self._waker.clear()
        self._take_samples()  # before messages: a member's last samples must not come after its farewell
        self._take_messages()
        with self._monitor:
            heard = self._grantor.look(self._inbox.announcement, self._clock())
        self._follow(heard)
        self._replace_generation()
        self._tell_changes()
        self._hand_out_weights()
        self._report_drops()

    def _take_messages(self) -> None:
        for _ in range(_MESSAGES_A_TURN):
            frames = receive(self._control)
            if frames is None:
                return
            message = decode_from_member(frames[1]) if len(frames) == 2 else Malformation.HEADER
            if isinstance(message, EvaluationResult):
                self._take_evaluation(message)
            elif not isinstance(message, FromMember) or message.run != self._run:
                self._count(message if isinstance(message, Malformation) else Malformation.MISPLACED)
            else:
                with self._monitor:
                    heard = self._grantor.hear(message, bytes(frames[0]), self._inbox.announcement, self._clock())
                self._follow(heard)

    def _take_samples(self) -> None:
        for _ in range(_MESSAGES_A_TURN):
            if not self._inbox.has_room():
                return
            frames = receive(self._samples)
            if frames is None:
                return
            sample = _sample(frames)
            if isinstance(sample, Malformation):
                self._count(sample)
            else:
                self._inbox.offer(sample)

    def _take_evaluation(self, message: EvaluationResult) -> None:
        evaluation = Evaluation(message.stamp, message.metrics)
        if self._inbox.judge(evaluation) is None and self._on_evaluation:
            self._call(self._on_evaluation, evaluation)

    def _count(self, malformation: Malformation) -> None:
        with self._monitor:
            self._malformed[malformation] += 1

    def _follow(self, heard: Heard) -> None:
        """Do what a message or the passing of time makes necessary."""
        if heard.joined or heard.losses or heard.left:
            self._inbox.seat(self._grantor.holders())
        for post in heard.posts:
            self._post(post)
        if heard.joined:
            lease = heard.joined
            self._emit("member-joined", member=lease.member, role=lease.role, incarnation=str(lease.incarnation))
        if heard.left:
            self._emit("member-left", member=heard.left)
        if heard.fenced:
            self._emit("member-fenced", member=heard.fenced)
        for loss in heard.losses:
            self._losses.append(loss)
            incarnation = str(loss.lease.incarnation)
            self._emit("member-lost", member=loss.lease.member, incarnation=incarnation, cause=loss.cause.value)

    def _replace_generation(self) -> None:
        """Mint a generation for those that were lost; until that succeeds the lost have no seat at the gate anyway."""
        if not self._losses:
            return
        reason = "lost " + ", ".join(f"{loss.lease.member} ({loss.cause.value})" for loss in self._losses)
        try:
            generation = self._mint(reason)
        except FencedError:
            raise
        except PerdureError as error:
            self._emit("mint-failed", reason=reason, error=error.message)
            return
        self._losses.clear()
        self._inbox.adopt(generation)
        self._emit("generation-minted", generation=generation, reason=reason)

    def _tell_changes(self) -> None:
        with self._monitor:
            news = (self._inbox.announcement, self._grantor.is_stopping)
            posts = self._grantor.tell_all(news[0]) if news != self._told else ()
        self._told = news
        for post in posts:
            self._post(post)

    def _hand_out_weights(self) -> None:
        weights = self.published
        announcement = self._inbox.announcement
        if weights.version == 0 or weights.lineage != announcement.lineage:
            return
        with self._monitor:
            peers = self._grantor.take_wants(weights.lineage, weights.version)
        if not peers:
            return
        header = WeightsHeader(
            run=self._run,
            announcement=announcement,
            version=weights.version,
            learner_step=weights.learner_step,
            arrays=weights.specs,
        )
        frames: list[Buffer] = [encode(header), *weights.frames]
        for peer in peers:
            send(self._control, [peer, *frames])

    def _report_drops(self) -> None:
        if self._clock() < self._report_at:
            return
        self._report_at = self._clock() + self._timing.beat_seconds
        dropped = self._inbox.counts()["dropped"]
        if any(dropped.values()) and dropped != self._reported:
            self._reported = dropped
            self._emit("samples-dropped", **{reason.replace("-", "_"): count for reason, count in dropped.items()})

    def _post(self, post: Post) -> None:
        send(self._control, [post.peer, encode(post.answer)])

    def _emit(self, name: str, **fields: object) -> None:
        if self._on_event:
            self._call(self._on_event, name, **fields)

    def _call(self, callback: Callable[..., None], *arguments: object, **fields: object) -> None:
        try:
            callback(*arguments, **fields)
        except Exception:  # the user's mistake must not end every lease of the run
            logger.exception("a callback of the learner failed")
            with self._monitor:
                self._callback_errors += 1


def _sample(frames: list[Buffer]) -> Sample | Malformation:
    message = decode_from_member(frames[0])
    if not isinstance(message, SampleHeader):
        return message if isinstance(message, Malformation) else Malformation.MISPLACED
    arrays = unpack(message.arrays, frames[1:])
    if isinstance(arrays, Malformation):
        return arrays
    return Sample(message.stamp, message.rows, arrays, message.info)
