"""
The supervisor: starts the members of a run, watches them, kills and restarts them, and says why it ended.

One thread does everything; it waits in one place for output, beats, deaths and the next deadline. What to do about
them is decided in `perdure.core.restarts`; the states of a member are drawn in `perdure.supervise.member`.

The events that it reports are listed in `perdure.supervise`.
"""

from __future__ import annotations

import os
import random
import selectors
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from perdure.core.restarts import (
    EXIT_FAILED,
    Done,
    Exit,
    GiveUp,
    Phase,
    Signs,
    decide,
    describe_status,
    judge_run,
    judge_stop,
    last_sign,
    with_fault,
    with_progress,
)
from perdure.errors import StoreError
from perdure.files.door import DIRECTORY_MODE, Files, explained
from perdure.supervise.beats import (
    BEAT_VARIABLE,
    MAXIMUM_DATAGRAM_BYTES,
    MEMBER_VARIABLE,
    RESTART_COUNT_VARIABLE,
    ROLE_VARIABLE,
    SUPERVISOR_VARIABLE,
    decode_beat,
)
from perdure.supervise.claims import beat_socket, exclusive, stop_signals
from perdure.supervise.config import ProjectConfig
from perdure.supervise.inbox import Inbox
from perdure.supervise.member import Member, MemberState, MemberStatistics, SupervisorStatistics
from perdure.supervise.process import Process

LOGS = "logs"
_TURN_SECONDS = 1.0
"""Longest wait of one turn: short, so that a turn which ends this much late tells how long the supervisor was blind."""
_MOST_BEATS_A_TURN = 1000

Launch = Callable[[tuple[str, ...], Path, Mapping[str, str], Callable[[Process], None]], Process]


@dataclass(frozen=True, slots=True)
class _Ending:
    exit_code: int | None = None
    """What the run has come to; None if it was asked to stop, and how its members do that decides."""
    signal_number: int = 0


