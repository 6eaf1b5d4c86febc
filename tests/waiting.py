"""Waiting in tests: for a condition, with a deadline, never for a time."""

import threading
import time


def wait_until(condition, seconds, process=None):
    """Return once ``condition`` holds; fail after ``seconds``, or when ``process`` has ended before."""
    pause = threading.Event()
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        if process is not None and process.poll() is not None and not condition():
            raise AssertionError(f"the process ended with {process.returncode}: {process.stderr.read()}")
        pause.wait(0.005)
