"""
Syncing together: files are written one after the other and become durable side by side.

A file system answers several syncs that are asked for at once with little more than one round to the disk, and the
same syncs one after the other with a round for each. For a checkpoint of small files the rounds are all that there is
to wait for. The disk begins with each file as soon as it is complete, while the next one is still being written.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType

from perdure.errors import StoreError
from perdure.files.door import Files, explained

_WIDTH = 8
"""Syncs that are under way at a time. Each thread has its share: to wake one costs as much as many a sync."""
_MAXIMUM_OPEN = 64
"""Files that are kept open until they are synced; more than this are synced in between."""


def sync_threads() -> ThreadPoolExecutor:
    """Threads for `Together`, which start when they are needed, wait for more, and end with the object."""
    return ThreadPoolExecutor(_WIDTH - 1, "perdure-sync")


class Together(Files):
    """
    A file system for writing, whose syncs are asked for now and made by `settle`.

    Nothing may be told to anybody before `settle` has returned, and no folder renamed whose files are to be synced. A
    context manager: leaving it by an error closes what is open and syncs nothing.

    Args:
        files: Does all the work.
        threads: Where syncs are made side by side; borrowed.
    """

    def __init__(self, files: Files, threads: Executor) -> None:
        self._files = files
        self._threads = threads
        self._paths: dict[int, Path] = {}
        self._written: list[int] = []
        self._folders: list[Path] = []

    def open_new(self, path: Path, *, direct: bool = False) -> int:
        """Create a file, as `Files` does."""
        descriptor = self._files.open_new(path, direct=direct)
        self._paths[descriptor] = path
        return descriptor

    def stop_direct(self, descriptor: int) -> None:
        """Go through the page cache, as `Files` does."""
        self._files.stop_direct(descriptor)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write, as `Files` does."""
        return self._files.write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        """Have a file synced by `settle`; it stays open until then, and the disk begins with it."""
        self._files.begin_sync(descriptor)
        self._written.append(descriptor)

    def sync_directory(self, path: Path) -> None:
        """Have a directory synced by `settle`."""
        self._folders.append(path)

    def rename(self, source: Path, target: Path) -> None:
        """Rename at once, as `Files` does; durable by the syncs that are asked for after it."""
        self._files.rename(source, target)

    def close(self, descriptor: int) -> None:
        """Close a file that is not to be synced; one that is, `settle` closes."""
        if descriptor not in self._written:
            del self._paths[descriptor]
            self._files.close(descriptor)
        elif len(self._written) >= _MAXIMUM_OPEN:
            self.settle()

    def settle(self) -> None:
        """
        Sync all that was asked for; durable when this returns.

        Raises:
            StoreError: One of the syncs failed; nothing of what was written may be used or synced again.
        """
        syncs: list[Callable[[], None]] = [partial(self._sync_file, descriptor) for descriptor in self._written]
        syncs += [partial(self._sync_folder, folder) for folder in self._folders]
        self._folders = []
        try:
            if self._files.waits_for_disk:
                _side_by_side(syncs, self._threads)
            else:
                for sync in syncs:
                    sync()
        except BaseException:
            self._abandon()
            raise
        self._close_written()

    def _sync_file(self, descriptor: int) -> None:
        with explained("write", self._paths[descriptor]):
            self._files.sync(descriptor)

    def _sync_folder(self, folder: Path) -> None:
        with explained("sync directory", folder):
            self._files.sync_directory(folder)

    def _close_written(self) -> None:
        while self._written:
            descriptor = self._written.pop()
            with explained("close", self._paths.pop(descriptor)):
                self._files.close(descriptor)

    def _abandon(self) -> None:
        """Close everything, whatever closing has to say: the error that is being raised is the one that matters."""
        while self._written:
            with suppress(StoreError):
                self._close_written()

    def __enter__(self) -> Together:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._abandon()


def _side_by_side(actions: list[Callable[[], None]], threads: Executor) -> None:
    """Do everything, a share of it in this thread; all have ended when this returns, or raises an error of one."""
    own, *others = (actions[first::_WIDTH] for first in range(min(_WIDTH, len(actions)) or 1))
    running = [threads.submit(_attempt, share) for share in others]
    try:
        errors = _attempt(own)
    finally:
        wait(running)
    errors += [error for each in running for error in each.result()]
    if errors:
        raise errors[0]


def _attempt(actions: list[Callable[[], None]]) -> list[StoreError]:
    """Do everything, whatever fails; returns what did."""
    errors = []
    for action in actions:
        try:
            action()
        except StoreError as error:
            errors.append(error)
    return errors
