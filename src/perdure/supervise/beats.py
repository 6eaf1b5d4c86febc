"""
Beats: small datagrams in which a supervised process says what it is busy with and how far it has come.

The supervisor names a unix datagram socket in the environment; a `Beater` sends to it from a thread of its own.
Beating never disturbs training: a datagram that cannot be delivered at once is dropped, a supervisor that is gone is
normal, and without one every method does nothing. The progress counter is set by the main loop, so that a living
thread cannot pass off a dead loop as alive.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TypeVar, final

from perdure.core.restarts import Phase
from perdure.errors import InvalidInputError

SUPERVISOR_VARIABLE = "PERDURE_SUPERVISOR"
"""Path of the supervisor's datagram socket."""
ROLE_VARIABLE = "PERDURE_ROLE"
"""Name of the member's role."""
MEMBER_VARIABLE = "PERDURE_MEMBER"
"""Name of the member, unique in the run."""
RESTART_COUNT_VARIABLE = "PERDURE_RESTART_COUNT"
"""How often this supervisor has restarted the member: 0 in its first incarnation."""
BEAT_VARIABLE = "PERDURE_BEAT_SECONDS"
"""How often the member is to send a beat."""

BEAT_SCHEMA = 1
DEFAULT_BEAT_SECONDS = 5.0
MAXIMUM_DATAGRAM_BYTES = 4096
_MAXIMUM_NOTE_CHARACTERS = 256
_JOIN_SECONDS = 1.0

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Beat:
    """One datagram."""

    role: str
    """Role of the sender."""
    name: str
    """Member name of the sender."""
    pid: int
    """Process id of the sender, which may be a descendant of the process that the supervisor started."""
    incarnation: int
    """Restart count of the sender; a beat of an earlier incarnation is nobody's sign of life."""
    phase: Phase
    """What the sender is busy with."""
    progress: int | None = None
    """Counter of the main loop; None until it is first set."""
    step: int | None = None
    """Environment steps of the run, where the sender knows them."""
    generation: int | None = None
    """Generation that the sender works in, where it knows one."""
    note: str = ""
    """Free text; in the last beat of a process that fails, the kind of the error that ends it."""

    def encode(self) -> bytes:
        """Return the datagram: one JSON object with the fields and ``schema``."""
        return json.dumps({"schema": BEAT_SCHEMA, **asdict(self)}, separators=(",", ":")).encode()


