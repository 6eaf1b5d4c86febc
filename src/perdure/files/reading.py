"""Reading whole files, verified on the way: no byte is handed out before its digest has been compared."""

from __future__ import annotations

import errno
import mmap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from perdure.core.manifest import FileEntry
from perdure.errors import CorruptionError
from perdure.files.door import Files, explained
from perdure.files.writing import STRIDE_BYTES, THREAD_THRESHOLD_BYTES, Digest, digest_of

_HUGE_PAGE_BYTES = 2 * 1024 * 1024
"""Memory of this size and more is asked for in huge pages: touching it first, and writing from it, then costs less."""
_GONE = {errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EINVAL}


def follow_nobody(_: memoryview) -> None:
    """Let pieces be read without looking at them."""


def allocate(size_bytes: int) -> memoryview:
    """Page-aligned memory of its own, writable, zeroed; freed with the last view of it."""
    memory = mmap.mmap(-1, max(size_bytes, 1))
    if size_bytes >= _HUGE_PAGE_BYTES:
        with suppress(OSError):  # a kernel without huge pages gives small ones
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)[:size_bytes]


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
            descriptor = files.open_beneath(root, entry.path)
        else:
            descriptor = files.open_in(folder, entry.path.rpartition("/")[2])
    except OSError as error:
        path = root / entry.path
        if error.errno in _GONE:
            raise damaged(path, "it is missing or no regular file", entry.bytes, error.strerror or "") from error
        with explained("open", path):
            raise
    with explained("look at", entry.path):
        try:
            size = files.size(descriptor)
        except OSError:
            files.close(descriptor)
            raise
        if size == entry.bytes:
            return descriptor
        files.close(descriptor)
    raise damaged(root / entry.path, f"it has {size} bytes and {entry.bytes} were committed", entry.bytes, size)


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
        read_all(files, descriptor, buffer, follow)
        return digest_of(buffer)
    with ThreadPoolExecutor(1, "perdure-digest") as thread:
        digest = Digest(thread)

        def both(piece: memoryview) -> None:
            digest.follow(piece)
            follow(piece)

        read_all(files, descriptor, buffer, both)
        return digest.value()


def read_all(
    files: Files, descriptor: int, buffer: memoryview, follow: Callable[[memoryview], None] = follow_nobody
) -> None:
    """
    Fill ``buffer`` from the beginning of a file that is at least as long.

    Args:
        files: The file system.
        descriptor: The open file.
        buffer: What is filled.
        follow: Called with each piece that has been filled, in order.
    """
    position = 0
    while position < len(buffer):
        count = files.read_into(descriptor, buffer[position : position + STRIDE_BYTES], position)
        if count == 0:
            raise OSError(errno.EIO, "the file became shorter while it was read")
        follow(buffer[position : position + count])
        position += count


def read_small(files: Files, root: Path, relative: str, limit_bytes: int) -> bytes | None:
    """
    Read a small file that carries no digest, such as a manifest or a marker; None if there is none.

    Raises:
        CorruptionError: Kind ``file.damaged``: longer than the limit, or no regular file.
        StoreError: It cannot be read.
    """
    path = root / relative
    try:
        descriptor = files.open_beneath(root, relative)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        if error.errno in _GONE:
            raise damaged(path, "it is no regular file", "a file", error.strerror or "") from error
        with explained("open", path):
            raise
    with explained("read", path):
        try:
            size = files.size(descriptor)
            if size > limit_bytes:
                raise damaged(path, f"it has {size} bytes and at most {limit_bytes} are read", limit_bytes, size)
            content = bytearray(size)
            read_all(files, descriptor, memoryview(content))
        finally:
            files.close(descriptor)
    return bytes(content)
