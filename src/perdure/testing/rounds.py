"""
Rounds of life and sudden death, on a real file system and with real processes.

    python -m perdure.testing.rounds --on ext4 --rounds 1000

In each round a fresh process looks at what the ones before it left, says what it finds, and goes on with the run until
it is killed (``--on memory``, ``--on disk``) or the power is cut (``--on ext4``, ``--on xfs``, ``--on btrfs``; needs
root). What was acknowledged must be found by the next. Half of the ends come at random moments, half at each change in
turn that each act makes to the file system. Ends with a JSON object on standard output, and with status 1 if a promise
was broken.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from perdure.errors import DeadlineError
from perdure.testing.faults import KILL, Fault, before
from perdure.testing.lives import LIVES, Life, Message, Point, Tell
from perdure.testing.powercut import ClonedFileSystem, Cut, LoopFileSystem
from perdure.testing.promises import Event, Promises

DEADLINE_SECONDS = 60.0
"""Silence of a life after which something has gone wrong."""
LONGEST_RUN_ROUNDS = 40
"""After so many rounds a new run is begun, so that beginnings are tried as well and nothing piles up."""
_PR_SET_PDEATHSIG = 1
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


class ClonedCut(PowerCut):
    """The process ends, and what the file system still had in memory is lost."""

    def come(self, process: int, how: Cut) -> None:
        """End the process first: nothing that it is told afterwards may count."""
        End.come(self, process, how)
        self._system.cut(how)


PLACES = ("memory", "disk", "ext4", "xfs", "btrfs")


@contextmanager
def place(where: str, directory: Path | None = None) -> Iterator[End]:
    """
    Give a root to live on, and take it away afterwards.

    Args:
        where: ``memory`` or ``disk``, where processes are killed; ``ext4``, ``xfs`` or ``btrfs``, whose power is cut.
        directory: Where the root of ``disk`` is made; by default where temporary files go.
    """
    if where == "btrfs":
        with ClonedFileSystem(where) as system:
            yield ClonedCut(system)
        return
    if where in ("ext4", "xfs"):
        with LoopFileSystem(where) as system:
            yield PowerCut(system)
        return
    root = Path(tempfile.mkdtemp(prefix="perdure-rounds-", dir="/dev/shm" if where == "memory" else directory))  # noqa: S108 - made private by mkdtemp
    try:
        yield End(root)
    finally:
        shutil.rmtree(root)


class Watch:
    """A forked process that lives, and the pipe through which it tells."""

    def __init__(self, live: Callable[[Tell], None]) -> None:
        self._reading, writing = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            os.close(self._reading)
            _live_and_exit(live, writing)
        os.close(writing)
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self.has_ended = False
        """Whether the process is known to have told its last."""

    def messages(self, wait_seconds: float) -> Iterator[Message]:
        """What is told until nothing is for so long, or for ever because the process has ended."""
        while self._lines or select.select([self._reading], [], [], wait_seconds)[0]:
            if self._lines:
                yield json.loads(self._lines.popleft())
                continue
            data = os.read(self._reading, 1 << 16)
            if not data:
                self.has_ended = True
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._lines.extend(lines)

    def reap(self) -> Iterator[Message]:
        """End the process if it still lives, and give what it told before; nothing of it is left afterwards."""
        os.kill(self.process, signal.SIGKILL)
        yield from self.messages(DEADLINE_SECONDS)
        os.close(self._reading)
        os.waitpid(self.process, 0)


def _live_and_exit(live: Callable[[Tell], None], writing: int) -> NoReturn:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    def tell(message: Message) -> None:
        # One write: lines of less than PIPE_BUF bytes never mix, and what was told before a kill has arrived.
        os.write(writing, json.dumps(message).encode() + b"\n")

    try:
        live(tell)
    except BaseException as error:  # noqa: BLE001 - the parent is told of it, whatever it is
        tell({"error": repr(error)})
    finally:
        os._exit(0)


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
        self._act, self._at = 0, 1
        self._promises = Promises()
        self._generation = 0
        self.outcome = Outcome()

    def play(self, rounds: int, on_round: Callable[[int], None] = lambda _number: None) -> Outcome:
        """Play so many rounds; each one that has been played is told."""
        began = time.monotonic()
        for number in range(1, rounds + 1):
            if number % LONGEST_RUN_ROUNDS == 0:
                shutil.rmtree(self._directory(number - 1))
                # On a disk that has taken note of it: Btrfs (seen with Linux 6.18) cannot replay a log that begins with
                # the removal of folders out of which others had been moved, and is not mounted again.
                self._end.recover()
                self._promises = Promises()
                self._generation = 0
            self._play_one(number)
            on_round(number)
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    def _directory(self, number: int) -> Path:
        return self._end.root / f"run-{number // LONGEST_RUN_ROUNDS}"

    def _play_one(self, number: int) -> None:
        how = Cut(1 + number // 2 % 2)
        is_marked = number % 2 == 0
        act = self._life.acts[self._act]
        point = Point(act, self._at, self._end.fault(how)) if is_marked else None
        watch = Watch(lambda tell: self._life.live(self._directory(number), number, tell, point))
        try:
            if is_marked:
                self._end_at_point(watch, number)
            else:
                self._end_at_random(watch, number, how)
        finally:
            for message in watch.reap():
                if "error" not in message:  # it has no disk any more
                    self._hear(message, number)
            self._end.recover()
        self.outcome.ends += 1

    def _end_at_point(self, watch: Watch, number: int) -> None:
        lived_through = False
        for message in self._until_it_ends(watch):
            lived_through |= "calls" in message
            self._hear(message, number)
        if lived_through:
            # The act has fewer changes than that; the next act's turn has come.
            self._act, self._at = (self._act + 1) % len(self._life.acts), 1
            return
        point = f"{self._life.acts[self._act]}:{self._at}"
        self.outcome.points[point] = self.outcome.points.get(point, 0) + 1
        self._at += 1

    def _until_it_ends(self, watch: Watch) -> Iterator[Message]:
        yield from watch.messages(DEADLINE_SECONDS)
        if not watch.has_ended:
            raise DeadlineError(
                f"a life has been silent for {DEADLINE_SECONDS:.0f} s",
                kind="rounds.silent",
                waited_seconds=DEADLINE_SECONDS,
            )

    def _end_at_random(self, watch: Watch, number: int, how: Cut) -> None:
        for message in islice(self._until_it_ends(watch), 1 + self._chance.randrange(_MOST_EVENTS)):
            self._hear(message, number)
        for message in watch.messages(self._chance.uniform(0, _LONGEST_WAIT_SECONDS)):
            self._hear(message, number)
        self._end.come(watch.process, how)

    def _hear(self, message: Message, number: int) -> None:
        problems: list[str] = []
        if "found" in message:
            problems = [] if message.get("is_excused") else self._promises.violations(message["found"])
            self._promises.settle(message["found"])
        elif "event" in message:
            event = Event(**message["event"])
            self._promises.note(event)
            self.outcome.acknowledged += event.acknowledged
        elif "generation" in message:
            problems = [f"skipped: {reason}" for reason in message["skipped"]]
            if message["generation"] <= self._generation:
                problems.append(f"generation {message['generation']} comes after {self._generation}")
            self._generation = message["generation"]
        elif "error" in message or "wrong" in message:
            problems = [str(message)]
        self.outcome.violations += [f"round {number}: {problem}" for problem in problems]


def main(arguments: Sequence[str] | None = None) -> int:
    """Play rounds as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m perdure.testing.rounds", description=__doc__)
    parser.add_argument("--on", choices=PLACES, default="memory")
    parser.add_argument("--life", choices=sorted(LIVES), default="store")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    with place(options.on) as end:
        outcome = Rounds(LIVES[options.life], end, options.seed).play(options.rounds)
    sys.stdout.write(json.dumps({"on": options.on, "life": options.life, "seed": options.seed, **outcome.to_json()}))
    sys.stdout.write("\n")
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
