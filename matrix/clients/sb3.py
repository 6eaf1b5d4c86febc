"""
A plugin for Stable-Baselines3's own tests: every ``learn`` in them is saved by perdure, and must not notice.

    python -m pytest -p matrix.clients.sb3 tests/test_save_load.py      (in a checkout of theirs)

Each call of ``learn`` gets a run of its own, which is thrown away after the test.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from typing import Any

import pytest
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback

import perdure
import perdure.sb3

_SAVE_STEPS = 64


class Client:
    """Puts the saving callback into every training while their tests run, and counts what came of it."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._runs: list[perdure.Run] = []
        self._trainings = 0
        self._saved = 0

    def pytest_configure(self) -> None:
        """Begin."""
        plain = BaseAlgorithm._init_callback  # noqa: SLF001 - the one place that every algorithm passes

        def init_callback(model: BaseAlgorithm, callback: Any, *arguments: Any) -> BaseCallback:
            return plain(model, CallbackList([perdure.sb3.Checkpointing(self._run()), *_each(callback)]), *arguments)

        BaseAlgorithm._init_callback = init_callback  # type: ignore[method-assign, assignment] # noqa: SLF001

    def _run(self) -> perdure.Run:
        where = self._open.enter_context(tempfile.TemporaryDirectory(prefix="perdure-client-"))
        save = perdure.Every(steps=_SAVE_STEPS)
        run = self._open.enter_context(perdure.open(where, run="client", save=save, budget=None, quiet=True))
        self._runs.append(run)
        return run

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self) -> None:
        """Close the runs of a test."""
        self._trainings += len(self._runs)
        self._saved += sum(run.statistics().saved for run in self._runs)
        self._runs.clear()
        self._open.close()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say how much was saved: a client that saves nothing proves nothing."""
        terminalreporter.write_line(f"perdure: {self._trainings} trainings, {self._saved} checkpoints")


def _each(callback: Any) -> list[BaseCallback]:
    given = [] if callback is None else callback if isinstance(callback, list) else [callback]
    return [each if isinstance(each, BaseCallback) else ConvertCallback(each) for each in given]


def pytest_configure(config: Any) -> None:
    """Register the client, and begin."""
    # A plugin that is registered while configuring is configured at once.
    config.pluginmanager.register(Client())