def decode_beat(datagram: bytes) -> Beat | None:
    """Return the beat that a datagram holds, or None if it is not one; unknown fields are ignored."""
    try:
        record = json.loads(datagram)
        if not isinstance(record, dict) or record.get("schema") != BEAT_SCHEMA:
            return None
        return Beat(
            role=_typed(record["role"], str),
            name=_typed(record["name"], str),
            pid=_typed(record["pid"], int),
            incarnation=_typed(record["incarnation"], int),
            phase=Phase(record["phase"]),
            progress=_count(record.get("progress")),
            step=_count(record.get("step")),
            generation=_count(record.get("generation")),
            note=_typed(record.get("note", ""), str),
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


@final
class Beater:
    """
    Sends beats from a daemon thread, at once when the phase changes and else at a steady interval.

    Inactive, with every method a no-op, where the environment names no supervisor and in children forked from the
    process that made it. Any thread may call any method.

    Args:
        role: Role of this process.
        name: Its member name, as the supervisor gave it.
        interval_seconds: Time between two beats.
        clock: Monotonic seconds; decides when the next beat is due.
        environ: Where the supervisor's socket and the restart count are read from.

    Example:
        >>> with Beater("learner", "learner", environ={}) as beater:
        ...     beater.set_phase(Phase.RUNNING)
        ...     beater.set_progress(1)
    """

    def __init__(
        self,
        role: str,
        name: str,
        interval_seconds: float = DEFAULT_BEAT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        *,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._role = role
        self._name = name
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._address = environ.get(SUPERVISOR_VARIABLE, "")
        self._incarnation = _number(environ, RESTART_COUNT_VARIABLE, int, 0)
        self._pid = os.getpid()
        # Plain attributes, each written whole: a beat may mix two updates, and the next one corrects it.
        self._phase = Phase.STARTING
        self._progress: int | None = None
        self._step: int | None = None
        self._generation: int | None = None
        self._next_due = 0.0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._socket: socket.socket | None = None

    @classmethod
    def of_member(
        cls, clock: Callable[[], float] = time.monotonic, *, environ: Mapping[str, str] = os.environ
    ) -> Beater:
        """
        Return a beater with the role, name and interval that the supervisor gave to this process.

        Raises:
            InvalidInputError: Kind ``config.bad-value``, if an environment variable is not a number.
        """
        return cls(
            environ.get(ROLE_VARIABLE, ""),
            environ.get(MEMBER_VARIABLE, ""),
            _number(environ, BEAT_VARIABLE, float, DEFAULT_BEAT_SECONDS),
            clock,
            environ=environ,
        )

    @property
    def is_active(self) -> bool:
        """Whether there is a supervisor to send to, and this is the process that sends."""
        return bool(self._address) and os.getpid() == self._pid

    def start(self) -> None:
        """Send the first beat and keep beating until `stop`; a second call changes nothing."""
        if not self.is_active or self._thread is not None:
            return
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._beat()
        self._thread = threading.Thread(target=self._keep_beating, name="perdure-beats", daemon=True)
        self._thread.start()

    def stop(self, last_words: str = "") -> None:
        """
        Stop beating, within a second; final, and harmless if done before.

        Args:
            last_words: The kind of the error that ends this process, such as ``store.full``, for the supervisor to
                decide whether a restart can help. Sent in one last beat, which no other follows.
        """
        self._stopped.set()
        if self._thread is not None and self.is_active:
            self._thread.join(_JOIN_SECONDS)
        if last_words:
            self._beat(last_words)
        if self._socket is not None:
            self._socket.close()

    def set_phase(self, phase: Phase) -> None:
        """Say what this process is busy with from now on; sent at once, so that the phase's patience applies."""
        self._phase = phase
        self._beat()

    def set_progress(self, progress: int, step: int | None = None) -> None:
        """
        Say how far the main loop has come; costs two assignments and is sent with the next beat.

        Args:
            progress: A counter that goes on over restarts, such as updates or environment steps of the run. One that
                begins at zero in each process can never refill the restart budget.
            step: Environment steps, if they are known and another number.
        """
        self._progress = progress
        self._step = step

    def set_generation(self, generation: int) -> None:
        """Say which generation this process works in."""
        self._generation = generation

    def _beat(self, note: str = "") -> None:
        if self._socket is None or not self.is_active:
            return
        self._next_due = self._clock() + self._interval_seconds
        beat = Beat(
            role=self._role,
            name=self._name,
            pid=self._pid,
            incarnation=self._incarnation,
            phase=self._phase,
            progress=self._progress,
            step=self._step,
            generation=self._generation,
            note=note[:_MAXIMUM_NOTE_CHARACTERS],
        )
        try:
            self._socket.sendto(beat.encode(), self._address)
        except OSError:
            # No supervisor, or one that is too busy to take more: either way training must not notice.
            return

    def _keep_beating(self) -> None:
        while not self._stopped.wait(max(0.0, self._next_due - self._clock())):
            if self._clock() >= self._next_due:
                self._beat()

    def __enter__(self) -> Beater:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _number(environ: Mapping[str, str], variable: str, convert: Callable[[str], _T], default: _T) -> _T:
    text = environ.get(variable, "")
    try:
        return convert(text) if text else default
    except ValueError as error:
        raise InvalidInputError(
            f"cannot use {text[:80]!r} as {variable}: expected a number",
            kind="config.bad-value",
            hint=f"unset {variable}; the supervisor sets it",
            field=variable,
        ) from error


def _typed(value: object, kind: type[_T]) -> _T:
    if type(value) is not kind:  # exactly: a boolean is no number here
        raise TypeError(f"expected {kind.__name__}")
    return value


def _count(value: object) -> int | None:
    return None if value is None else _typed(value, int)
