"""
Lives: what a process does until it is ended, and what it tells about it. Used by `perdure.testing.rounds`.

A life first tells what it finds, then acts. Each act can be begun with a fault at its n-th change of the file system,
so that the end comes at a known point.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import perdure
from perdure.core.retention import Last
from perdure.files.door import Files
from perdure.store.store import Checkpoint, Store
from perdure.testing.faults import Fault, FaultyFiles
from perdure.testing.interception import READING, Call
from perdure.testing.promises import Event, Value, observe
from perdure.testing.scenario import Scenario, numbered_ids

Message = dict[str, Any]
Tell = Callable[[Message], None]
"""Hands a message to whoever watches; it has arrived when this returns."""

_SIZES = {"meta.json": 21, "model/policy.safetensors": 3_000, "buffer/segment-000000.safetensors": 9_000}
_MARKERS = ("marker.json",)


@dataclass(frozen=True, slots=True)
class Point:
    """Where a life is to end: at the n-th change that an act makes."""

    act: str
    at: int
    fault: Fault


class Life(Protocol):
    """A kind of life."""

    @property
    def acts(self) -> tuple[str, ...]:
        """Names of the acts at which a life can be made to end."""
        ...

    def live(self, directory: Path, number: int, tell: Tell, point: Point | None) -> None:
        """
        Live in a run directory until the end comes, or until everything has been done.

        Args:
            directory: The run's directory; it may not be there yet.
            number: Of this life; rises from one to the next.
            tell: Gets ``found`` once, then ``event`` for every step, and ``calls`` after the act of ``point``.
            point: Where the end comes; None if it comes from outside.
        """
        ...


def _changes_something(call: Call) -> bool:
    return call.name not in READING and call.depth == 1


def faulty_files(point: Point) -> FaultyFiles:
    """A file system on which the end comes at the point's change."""
    fault = point.fault
    return FaultyFiles(Fault(fault.name, fault.strike, _changes_something), point.at)


class StoreLife:
    """Uses a `Store` in every way there is."""

    acts = ("start", "save", "linked save", "remove", "retain", "quarantine", "pin", "unpin", "note", "forget", "log")

    def live(self, directory: Path, number: int, tell: Tell, point: Point | None) -> None:
        """See `Life`."""
        tell({"found": observe(Store(directory, Files(), numbered_ids("reader")), _MARKERS)})

        def tell_event(event: Event) -> None:
            tell({"event": asdict(event)})

        scenario = Scenario(directory, Files(), tell_event, f"life-{number}", generation=number)
        if point is None:
            scenario.start()
            for act in _endless_acts(self.acts, number):
                _act(scenario, act, number)
            return
        if point.act != "start":
            scenario.start()
            scenario.pin(scenario.save(10, _SIZES), f"pin-{number}")
            scenario.save(20, _SIZES)
            scenario.note("marker.json", f"{number}")
        files = faulty_files(point)
        scenario.store.files = files
        scenario.store.events = Store(directory, files, numbered_ids("events")).events
        _act(scenario, point.act, number)
        tell({"calls": files.calls})


def _endless_acts(acts: tuple[str, ...], number: int) -> Iterator[str]:
    chance = random.Random(number)  # noqa: S311 - chooses what is tried
    while True:
        yield chance.choice([*acts[1:], "save", "linked save", "retain"])


def _act(scenario: Scenario, act: str, number: int) -> None:
    found = scenario.store.checkpoints()
    step = (found[0].manifest.global_step if found else 0) + 10
    pins = sorted(scenario.store.pins())
    acts: Mapping[str, Callable[[], object]] = {
        "start": scenario.start,
        "save": lambda: scenario.save(step, _SIZES),
        "linked save": lambda: scenario.save(step, _SIZES, linked=_any(found)),
        "remove": lambda: scenario.remove(found[-1]) if len(found) > 1 else None,
        "retain": lambda: scenario.retain(Last(1)),
        "quarantine": lambda: scenario.quarantine(found[0]) if len(found) > 2 else None,
        "pin": lambda: scenario.pin(found[-1], f"pin-{number}-at-{step}") if found and not pins else None,
        "unpin": lambda: scenario.unpin(pins[0]) if pins else None,
        "note": lambda: scenario.note("marker.json", f"{number}.{step}"),
        "forget": lambda: scenario.forget("marker.json"),
        "log": lambda: scenario.log("x" * 100),
    }
    acts[act]()


def _any(found: list[Checkpoint]) -> Checkpoint | None:
    return found[0] if found else None


class RunLife:
    """Trains, after a fashion, through `perdure.open`: the state at each step is a function of the step."""

    acts = ("restore", "train")

    def live(self, directory: Path, number: int, tell: Tell, point: Point | None) -> None:
        """See `Life`."""
        del number  # the run counts its own generations
        files = Files() if point is None else faulty_files(point)
        state = _State()
        with perdure.open(
            directory.parent, run=directory.name, save=None, keep=Last(2), quiet=True, budget=None
        ) as run:
            if point is not None and point.act == "restore":
                run._store.files = files  # noqa: SLF001 - the end must come at a known call
            run.track(state=state)
            counters = run.counters(global_step=0)
            report = run.restore()
            skipped = [skip.reason for skip in report.skipped]
            found = {"restored": None if report.checkpoint is None else _state_at(report.step)}
            # A checkpoint whose restore died twice is passed over, whoever is to blame.
            is_excused = bool(skipped) and all("killed the process" in reason for reason in skipped)
            tell({"found": found, "is_excused": is_excused})
            tell({"generation": report.generation, "skipped": [] if is_excused else skipped})
            if counters.global_step != report.step or state.values != _state_at(report.step):
                tell({"wrong": f"the state is not that of step {report.step}: {state.values}"})
            if point is not None and point.act == "train":
                run._store.files = files  # noqa: SLF001 - as above
            for _ in run.loop(0, 1 << 30):
                counters.global_step += 1
                state.values = _state_at(counters.global_step)
                tell({"event": asdict(Event(acknowledged=False, subject="restored", value=state.values))})
                run.save().wait("committed")
                tell({"event": asdict(Event(acknowledged=True, subject="restored", value=state.values))})
                if isinstance(files, FaultyFiles) and counters.global_step - report.step > 3:
                    tell({"calls": files.calls})
                    return


def _state_at(step: int) -> Value:
    return f"state at {step}"


class _State:
    """Something with a state dictionary."""

    def __init__(self) -> None:
        self.values: Value = _state_at(0)

    def state_dict(self) -> dict[str, Value]:
        """The state."""
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, Value]) -> None:
        """Take a state over."""
        self.values = state["values"]


LIVES: Mapping[str, Life] = {"store": StoreLife(), "run": RunLife()}
