"""How far a long command has come: a line that moves on a terminal, a line now and then in a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from perdure.cli.output import Output
from perdure.cli.text import size_text
from perdure.inspection import OnProgress

LOG_SECONDS = 30.0
"""Time between two lines where nobody watches."""


@contextmanager
def progress(output: Output, what: str, clock_seconds: Callable[[], float] = time.monotonic) -> Iterator[OnProgress]:
    """
    Show the progress of the block on standard error.

    Args:
        output: Where to, and whether at all.
        what: What is being done, such as ``verifying``.
        clock_seconds: Monotonic seconds.
    """
    if not output.is_for_people or output.manner.quiet:
        yield _tell_nobody
    elif output.is_terminal:
        with _bar(output, what) as on_progress:
            yield on_progress
    else:
        yield _LogLines(output, what, clock_seconds).tell


def _tell_nobody(_done_bytes: int, _total_bytes: int) -> None:
    """Say nothing."""


@contextmanager
def _bar(output: Output, what: str) -> Iterator[OnProgress]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(file=output.err, no_color=not output.is_coloured)
    with Progress(*columns, console=console, transient=True, refresh_per_second=10) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done_bytes, total_bytes: bar.update(task, completed=done_bytes, total=total_bytes)


class _LogLines:
    """Writes a line every `LOG_SECONDS`."""

    def __init__(self, output: Output, what: str, clock_seconds: Callable[[], float]) -> None:
        self._output = output
        self._what = what
        self._clock_seconds = clock_seconds
        self._due = clock_seconds() + LOG_SECONDS

    def tell(self, done_bytes: int, total_bytes: int) -> None:
        """Write a line if one is due."""
        if self._clock_seconds() < self._due:
            return
        self._due = self._clock_seconds() + LOG_SECONDS
        share = done_bytes / total_bytes if total_bytes else 1.0
        self._output.note(f"{self._what}: {size_text(done_bytes)} of {size_text(total_bytes)} ({share:.0%})")
