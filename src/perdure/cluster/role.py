"""
What an actor and an evaluator have in common: a lease, weights to wait for, and something to send.

One background thread owns the sockets and keeps the lease; the methods only exchange values with it. Beats tell the
learner about the *main* thread: each call here counts as progress of it, so that a loop that hangs is noticed although
the background thread goes on beating.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import zmq
from numpy.typing import NDArray

from perdure.cluster.identity import boot_clock, new_incarnation
from perdure.cluster.membership import Condition, Membership
from perdure.cluster.monitor import Monitor
from perdure.cluster.outbox import Item, Outbox
from perdure.cluster.sockets import (
    CONTROL,
    SAMPLES,
    ConnectionWatch,
    Waker,
    connect,
    endpoint_directory,
    receive,
    send,
)
from perdure.cluster.wire import (
    Answer,
    Buffer,
    Malformation,
    WeightsHeader,
    check_sendable,
    decode_from_learner,
    encode,
    unpack,
)
from perdure.core.fencing import Stamp
from perdure.core.leases import Timing
from perdure.core.names import check_segment
from perdure.core.restarts import Phase

logger = logging.getLogger(__name__)

DEFAULT_CAPACITY_ITEMS = 256
DEFAULT_CAPACITY_BYTES = 256 * 1024**2

_LONGEST_TURN_SECONDS = 0.5
_LONGEST_SILENCE_SECONDS = 1.0
_LINGER_MILLISECONDS = 500
_JOIN_SECONDS = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """One weight version of the learner."""

    lineage: int
    """Generation in which the learner last resumed."""
    version: int
    """Counted from 1 in each life of the learner."""
    learner_step: int
    """Steps that the learner had made."""
    arrays: Mapping[str, NDArray[Any]]
    """Owned by whoever was given the weights: writable, shared with nobody."""

    @property
    def key(self) -> tuple[int, int]:
        """What grows from each version to the next, across recoveries too."""
        return self.lineage, self.version


@dataclass(frozen=True, slots=True)
class RoleStatistics:
    """What a member has counted since it began."""

    generation: int
    """Newest generation that it heard of; 0 before the first."""
    is_leased: bool
    """Whether it may act at the moment."""
    sent: int
    """Items handed over for sending."""
    held: int
    """Items held back at the moment."""
    overflowed: int
    """Items dropped because too many were held."""
    undone: int
    """Items dropped because the learner rolled back behind their policy."""


_AnyRole = TypeVar("_AnyRole", bound="Role")


class Role:
    """
    A member of a run. The constructor does not wait: the learner is looked for in the background, for ever.

    Args:
        run_directory: Where the run lives; the learner is found by it.
        run: Name of the run.
        name: Name of the member, unique in the run; a younger process of the same name replaces an older one.
        timing: Alike in all processes of the run.
        clock: Seconds since boot, including suspension.
        capacity_items: Items held while they cannot be sent.
        capacity_bytes: Memory they may take.

    Raises:
        StoreError: The directory of the sockets cannot be used.
        InvalidInputError: A name cannot be used, or the path of the sockets is too long.
    """

    _role: str
    _outlet_name: str
    """Which socket the items go to."""

    def __init__(
        self,
        run_directory: Path,
        run: str,
        name: str,
        *,
        timing: Timing | None = None,
        clock: Callable[[], float] = boot_clock,
        capacity_items: int = DEFAULT_CAPACITY_ITEMS,
        capacity_bytes: int = DEFAULT_CAPACITY_BYTES,
    ) -> None:
        self._run = check_segment(run, "run name")
        self._name = check_segment(name, "member name")
        self._timing = timing or Timing()
        self._clock = clock
        self._incarnation = new_incarnation()
        self._directory = endpoint_directory(run_directory)
        self._monitor = Monitor(f"member {name}")
        self._membership = Membership(run, name, self._role, self._incarnation, self._timing)
        self._outbox = Outbox(capacity_items, capacity_bytes)
        self._newest: Weights | None = None
        self._phase = Phase.STARTING
        self._progress = 0
        self._sequence = 0
        self._waker = Waker()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=f"perdure-{name}", daemon=True)
        self._thread.start()

    @property
    def should_stop(self) -> bool:
        """
        Whether the learner has asked its members to stop.

        Raises:
            FencedError: Kind ``member.fenced``: this incarnation is over.
        """
        with self._monitor:
            self._live()
            return self._membership.is_stopping

    def weights(self, newer_than: Weights | None = None, *, timeout_seconds: float) -> Weights | None:
        """
        Return the newest weights of the learner, waiting for some if need be.

        The first ones returned end the phase STARTING.

        Args:
            newer_than: Weights known already.
            timeout_seconds: Longest wait; 0 returns what has already come in answer to an earlier call.

        Returns:
            Weights owned by the caller, or None if none came in time or the learner asks its members to stop.

        Raises:
            FencedError: Kind ``member.fenced``: this incarnation is over.
        """
        known = newer_than.key if newer_than else (0, 0)
        deadline = time.monotonic() + timeout_seconds
        with self._monitor:
            while True:
                self._live()
                found = self._take_newest(known)
                remaining = deadline - time.monotonic()
                if found or remaining <= 0 or self._membership.is_stopping:
                    return found
                self._wait_for(lambda: self._newest is not None, remaining)

    def progress(self, count: int = 1) -> None:
        """
        Report that the main loop has done ``count`` more pieces of work; to be called where other calls are rare.

        Raises:
            FencedError: Kind ``member.fenced``: this incarnation is over.
        """
        with self._monitor:
            self._live(count)

    def enter(self, phase: Phase) -> None:
        """
        Say what the main loop is busy with, which decides for how long it may make no progress.

        Raises:
            FencedError: Kind ``member.fenced``: this incarnation is over.
        """
        with self._monitor:
            self._live()
            self._phase = phase

    def statistics(self) -> RoleStatistics:
        """Return the counts so far."""
        with self._monitor:
            return RoleStatistics(
                generation=self._membership.announcement.generation,
                is_leased=self._membership.may_act(self._clock()),
                sent=self._sequence,
                held=len(self._outbox),
                overflowed=self._outbox.overflowed,
                undone=self._outbox.undone,
            )

    def close(self, *, timeout_seconds: float = 1.0) -> None:
        """
        Send what can be sent, give the lease back and close the sockets; closing twice is harmless.

        Args:
            timeout_seconds: Longest wait for what is held to be sent; the rest is dropped.
        """
        with self._monitor:
            self._monitor.wait_for(
                lambda: not self._outbox or not self._membership.may_send(self._clock()), timeout_seconds
            )
        self._stopped.set()
        self._waker.wake()
        self._thread.join(_JOIN_SECONDS)

    def __enter__(self: _AnyRole) -> _AnyRole:  # noqa: PYI019 - typing.Self is newer than the oldest Python we support
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _hand_over(self, item: Item, timeout_seconds: float) -> None:
        """
        Put an item in line.

        While the learner is there but slow, wait for a place in line; while it is away, hold on to the newest.
        """
        check_sendable(item.compose)
        deadline = time.monotonic() + timeout_seconds
        with self._monitor:
            self._live()
            while not self._outbox.has_room() and self._membership.may_send(self._clock()):
                remaining = deadline - time.monotonic()
                if remaining <= 0 or self._membership.is_stopping:
                    break
                self._wait_for(self._outbox.has_room, remaining)
                self._live()
            self._outbox.put(item)
        self._waker.wake()

    def _live(self, count: int = 1) -> None:
        """Note a sign of life of the main thread, and stop it here if the incarnation is over. Inside the monitor."""
        if self._membership.fenced:
            raise self._membership.fenced
        self._progress += count

    def _take_newest(self, known: tuple[int, int]) -> Weights | None:
        newest = self._newest
        is_current = newest is not None and newest.lineage == self._membership.announcement.lineage
        if newest is None or newest.key <= known or not is_current:
            self._newest = None
            self._membership.want(*known)
            self._waker.wake()
            return None
        self._newest = None
        if self._phase is Phase.STARTING:
            self._phase = Phase.RUNNING
        return newest

    def _wait_for(self, predicate: Callable[[], bool], remaining_seconds: float) -> None:
        """Wait a moment; short enough to go on counting as alive."""
        longest = min(_LONGEST_SILENCE_SECONDS, self._timing.beat_seconds, remaining_seconds)
        self._monitor.wait_for(lambda: predicate() or self._membership.fenced is not None, longest)

    def _serve(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        connection = _Connection(context, self._directory, self._outlet_name, self._clock())
        try:
            while not self._stopped.is_set() and self._membership.fenced is None:
                try:
                    connection = self._turn(connection)
                except Exception:  # whatever went wrong, the lease must be kept and the learner looked for
                    logger.exception("cannot finish a turn of member %s", self._name)
                    self._stopped.wait(self._timing.beat_seconds / 10)
            send(connection.control, [encode(self._membership.farewell(self._clock()))])
        finally:
            connection.close(_LINGER_MILLISECONDS)
            context.term()

    def _turn(self, connection: _Connection) -> _Connection:
        connection.wait(self._waker, self._patience(), wants_to_send=self._has_something_to_send())
        self._waker.clear()
        with self._monitor:
            if connection.has_changed():
                self._membership.void(self._clock())
        while (frames := receive(connection.control)) is not None:
            self._hear(frames)
        with self._monitor:
            for message in self._membership.due(self._clock(), self._condition()):
                send(connection.control, [encode(message)])
            self._send_items(connection)
            self._monitor.notify_all()
            if self._membership.is_unheard(connection.opened_at, self._clock()):
                # A frozen learner keeps its connections: only a new one can lead to a successor.
                self._membership.void(self._clock())
                return connection.reopened(self._clock())
        return connection

    def _patience(self) -> float:
        with self._monitor:
            return min(_LONGEST_TURN_SECONDS, max(0.0, self._membership.due_at() - self._clock()))

    def _has_something_to_send(self) -> bool:
        with self._monitor:
            return bool(self._outbox) and self._membership.may_send(self._clock())

    def _condition(self) -> Condition:
        outbox = self._outbox
        return Condition(self._phase, self._progress, len(outbox), outbox.overflowed, outbox.undone)

    def _hear(self, frames: list[Buffer]) -> None:
        message = decode_from_learner(frames[0])
        if isinstance(message, Answer):
            with self._monitor:
                self._membership.hear(message, self._clock())
        elif isinstance(message, WeightsHeader):
            arrays = unpack(message.arrays, frames[1:])
            if isinstance(arrays, Malformation):
                logger.warning("member %s got weights that were malformed: %s", self._name, arrays.value)
                return
            weights = Weights(message.announcement.lineage, message.version, message.learner_step, arrays)
            with self._monitor:
                if self._membership.hear_weights(message, self._clock()):
                    self._newest = weights
        else:
            logger.warning("member %s got a message that was malformed: %s", self._name, message.value)

    def _send_items(self, connection: _Connection) -> None:
        while self._membership.may_send(self._clock()):
            item = self._outbox.first(self._membership.announcement)
            if item is None:
                return
            stamp = Stamp(
                run=self._run,
                generation=self._membership.announcement.generation,
                member=self._name,
                incarnation=str(self._incarnation),
                sequence=self._sequence + 1,
                learner_step=item.learner_step,
            )
            if not send(connection.outlet, [encode(item.compose(stamp)), *item.frames]):
                return
            self._sequence += 1
            self._outbox.pop()


class _Connection:
    """The sockets of a member."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], directory: Path, outlet_name: str, now: float) -> None:
        self._context = context
        self._directory = directory
        self._outlet_name = outlet_name
        self.opened_at = now
        self.control = connect(context, zmq.DEALER, directory / CONTROL)
        self.outlet = connect(context, zmq.PUSH, directory / SAMPLES) if outlet_name == SAMPLES else self.control
        self._watch = ConnectionWatch(self.control)

    def wait(self, waker: Waker, seconds: float, *, wants_to_send: bool) -> None:
        """Wait until there is something to do."""
        poller = zmq.Poller()
        poller.register(waker, zmq.POLLIN)
        poller.register(self._watch.socket, zmq.POLLIN)
        poller.register(self.control, zmq.POLLIN)
        if wants_to_send:
            poller.register(self.outlet, zmq.POLLOUT | (zmq.POLLIN if self.outlet is self.control else 0))
        poller.poll(int(1000 * seconds) + 1)

    def has_changed(self) -> bool:
        """Say whether the learner's end came or went since the last call."""
        return bool(self._watch.changes())

    def reopened(self, now: float) -> _Connection:
        """Return another connection in this one's place."""
        self.close(0)
        return _Connection(self._context, self._directory, self._outlet_name, now)

    def close(self, linger_milliseconds: int) -> None:
        """Close the sockets, giving what was sent so long to leave."""
        self._watch.close()
        if self.outlet is not self.control:
            self.outlet.close(linger_milliseconds)
        self.control.close(linger_milliseconds)
