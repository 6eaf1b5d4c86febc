"""One process's part of a training: where it begins, how it ends, and what it tells about itself."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import perdure

RUN = "matrix"
End = Literal["", "cut", "kill", "stop"]
"""Until the last step; by an error at a step; by SIGKILL at a step; by SIGTERM at a step, in good order."""


class CutError(Exception):
    """The program ends without a warning."""


@dataclass(slots=True)
class Life:
    """
    What a row trains under. A row calls `open` around its training and `at` in every step, and that is all.

    Attributes:
        store: Where the run lies; None trains without perdure.
        seed: Of everything. A resumed life gets another one, so that nothing is right by being seeded alike.
        steps: Environment steps of the whole run.
        save_steps: Steps between two saves.
        end: How this life ends.
        end_step: When it ends.
        environments: Number of environments to train with, instead of the row's own; None for the row's own.
    """

    store: Path | None
    seed: int
    steps: int
    save_steps: int = 100
    end: End = ""
    end_step: int = 0
    environments: int | None = None
    report: dict[str, Any] | None = None
    """What the restore reported; None if there was none."""
    first_step_seconds: float | None = None
    """From the beginning of this life to its first step."""
    began: float = 0.0

    @property
    def options(self) -> dict[str, Any]:
        """What `perdure.open` is told of the run of this life, which is not opened if there is no store."""
        save = perdure.Every(steps=self.save_steps)
        return {"where": self.store, "run": RUN, "save": save, "budget": None, "quiet": True}

    @contextmanager
    def open(self, **options: Any) -> Iterator[perdure.Run | None]:
        """
        Open the run of this life; gives None if it trains without perdure.

        Args:
            options: For `perdure.open`, beside where the run lies and when it is saved.
        """
        if self.store is None:
            yield None
            return
        with perdure.open(**self.options, **options) as run:
            try:
                yield run
            finally:
                self.tell(run)

    def tell(self, run: perdure.Run) -> None:
        """Keep what the restore reported; for rows whose framework opens the run by itself."""
        # Before its first step a life may have failed to restore, and asking for a report would try again.
        if self.first_step_seconds is not None:
            self.report = run.report.to_json()

    def at(self, step: int) -> None:
        """Say which environment step has been done; ends this life if its end has come."""
        if self.first_step_seconds is None:
            self.first_step_seconds = time.perf_counter() - self.began
        if not self.end or step < self.end_step:
            return
        end, self.end = self.end, ""
        if end == "cut":
            raise CutError
        os.kill(os.getpid(), signal.SIGKILL if end == "kill" else signal.SIGTERM)
