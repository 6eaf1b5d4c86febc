"""A run's own history, followed while it is being written by several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from perdure.demo.incidents import Event
from perdure.files.door import Files
from perdure.inspection.documents import age_seconds
from perdure.store.layout import EVENTS_FILE
from perdure.store.log import Log
from perdure.surroundings import Surroundings


class History:
    """
    The ``events.jsonl`` of a run, to which this process adds what the run cannot know.

    Args:
        run_directory: The run's directory.
        wall_seconds: Seconds since the epoch, by the clock that events are stamped with.
    """

    def __init__(self, run_directory: Path, wall_seconds: Callable[[], float]) -> None:
        self._path = run_directory / EVENTS_FILE
        self._log = Log(Files(), self._path)
        self._wall_seconds = wall_seconds
        self._surroundings = Surroundings()
        self._seen_bytes = 0
        self._seen_count = 0

    def append(self, event: Event) -> None:
        """Add an event of this moment."""
        self._log.append({"at": self._surroundings.now(), **event})

    def fresh(self) -> Iterator[tuple[float, Event]]:
        """Return what was added since the last call, by whomever, with the age of each event in seconds."""
        size = self._path.stat().st_size if self._path.exists() else 0
        if size == self._seen_bytes:
            return
        events = list(self._log.read())
        fresh = events[self._seen_count :]
        self._seen_bytes, self._seen_count = size, len(events)
        for event in fresh:
            yield age_seconds(event.get("at"), self._wall_seconds()) or 0.0, event
