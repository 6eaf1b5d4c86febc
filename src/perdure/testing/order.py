"""
The rules of order that a durable save obeys, checked on what was done: a recording, or a trace of system calls.

The rules need no crash to be judged, so they also hold a real process to account, libraries and all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from perdure.store.layout import MANIFEST_FILE, PROGRESS_FILE, SNAPSHOTS
from perdure.testing.promises import Event
from perdure.testing.recording import Mark, Operation

STRACE_CALLS = (
    "openat,open,creat,write,writev,pwrite64,ftruncate,fsync,fdatasync,close,"
    "rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,mkdir,mkdirat,rmdir"
)
"""What to trace, as in ``strace -f -y -s 256 -e trace=…``."""


def _is_acknowledgement(mark: Mark) -> bool:
    return isinstance(mark, Event) and mark.acknowledged


def check_order(
    operations: Iterable[Operation], is_acknowledgement: Callable[[Mark], bool] = _is_acknowledgement
) -> list[str]:
    """
    Judge what was done to a file system.

    Args:
        operations: A recording or a trace.
        is_acknowledgement: Which marks say that somebody was told that something is durable.

    Returns:
        Broken rules, for people: a file or folder was given its final name before it was synced, a file was written
        after it was synced or synced again after that failed, a new name was not synced before somebody was told or
        before the end, a manifest was not the last file of its checkpoint, a link points to what has no name yet, or a
        visible file was written in place. A restore's progress file, which is made to survive nothing, is left out.
    """
    lint = _Lint()
    for operation in operations:
        lint.follow(operation)
        if operation.name == "mark" and is_acknowledgement(operation.mark):
            lint.nothing_may_be_unsynced(str(operation.mark))
    lint.nothing_may_be_unsynced("the end")
    return lint.problems


class _Lint:
    def __init__(self) -> None:
        self.problems: list[str] = []
        self._unsynced_bytes: set[str] = set()
        self._unsynced_names: dict[str, set[str]] = {}
        self._synced: set[str] = set()
        self._spoiled: set[str] = set()
        self._published: set[str] = set()
        self._known: set[str] = set()
        self._last_file: dict[str, str] = {}
        self._links: dict[str, str] = {}

    def follow(self, operation: Operation) -> None:
        path = operation.path
        match operation.name:
            case "open_new":
                self._unsynced_bytes.add(path)
                self._synced.discard(path)
                self._add_name(path)
                for parent in PurePosixPath(path).parents:
                    self._last_file[str(parent)] = path
            case "write" | "truncate":
                self._write(path)
            case "sync" | "sync_directory":
                self._sync(operation)
            case "symlink":
                self._links[path] = f"{_parent(path)}/{operation.data.decode()}".removeprefix("./")
                self._add_name(path)
            case "make_directory" | "link" | "unlink" | "remove_directory":
                self._add_name(path)
            case "rename":
                self._rename(operation.source, path)

    def _add_name(self, path: str) -> None:
        self._unsynced_names.setdefault(_parent(path), set()).add(path)

    def _write(self, path: str) -> None:
        if path in self._synced:
            self.problems.append(f"{path} is written after it was synced")
        if any(path == name or path.startswith(f"{name}/") for name in self._published):
            self.problems.append(f"{path} is written where readers see it")
        self._unsynced_bytes.add(path)

    def _sync(self, operation: Operation) -> None:
        path = operation.path
        if path in self._spoiled:
            self.problems.append(f"{path} is synced again after a sync failed")
        if operation.failed:
            self._spoiled.add(path)
            return
        if operation.name == "sync":
            self._unsynced_bytes.discard(path)
            self._synced.add(path)
        self._unsynced_names.pop(path, None)

    def _rename(self, source: str, target: str) -> None:
        if PurePosixPath(target).name == PROGRESS_FILE:
            # Is read by those who watch a restore, and says of itself if it is whole: nobody is promised anything.
            self._unsynced_bytes.discard(source)
            return
        if PurePosixPath(target).parent.name != "staging":  # what goes there is on its way out
            for path in sorted(self._unsynced_bytes):
                if _is_at_or_below(path, source):
                    self.problems.append(f"{target} gets its name before {path} is synced")
            for folder in sorted(self._unsynced_names):
                if _is_at_or_below(folder, source):
                    self.problems.append(f"{target} gets its name before the names in {folder} are synced")
            self._published.add(target)
            self._known.add(target)
        if PurePosixPath(target).parent.name == SNAPSHOTS:
            last = self._last_file.get(source, "")
            if PurePosixPath(last).name != MANIFEST_FILE:
                self.problems.append(f"{target} gets its name when {last or 'nothing'} was made last, not its manifest")
        if source in self._links and self._links[source] not in self._known:
            self.problems.append(f"{target} points to {self._links[source]} before that has its name")
        self._published = {path for path in self._published if not _is_at_or_below(path, source)}
        self._add_name(source)
        self._add_name(target)

    def nothing_may_be_unsynced(self, when: str) -> None:
        for folder, names in sorted(self._unsynced_names.items()):
            visible = sorted(name for name in names if any(_is_at_or_below(name, path) for path in self._known))
            self.problems += [f"the name {name} in {folder} is not synced before {when}" for name in visible]


def _parent(path: str) -> str:
    return str(PurePosixPath(path).parent)


def _is_at_or_below(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root}/")


_LINE = re.compile(r"(?:\[pid +)?(\d+)\]? +(?:[\d:.]+ +)?(.*)")
_UNFINISHED = re.compile(r"(.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"<\.\.\. \w+ resumed>(.*)")
_CALL = re.compile(r"(\w+)\((.*)\)\s+= (-?\d+)")
_DESCRIPTOR = re.compile(r"\d+<([^>]*)>")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')


def read_strace(text: str, root: Path) -> list[Operation]:
    """
    Make operations of a trace (``strace -f -y``), those below ``root``; calls that failed changed nothing.

    Args:
        text: The trace.
        root: Absolute; paths in it must be absolute as well.
    """
    waiting: dict[str, str] = {}
    operations: list[Operation] = []
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        process, rest = match.groups()
        if unfinished := _UNFINISHED.match(rest):
            waiting[process] = unfinished[1]
            continue
        if resumed := _RESUMED.match(rest):
            rest = waiting.pop(process, "") + resumed[1]
        call = _CALL.match(rest)
        if call is not None:
            operations += _operation(call[1], call[2], int(call[3]), root)
    return operations


def _operation(name: str, arguments: str, result: int, root: Path) -> Iterator[Operation]:
    strings = _STRING.findall(arguments)
    opened = _DESCRIPTOR.match(arguments)
    failed = result < 0
    if name in ("fsync", "fdatasync") and opened is not None:
        path = _relative(opened[1], root)
        if path is not None:
            is_folder = not failed and Path(opened[1]).is_dir()
            yield Operation("sync_directory" if is_folder else "sync", path, failed=failed)
        return
    if failed:
        return
    if name in ("write", "writev", "pwrite64", "ftruncate") and opened is not None:
        path = _relative(opened[1], root)
        if path is not None:
            yield Operation("truncate" if name == "ftruncate" else "write", path)
        return
    yield from _named(name, strings, arguments, root)


def _named(name: str, strings: Sequence[str], arguments: str, root: Path) -> Iterator[Operation]:
    kinds = {
        "mkdir": "make_directory",
        "rmdir": "remove_directory",
        "symlink": "symlink",
        "unlink": "unlink",
        "rename": "rename",
        "link": "link",
    }
    if name in ("openat", "open", "creat"):
        path = _relative(strings[0], root)
        if path is not None and ("O_CREAT" in arguments or name == "creat"):
            yield Operation("append" if "O_APPEND" in arguments else "open_new", path)
        return
    kind = next((kind for prefix, kind in kinds.items() if name.startswith(prefix)), None)
    path = _relative(strings[-1], root) if kind is not None else None
    if kind is None or path is None:
        return
    if kind == "unlink" and "AT_REMOVEDIR" in arguments:
        kind = "remove_directory"
    source = _relative(strings[0], root) or "" if kind in ("rename", "link") else ""
    yield Operation(kind, path, source, strings[0].encode() if kind == "symlink" else b"")


def _relative(path: str, root: Path) -> str | None:
    found = Path(path)
    return found.relative_to(root).as_posix() if found.is_relative_to(root) else None
