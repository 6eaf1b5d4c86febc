"""
Writing whole files that are durable when the call returns, with their digest computed on the way.

Large files go past the page cache where the file system allows it: on the disks measured that is two to four times
faster than buffered writes followed by a sync, far steadier, and leaves the cache to the training. The digest of a
chunk is computed in a second thread while the chunk is being written.
"""

from __future__ import annotations

import errno
import mmap
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
from blake3 import blake3

from perdure.errors import InternalError
from perdure.files.door import Files, explained

DIRECT_THRESHOLD_BYTES = 8 * 1024 * 1024
"""Shorter files go through the page cache: each unbuffered write waits for the disk, a sync waits for many at once."""
THREAD_THRESHOLD_BYTES = 8 * 1024 * 1024
"""Shorter pieces are digested by the thread that writes them: on a busy machine a hand-over takes longer."""
BLOCK_BYTES = mmap.PAGESIZE
STRIDE_BYTES = 8 * 1024 * 1024
"""Bytes handed to the kernel at a time: large enough for full speed, small enough to overlap with the digest."""


def digest_of(data: bytes | memoryview) -> str:
    """Digest of some bytes in the form in which manifests carry it."""
    return f"blake3:{blake3(data).hexdigest()}"


class Digest:
    """
    A digest that grows in a thread of its own while the same bytes are written, or the next ones read.

    Args:
        thread: Does the work; without one, whoever calls `write_beside` does.
    """

    def __init__(self, thread: ThreadPoolExecutor | None) -> None:
        self._hash = blake3()
        self._thread = thread
        self._following: list[Future[blake3]] = []

    def follow(self, data: memoryview) -> None:
        """Take ``data`` into the digest behind the caller's back; it must not change until `value` is asked for."""
        assert self._thread is not None
        self._following.append(self._thread.submit(self._hash.update, data))

    def write_beside(self, files: Files, descriptor: int, data: memoryview) -> None:
        """Write ``data`` and take it into the digest at the same time; both are done on return."""
        if self._thread is None or len(data) < THREAD_THRESHOLD_BYTES:
            self._hash.update(data)
            write_all(files, descriptor, data)
            return
        hashed = self._thread.submit(self._hash.update, data)
        try:
            write_all(files, descriptor, data)
        finally:
            hashed.result()

    def value(self) -> str:
        """The digest of all that was written or followed."""
        for followed in self._following:
            followed.result()
        return f"blake3:{self._hash.hexdigest()}"


def write_all(files: Files, descriptor: int, data: memoryview) -> None:
    """Write all of ``data``, however short the single writes turn out."""
    position = 0
    while position < len(data):
        count = _write_some(files, descriptor, data[position:])
        if count == 0:
            raise OSError(errno.EIO, "nothing was written")
        position += count


def _write_some(files: Files, descriptor: int, data: memoryview) -> int:
    try:
        return files.write(descriptor, data)
    except OSError as error:
        # Direct writes can be refused where they were allowed at open: an unaligned rest after a short write, or a
        # file system that decides late. The bytes then take the way through the cache; the sync still follows.
        if error.errno != errno.EINVAL:
            raise
        files.stop_direct(descriptor)
        return files.write(descriptor, data)


def write_file(
    files: Files, path: Path, size_bytes: int, chunks: Iterable[memoryview], known_digest: str | None = None
) -> str:
    """
    Create ``path`` with the chunks' bytes; durable, but for its name, when this returns.

    Args:
        files: The file system.
        path: Must not exist.
        size_bytes: Sum of the chunks' lengths.
        chunks: Borrowed one at a time.
        known_digest: That of the bytes, which is not computed again then.

    Returns:
        The digest of the bytes.

    Raises:
        StoreError: The file is then in an unknown state and must not be used or synced again.
    """
    with explained("write", path), _thread_for(size_bytes) as thread:
        digest = Digest(thread)
        write = digest.write_beside if known_digest is None else write_all
        descriptor, direct = _open(files, path, size_bytes)
        try:
            written = 0
            for chunk in chunks:
                data = chunk.cast("B") if chunk.format != "B" or chunk.ndim != 1 else chunk
                written += len(data)
                for piece in _pieces(data):
                    if direct and not _is_aligned(piece):
                        files.stop_direct(descriptor)
                        direct = False
                    write(files, descriptor, piece)
            if written != size_bytes:
                raise InternalError(
                    f"cannot write {path}: {written} bytes came where {size_bytes} were announced",
                    kind="write.size-mismatch",
                )
            files.sync(descriptor)
        finally:
            files.close(descriptor)
        return known_digest or digest.value()


def _thread_for(size_bytes: int) -> AbstractContextManager[ThreadPoolExecutor | None]:
    """A thread to digest in, for a file that is worth one."""
    return ThreadPoolExecutor(1, "perdure-digest") if size_bytes >= THREAD_THRESHOLD_BYTES else nullcontext()


def _pieces(data: memoryview) -> Iterator[memoryview]:
    """Cut at multiples of the stride, and where whole blocks end: only the rest then misses the direct way."""
    whole = len(data) - len(data) % BLOCK_BYTES
    for start in range(0, whole, STRIDE_BYTES):
        yield data[start : min(start + STRIDE_BYTES, whole)]
    if whole < len(data):
        yield data[whole:]


def _open(files: Files, path: Path, size_bytes: int) -> tuple[int, bool]:
    if size_bytes >= DIRECT_THRESHOLD_BYTES:
        try:
            return files.open_new(path, direct=True), True
        except OSError as error:
            if error.errno != errno.EINVAL:  # tmpfs and some network file systems have no direct writes
                raise
    return files.open_new(path), False


def _is_aligned(data: memoryview) -> bool:
    address = np.frombuffer(data, np.uint8).ctypes.data if len(data) else 0
    return address % BLOCK_BYTES == 0 and len(data) % BLOCK_BYTES == 0
