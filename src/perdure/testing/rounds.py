"""
Rounds of life and sudden death, on a real file system and with real processes.

    python -m perdure.testing.rounds --on ext4 --rounds 1000

In each round a fresh process looks at what the ones before it left, says what it finds, and goes on with the run until
it is killed (``--on memory``, ``--on disk``) or the power is cut (``--on ext4``, ``--on xfs``; needs root). What was
acknowledged must be found by the next. Half of the ends come at random moments, half at each change in turn that each
act makes to the file system. Ends with a JSON object on standard output, and with status 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perdure.errors import DeadlineError, PerdureError
from perdure.testing.faults import KILL, Fault, before
from perdure.testing.lives import LIVES, Life, Message, Point
from perdure.testing.powercut import Cut, LoopFileSystem
from perdure.testing.promises import Event, Promises

DEADLINE_SECONDS = 60.0
LONGEST_RUN_ROUNDS = 40
"""After so many rounds a new run is begun, so that beginnings are tried as well and nothing piles up."""
_MOST_EVENTS = 12
_LONGEST_WAIT_SECONDS = 0.004


@dataclass
class Outcome:
    """
    What came of some rounds.

    Attributes:
        ends: Rounds that ended in a kill or a cut.
        points: How often an end came at each change of each act.
        acknowledged: Changes that were acknowledged.
        violations: Broken promises, for people.
        seconds: How long it took.
    """

    ends: int = 0
    points: dict[str, int] = field(default_factory=dict)
    acknowledged: int = 0
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The outcome as one JSON-able object."""
        return {
            "ends": self.ends,
            "points": len(self.points),
            "fewest_ends_at_a_point": min(self.points.values(), default=0),
            "acknowledged": self.acknowledged,
            "violations": self.violations,
            "seconds": round(self.seconds, 2),
        }


class End:
    """How lives end here."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def come(self, process: int, how: Cut) -> None:
        """End a living process."""
        del how
        os.kill(process, signal.SIGKILL)

    def fault(self, how: Cut) -> Fault:
        """What ends a process from within, in the place of a call."""
        del how
        return KILL

    def recover(self) -> None:
        """Make the root usable again when every process on it is gone."""


class PowerCut(End):
    """The power goes, and with it the process."""

    def __init__(self, system: LoopFileSystem) -> None:
        super().__init__(system.path)
        self._system = system

    def come(self, process: int, how: Cut) -> None:
        """Cut the power, then end what is left of the process."""
        self._system.cut(how)
        super().come(process, how)

    def fault(self, how: Cut) -> Fault:
        """Cut the power from within."""

        def end() -> None:
            self._system.cut(how)
            os.kill(os.getpid(), signal.SIGKILL)

        return before(end, f"cut {how.name}")

    def recover(self) -> None:
        """Mount anew."""
        self._system.restore_power()


@contextmanager
def place(where: str) -> Iterator[End]:
    """A root to live on: ``memory`` or ``disk`` (processes are killed), ``ext4`` or ``xfs`` (the power is cut)."""
    if where in ("ext4", "xfs"):
        with LoopFileSystem(where) as system:
            yield PowerCut(system)
        return
    root = Path(tempfile.mkdtemp(prefix="perdure-rounds-", dir="/dev/shm" if where == "memory" else None))  # noqa: S108 - made private by mkdtemp
    try:
        yield End(root)
    finally:
        shutil.rmtree(root)


class Rounds:
    """
    Plays rounds.

    Args:
        life: What processes do.
        end: How they end.
        seed: Of every choice.
    """

    def __init__(self, life: Life, end: End, seed: int) -> None:
        self._life = life
        self._end = end
        self._chance = random.Random(seed)  # noqa: S311 - chooses what is tried
        self._points = _all_points(life)
        self._point = next(self._points)
        self._promises = Promises()
        self._generation = 0
        self.outcome = Outcome()

    def play(self, rounds: int) -> Outcome:
        """Play so many rounds, and one more in which everything is looked at."""
        began = time.monotonic()
        for number in range(1, rounds + 2):
            if number % LONGEST_RUN_ROUNDS == 0:
                shutil.rmtree(self._directory(number - 1), ignore_errors=True)
                self._promises = Promises()
                self._generation = 0
            self._play_one(number)
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    def _directory(self, number: int) -> Path:
        return self._end.root / f"run-{number // LONGEST_RUN_ROUNDS}"

    def _play_one(self, number: int) -> None:
        how = Cut(1 + number % 2)
        act, at = self._point
        point = Point(act, at, self._end.fault(how)) if number % 4 < 2 else None
        watch = _Watch(lambda tell: self._life(self._directory(number), number, tell, point))
        try:
            if point is None:
                self._end_at_random(watch, how)
            else:
                self._watch_to_its_end(watch, act, at)
        finally:
            watch.reap()
            self._take([*watch.drain()], number, late=True)
            self._end.recover()
        self.outcome.ends += 1

    def _watch_to_its_end(self, watch: _Watch, act: str, at: int) -> None:
        messages = list(watch.until_silent())
        self._take(messages, at, late=False)
        if any("calls" in message for message in messages):
            # The act has fewer changes than that: it was lived through, and the next one's turn has come.
            self._point = self._points.send(True)  # type: ignore[attr-defined]
            return
        name = f"{act}:{at}"
        self.outcome.points[name] = self.outcome.points.get(name, 0) + 1
        self._point = next(self._points)
