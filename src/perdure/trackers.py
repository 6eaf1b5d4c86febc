"""
Experiment trackers: which run of Weights & Biases or MLflow a training reports to, kept in the manifest.

A tracker's run has to be opened by its id to be continued, and before the training restores. So the ids are facts of
the newest checkpoint, read without restoring anything.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from perdure.core.manifest import Grade
from perdure.core.names import Section
from perdure.errors import NotFoundError, NothingRestorableError
from perdure.inspection import RunView

__all__ = ["Trackers", "tracker_ids"]


class Trackers:
    """
    The runs of trackers that this process has open, as a component: ``run.track(trackers=Trackers())``.

    Restoring it changes nothing; if another run is open than before, the report says so.
    """

    kind = "trackers"
    section = Section.STATE
    grade = Grade.EXACT

    @property
    def detail(self) -> dict[str, Any]:
        """The ids, for the manifest."""
        return _open_ids()

    def capture(self) -> object:
        """The ids by tracker."""
        return {"ids": _open_ids()}

    def check(self, tree: object) -> None:
        """Nothing to check: a program may report to another run."""

    def restore(self, tree: object) -> str:
        """Compare the ids."""
        assert isinstance(tree, dict)
        here = _open_ids()
        differing = [
            f"{name} run was {saved}, is {here.get(name, 'none')}"
            for name, saved in tree["ids"].items()
            if here.get(name) != saved
        ]
        return "; ".join(differing)


def tracker_ids(where: str | os.PathLike[str] | None = None, run: str | None = None) -> dict[str, str]:
    """
    Return which runs of trackers the newest checkpoint of a run reported to.

    Args:
        where: As in `perdure.open`.
        run: As in `perdure.open`.

    Returns:
        Ids by ``wandb`` and ``mlflow``; empty before the first checkpoint.

    Example:
        >>> wandb.init(id=tracker_ids("runs", "ppo").get("wandb"), resume="allow")  # doctest: +SKIP
    """
    root = Path(where or os.environ.get("PERDURE_STORE") or "runs")
    try:
        detail = RunView(root, run or os.environ.get("PERDURE_RUN") or "default").show("latest")
    except (NotFoundError, NothingRestorableError):
        return {}
    found = next((dict(each.detail) for each in detail.components if each.kind == Trackers.kind), {})
    return {name: str(value) for name, value in found.items()}


def _open_ids() -> dict[str, str]:
    found = {}
    wandb, mlflow = sys.modules.get("wandb"), sys.modules.get("mlflow")
    if wandb is not None and getattr(wandb, "run", None) is not None:
        found["wandb"] = str(wandb.run.id)
    if mlflow is not None and (active := mlflow.active_run()) is not None:
        found["mlflow"] = str(active.info.run_id)
    return found
