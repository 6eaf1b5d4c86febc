"""
Asking a run to stop: the first signal means "save and stop", the second means "stop now".

A handler only sets a flag and the time; everything else happens at the next boundary of the loop. Saving inside a
handler would run in the middle of whatever the program was doing.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from perdure.errors import InvalidInputError

SIGNALS = (signal.SIGTERM, signal.SIGINT)


GRACE_VARIABLE = "PERDURE_GRACE_SECONDS"


def grace_of(environ: Mapping[str, str]) -> float:
    """
    How long whoever asks this process to stop will wait before it kills.

    Raises:
        InvalidInputError: Kind ``open.invalid``: the variable holds no positive number.
    """
    text = environ.get(GRACE_VARIABLE)
    if not text:
        return math.inf
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if seconds > 0:
        return seconds
    raise InvalidInputError(
        f"cannot use {GRACE_VARIABLE}={text!r}: it is a number of seconds above 0",
        kind="open.invalid",
        hint="set it to the time between SIGTERM and SIGKILL, or unset it",
        field=GRACE_VARIABLE,
    )


class StopFlag:
    """
    Set by a signal, polled at boundaries.

    Args:
        clock: Monotonic seconds.
        grace_seconds: Time between the request and the kill that follows it; infinite if nobody kills.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, grace_seconds: float = math.inf) -> None:
        self._clock = clock
        self._grace_seconds = grace_seconds
        self._pid = os.getpid()
        self._previous: dict[int, Any] = {}
        self.signal_name: str | None = None
        self.requested_at: float | None = None

    def is_set(self) -> bool:
        """Whether the run has been asked to stop."""
        return self.requested_at is not None

    @property
    def remaining_seconds(self) -> float:
        """Time until the process will be killed; infinite if it has not been asked to stop."""
        return math.inf if self.requested_at is None else self.requested_at + self._grace_seconds - self._clock()

    def request(self, name: str) -> None:
        """Ask the run to stop, as a signal of that name would."""
        if self.requested_at is None:
            self.signal_name, self.requested_at = name, self._clock()

    def install(self) -> None:
        """Take over the signals; outside the main thread, where Python forbids it, this does nothing."""
        if threading.current_thread() is not threading.main_thread() or self._previous:
            return
        for number in SIGNALS:
            # A signal that the surroundings ignore on purpose (nohup, a background job of a shell) stays ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._handle)

    def restore(self) -> None:
        """Give the signals back to whoever had them."""
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._previous.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
            self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if os.getpid() == self._pid and not self.is_set():
            self.request(name)
            return
        # The second signal, or a forked child that has inherited the handler: do what would have been done without us.
        previous = self._previous.get(number)
        if callable(previous):
            previous(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
