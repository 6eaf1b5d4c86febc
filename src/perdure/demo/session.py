"""
One run of the demo, from its first process to the death of its last: supervised, disturbed, watched.

Everything happens in the thread that calls `Session.run`, because the supervisor calls back in it: between the decision
for a fault and its injection no process is reaped, so a signal cannot hit a stranger.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from perdure.chaos import Fault, Injector
from perdure.demo.acts import LEARNER, Act
from perdure.demo.director import Director
from perdure.demo.history import History
from perdure.demo.incidents import Event
from perdure.demo.process import heard, over_file
from perdure.demo.project import settings_file, write_project
from perdure.demo.settings import Settings
from perdure.demo.training import Happening, Training, look_back
from perdure.errors import NotFoundError
from perdure.inspection import RunView
from perdure.supervise.config import read_config
from perdure.supervise.member import MemberStatistics
from perdure.supervise.supervisor import Supervisor

OnEvent = Callable[["Session", Happening], None]


class Session:
    """
    Runs the demo's training once.

    Args:
        name: Name of the run, and of its files.
        directory: Where the report's files go; the run itself lies in ``runs/<name>``.
        settings: What to train.
        acts: What is to go wrong.
        on_event: Told every event, with this session, after it was taken in.
        wall_seconds: Seconds since the epoch, by the clock that events are stamped with.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        settings: Settings,
        acts: Sequence[Act],
        on_event: OnEvent,
        wall_seconds: Callable[[], float],
    ) -> None:
        self.name = name
        self.settings = settings
        self.director = Director(acts)
        self.has_timed_out = False
        """Whether it was stopped because it took too long."""
        self._happenings: list[Happening] = []
        self._on_event = on_event
        self._wall_seconds = wall_seconds
        self._began_at = wall_seconds()
        config = read_config(write_project(name, settings, directory))
        self._over_file = over_file(settings_file(name, directory))
        self._history = History(config.directory, wall_seconds)
        self._supervisor = Supervisor(
            config, config.directory, on_event=self._hear_supervisor, on_output=self._hear_output
        )
        self._injector = Injector(self._pid_of, lambda: RunView(config.store, config.run).checkpoints())

    def run(self) -> Training:
        """
        Train to the end, or until stopped, and look back on it. No process is left when this returns or raises.

        Raises:
            LeaseHeldError: Another supervisor has the run.
        """
        watchdog = threading.Timer(self.settings.limit_seconds, self._time_out)
        watchdog.daemon = True
        watchdog.start()
        try:
            exit_code = self._supervisor.run()
        finally:
            watchdog.cancel()
        return look_back(
            self.name,
            exit_code,
            self._happenings,
            updates=self.settings.updates,
            samples_dropped=self.director.samples_dropped,
            incidents=self.director.incidents,
            faults_missing=len(self.director.waiting),
        )

    @property
    def seconds(self) -> float:
        """Time since the session began."""
        return self._wall_seconds() - self._began_at

    @property
    def members(self) -> tuple[MemberStatistics, ...]:
        """The processes as they are now; any thread may ask."""
        return self._supervisor.members()

    def _time_out(self) -> None:
        self.has_timed_out = True
        self._supervisor.stop()

    def _hear_supervisor(self, event: dict[str, object]) -> None:
        self._history.append(event)
        self._hear_history()

    def _hear_output(self, member: str, line: str) -> None:
        event = heard(line) if member == LEARNER else None
        if event is not None:
            self._hear_history()
            self._hear(self.seconds, event)

    def _hear_history(self) -> None:
        for age_seconds, event in self._history.fresh():
            self._hear(self.seconds - age_seconds, event)

    def _hear(self, at: float, event: Event) -> None:
        happening = Happening(at, event)
        self._happenings.append(happening)
        due = self.director.hear(at, event)
        if due is not None:
            self._inject(due)
        if self.director.is_over:
            self._over_file.touch()
        self._on_event(self, happening)

    def _inject(self, fault: Fault) -> None:
        try:
            injection = self._injector.inject(fault)
        except NotFoundError:
            return  # nothing to hit at this moment, such as a member that has just died by itself: it stays due
        self.director.injected(self.seconds, injection)
        self._history.append({"event": "fault-injected", "fault": str(fault), **injection.facts})

    def _pid_of(self, member: str) -> int | None:
        return next((each.pid for each in self.members if each.name == member), None)
