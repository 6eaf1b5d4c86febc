"""
What a supervisor claims while it runs: the run directory, an address for beats, the signals of its process.

Each is a context manager that gives back what it took. The kernel ends the lock of a supervisor that was killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from perdure.errors import DeadlineError, LeaseHeldError
from perdure.files.door import DIRECTORY_MODE, explained
from perdure.files.lockfile import locked, probe

LOCK_FILE = "supervisor.lock"
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """
    Be the only supervisor of a run directory of this machine; the directory is made if missing.

    The lock file stays behind: removing it would let two supervisors lock two files of one name.

    Raises:
        LeaseHeldError: Kind ``supervisor.held``; names the process that holds it.
        StoreError: The directory or the file cannot be made.
    """
    path = directory / LOCK_FILE
    with explained("make", directory):
        directory.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    with ExitStack() as claim:
        try:
            claim.enter_context(locked(path, wait_seconds=0.0))
        except DeadlineError as error:
            pid = probe(path).content.decode("ascii", "replace") or "unknown"
            raise LeaseHeldError(
                f"cannot supervise {directory}: the supervisor with pid {pid} does so already",
                kind="supervisor.held",
                hint="wait for it to end, or stop it with SIGTERM",
                owner=f"pid {pid}",
            ) from error
        with explained("write", path):
            path.write_text(str(os.getpid()))
        yield


@contextmanager
def beat_socket() -> Iterator[tuple[socket.socket, str]]:
    """
    Listen for beats on a datagram socket that only this user can reach; yields it and its address.

    It lies in a temporary directory and not in the run's, because an address has room for 107 bytes only (unix(7)). A
    supervisor that is killed leaves that directory behind, with nothing in it but the name of a dead socket.

    Raises:
        StoreError: There is no usable temporary directory.
    """
    with explained("make a socket for beats in", tempfile.gettempdir()):
        directory = tempfile.mkdtemp(prefix="perdure-")
    address = str(Path(directory, "beats"))
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
            listener.setblocking(False)
            with explained("make a socket for beats at", address):
                listener.bind(address)
            yield listener, address
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def stop_signals(stop: Callable[[int], None]) -> Iterator[None]:
    """
    Hand SIGTERM, SIGINT and SIGHUP to ``stop`` and restore their handlers afterwards.

    Those that are ignored stay so, as `nohup` and shells without job control mean it. Without effect in a thread
    other than the main one, which alone may set handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        stop(number)

    previous = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    ours = [number for number in STOP_SIGNALS if previous[number] not in (signal.SIG_IGN, None)]
    for number in ours:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, previous[number])
