"""A terminal with a person at it, who is the test."""

import errno
import os
import pty
import select
import subprocess
import sys
import time

DEADLINE_SECONDS = 60


class Terminal:
    """The real command line, started at a terminal of its own."""

    def __init__(self, *words, **options):
        self._person, end = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "perdure", *words], stdin=end, stdout=end, stderr=end, **options
        )
        os.close(end)
        self._deadline = time.monotonic() + DEADLINE_SECONDS
        self.text = ""

    def read_until(self, text):
        """Read what is written until ``text`` has come."""
        while text not in self.text:
            assert self._read(), self.text

    def type(self, line):
        os.write(self._person, line.encode() + b"\n")

    def end(self):
        """Read the rest and return the exit code."""
        while self._read():
            pass
        os.close(self._person)
        return self.process.wait(DEADLINE_SECONDS)

    def _read(self):
        ready, _, _ = select.select([self._person], [], [], max(self._deadline - time.monotonic(), 0))
        assert ready, f"nothing more came: {self.text}"
        try:
            chunk = os.read(self._person, 65536)
        except OSError as error:
            if error.errno == errno.EIO:  # how Linux says that nobody is at the other end any more
                return False
            raise
        self.text += chunk.decode()
        return bool(chunk)
