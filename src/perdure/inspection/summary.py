"""The runs of a store at a glance."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from perdure.errors import PerdureError
from perdure.files.door import Files
from perdure.inspection.documents import Document
from perdure.inspection.stores import run_names
from perdure.inspection.view import RunView


@dataclass(frozen=True, slots=True)
class RunSummary(Document):
    """One run in a list."""

    run: str
    directory: Path
    state: str
    """As in `RunStatus`; ``unreadable`` if the run cannot be looked at."""
    checkpoints: int
    id: str | None
    """Of the newest checkpoint that can be restored, as are the step and the age."""
    global_step: int | None
    age_seconds: float | None
    size_bytes: int
    problems: tuple[str, ...]
    """What is wrong, the worst first."""
    error: PerdureError | None
    """Why the run cannot be looked at."""


def runs(
    root: Path | str, *, files: Files | None = None, wall_seconds: Callable[[], float] = time.time
) -> list[RunSummary]:
    """
    Summarise the runs of a store, those with the newest checkpoint first; reads only.

    A run that cannot be looked at, such as one of a newer schema, is listed with the reason.

    Raises:
        NotFoundError: Kind ``store.not-found``.
        StoreError: The store is no directory, or may not be read.
    """
    door = files or Files()
    found = [_summarise(Path(root), name, door, wall_seconds) for name in run_names(door, Path(root))]
    return sorted(found, key=lambda each: (each.age_seconds is None, each.age_seconds or 0.0, each.run))


def _summarise(root: Path, name: str, files: Files, wall_seconds: Callable[[], float]) -> RunSummary:
    try:
        status = RunView(root, name, files=files, wall_seconds=wall_seconds).status()
    except PerdureError as error:
        return RunSummary(name, root / name, "unreadable", 0, None, None, None, 0, (error.message,), error)
    newest = status.restorable
    return RunSummary(
        run=name,
        directory=status.directory,
        state=status.state,
        checkpoints=status.checkpoints,
        id=newest.id if newest else None,
        global_step=newest.global_step if newest else None,
        age_seconds=newest.age_seconds if newest else None,
        size_bytes=status.size_bytes,
        problems=status.problems,
        error=None,
    )
