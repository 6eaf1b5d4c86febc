"""
One run of the demo, from its first process to the death of its last: supervised, disturbed, watched.

Everything happens in the thread that calls `Session.run`, because the supervisor calls back in it: between a fault's
decision and its injection no process is reaped, so a signal cannot hit a stranger.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from perdure.chaos import Fault, Injector
from perdure.demo.acts import LEARNER, Act
from perdure.demo.director import Director
from perdure.demo.incidents import Event, Incident
from perdure.demo.process import heard
from perdure.demo.project import write_project
from perdure.demo.settings import Settings
from perdure.demo.training import Happening, Training, look_back
from perdure.errors import NotFoundError
from perdure.files.door import Files
from perdure.inspection import RunView
from perdure.inspection.documents import age_seconds
from perdure.store.layout import EVENTS_FILE
from perdure.store.log import Log
from perdure.supervise.config import read_config
from perdure.supervise.member import MemberStatistics
from perdure.supervise.supervisor import Supervisor
from perdure.surroundings import Surroundings

OnEvent = Callable[["Session", float, Event], None]


class Session:
    """
    Runs the demo's training once.

    Args:
        name: Name of the run, and of its files.
        directory: Where the report's files go; the run itself lies in ``runs/<name>``.
        settings: What to train.
        acts: What is to go wrong.
        on_event: Told every event after it was taken in.
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
        self.happenings: list[Happening] = []
        """Everything that was heard, in the order in which it was."""
        self._on_event = on_event
        self._wall_seconds = wall_seconds
        self._began_at = wall_seconds()
        config = read_config(write_project(name, settings, directory))
        self.run_directory = config.directory
        self._history = Log(Files(), config.directory / EVENTS_FILE)
        self._history_path = config.directory / EVENTS_FILE
        self._history_bytes = 0
        self._history_lines = 0
        self._now = Surroundings().now
        self._supervisor = Supervisor(
            config, config.directory, on_event=self._hear_supervisor, on_output=self._hear_output
        )
        self._injector = Injector(self._pid_of, lambda: RunView(config.store, config.run).checkpoints())

    def run(self) -> Training:
        """
        Train to the end, or until stopped, and look back on it. No process is left when this returns or raises.

        Raises:
            LeaseHeldError: Another demo is at work in the same directory.
        """
        watchdog = threading.Timer(self.settings.limit_seconds, self._supervisor.stop)
        watchdog.daemon = True
        watchdog.start()
        try:
            exit_code = self._supervisor.run()
        finally:
            watchdog.cancel()
        director = self.director
        return look_back(
            self.name,
            exit_code,
            self.happenings,
            samples_dropped=director.samples_dropped,
            incidents=director.incidents,
            faults_missing=len(director.waiting),
        )

    @property
    def seconds(self) -> float:
        """Time since the session began."""
        return self._wall_seconds() - self._began_at

    @property
    def members(self) -> tuple[MemberStatistics, ...]:
        """The processes as they are now."""
        return self._supervisor.members()

    @property
    def incidents(self) -> Sequence[Incident]:
        """Faults so far."""
        return self.director.incidents

    def _hear_supervisor(self, event: dict[str, object]) -> None:
        self._history.append({"at": self._now(), **event})
        self._hear_history()

    def _hear_output(self, member: str, line: str) -> None:
        event = heard(line) if member == LEARNER else None
        if event is not None:
            self._hear_history()
            self._hear(self.seconds, event)

    def _hear_history(self) -> None:
        """Hear what the run's history has got since the last look, whoever wrote it."""
        size = self._history_path.stat().st_size if self._history_path.exists() else 0
        if size == self._history_bytes:
            return
        self._history_bytes = size
        events = list(self._history.read())
        fresh, self._history_lines = events[self._history_lines :], len(events)
        for event in fresh:
            age = age_seconds(event.get("at"), self._wall_seconds()) or 0.0
            self._hear(self.seconds - age, event)

    def _hear(self, at: float, event: Event) -> None:
        self.happenings.append(Happening(at, event))
        due = self.director.hear(at, event)
        if due is not None:
            self._inject(due)
        self._on_event(self, at, event)

    def _inject(self, fault: Fault) -> None:
        try:
            injection = self._injector.inject(fault)
        except NotFoundError:
            return  # nothing to hit at this moment, such as a member that has just died by itself: it stays due
        self.director.injected(self.seconds, injection)
        self._history.append({"at": self._now(), "event": "fault-injected", "fault": str(fault), **injection.facts})

    def _pid_of(self, member: str) -> int | None:
        return next((each.pid for each in self.members if each.name == member), None)


