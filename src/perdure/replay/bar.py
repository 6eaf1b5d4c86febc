"""A progress bar for restores that read everything first."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TextIO

LOG_SECONDS = 30.0
"""Time between two lines where nobody watches."""
SHOWN_SECONDS = 0.1
"""Time between two changes of the bar."""
_WIDTH = 30
_USUAL_COLUMNS = 80
_GIB = 2**30


class ProgressBar:
    """
    Shows how far a restore is: a bar on a terminal, a line now and then in a log.

    Give it to `RingComponent` as ``progress``. It leaves nothing open: a restore that fails ends the bar where it was.

    Args:
        what: What is being done.
        patience_seconds: For how long nothing is shown: what is done before needs no bar.
        stream: Where to write; standard error if None.
        clock_seconds: Monotonic seconds.
    """

    def __init__(
        self,
        what: str = "restoring the replay buffer",
        *,
        patience_seconds: float = 0.0,
        stream: TextIO | None = None,
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._patience_seconds = patience_seconds
        self._stream = stream or sys.stderr
        self._clock_seconds = clock_seconds
        self._is_terminal = self._stream.isatty()
        self._began: float | None = None
        self._due = 0.0

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        """Show how many bytes are done, of how many."""
        now = self._clock_seconds()
        if self._began is None:
            self._began = now
            self._due = now + (self._patience_seconds if self._is_terminal else LOG_SECONDS)
        is_done = done_bytes >= total_bytes
        is_end = is_done and self._is_terminal and now - self._began >= self._patience_seconds
        if now < self._due and not is_end:
            return
        self._due = now + (SHOWN_SECONDS if self._is_terminal else LOG_SECONDS)
        share = done_bytes / total_bytes if total_bytes else 1.0
        rate = done_bytes / max(now - self._began, 1e-9) / _GIB
        text = f"{self._what}: {done_bytes / _GIB:.2f} of {total_bytes / _GIB:.2f} GiB ({share:.0%}, {rate:.2f} GiB/s)"
        if self._is_terminal:
            # A line that wraps would be written again and again below itself.
            columns = _columns(self._stream) - 1
            width = min(_WIDTH, max(0, columns - len(text) - 1))
            full = int(share * width)
            line = f"{'#' * full}{'-' * (width - full)} {text}"[:columns]
            self._stream.write(f"\r{line}{chr(10) if is_done else ''}")
        else:
            self._stream.write(f"{text}\n")
        self._stream.flush()


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL_COLUMNS
    except (OSError, ValueError):  # a stream that only looks like a terminal
        return _USUAL_COLUMNS
