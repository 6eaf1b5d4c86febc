"""Processes for the cluster's tests."""

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

DEADLINE_SECONDS = 60.0


class Child:
    """A process of `children.py`, and the lines it prints."""

    def __init__(self, *arguments):
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("children.py")), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        self._lines = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self):
        return self._process.pid

    def _read(self):
        for line in self._process.stdout:
            self._lines.put(line.split())
        self._lines.put(["END"])

    def hear(self, word):
        """Return the rest of the next line that begins with ``word``, passing over others."""
        heard = []
        while not heard or heard[0] != word:
            heard = self._lines.get(timeout=DEADLINE_SECONDS)
            assert heard[0] != "END" or word == "END", f"ended with {self.wait()} before it said {word!r}"
        return heard[1:]

    def next_line(self):
        """Return the words of the next line."""
        return self._lines.get(timeout=DEADLINE_SECONDS)

    def heard_so_far(self):
        """Return the lines printed so far and not yet returned."""
        lines = []
        while not self._lines.empty():
            lines.append(self._lines.get())
        return lines

    def tell(self, line):
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def signal(self, number):
        os.kill(self.pid, number)

    def wait(self):
        return self._process.wait(DEADLINE_SECONDS)

    def kill(self):
        """End the process, stopped or not, and give its pipes back."""
        if self._process.poll() is None:
            self.signal(signal.SIGKILL)
        self.wait()
        self._reader.join(DEADLINE_SECONDS)
        self._process.stdin.close()
        self._process.stdout.close()


@pytest.fixture
def start():
    """Start a child; every one is killed at the end."""
    children = []

    def start_one(*arguments):
        children.append(Child(*arguments))
        return children[-1]

    yield start_one
    for child in children:
        child.kill()


@pytest.fixture
def directory(monkeypatch, tmp_path):
    """A run directory whose sockets go away with the test; pytest's own paths can be too long for them."""
    with tempfile.TemporaryDirectory(prefix="perdure-") as sockets:
        monkeypatch.setenv("TMPDIR", sockets)
        monkeypatch.setattr("tempfile.tempdir", None)
        run = tmp_path / "run"
        run.mkdir()
        yield run
