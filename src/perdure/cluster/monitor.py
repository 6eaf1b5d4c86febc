"""A lock with a condition, none of whose waits is endless."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import final

from perdure.errors import DeadlineError

PATIENCE_SECONDS = 60.0
"""Everything done under these locks takes microseconds: whoever waits this long has met a bug or a frozen thread."""


@final
class Monitor:
    """
    Guards some fields that several threads share.

    Args:
        name: What it guards, for the error.
        patience_seconds: Longest wait to enter.
    """

    def __init__(self, name: str, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._name = name
        self._patience_seconds = patience_seconds
        self._condition = threading.Condition(threading.Lock())

    def __enter__(self) -> Monitor:
        if not self._condition.acquire(timeout=self._patience_seconds):
            raise DeadlineError(
                f"cannot use {self._name}: another thread has kept it for {self._patience_seconds:g} s",
                kind="lock.busy",
                waited_seconds=self._patience_seconds,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._condition.release()

    def wait_for(self, predicate: Callable[[], bool], timeout_seconds: float) -> bool:
        """Leave the monitor until ``predicate`` holds, at most so long; returns whether it does. Inside only."""
        return self._condition.wait_for(predicate, timeout_seconds)

    def notify_all(self) -> None:
        """Let every waiter look again. Inside only."""
        self._condition.notify_all()
