"""The process of a trial: it reads a copy of an environment, has it probed, and keeps and tells the certificate."""

from __future__ import annotations

import contextlib
import json
import sys

from perdure.capture.environments.certificates import Certificate, Subject, cache_directory, keep
from perdure.capture.environments.copies import Copy
from perdure.capture.environments.probe import probe
from perdure.capture.environments.trials import DEADLINE_SECONDS, STEPS
from perdure.errors import PerdureError
from perdure.files.door import Files

__all__ = ["main"]


def main() -> None:
    """Answer the one request on standard input with one line on standard output."""
    head, _, content = sys.stdin.buffer.read().partition(b"\n")
    request = json.loads(head)
    subject = Subject(**{**request["subject"], "stack": tuple(request["subject"]["stack"])})
    try:
        found = probe(Copy(content, tuple(request["stack"])), steps=STEPS, deadline_seconds=DEADLINE_SECONDS)
    except PerdureError as error:
        sys.stdout.write(json.dumps({"failure": error.message}))
        return
    # Its own subject may be named after another main program than the one that the environment lives in.
    certificate = Certificate(subject, found.level, found.reason, found.steps)
    with contextlib.suppress(PerdureError):  # a cache that cannot be written: the answer is enough for this process
        keep(certificate, Files(), cache_directory())
    sys.stdout.write(json.dumps({"level": found.level, "reason": found.reason, "steps": found.steps}))
