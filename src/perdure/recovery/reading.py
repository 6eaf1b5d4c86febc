"""Reading ahead: the files of a checkpoint are read and verified side by side, and handed out one by one."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType

from perdure.core.component import Progress
from perdure.store.store import Checkpoint, Store

_THREADS = 4
"""Disks want several requests at a time, and each file's digest keeps a processor busy."""
_TOLD_SECONDS = 0.1
"""Whoever waits for a file says so often how far all of them are."""


class Reading:
    """
    Whole files of one checkpoint. A context manager; leaving it early gives up what nobody has taken.

    Args:
        store: Reads and verifies.
        checkpoint: Whose files.
        paths: Those that will be taken. The memory for all of them is needed at once anyway: nothing live is changed
            before everything has been verified.
        tell: Told how far all of them are, by whoever waits for one.
    """

    def __init__(self, store: Store, checkpoint: Checkpoint, paths: Iterable[str], tell: Progress) -> None:
        self._store = store
        self._checkpoint = checkpoint
        self._tell = tell
        wanted = set(paths)
        self._entries = sorted(
            (entry for entry in checkpoint.manifest.files if entry.path in wanted),
            key=lambda entry: entry.bytes,
            reverse=True,  # the longest one would end last
        )
        self._total_bytes = sum(entry.bytes for entry in self._entries)
        self._done_bytes = dict.fromkeys((entry.path for entry in self._entries), 0)
        self._ahead: dict[str, Future[memoryview]] = {}

    def __enter__(self) -> Reading:
        self._threads = ThreadPoolExecutor(_THREADS, "perdure-read")
        self._ahead = {entry.path: self._threads.submit(self._read, entry.path) for entry in self._entries}
        return self

    def _read(self, path: str) -> memoryview:
        def follow(piece: memoryview) -> None:
            self._done_bytes[path] += len(piece)

        return self._store.read(self._checkpoint, path, follow)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(cancel_futures=True)

    def take(self, path: str) -> memoryview:
        """
        A whole verified file; the memory is the caller's.

        Raises:
            CorruptionError: It is gone or not what was committed.
            NotFoundError: The checkpoint has no such file.
        """
        ahead = self._ahead.pop(path, None)
        if ahead is None:
            return self._store.read(self._checkpoint, path)
        is_waiting = True
        while is_waiting:
            is_waiting = bool(wait([ahead], _TOLD_SECONDS).not_done)
            self._tell(sum(self._done_bytes.values()), self._total_bytes)
        return ahead.result()