class Supervisor:
    """
    Supervises one run on this machine.

    Args:
        config: The run.
        directory: The run's directory, made if missing. The supervisor writes ``supervisor.lock``, which means
            nothing once its process is gone, and ``logs/<member>.log``, which it appends to.
        clock: Monotonic seconds.
        on_event: Told every step, in the thread that calls `run`. It must return soon; what it raises ends the run.
        on_output: Told every line of output and the member's name before it, under the same conditions.
        environ: What the members' environments begin with.
        files: The door to the file system.
        launch: Starts a process.
        jitter: Random numbers from 0 to 1, for the waits before restarts.
    """

    def __init__(
        self,
        config: ProjectConfig,
        directory: Path,
        clock: Callable[[], float] = time.monotonic,
        on_event: Callable[[dict[str, object]], None] = lambda _event: None,
        on_output: Callable[[str, str], None] = lambda _member, _line: None,
        *,
        environ: Mapping[str, str] = os.environ,
        files: Files | None = None,
        launch: Launch = Process,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._config = config
        self._directory = directory
        self._clock = clock
        self._on_event = on_event
        self._on_output = on_output
        self._environ = environ
        self._files = files or Files()
        self._launch = launch
        self._jitter = jitter
        self._members = {name: Member(name, role, now=clock()) for role in config.roles for name in role.members}
        self._essential = [member for member in self._members.values() if member.role.essential]
        self._ending: _Ending | None = None
        self._stops_count = 0
        self._ignored_beats_count = 0
        self._inbox = Inbox()

    def run(self) -> int:
        """
        Supervise until the run is over, then return why as an exit code; call it once.

        The codes are the ``EXIT_…`` constants of `perdure.core.restarts`, or 128 plus a signal's number after a stop
        that was not clean. In the main thread it answers SIGTERM, SIGINT and SIGHUP like `stop`. Members die with the
        thread that calls this, whatever kills it; what they started themselves does so only with a supervisor that
        lives to kill their process groups.

        Raises:
            LeaseHeldError: Kind ``supervisor.held``: another supervisor has this run; its pid is named.
            StoreError: The run directory cannot be used.
        """
        with ExitStack() as claims:
            claims.enter_context(exclusive(self._directory))
            with explained("make", self._directory / LOGS):
                (self._directory / LOGS).mkdir(DIRECTORY_MODE, exist_ok=True)
            self._beats, self._address = claims.enter_context(beat_socket())
            self._selector = claims.enter_context(selectors.DefaultSelector())
            bell = claims.enter_context(self._inbox.bell())
            claims.callback(self._leave_nobody_behind)
            claims.enter_context(stop_signals(self.stop))
            self._selector.register(self._beats, selectors.EVENT_READ, self._hear_beats)
            self._selector.register(bell, selectors.EVENT_READ, partial(bell.recv, MAXIMUM_DATAGRAM_BYTES))
            exit_code = self._supervise()
            self._on_event({"event": "run-ended", "exit_code": exit_code})
            return exit_code

    def stop(self, signal_number: int = signal.SIGTERM) -> None:
        """
        Ask the run to stop, from any thread or a signal handler; returns at once.

        Members get SIGTERM, and SIGKILL after the grace. Asking a second time kills them now.
        """
        self._inbox.put(partial(self._stop, signal_number))

    def members(self) -> tuple[MemberStatistics, ...]:
        """Describe the members as they are now, with their process ids; any thread may ask."""
        return tuple(member.statistics() for member in self._members.values())

    def statistics(self) -> SupervisorStatistics:
        """Describe the run as it is now; any thread may ask."""
        return SupervisorStatistics(self.members(), self._ignored_beats_count)

    # The loop.

    def _supervise(self) -> int:
        while self._ending is None or not all(member.is_over for member in self._members.values()):
            self._take_turn()
        if self._ending.exit_code is not None:
            return self._ending.exit_code
        return judge_stop((member.status for member in self._essential), self._ending.signal_number)

    def _take_turn(self) -> None:
        begun = self._clock()
        wake_at = min(member.deadline for member in self._members.values())
        wake_at = min(max(wake_at, begun), begun + _TURN_SECONDS)
        for key, _ in self._selector.select(wake_at - begun):
            key.data()
        self._inbox.make_calls()
        now = self._clock()
        if now - wake_at > _TURN_SECONDS:
            # The supervisor itself was stopped or starved. It has no right to call anybody silent for that time.
            for member in self._members.values():
                member.signs = member.signs.shifted(now - wake_at, now)
        for member in self._members.values():
            if now >= member.deadline:
                self._act_on_deadline(member, now)
        if self._ending is None:
            exit_code = judge_run(member.outcome for member in self._essential)
            if exit_code is not None:
                self._end(_Ending(exit_code))

    def _act_on_deadline(self, member: Member, now: float) -> None:
        if member.state is MemberState.WAITING:
            self._start(member, now)
        elif member.state is MemberState.ALIVE:
            self._declare_silent(member, now)
        elif member.state is MemberState.STOPPING:
            self._kill(member, now)
        else:
            self._go_on_without(member, now)

    # The life of a member.

    def _start(self, member: Member, now: float) -> None:
        role = member.role
        on_exit = partial(self._report_exit, member)
        try:
            process = self._launch(role.command, role.cwd, self._environment(member), on_exit)
        except OSError as error:
            self._end_life(member, EXIT_FAILED, now, f"cannot be started: {error.strerror}")
            return
        member.process = process
        member.state = MemberState.ALIVE
        member.signs = Signs.at_start(now)
        member.beat = None
        self._selector.register(process.output, selectors.EVENT_READ, partial(self._hear_output, member, process))
        restarted_after = None if member.faulted_at is None else now - member.faulted_at
        self._tell(
            "member-started",
            member,
            pid=process.pid,
            restart_count=member.restart_count,
            restarted_after_seconds=restarted_after,
        )

    def _environment(self, member: Member) -> dict[str, str]:
        return {
            "PYTHONUNBUFFERED": "1",  # into a pipe, Python holds back kilobytes of output, and looks silent
            **self._environ,
            **member.role.env,
            "PERDURE_STORE": str(self._config.store),
            "PERDURE_RUN": self._config.run,
            "PERDURE_GRACE_SECONDS": str(self._config.timing.grace_seconds),
            SUPERVISOR_VARIABLE: self._address,
            ROLE_VARIABLE: member.role.name,
            MEMBER_VARIABLE: member.name,
            RESTART_COUNT_VARIABLE: str(member.restart_count),
            BEAT_VARIABLE: str(self._config.timing.beat_seconds),
        }

    def _declare_silent(self, member: Member, now: float) -> None:
        member.faulted_at = last_sign(member.signs, member.role.budgets[member.signs.phase])
        member.was_silent = True
        self._tell_fault(member, "silent", None, now - member.faulted_at)
        self._kill(member, now)

    def _kill(self, member: Member, now: float) -> None:
        if member.process is not None:
            member.process.kill()
        member.state = MemberState.KILLED
        member.due_at = now + self._config.timing.reap_seconds

    def _go_on_without(self, member: Member, now: float) -> None:
        # Uninterruptible sleep, as in a driver or on a dead network mount. Its death is not confirmed, so that only
        # the generation that its successor mints keeps it from doing harm.
        process = member.process
        assert process is not None
        self._tell("member-unreaped", member, pid=process.pid)
        self._hang_up(process)
        self._end_life(member, -signal.SIGKILL, now)

    def _report_exit(self, member: Member, process: Process) -> None:
        self._inbox.put(partial(self._bury, member, process, self._clock()))

    def _bury(self, member: Member, process: Process, died_at: float) -> None:
        process.kill()  # descendants that outlive it would go on beside its successor
        if process is not member.process:
            process.reap()
            return
        self._hear_beats()
        self._forward(member, process, process.read_rest(), is_last=True)
        self._hang_up(process)
        status = process.reap()
        assert status is not None
        self._end_life(member, status, died_at)

    def _end_life(self, member: Member, status: int, died_at: float, reason: str = "") -> None:
        now = self._clock()
        reason = reason or describe_status(status)
        ended = Exit(
            status,
            is_silent=member.was_silent,
            is_stop_requested=self._ending is not None,
            last_words=member.beat.note if member.beat else "",
        )
        decision = decide(ended, member.history, member.role.restart, now, self._jitter())
        if not isinstance(decision, Done) and not member.was_silent:
            member.faulted_at = died_at
            self._tell_fault(member, reason, status, now - died_at)
        member.process = None
        member.status = status
        member.was_silent = False
        if isinstance(decision, Done):
            is_finished = self._ending is None
            member.state = MemberState.DONE if is_finished else MemberState.STOPPED
            self._tell("member-done" if is_finished else "member-stopped", member, reason=reason)
        elif isinstance(decision, GiveUp):
            member.state = MemberState.GAVE_UP
            member.gave_up_code = decision.exit_code
            self._tell("member-gave-up", member, reason=decision.reason, exit_code=decision.exit_code)
        else:
            member.history = with_fault(member.history, member.role.restart, now)
            member.restart_count += 1
            member.state = MemberState.WAITING
            member.due_at = now + decision.after_seconds
            self._tell("member-waiting", member, restart_after_seconds=decision.after_seconds)

    # The end of the run.

    def _stop(self, signal_number: int) -> None:
        self._stops_count += 1
        if self._ending is None:
            self._end(_Ending(signal_number=signal_number))
        elif self._stops_count > 1:
            for member in self._members.values():
                if not member.is_over:
                    self._kill(member, self._clock())

    def _end(self, ending: _Ending) -> None:
        self._ending = ending
        name = signal.Signals(ending.signal_number).name if ending.signal_number else None
        self._on_event({"event": "run-stopping", "exit_code": ending.exit_code, "signal": name})
        for member in self._members.values():
            if member.state is MemberState.WAITING:
                member.state = MemberState.STOPPED
            elif member.state is MemberState.ALIVE and member.process is not None:
                member.process.terminate()
                member.state = MemberState.STOPPING
                member.due_at = self._clock() + self._config.timing.grace_seconds

    def _leave_nobody_behind(self) -> None:
        # Nobody is left, unless a callback raised: then there is no time for grace, only for certainty.
        left = [member.process for member in self._members.values() if member.process is not None]
        for process in left:
            process.kill()
        deadline = self._clock() + self._config.timing.reap_seconds
        for process in left:
            process.reap(max(0.0, deadline - self._clock()))
            self._hang_up(process)

    # What is heard of members, and told about them.

    def _hear_beats(self) -> None:
        for _ in range(_MOST_BEATS_A_TURN):
            try:
                datagram = self._beats.recv(MAXIMUM_DATAGRAM_BYTES)
            except BlockingIOError:
                return
            self._hear_beat(datagram)

    def _hear_beat(self, datagram: bytes) -> None:
        beat = decode_beat(datagram)
        member = self._members.get(beat.name) if beat else None
        if beat is None or member is None or beat.incarnation != member.restart_count or member.process is None:
            self._ignored_beats_count += 1
            return
        now = self._clock()
        member.beat = beat
        member.signs = member.signs.with_beat(beat.phase, beat.progress, now)
        if beat.progress is not None:
            member.history = with_progress(member.history, beat.progress, member.role.restart)
        if beat.phase is Phase.RUNNING and member.faulted_at is not None and member.state is MemberState.ALIVE:
            recovered_after = now - member.faulted_at
            member.faulted_at = None
            self._tell("member-running", member, generation=beat.generation, recovered_after_seconds=recovered_after)

    def _hear_output(self, member: Member, process: Process) -> None:
        chunk, is_open = process.read()
        self._forward(member, process, chunk)
        if not is_open:  # it closed its output, or nobody is left who could write; its death is told separately
            self._selector.unregister(process.output)

    def _forward(self, member: Member, process: Process, chunk: bytes, *, is_last: bool = False) -> None:
        if chunk:
            member.signs = member.signs.with_output(self._clock())
            self._log(member, chunk)
        for line in process.split_lines(chunk, is_last=is_last):
            self._on_output(member.name, line)

    def _log(self, member: Member, chunk: bytes) -> None:
        path = self._directory / LOGS / f"{member.name}.log"
        try:
            with explained("append to", path):
                self._files.append(path, chunk)
        except StoreError as error:
            if member.is_logged:  # once for each time that it begins to fail: a full disk is no reason to stop a run
                member.is_logged = False
                self._tell("member-unlogged", member, reason=error.message)
        else:
            member.is_logged = True

    def _hang_up(self, process: Process) -> None:
        if process.output in self._selector.get_map():
            self._selector.unregister(process.output)
        process.close()

    def _tell_fault(self, member: Member, reason: str, status: int | None, detected_after: float) -> None:
        is_exit, is_signal = status is not None and status >= 0, status is not None and status < 0
        self._tell(
            "member-fault",
            member,
            pid=member.process.pid if member.process else None,
            reason=reason,
            exit_code=status if is_exit else None,
            signal=reason if is_signal else None,
            phase=member.signs.phase.value,
            progress=member.signs.progress,
            generation=member.beat.generation if member.beat else None,
            note=member.beat.note if member.beat else "",
            detected_after_seconds=detected_after,
        )

    def _tell(self, event: str, member: Member, **fields: object) -> None:
        self._on_event({"event": event, "member": member.name, "role": member.role.name, **fields})
