"""Rows run: every trial of a row, compared with one training that nothing ever touched."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from matrix.life import RUN, Life
from matrix.processes import LifeFailedError, Server, state_in
from matrix.row import Framework, Row
from matrix.states import Arrays, Difference, compare
from matrix.trials import Leg, plan, trials_of

_PLACES_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one trial."""

    trial: str
    result: str
    """``same``, ``differs``, ``refused`` or ``failed``."""
    holds: bool
    """Whether that is what the row promises."""
    bits: int | None = None
    of_bits: int | None = None
    grade: str = ""
    """Of the last restore."""
    resumed_at: tuple[int, ...] = ()
    """Steps of the checkpoints that the lives continued from."""
    steps_after: int = 0
    """Steps trained after the last resume."""
    restore_seconds: float | None = None
    first_step_seconds: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class RowResult:
    """A row and all of its outcomes."""

    framework: str
    algorithm: str
    environment: str
    grade: str
    versions: dict[str, str]
    seed: int
    steps: int
    outcomes: tuple[Outcome, ...]
    components: tuple[str, ...] = ()
    """What the checkpoint of an interrupted training consists of: names and kinds."""
    own: dict[str, Any] | None = None
    """How far the framework's own save and load ends from the uninterrupted training."""
    seconds: float = 0.0
    problems: tuple[str, ...] = field(default=())

    @property
    def holds(self) -> bool:
        """Whether every trial ended as promised."""
        return not self.problems and all(outcome.holds for outcome in self.outcomes)

    def to_json(self) -> dict[str, Any]:
        """The result as one JSON-able object."""
        return {**asdict(self), "holds": self.holds}


class Runner:
    """
    Runs rows of one framework.

    Args:
        module: The framework's module.
        framework: What it defines.
        server: Starts processes.
        where: An empty folder to work in; what is left there afterwards is of no more use.
        seed: Decides where trainings are interrupted.
    """

    def __init__(self, module: str, framework: Framework, server: Server, where: Path, seed: int = 0) -> None:
        self._module = module
        self._framework = framework
        self._server = server
        self._where = where
        self._seed = seed

    def run(self, row: Row, trials: Sequence[str] | None = None, *, with_own: bool = True) -> RowResult:
        """Run one row: all of its trials, or those named."""
        began = time.perf_counter()
        where = self._where / row.name.replace("/", "-").replace(" ", "")
        outcomes: list[Outcome] = []
        problems: list[str] = []
        own: dict[str, Any] | None = None
        try:
            expected = self._unhurt(row, where / "unhurt")
            names = trials_of(row) if trials is None else trials
            outcomes.extend(self._try(row, trial, where / trial, expected) for trial in names)
            own = self._own(row, where / "own", expected) if with_own and row.own is not None else None
        except LifeFailedError as error:
            problems.append(str(error))
        return RowResult(
            self._framework.name,
            row.algorithm,
            row.environment,
            row.grade,
            {package: version(package) for package in ("perdure", *self._framework.packages)},
            self._seed,
            row.steps,
            tuple(outcomes),
            next(_components(where), ()),
            own,
            time.perf_counter() - began,
            tuple(problems),
        )

    def _life(self, row: Row, leg: Leg, store: Path | None, number: int) -> Life:
        return Life(
            store,
            seed=1 + number,
            steps=row.steps,
            save_steps=row.save_steps,
            end=leg.end,
            end_step=leg.end_step,
            environments=leg.environments,
        )

    def _unhurt(self, row: Row, folder: Path) -> Arrays:
        result = self._server.live(self._module, row, "train", self._life(row, Leg(), None, 0), folder)
        if result["exit"] != 0 or result["error"]:
            raise LifeFailedError(f"{row.name}: an undisturbed training fails: {result['error']} {result['message']}")
        return state_in(folder)

    def _try(self, row: Row, trial: str, folder: Path, expected: Arrays) -> Outcome:
        legs = plan(trial, row, random.Random(f"{self._seed} {self._framework.name} {row.name} {trial}"))  # noqa: S311 - not a secret
        reports: list[dict[str, Any]] = []
        result: dict[str, Any] = {}
        for number, leg in enumerate(legs):
            life = self._life(row, leg, folder / "runs", number)
            result = self._server.live(self._module, row, "train", life, folder / f"life-{number}")
            if result.get("report"):
                reports.append(result["report"])
            unwanted = _unwanted_end(leg, result)
            if unwanted and (trial != "number" or number < len(legs) - 1):
                return Outcome(trial, "failed", holds=False, note=unwanted)
        if trial == "number":
            return _judge_number(row, result)
        return _judge(row, trial, compare(expected, state_in(folder / f"life-{len(legs) - 1}")), reports, result)

    def _own(self, row: Row, folder: Path, expected: Arrays) -> dict[str, Any]:
        for number, part in enumerate(("save", "load")):
            result = self._server.live(self._module, row, part, self._life(row, Leg(), None, number), folder)
            if result["exit"] != 0 or result["error"]:
                return {"error": result["error"], "message": result["message"]}
        difference = compare(expected, state_in(folder))
        return {
            "bits": difference.bits,
            "of_bits": difference.of_bits,
            "relative_l2": difference.relative_l2,
            "first_step_seconds": result["first_step_seconds"],
            "places": list(difference.places[:_PLACES_SHOWN]),
        }


def _unwanted_end(leg: Leg, result: dict[str, Any]) -> str:
    """What is wrong with how a life has ended; '' if it is as it should be."""
    is_right = {
        "": result["exit"] == 0 and not result["error"],
        "cut": result["error"] == "CutError",
        "kill": result["exit"] == -9 and not result["error"],
        "stop": result["error"] == "StoppedError",
    }[leg.end]
    return "" if is_right else f"ended with {result['exit']}: {result['error']} {result['message']}"


def _judge(
    row: Row, trial: str, difference: Difference, reports: list[dict[str, Any]], result: dict[str, Any]
) -> Outcome:
    last = reports[-1]
    continued = [report for report in reports if report["checkpoint"] is not None]
    # A training that was never interrupted has restored nothing, and so has nothing to be graded.
    is_graded = last["grade"] == row.grade or trial == "saves"
    is_same = difference.bits == 0
    return Outcome(
        trial,
        "same" if is_same else "differs",
        holds=is_graded and (is_same or (row.grade != "exact" and trial != "saves")),
        bits=difference.bits,
        of_bits=difference.of_bits,
        grade=last["grade"],
        resumed_at=tuple(report["step"] for report in continued),
        steps_after=row.steps - last["step"],
        restore_seconds=last["seconds"] if continued else None,
        first_step_seconds=result["first_step_seconds"],
        note=", ".join(difference.places[:_PLACES_SHOWN]),
    )


def _judge_number(row: Row, result: dict[str, Any]) -> Outcome:
    if result["error"] == "IncompatibleError":
        found = "refused"
    else:
        found = "mapped" if result["exit"] == 0 and not result["error"] else "failed"
    message = str(result["message"]).partition("\n")[0] or result["error"]
    return Outcome("number", found, holds=found == row.other_number, note=message)


def _components(where: Path) -> Iterator[tuple[str, ...]]:
    for manifest in sorted(where.glob(f"*/runs/{RUN}/snapshots/*/manifest.json")):
        text = manifest.read_text()
        content = json.loads(text[text.index("{") :])
        yield tuple(f"{each['name']} ({each['kind']})" for each in content["components"])
