"""
Files that a process keeps locked for as long as it lives: the kernel unlocks them the moment it dies, however it dies.

The lock is `flock`'s, not POSIX's: it belongs to the open file, so two holders in one process exclude each other and
reading the file elsewhere in the process does not drop it. Its price is that a forked child shares it, which would keep
a dead parent's lock alive; children therefore close their copy as soon as they are born.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from perdure.errors import DeadlineError
from perdure.files.door import FILE_MODE, explained

MAXIMUM_CONTENT_BYTES = 4096
_POLL_SECONDS = 0.01


class LockFile:
    """
    Creates a file that must not exist and keeps it locked until closed.

    A crash leaves the file behind, unlocked, with its last content.

    Raises:
        StoreError: The file system refuses, or the file exists.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        with explained("lock", path):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(path, flags, FILE_MODE)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BaseException:
                os.close(descriptor)
                raise
            self._descriptor = descriptor
        _held.add(self)

    @property
    def is_held(self) -> bool:
        """Whether this process still holds the lock through this object."""
        return self._descriptor is not None

    def write(self, content: bytes) -> None:
        """
        Put ``content``, always of the same length, in the place of the former content; not synced.

        Raises:
            StoreError: The file system refuses, or the lock is no longer held.
        """
        with explained("write", self.path):
            if self._descriptor is None:
                raise OSError(errno.EBADF, "the lock was given back")
            os.pwrite(self._descriptor, content, 0)

    def close(self) -> None:
        """Remove the file and give the lock back; closing twice is harmless."""
        if self._descriptor is None:
            return
        try:
            with explained("remove", self.path):
                self.path.unlink(missing_ok=True)
        finally:
            self._forget()

    def _forget(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_held: weakref.WeakSet[LockFile] = weakref.WeakSet()


def _forget_in_child() -> None:
    for lock in list(_held):
        lock._forget()  # noqa: SLF001 - the class's own half, which must be a function for the interpreter to call


os.register_at_fork(after_in_child=_forget_in_child)


@dataclass(frozen=True, slots=True)
class Probe:
    """What a lock file looks like from outside."""

    is_held: bool
    """Whether a living process keeps it locked."""
    content: bytes


def probe(path: Path) -> Probe:
    """
    Look at a lock file without disturbing its holder or another prober; one that does not exist is held by nobody.

    Raises:
        StoreError: It cannot be read.
    """
    with explained("read", path):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return Probe(is_held=False, content=b"")
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                is_held = False
            except BlockingIOError:
                is_held = True
            return Probe(is_held, os.pread(descriptor, MAXIMUM_CONTENT_BYTES, 0))
        finally:
            os.close(descriptor)


@contextmanager
def locked(path: Path, wait_seconds: float) -> Iterator[None]:
    """
    Hold a lock on a file, made if missing and never removed, while the block runs.

    Raises:
        DeadlineError: Kind ``lock.busy``: somebody else held it all the time.
        StoreError: The file system refuses.
    """
    with explained("lock", path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    try:
        deadline = time.monotonic() + wait_seconds
        while not _try_lock(descriptor):
            if time.monotonic() >= deadline:
                raise DeadlineError(
                    f"cannot lock {path}: another process has held it for {wait_seconds:g} s",
                    kind="lock.busy",
                    hint="see which process it is with `fuser`, and whether it hangs",
                    waited_seconds=wait_seconds,
                )
            time.sleep(_POLL_SECONDS)  # flock itself can wait, but not with a deadline
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing alone leaves it to a child forked meanwhile
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
