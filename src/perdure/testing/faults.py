"""
Faults: what can befall a call, and a `Files` to which one fault happens at one call, or from there on for ever.

The vocabulary is that of SQLite's I/O error tests (fail the n-th call for n = 1, 2, 3 … until none fails) and of LazyFS
(torn writes, stops before and after an operation).
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.files.writing import BLOCK_BYTES
from perdure.testing.interception import Call, InterceptedFiles, Proceed
from perdure.testing.recording import Operation, RecordingFiles


class FaultError(OSError):
    """An injected error. ``done`` says whether the call had its effect before the error was reported."""

    def __init__(self, code: int, *, done: bool = False) -> None:
        super().__init__(code, f"{os.strerror(code)} (injected)")
        self.done = done


class Stopped(BaseException):
    """Stands for the sudden end of the process: no handler may do anything after it, so every later call raises it."""


def _every(_: Call) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Fault:
    """
    Something that befalls a call.

    Attributes:
        name: For reports.
        strike: Called in the place of the call.
        applies: Whether this kind of call can be befallen; only these are counted.
    """

    name: str
    strike: Callable[[Call, Proceed], Any]
    applies: Callable[[Call], bool] = _every


def error(code: int, *, done: bool = False, applies: Callable[[Call], bool] = _every) -> Fault:
    """
    The call raises an `OSError`.

    Args:
        code: Number of the error, such as ``errno.EIO``.
        done: Whether the call has its effect all the same, as when only the answer is lost.
        applies: Which calls can fail.
    """

    def strike(call: Call, proceed: Proceed) -> Any:
        # Linux gives a descriptor back even if closing it reports an error.
        if done or call.name == "close":
            result = proceed()
            if call.name.startswith("open"):
                os.close(result if isinstance(result, int) else result[0])  # to read, its length comes with it
        raise FaultError(code, done=done)

    return Fault(errno.errorcode[code] + (" after" if done else ""), strike, applies)


def _is_write(call: Call) -> bool:
    return call.name == "write" and len(call.arguments["data"]) > 1


def _is_sync(call: Call) -> bool:
    return call.name == "sync"


def _write_half(call: Call) -> int:
    data = call.arguments["data"]
    half = len(data) // 2
    # Whole blocks where there are any, so that the half of a direct write is one as well.
    return os.write(call.arguments["descriptor"], data[: half - half % BLOCK_BYTES or half])


def _end(call: Call) -> Stopped:
    # The kernel closes the descriptors of a process that ends.
    if call.name == "close":
        os.close(call.arguments["descriptor"])
    return Stopped(call.name)


def _stop(call: Call, _: Proceed) -> Any:
    raise _end(call)


def _tear(call: Call, _: Proceed) -> Any:
    _write_half(call)
    raise _end(call)


def _kill(_: Call, __: Proceed) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


EIO = error(errno.EIO)
EIO_AFTER = error(errno.EIO, done=True)
ENOSPC = error(errno.ENOSPC)
EINTR = error(errno.EINTR)
FAILED_SYNC = error(errno.EIO, applies=_is_sync)
SHORT_WRITE = Fault("short write", lambda call, _: _write_half(call), _is_write)
STOP = Fault("stop", _stop)
TEAR = Fault("tear", _tear, _is_write)
KILL = Fault("kill", _kill)
"""SIGKILL to the process itself."""

ERRORS = (EIO, EIO_AFTER, ENOSPC, EINTR, SHORT_WRITE, FAILED_SYNC)
"""What a running process can meet."""


def after(act: Callable[[], object], name: str) -> Fault:
    """Carry the call out, then do something, such as cutting the power."""

    def strike(_: Call, proceed: Proceed) -> Any:
        result = proceed()
        act()
        return result

    return Fault(name, strike)


def before(act: Callable[[], object], name: str) -> Fault:
    """Do something, such as waiting for another process, then carry the call out."""

    def strike(_: Call, proceed: Proceed) -> Any:
        act()
        return proceed()

    return Fault(name, strike)


class FaultyFiles(InterceptedFiles):
    """
    A file system to which a fault happens.

    Args:
        fault: What happens. `Stopped` goes on for ever whatever ``forever`` says.
        at: To which of the calls that the fault applies to, counted from 1; 0 for none, which counts them.
        forever: Whether it happens to all later ones too.
    """

    def __init__(self, fault: Fault, at: int, *, forever: bool = False) -> None:
        InterceptedFiles.__init__(self)  # and not super(): another class in between takes arguments of its own
        self.fault = fault
        self._at = at
        self._forever = forever
        self._lock = threading.Lock()
        self._stopped = False
        self.calls = 0
        """Calls so far that the fault applies to."""
        self.struck: list[str] = []
        """Names of the calls that were befallen."""

    def intercept(self, call: Call, proceed: Proceed) -> Any:
        """Let the fault happen if it is its turn."""
        if self._stopped:
            raise _end(call)
        if not self.fault.applies(call) or not self._is_due():
            return super().intercept(call, proceed)
        self.struck.append(call.name)
        try:
            return self.fault.strike(call, lambda: super(FaultyFiles, self).intercept(call, proceed))
        except Stopped:
            self._stopped = True
            raise

    def _is_due(self) -> bool:
        with self._lock:
            self.calls += 1
            return self.calls == self._at or (self._forever and 0 < self._at < self.calls)


class FaultyRecordingFiles(RecordingFiles, FaultyFiles):
    """
    A recorder that sees what a fault makes of each call.

    Args:
        root: As for `RecordingFiles`.
        fault: As for `FaultyFiles`, like all that follow.
        at: To which call it happens.
        forever: Whether it happens to all later ones too.
        operations: Where to record.
    """

    def __init__(
        self, root: Path, fault: Fault, at: int, *, forever: bool = False, operations: list[Operation] | None = None
    ) -> None:
        FaultyFiles.__init__(self, fault, at, forever=forever)
        RecordingFiles.__init__(self, root, operations)


class DelayingFiles(InterceptedFiles):
    """
    A file system that waits before chosen calls.

    Args:
        wait: Called before each of them, in the thread that made the call; must return within a deadline of its own.
        applies: Which calls wait.
    """

    def __init__(self, wait: Callable[[Call], object], applies: Callable[[Call], bool] = _every) -> None:
        super().__init__()
        self._wait = wait
        self._applies = applies

    def intercept(self, call: Call, proceed: Proceed) -> Any:
        """Wait, then carry the call out."""
        if self._applies(call):
            self._wait(call)
        return super().intercept(call, proceed)


class TearingFiles(FaultyFiles):
    """A file system on which the process ends in the middle of its n-th write: half of the bytes are there."""

    def __init__(self, at: int) -> None:
        super().__init__(TEAR, at)
