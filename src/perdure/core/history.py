"""
Rows of a run's history that a recovery has made untrue.

When a run goes back to an earlier step, the rows that it had logged beyond that step belong to a future that did not
happen. They stay in the file, where a reader can see what was lost, and are left out of every curve.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Rollback:
    """The run continued from ``step`` under ``generation``."""

    generation: int
    step: int


def is_superseded(generation: int, step: int, rollbacks: Iterable[Rollback]) -> bool:
    """Whether a row written in ``generation`` at ``step`` lies beyond a point that a later generation went back to."""
    return any(rollback.generation > generation and step > rollback.step for rollback in rollbacks)


def live_rows(rows: Iterable[dict[str, Any]], rollbacks: Iterable[Rollback]) -> list[dict[str, Any]]:
    """The rows that are part of the run's one true history, in the order in which they were written."""
    known = list(rollbacks)
    return [row for row in rows if not is_superseded(int(row["generation"]), int(row["step"]), known)]
