"""
Append-only logs of a run: one JSON object a line.

Each line is appended with one write, so that lines of several processes never mix. A log is history, not truth: a
torn or damaged line is skipped on reading and never stops a run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perdure.files.door import Files, explained


class Log:
    """One log file."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path

    def append(self, record: dict[str, Any]) -> None:
        """Add a record; not synced."""
        line = json.dumps(record, separators=(",", ":"), default=str).encode() + b"\n"
        with explained("append to", self._path):
            self._files.append(self._path, line)

    def read(self) -> Iterator[dict[str, Any]]:
        """All whole records, oldest first."""
        if not self._path.is_file():
            return
        with explained("read", self._path), self._path.open("rb") as stream:
            for line in stream:
                record = _parse(line)
                if record is not None:
                    yield record


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
