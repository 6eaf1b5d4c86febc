"""
The one door to the file system: a method for each system call that perdure makes.

Everything that changes a file system goes through a `Files`, so that a subclass can record, delay, tear or fail each
call. The methods are thin on purpose: no retry, no policy. In particular a failed sync is never repeated, because the
kernel has by then marked the lost pages clean and a second sync would report success (Rebello et al., "Can
Applications Recover from fsync Failures?", USENIX ATC 2020).
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
from pathlib import Path

from perdure.errors import PerdureError, StoreError

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700

_KINDS = {
    errno.ENOSPC: ("store.full", "free some space, or keep fewer checkpoints (`perdure gc`)"),
    errno.EDQUOT: ("store.full", "free some space or raise the quota (`perdure gc` removes old checkpoints)"),
    errno.EROFS: ("store.read-only", "mount the file system writable, or choose another directory"),
    errno.EACCES: ("store.forbidden", "give this user write permission, or choose another directory"),
    errno.EPERM: ("store.forbidden", "give this user write permission, or choose another directory"),
    errno.ENOTDIR: ("store.not-a-directory", "choose a path that is a directory, or move the file away"),
    errno.EEXIST: ("store.exists", "move what is there away, or choose another name"),
    errno.ENOENT: ("store.missing", "check that the directory still exists and is mounted"),
    errno.EIO: ("store.broken", "check the disk and the kernel's log; do not trust this disk"),
}


class explained:  # noqa: N801 - reads as a verb: with explained("open", path)
    """
    Turn the operating system's error of the block into a `StoreError` that says what could not be done.

    A class and no generator: it is entered for every file of a buffer of thousands.

    Args:
        action: What was being done, as in "cannot {action} {path}".
        path: To what.
    """

    __slots__ = ("_action", "_path")

    def __init__(self, action: str, path: Path | str) -> None:
        self._action = action
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # Several of ours are errors of the operating system as well, and say more than it does.
        if not isinstance(error, OSError) or isinstance(error, PerdureError):
            return
        store_kind, hint = _KINDS.get(error.errno or 0, ("store.failed", "check the file system that the path is on"))
        raise StoreError(
            f"cannot {self._action} {self._path}: {error.strerror or error}",
            kind=store_kind,
            hint=hint,
            path=str(self._path),
            errno_name=errno.errorcode.get(error.errno or 0, ""),
        ) from error


class Files:
    """The local file system. Descriptors are plain integers, owned by the caller."""

    waits_for_disk = True
    """Whether a sync takes a while, so that several are better asked for at once."""

    def open_new(self, path: Path, *, direct: bool = False) -> int:
        """Create a file that must not exist, for writing; ``direct`` asks to go past the page cache."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(path, flags | (os.O_DIRECT if direct else 0), FILE_MODE)

    def map_new(self, path: Path, size_bytes: int) -> mmap.mmap:
        """Create a file that must not exist and map it for reading and writing; all of its space is taken at once."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
        try:
            os.posix_fallocate(descriptor, 0, size_bytes)
            return mmap.mmap(descriptor, size_bytes)
        except BaseException:
            path.unlink()
            raise
        finally:
            os.close(descriptor)

    def stop_direct(self, descriptor: int) -> None:
        """Let the rest of a direct file go through the page cache, which takes reads and writes of any length."""
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write some of ``data`` at the end; returns how many bytes."""
        return os.write(descriptor, data)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        """Set a file's length."""
        os.ftruncate(descriptor, size_bytes)

    def begin_sync(self, descriptor: int) -> None:
        """Have the disk begin with a file's bytes: waits for nothing, and makes nothing durable."""
        # Of the calls that Python knows this is the one that starts it. Pages that are not on the disk yet stay.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def sync(self, descriptor: int) -> None:
        """Make a file's bytes and length, or a directory's names, survive a power cut."""
        os.fsync(descriptor)
        # XFS reports success for a directory whose changes it has just thrown away because the disk failed (seen on
        # Linux 6.18). It refuses to give a status then, and so does what is really wrong come out.
        os.fstat(descriptor)

    def close(self, descriptor: int) -> None:
        """Give a descriptor back."""
        os.close(descriptor)

    def append(self, path: Path, data: bytes) -> None:
        """
        Add one whole record to a file that several processes append to; not synced.

        Raises:
            OSError: Also when only a part was taken: a second write could land behind somebody else's record.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, FILE_MODE)
        try:
            if self.write(descriptor, memoryview(data)) != len(data):
                raise OSError(errno.ENOSPC, "only a part of the record was written")
        finally:
            self.close(descriptor)

    def make_directory(self, path: Path) -> None:
        """Make one directory that must not exist."""
        path.mkdir(DIRECTORY_MODE)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory survive a power cut."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sync(descriptor)
        finally:
            self.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file or directory another name, atomically; a non-empty target directory is refused."""
        source.rename(target)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name."""
        os.link(source, target, follow_symlinks=False)

    def symlink(self, content: str, path: Path) -> None:
        """Make a symbolic link."""
        path.symlink_to(content)

    def unlink(self, path: Path) -> None:
        """Remove a name."""
        path.unlink()

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        path.rmdir()

    # Reading changes nothing, but tests must be able to make it fail and to look at what was asked for.

    def open_beneath(self, root: Path, relative: str) -> tuple[int, int]:
        """
        Open a regular file under ``root`` for reading, following no symbolic link below it.

        Every folder on the way is opened by descriptor, so that nothing swapped in meanwhile can lead outside.

        Returns:
            Its descriptor, and its length in bytes.
        """
        folders, _, name = relative.rpartition("/")
        descriptor = self.open_folder_beneath(root, folders)
        try:
            return self.open_in(descriptor, name)
        finally:
            os.close(descriptor)

    def open_folder_beneath(self, root: Path, relative: str) -> int:
        """Open a folder under ``root``, or it itself if ``relative`` is empty, following no symbolic link below it."""
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for folder in relative.split("/") if relative else ():
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                inner = os.open(folder, flags, dir_fd=descriptor)
            finally:
                os.close(descriptor)
            descriptor = inner
        return descriptor

    def open_in(self, folder: int, name: str) -> tuple[int, int]:
        """Open a regular file in an open folder for reading, following no link; its descriptor and length in bytes."""
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode):
            os.close(opened)
            raise OSError(errno.EINVAL, "not a regular file")
        return opened, status.st_size

    def size_in(self, folder: int, name: str) -> int | None:
        """Length in bytes of a regular file in an open folder; None if there is none, or something else."""
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def is_cached(self, descriptor: int, offset_bytes: int) -> bool:
        """Whether a read of the byte there would not wait for the disk; also true where that cannot be found out."""
        if not hasattr(os, "RWF_NOWAIT"):  # a Python built against another C library
            return True
        try:
            os.preadv(descriptor, [bytearray(1)], offset_bytes, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True  # if something is wrong, the read that follows will say what
        return True

    def start_direct(self, descriptor: int) -> None:
        """Let reads of an open file go past the page cache; they must be of whole pages, into whole pages of memory."""
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)

    def read_into(self, descriptor: int, buffer: memoryview, offset_bytes: int) -> int:
        """Read some bytes from an offset into ``buffer``; returns how many, 0 at the end."""
        return os.preadv(descriptor, [buffer], offset_bytes)

    def names(self, path: Path) -> list[str]:
        """Names in a directory, sorted; empty if there is no such directory."""
        try:
            return sorted(entry.name for entry in os.scandir(path))
        except FileNotFoundError:
            return []

    def status(self, path: Path) -> os.stat_result | None:
        """Status of a name itself, links not followed; None if there is none."""
        try:
            return path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def link_content(self, path: Path) -> str | None:
        """What a symbolic link says; None if there is none."""
        try:
            return str(path.readlink())
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINVAL):  # nothing is there, or no link
                return None
            raise

    def free_bytes(self, path: Path) -> int:
        """Space that this user can still fill on the file system of ``path``."""
        space = os.statvfs(path)
        return space.f_bavail * space.f_frsize
