"""
What a row is. A framework is one module in `matrix.rows` that defines ``FRAMEWORK``; a row is one entry in it.

See "Add a framework to the matrix" in CONTRIBUTING.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from matrix.life import Life

State = Mapping[str, object]
"""What a training ends with, by group (``parameters``, ``optimizer``, ``replay``, ``rng``, ``counters``,
``environment``, ``curves``): nested plain values, arrays and tensors. Nothing of the clock belongs into it."""


@dataclass(frozen=True, slots=True)
class Own:
    """A framework's own documented way to save and go on, each half in a process of its own."""

    save: Callable[[Life, Path], None]
    """Train for half of ``life.steps`` and save into the folder."""
    load: Callable[[Life, Path], State]
    """Build anew, load from the folder, and train on to ``life.steps``."""


@dataclass(frozen=True, slots=True)
class Row:
    """
    One algorithm in one environment.

    Attributes:
        algorithm: Its name, with what is special about it (``PPO, gSDE``).
        environment: Id, number and wrappers (``Pendulum-v1 x 2, VecNormalize``).
        train: Builds everything with ``life.seed``, trains to ``life.steps`` in total under ``life.open()``, calls
            ``life.at(step)`` in every step, and gives what it ended with.
        own: The peer; None if the framework documents none for this case.
        steps: Of the whole run. At least 1,000 come after the last interruption.
        save_steps: Steps between two saves.
        earliest_step: First step at which it may be interrupted; later than the first save.
        grade: What a restore must report. Only ``exact`` rows are held to having no differing bit.
        other_number: What becomes of a resume with another number of environments; '' if the row has no such number.
        in_suite: Whether the short form in the tests runs it.
    """

    algorithm: str
    environment: str
    train: Callable[[Life], State]
    own: Own | None = None
    steps: int = 2_400
    save_steps: int = 100
    earliest_step: int = 250
    grade: Literal["exact", "statistical"] = "exact"
    other_number: Literal["", "refused", "mapped"] = "refused"
    in_suite: bool = False

    @property
    def name(self) -> str:
        """Algorithm and environment; unique within a framework."""
        return f"{self.algorithm} / {self.environment}"


@dataclass(frozen=True, slots=True)
class Framework:
    """
    A framework and its rows.

    Attributes:
        name: As people write it.
        packages: Whose versions the results are true of.
        rows: See `Row`.
    """

    name: str
    packages: tuple[str, ...]
    rows: tuple[Row, ...]

    def row(self, name: str) -> Row:
        """The row of that name."""
        return next(row for row in self.rows if row.name == name)


def module_names() -> list[str]:
    """The modules that define a framework, without importing them."""
    from matrix import rows

    return [f"matrix.rows.{module.name}" for module in pkgutil.iter_modules(rows.__path__) if module.name[0] != "_"]


def load(module: str) -> Framework | None:
    """Import a framework's rows; None if it is not installed."""
    try:
        found = importlib.import_module(module).FRAMEWORK
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("matrix", "perdure"):
            raise
        return None
    assert isinstance(found, Framework)
    return found
