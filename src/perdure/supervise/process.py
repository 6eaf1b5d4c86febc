"""
One incarnation of a member as the operating system sees it: a process group, an output pipe, an exit status.

The group is killed as a whole, before its leader is reaped: until then the kernel keeps the leader's number from
being given to a stranger, and no grandchild of a dead incarnation goes on beside its successor.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_LAUNCHER = Path(__file__).with_name("launch.py")
_READ_BYTES = 64 * 1024
_MAXIMUM_LINE_BYTES = 64 * 1024
_LAST_READS = 16


class Process:
    """
    Starts a command in its own session and watches it.

    The process dies with the thread that made this object, even on SIGKILL: make it in one that outlives it.

    Args:
        command: Program and arguments; never a shell string.
        directory: Its working directory.
        environment: Its whole environment.
        on_exit: Called once, from another thread, as soon as the process is dead and before it is reaped.

    Raises:
        OSError: The system cannot start another process now. A program or directory that does not exist shows as
            exit status 2 instead, with the reason on the output.
    """

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        environment: Mapping[str, str],
        on_exit: Callable[[Process], None],
    ) -> None:
        self._popen = subprocess.Popen(  # noqa: S603 - an argument list that the user wrote as one
            [sys.executable, "-I", "-S", str(_LAUNCHER), str(os.getpid()), str(directory), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            bufsize=0,
        )
        assert self._popen.stdout is not None
        self._output = self._popen.stdout
        os.set_blocking(self._output.fileno(), False)
        self._partial_line = b""
        self._is_reaped = False
        threading.Thread(target=self._watch, args=(on_exit,), name=f"perdure-watch-{self.pid}", daemon=True).start()

    @property
    def pid(self) -> int:
        """Process id of the member, and id of its process group."""
        return self._popen.pid

    @property
    def output(self) -> int:
        """Descriptor of its standard output and error, for waiting; owned by this object."""
        return self._output.fileno()

    def terminate(self) -> None:
        """Ask the member to stop: SIGTERM to it alone, because its own workers are its own to stop, in its order."""
        self._signal(os.kill, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the whole process group; does not wait. Without effect once reaped."""
        self._signal(os.killpg, signal.SIGKILL)

    def reap(self, timeout_seconds: float = 0.0) -> int | None:
        """Return the exit status, negative for signals, and free the process id; None if it still lives then."""
        try:
            status = self._popen.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            return None
        self._is_reaped = True
        return status

    def read(self) -> tuple[bytes, bool]:
        """Return output that is there to be read, without waiting, and whether there can be more later."""
        try:
            chunk = os.read(self._output.fileno(), _READ_BYTES)
        except BlockingIOError:
            return b"", True
        return chunk, bool(chunk)

    def read_rest(self) -> bytes:
        """
        Return what a dead process left in the pipe.

        Bounded, because a descendant that left the process group may hold the pipe and go on writing.
        """
        chunks = []
        for _ in range(_LAST_READS):
            chunk, _ = self.read()
            if not chunk:
                break
            chunks.append(chunk)
        return b"".join(chunks)

    def split_lines(self, chunk: bytes, *, is_last: bool = False) -> list[str]:
        """Return the lines that a chunk of output completes; overlong ones are cut."""
        *lines, rest = (self._partial_line + chunk).split(b"\n")
        if rest and (is_last or len(rest) > _MAXIMUM_LINE_BYTES):
            lines.append(rest)
            rest = b""
        self._partial_line = rest
        return [line.decode("utf-8", "replace") for line in lines]

    def close(self) -> None:
        """Close the output pipe."""
        self._output.close()

    def _signal(self, send: Callable[[int, int], None], number: int) -> None:
        if self._is_reaped:
            return
        # Gone already, or changed to a user that may not be signalled: deadlines deal with whoever does not die.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(self.pid, number)

    def _watch(self, on_exit: Callable[[Process], None]) -> None:
        # A thread that blocks in the kernel instead of a pidfd, which several sandboxes and older kernels lack, and
        # instead of SIGCHLD, which belongs to the program that the supervisor is part of. WNOWAIT leaves the zombie.
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            return  # reaped already, by a supervisor that is on its way out
        on_exit(self)
