"""Waiting in tests: for a condition, with a deadline, never for a time."""

import os
import threading
import time


def wait_until(condition, seconds, process=None):
    """Return once ``condition`` holds; fail after ``seconds``, or when ``process`` has ended before."""
    pause = threading.Event()
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        if process is not None and process.poll() is not None and not condition():
            raise AssertionError(
                f"the process ended with {process.returncode}: {(process.stderr or process.stdout).read()}"
            )
        pause.wait(0.005)


def reaped(pid, seconds):
    """Wait for a child to end; its exit status, negative for a signal, as `subprocess` gives it."""
    result = []

    def look():
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            result.append(os.waitstatus_to_exitcode(status))
        return bool(result)

    wait_until(look, seconds)
    return result[0]
