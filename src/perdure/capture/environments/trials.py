"""
Trials: an environment of the program's is certified in processes of their own, beside the training.

The run is not touched: the environment is copied (see `copies`), and what the copies do happens elsewhere. Several
processes that need the same certificate make one trial of it between them. A trial ends with its program, and after
`DEADLINE_SECONDS` at the latest.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any

from perdure.capture.environments.certificates import Certificate, Subject, cache_directory, find
from perdure.errors import PerdureError
from perdure.files.door import Files
from perdure.files.lockfile import locked
from perdure.files.publish import ensure_directory

__all__ = ["DEADLINE_SECONDS", "STEPS", "Trial"]

STEPS = 100
"""Steps that a trial lives before its last capture."""
DEADLINE_SECONDS = 60.0
_MAIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from perdure.capture.environments.certify import main; main()"
)
_SHOWN = 200
"""Characters of a failure that are told."""


class Trial:
    """
    One trial, which begins at once.

    Args:
        subject: What is tried.
        content: A copy of it, see `copies.copy_of`.
        stack: Qualified names of its layers.
    """

    def __init__(self, subject: Subject, content: bytes, stack: tuple[str, ...]) -> None:
        self._subject = subject
        self._request = json.dumps({"subject": asdict(subject), "stack": stack}).encode() + b"\n" + content
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = threading.Event()
        self.certificate: Certificate | None = None
        """What it came to; None as long as it goes on, and if it came to nothing."""
        self.failure = ""
        """Why it came to nothing."""
        threading.Thread(target=self._run, name="perdure-trial", daemon=True).start()

    def wait(self, seconds: float) -> bool:
        """Wait for the end, no longer than so many seconds; tells whether it has ended."""
        return self._ended.wait(max(0.0, seconds))

    def end(self) -> None:
        """Kill whatever it has started."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    def _run(self) -> None:
        try:
            with self._alone():
                self.certificate = find(self._subject, Files(), cache_directory()) or self._ask()
        except PerdureError as error:
            self.failure = error.message
        except Exception as error:  # noqa: BLE001 - told as the reason why there is no certificate
            self.failure = f"{type(error).__name__}: {error}"
        finally:
            self._request = b""
            self._ended.set()

    def _alone(self) -> AbstractContextManager[None]:
        """Wait for another process that tries the same; a cache that cannot be written keeps nobody out."""
        folder = cache_directory() / "certificates"
        try:
            ensure_directory(Files(), folder)
            return locked(folder / f"{self._subject.key}.lock", DEADLINE_SECONDS)
        except PerdureError:
            return nullcontext()

    def _ask(self) -> Certificate | None:
        command = [sys.executable, "-c", _MAIN, json.dumps(sys.path)]
        pipe = subprocess.PIPE
        with subprocess.Popen(  # noqa: S603 - this package's own module
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=_surroundings(), start_new_session=True
        ) as process:
            self._process = process
            _going_on.add(self)
            try:
                answer, _ = process.communicate(self._request, DEADLINE_SECONDS)
            except subprocess.TimeoutExpired:
                self.failure = f"it took longer than {DEADLINE_SECONDS:g} s"
                return None
            finally:
                self.end()
        return self._understood(answer)

    def _understood(self, answer: bytes) -> Certificate | None:
        try:
            found: dict[str, Any] = json.loads(answer)
        except ValueError:
            self.failure = "the process that tried it died"
            return None
        if "failure" in found:
            self.failure = str(found["failure"])[:_SHOWN]
            return None
        return Certificate(self._subject, found["level"], found["reason"], found["steps"])


_going_on: weakref.WeakSet[Trial] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    for trial in list(_going_on):
        trial.end()


def _surroundings() -> dict[str, str]:
    """What the process sees of the environment: no run, no supervisor, and no accelerator, which the training has."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    cache = {"PERDURE_CACHE": str(cache_directory())}
    return {**own, **cache, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
