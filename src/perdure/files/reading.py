"""Reading whole files, verified on the way: no byte is handed out before its digest has been compared."""

from __future__ import annotations

import errno
import mmap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np

from perdure.core.manifest import FileEntry
from perdure.errors import CorruptionError
from perdure.files.door import Files, explained
from perdure.files.systems import file_system_of
from perdure.files.writing import STRIDE_BYTES, THREAD_THRESHOLD_BYTES, Digest, digest_of

_HUGE_PAGE_BYTES = 2 * 1024 * 1024
"""Memory of this size and more is asked for in huge pages: touching it first, and writing from it, then costs less."""
_WIPE_ON_FORK = 18
"""MADV_WIPEONFORK of madvise(2), for which Python has no name yet."""
_DIRECT_BYTES = 256 * 1024
"""Shorter files are read through the page cache: a read past it would save nothing."""
_GONE = {errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EINVAL}


def follow_nobody(_: memoryview) -> None:
    """Let pieces be read without looking at them."""


def allocate(size_bytes: int, *, is_wiped_in_children: bool = False) -> memoryview:
    """
    Page-aligned memory of this process alone, writable, zeroed; freed with the last view of it.

    Private, because memory that is shared, which is what Python maps by itself, gets no huge pages on most machines.

    Args:
        size_bytes: Length.
        is_wiped_in_children: Whether a forked process finds zeros there. Without it the first write to each page after
            a fork copies the page, which whoever is written for again and again would rather not pay.
    """
    memory = mmap.mmap(-1, max(size_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    advice = [mmap.MADV_HUGEPAGE] if size_bytes >= _HUGE_PAGE_BYTES else []
    advice += [_WIPE_ON_FORK] if is_wiped_in_children else []
    for each in advice:
        with suppress(OSError):  # a kernel that does not know it gives small pages, and copies
            memory.madvise(each)
    return memoryview(memory)[:size_bytes]


class Reader:
    """
    An open file that is read into memory: from the page cache if that has it, else past it as long as that can be.

    A checkpoint's large files are written past the cache, and seldom read twice; going through it would cost another
    copy of every byte, and push out what training needs.

    Args:
        files: The file system.
        descriptor: Borrowed.
        size_bytes: Its length.
        in_pages: Whether most of what will be asked for is whole pages of the file for whole pages of memory. Nothing
            else can be read past the cache.
        from_disk: Whether it is the disk that is asked, whatever the cache has: to find out what the disk still has.
    """

    def __init__(
        self, files: Files, descriptor: int, size_bytes: int, *, in_pages: bool = True, from_disk: bool = False
    ) -> None:
        self._files = files
        self._descriptor = descriptor
        is_worth_it = in_pages and size_bytes >= _DIRECT_BYTES
        self._is_direct = is_worth_it and self._starts_direct(size_bytes, from_disk=from_disk)

    def _starts_direct(self, size_bytes: int, *, from_disk: bool) -> bool:
        if not file_system_of(self._descriptor)[1]:
            return False
        try:
            # Its middle speaks for a file: the beginning is in the cache whenever somebody has looked at the header.
            if not from_disk and self._files.is_cached(self._descriptor, size_bytes // 2):
                return False
            self._files.start_direct(self._descriptor)
        except OSError:
            return False  # not every file system has such reads
        return True

    def fill(self, target: memoryview, offset_bytes: int) -> None:
        """Read as many bytes as ``target`` has, from an offset in the file, which is that long."""
        position = 0
        while position < len(target):
            rest = target[position:]
            if self._is_direct:
                rest = rest[: _whole_pages(rest, offset_bytes + position)]
                if not rest:
                    self._stop()
                    continue
            try:
                count = self._files.read_into(self._descriptor, rest, offset_bytes + position)
            except OSError as error:
                if not self._is_direct or error.errno != errno.EINVAL:
                    raise
                self._stop()
                continue
            if count == 0:
                raise OSError(errno.EIO, "the file became shorter while it was read")
            position += count

    def _stop(self) -> None:
        self._files.stop_direct(self._descriptor)
        self._is_direct = False


def _whole_pages(target: memoryview, offset_bytes: int) -> int:
    """Bytes at the beginning of ``target`` that a read past the cache can bring there."""
    address = np.frombuffer(target, np.uint8).ctypes.data
    if address % mmap.PAGESIZE or offset_bytes % mmap.PAGESIZE:
        return 0
    return len(target) - len(target) % mmap.PAGESIZE


def damaged(path: Path | str, what: str, expected: str | int, actual: str | int) -> CorruptionError:
    """The error for a stored file that is not the one that was committed."""
    return CorruptionError(
        f"cannot use {path}: {what}",
        kind="file.damaged",
        hint="restore an older checkpoint; `perdure verify` shows what is damaged",
        path=str(path),
        expected=expected,
        actual=actual,
    )


def open_checked(files: Files, root: Path, entry: FileEntry, folder: int | None = None) -> int:
    """
    Open a committed file for reading after checking that it is there and has its length.

    Args:
        files: The file system.
        root: The checkpoint's directory.
        entry: The file.
        folder: Descriptor of the folder that it lies in, where many files of one folder are opened.

    Raises:
        CorruptionError: Kind ``file.damaged``: gone, replaced by a link or another length.
        StoreError: It cannot be read for another reason.
    """
    try:
        if folder is None:
            descriptor, size = files.open_beneath(root, entry.path)
        else:
            descriptor, size = files.open_in(folder, entry.path.rpartition("/")[2])
    except OSError as error:
        path = root / entry.path
        if error.errno in _GONE:
            raise damaged(path, "it is missing or no regular file", entry.bytes, error.strerror or "") from error
        with explained("open", path):
            raise
    if size == entry.bytes:
        return descriptor
    files.close(descriptor)
    raise _of_another_length(root, entry, size)


def look_at(files: Files, root: Path, entry: FileEntry, folder: int | None = None) -> None:
    """
    Check that a committed file is there and has its length, without opening it if its folder is open.

    Args:
        files: The file system.
        root: The checkpoint's directory.
        entry: The file.
        folder: As for `open_checked`.

    Raises:
        CorruptionError: As `open_checked`.
        StoreError: As `open_checked`.
    """
    if folder is None:
        files.close(open_checked(files, root, entry))
        return
    size = None
    with explained("look at", entry.path):
        size = files.size_in(folder, entry.path.rpartition("/")[2])
    if size is None:
        raise damaged(root / entry.path, "it is missing or no regular file", entry.bytes, "")
    if size != entry.bytes:
        raise _of_another_length(root, entry, size)


def _of_another_length(root: Path, entry: FileEntry, size: int) -> CorruptionError:
    return damaged(root / entry.path, f"it has {size} bytes and {entry.bytes} were committed", entry.bytes, size)


def read_verified(
    files: Files, root: Path, entry: FileEntry, follow: Callable[[memoryview], None] = follow_nobody
) -> memoryview:
    """
    Read a committed file whole; its length and digest are those that were committed.

    Args:
        files: The file system.
        root: The checkpoint's directory.
        entry: The file.
        follow: Called with each piece that has been read, in order and unverified.

    Returns:
        Writable page-aligned memory that the caller owns.

    Raises:
        CorruptionError: Kind ``file.damaged``.
        StoreError: It cannot be read.
    """
    path = root / entry.path
    descriptor = open_checked(files, root, entry)
    with explained("read", path):
        try:
            content = allocate(entry.bytes)
            actual = _read_digested(files, descriptor, content, follow)
        finally:
            files.close(descriptor)
    if actual != entry.digest:
        raise damaged(path, "its bytes are not those that were committed", entry.digest, actual)
    return content


def _read_digested(files: Files, descriptor: int, buffer: memoryview, follow: Callable[[memoryview], None]) -> str:
    """Fill ``buffer``; what has been read is digested in a thread of its own while more is being read."""
    if len(buffer) < THREAD_THRESHOLD_BYTES:
        _read_all(files, descriptor, buffer, follow)
        return digest_of(buffer)
    with ThreadPoolExecutor(1, "perdure-digest") as thread:
        digest = Digest(thread)

        def both(piece: memoryview) -> None:
            digest.follow(piece)
            follow(piece)

        _read_all(files, descriptor, buffer, both)
        return digest.value()


def _read_all(files: Files, descriptor: int, buffer: memoryview, follow: Callable[[memoryview], None]) -> None:
    """Fill ``buffer`` from the beginning of a file of its length; ``follow`` is called with each piece, in order."""
    reader = Reader(files, descriptor, len(buffer))
    for start in range(0, len(buffer), STRIDE_BYTES):
        piece = buffer[start : start + STRIDE_BYTES]
        reader.fill(piece, start)
        follow(piece)


def read_small(files: Files, root: Path, relative: str, limit_bytes: int) -> bytes | None:
    """
    Read a small file that carries no digest, such as a manifest or a marker; None if there is none.

    Raises:
        CorruptionError: Kind ``file.damaged``: longer than the limit, or no regular file.
        StoreError: It cannot be read.
    """
    path = root / relative
    try:
        descriptor, size = files.open_beneath(root, relative)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        if error.errno in _GONE:
            raise damaged(path, "it is no regular file", "a file", error.strerror or "") from error
        with explained("open", path):
            raise
    with explained("read", path):
        try:
            if size > limit_bytes:
                raise damaged(path, f"it has {size} bytes and at most {limit_bytes} are read", limit_bytes, size)
            content = bytearray(size)
            _read_all(files, descriptor, memoryview(content), follow_nobody)
        finally:
            files.close(descriptor)
    return bytes(content)
