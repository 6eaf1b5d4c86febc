"""
Lives as processes of their own: forked from a server that has imported the frameworks and done nothing else.

What a process inherits from the server, such as seeded generators, would make a resume look right that is not. So each
life draws new seeds for the global generators first.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from matrix.life import CutError, Life
from matrix.row import Row, load
from matrix.states import Arrays, flatten

_STATE = "state.npz"
_RESULT = "result.json"


class LifeFailedError(Exception):
    """A life ended otherwise than it should have."""


class Server:
    """
    Starts lives. One in a process: the server behind it is the process's.

    Args:
        modules: Modules of frameworks to import before the first life.
        deadline_seconds: How long one life may take.
    """

    def __init__(self, modules: Sequence[str], deadline_seconds: float = 900.0) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(modules))
        self._deadline_seconds = deadline_seconds

    def live(self, module: str, row: Row, part: str, life: Life, folder: Path) -> dict[str, Any]:
        """
        Let one life happen.

        Args:
            module: Where the row is defined.
            row: Its name goes to the process, not the row itself.
            part: ``train``, ``save`` or ``load``.
            life: What it is like.
            folder: Where its result is written, and what ``save`` and ``load`` share.

        Returns:
            ``exit`` (the process's code), ``error`` (name of the error it ended with, '' if none), ``message``,
            ``report`` and ``first_step_seconds``.

        Raises:
            LifeFailedError: It did not end in time.
        """
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _RESULT).unlink(missing_ok=True)
        process = self._context.Process(target=_live, args=(module, row.name, part, life, folder))
        process.start()
        process.join(self._deadline_seconds)
        if process.is_alive():
            process.kill()
            process.join()
            raise LifeFailedError(f"{row.name}: did not end within {self._deadline_seconds:g} s")
        written = folder / _RESULT
        result: dict[str, Any] = json.loads(written.read_text()) if written.exists() else {"error": "", "message": ""}
        return {**result, "exit": process.exitcode}


def state_in(folder: Path) -> Arrays:
    """The state that a life has left in a folder."""
    with np.load(folder / _STATE) as archive:
        return {name: archive[name] for name in archive.files}


def _live(module: str, name: str, part: str, life: Life, folder: Path) -> None:
    _draw_new_seeds()
    life.began = time.perf_counter()
    outcome = {"error": "", "message": ""}
    try:
        _write_state(folder, _part(module, name, part)(life, folder))
    except CutError:
        # As after a power cut: nothing is closed, and what is being written is not finished.
        outcome["error"] = "CutError"
    except SystemExit as stop:
        outcome.update(error=type(stop).__name__, exit_code=str(stop.code))
    except Exception as error:  # noqa: BLE001 - it is not swallowed: whoever asked for this life raises or judges it
        outcome.update(error=type(error).__name__, message=f"{error}\n{traceback.format_exc()}")
    result = {**outcome, "report": life.report, "first_step_seconds": life.first_step_seconds}
    (folder / _RESULT).write_text(json.dumps(result))
    sys.stdout.flush()
    sys.stderr.flush()
    if outcome["error"] == "CutError":
        os.kill(os.getpid(), signal.SIGKILL)


def _part(module: str, name: str, part: str) -> Callable[[Life, Path], Any]:
    framework = load(module)
    assert framework is not None
    row = framework.row(name)
    if part == "train":
        return lambda life, _: row.train(life)
    assert row.own is not None
    return row.own.save if part == "save" else row.own.load


def _draw_new_seeds() -> None:
    random.seed()
    np.random.seed(None)  # noqa: NPY002 - the global generator is what frameworks draw from
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
        torch.seed()


def _write_state(folder: Path, state: object) -> None:
    if state is not None:
        arrays: dict[str, Any] = dict(flatten(state))
        np.savez(folder / _STATE, **arrays)
