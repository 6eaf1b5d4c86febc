"""Recording what is done to a file system, as a list of operations that can be replayed, judged and crashed."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.testing.interception import READING, Call, InterceptedFiles, Proceed

Mark = Any
"""What a test writes between operations, such as "this save was acknowledged"."""


@dataclass(frozen=True, slots=True)
class Operation:
    """
    One change of a file system, or a mark.

    Attributes:
        name: Name of the method of `Files`, or ``mark``.
        path: What it changes, relative to the recorder's root; the root itself is ``.``.
        source: The other path of a rename or link.
        data: Bytes written, or a symbolic link's content.
        offset_bytes: Where they were written, or the length after a truncation.
        failed: An error was reported and nothing, or nothing certain, was done.
        mark: The mark.
    """

    name: str
    path: str = ""
    source: str = ""
    data: bytes = b""
    offset_bytes: int = 0
    failed: bool = False
    mark: Mark = None

    def __str__(self) -> str:
        if self.name == "mark":
            return f"-- {self.mark}"
        parts = [self.name, self.source and f"{self.source} ->", self.path]
        if self.name in ("write", "append"):
            parts.append(f"[{self.offset_bytes}:{self.offset_bytes + len(self.data)}]")
        return " ".join(part for part in parts if part) + (" FAILED" if self.failed else "")


@dataclass(slots=True)
class _Open:
    path: str
    position: int = 0


class RecordingFiles(InterceptedFiles):
    """
    A file system that remembers every change below a root.

    Args:
        root: Changes elsewhere are carried out and not recorded.
        operations: Where to record; one list can hold what several processes did, one after the other.
    """

    def __init__(self, root: Path, operations: list[Operation] | None = None) -> None:
        InterceptedFiles.__init__(self)  # and not super(): another class in between takes arguments of its own
        self.operations: list[Operation] = [] if operations is None else operations
        self._root = root
        self._open: dict[int, _Open] = {}
        self._lock = threading.Lock()

    def mark(self, mark: Mark) -> None:
        """Write a mark between the operations."""
        with self._lock:
            self.operations.append(Operation("mark", mark=mark))

    def intercept(self, call: Call, proceed: Proceed) -> Any:
        """Carry a call out and record it, if it came from outside, changes something and was not cut short."""
        if call.name in READING or call.depth > 1:
            return super().intercept(call, proceed)
        try:
            result = super().intercept(call, proceed)
        except OSError as error:
            with self._lock:
                self._record(call, None, failed=not getattr(error, "done", False))
            raise
        with self._lock:
            self._record(call, result, failed=False)
        return result

    def _record(self, call: Call, result: Any, *, failed: bool) -> None:
        operation = self._describe(call.name, dict(call.arguments), result, failed=failed)
        if operation is not None:
            self.operations.append(operation)

    def _describe(self, name: str, given: dict[str, Any], result: Any, *, failed: bool) -> Operation | None:
        if "descriptor" in given:
            return self._describe_open(name, given, result, failed=failed)
        path = self._relative(given.get("target", given.get("path")))
        if path is None:
            return None
        if name == "open_new" and isinstance(result, int):
            self._open[result] = _Open(path)
        source = self._relative(given.get("source")) or ""
        content = given.get("content", given.get("data", b""))
        data = content.encode() if isinstance(content, str) else bytes(content)
        return Operation(name, path, source, data, failed=failed)

    def _describe_open(self, name: str, given: dict[str, Any], result: Any, *, failed: bool) -> Operation | None:
        opened = self._open.get(given["descriptor"])
        if opened is None or name == "stop_direct":
            return None
        if name == "close":
            del self._open[given["descriptor"]]
            return Operation(name, opened.path, failed=failed)
        if name == "write":
            data = bytes(given["data"][:result]) if result else b""
            operation = Operation(name, opened.path, data=data, offset_bytes=opened.position, failed=failed)
            opened.position += len(data)
            return operation
        return Operation(name, opened.path, offset_bytes=given.get("size_bytes", 0), failed=failed)

    def _relative(self, path: Path | None) -> str | None:
        if path is None or not path.is_relative_to(self._root):
            return None
        return path.relative_to(self._root).as_posix()
