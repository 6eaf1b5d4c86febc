"""
Ties a new process to its supervisor's life, then becomes the member's command.

Run as a script between the supervisor's fork and the member's program, because nothing of ours may run in a forked
child of a process that has threads. The kernel's parent-death signal (``PR_SET_PDEATHSIG``, prctl(2)) survives
``execve``, so a member dies even if its supervisor was killed with SIGKILL. Imports the standard library alone and
is run without site packages, to cost milliseconds.

    python -I -S launch.py SUPERVISOR_PID DIRECTORY COMMAND…
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_EXIT_FAILED = 1
_EXIT_CONFIG = 2


def main(supervisor_pid: str, directory: str, *command: str) -> str | int:
    """Become ``command``; return only if that is impossible, with an exit status."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.stderr.write(f"perdure: cannot tie the process to its supervisor: {os.strerror(ctypes.get_errno())}\n")
        return _EXIT_FAILED
    if os.getppid() != int(supervisor_pid):
        return _EXIT_FAILED  # the supervisor died before the kernel was told to watch it
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)  # the interpreter ignores them, and ignoring survives execve
    try:
        os.chdir(directory)
        os.execvp(command[0], command)  # noqa: S606 - an argument list, no shell
    except OSError as error:
        sys.stderr.write(f"perdure: cannot start {command[0]!r} in {directory}: {error.strerror}\n")
        return _EXIT_CONFIG


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
