"""A lock that is waited for with a deadline only."""

from __future__ import annotations

import threading
from types import TracebackType

from perdure.errors import DeadlineError

LOCK_SECONDS = 30.0
"""Far longer than any holder needs, which is a copy of a batch; whoever waits this long is told, not kept."""


class TimedLock:
    """
    A lock for ``with`` that gives up after a time instead of hanging.

    Args:
        what: Named in the error.
        seconds: How long to wait at most.
    """

    def __init__(self, what: str, seconds: float = LOCK_SECONDS) -> None:
        self._lock = threading.Lock()
        self._what = what
        self._seconds = seconds

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=self._seconds):
            raise DeadlineError(
                f"cannot go on with {self._what}: another thread has held it for {self._seconds:g} s",
                kind="replay.lock-held",
                hint="look for a thread that stopped while it added or sampled",
                waited_seconds=self._seconds,
                holder=self._what,
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
