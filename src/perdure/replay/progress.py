"""
How far an eager restore has come, so that one that is interrupted need not do everything again.

What was read into memory dies with the process; what is worth keeping is which files were found to be whole. The next
attempt maps those at once, has them compared again in the background, and reads and waits for the rest only. The file
is a hint: it names digests, so it fits no other bytes than those it was written for, and nothing is believed for ever.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from perdure.errors import CorruptionError
from perdure.files.door import Files, explained
from perdure.files.publish import replace_file
from perdure.files.reading import read_small

EVERY_BYTES = 1024 * 1024 * 1024
"""Read so much between two notes: a note is a synced write, and a second of reading is not worth saving."""
_LIMIT_BYTES = 16 * 1024 * 1024


class ProgressFile:
    """
    The digests of files that an eager restore has found to be whole.

    Args:
        files: The file system.
        path: Where; the directory exists.
        every_bytes: How much is read between two notes.
    """

    def __init__(self, files: Files, path: Path, every_bytes: int = EVERY_BYTES) -> None:
        self._files = files
        self._path = path
        self._every_bytes = every_bytes
        self._noted_bytes = 0

    def read(self) -> frozenset[str]:
        """What an interrupted restore has left; nothing if there is no such file or it makes no sense."""
        try:
            content = read_small(self._files, self._path.parent, self._path.name, _LIMIT_BYTES)
            found = json.loads(content) if content is not None else {}
        except (CorruptionError, ValueError):
            return frozenset()
        digests = found.get("verified", []) if isinstance(found, dict) else []
        return (
            frozenset(digest for digest in digests if isinstance(digest, str))
            if isinstance(digests, list)
            else frozenset()
        )

    def note(self, verified: Collection[str], done_bytes: int) -> None:
        """Write down what has been verified so far, if enough has been read since the last time."""
        if done_bytes - self._noted_bytes < self._every_bytes:
            return
        self._noted_bytes = done_bytes
        content = json.dumps({"schema_version": 1, "verified": sorted(verified)}).encode() + b"\n"
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        with explained("remove", temporary):
            if self._files.status(temporary) is not None:  # from an attempt that died while it wrote
                self._files.unlink(temporary)
        replace_file(self._files, self._path, content, temporary)

    def remove(self) -> None:
        """The restore is complete: forget it."""
        with explained("remove", self._path):
            if self._files.status(self._path) is not None:
                self._files.unlink(self._path)
