"""Ways to interrupt a training, as lists of lives: decisions only."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from matrix.life import End
from matrix.row import Row

AFTER_STEPS = 1_000
"""Steps that every trial trains after its last interruption."""
OTHER_NUMBER = 3
"""Of environments; no row has so many."""


@dataclass(frozen=True, slots=True)
class Leg:
    """How one life of a trial is to go."""

    end: End = ""
    end_step: int = 0
    environments: int | None = None


TRIALS: Mapping[str, str] = MappingProxyType(
    {
        "saves": "not interrupted, but saved on the way",
        "stop": "stopped by SIGTERM at a random step",
        "cut": "ended by an error at a random step",
        "twice": "ended by an error at a random step, and again after its resume",
        "kill": "killed by SIGKILL at a random step",
        "number": "ended by an error, and resumed with another number of environments",
    }
)
"""What happens in each trial; the last life of each goes to the end."""


def plan(trial: str, row: Row, draw: random.Random) -> tuple[Leg, ...]:
    """The lives of a trial, one after the other."""
    latest = row.steps - AFTER_STEPS
    first = draw.randrange(row.earliest_step, max(row.earliest_step + 1, (row.earliest_step + latest) // 2))
    match trial:
        case "saves":
            return (Leg(),)
        case "stop" | "cut" | "kill":
            return Leg(trial, draw.randrange(row.earliest_step, latest)), Leg()
        case "twice":
            return Leg("cut", first), Leg("cut", draw.randrange(first + 1, latest)), Leg()
        case "number":
            return Leg("cut", first), Leg(environments=OTHER_NUMBER)
    raise ValueError(trial)


def trials_of(row: Row) -> list[str]:
    """The trials that a row takes part in."""
    return [trial for trial in TRIALS if trial != "number" or row.other_number]
