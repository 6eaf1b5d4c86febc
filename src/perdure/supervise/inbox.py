"""
How other threads and signal handlers hand work to the one thread that supervises.

Putting never blocks and takes no lock, so it is safe in a signal handler that interrupted the very thread it is for.
"""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Callable, Iterator


class Inbox:
    """A queue of calls, with a bell to wait on."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._ringer: socket.socket | None = None

    @contextlib.contextmanager
    def bell(self) -> Iterator[socket.socket]:
        """Open the bell: a socket that is readable when something was put; what was put before is kept."""
        bell, ringer = socket.socketpair()
        with bell, ringer:
            bell.setblocking(False)
            ringer.setblocking(False)
            self._ringer = ringer
            try:
                yield bell
            finally:
                self._ringer = None

    def put(self, call: Callable[[], None]) -> None:
        """Leave a call for the thread that waits, from any thread or a signal handler."""
        self._calls.append(call)
        ringer = self._ringer
        if ringer is not None:
            with contextlib.suppress(OSError):  # full: it rings already; closed: nobody waits any more
                ringer.send(b"\0")

    def make_calls(self) -> None:
        """Make the calls that were left, oldest first, those included that are left meanwhile."""
        while self._calls:
            self._calls.popleft()()
