"""The lease of a run's writer, as its holder sees it."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import final

from perdure.cluster.ledger import BeatStamp, Ledger, Writer, superseded
from perdure.cluster.monitor import Monitor
from perdure.core.leases import Timing
from perdure.errors import FencedError
from perdure.files.lockfile import LockFile

logger = logging.getLogger(__name__)


@final
class WriterLease:
    """
    The right to write to a run, until it is released, superseded or its holder dies.

    Made by `Control.acquire`. Any thread may call any method. A child forked from the holder does not inherit it: there
    every method that acts raises `FencedError`.
    """

    def __init__(
        self, ledger: Ledger, lock: LockFile, writer: Writer, *, timing: Timing, clock: Callable[[], float]
    ) -> None:
        self._ledger = ledger
        self._lock = lock
        self._incarnation = writer.incarnation
        self._generation = writer.generation
        self._monitor = Monitor("the writer's lease")
        self._timing = timing
        self._clock = clock
        self._fenced: FencedError | None = None
        self._stopped = threading.Event()
        self._beating: threading.Thread | None = None

    @property
    def generation(self) -> int:
        """The generation that this holder writes in; `mint` raises it."""
        return self._generation

    def check(self) -> None:
        """
        Do nothing if, as far as is known, the lease still stands; reads no file.

        Raises:
            FencedError: Kind ``lease.fenced``.
        """
        if self._fenced:
            raise self._fenced
        if not self._lock.is_held:
            raise self._lost(self._generation)

    def renew(self) -> None:
        """
        Leave a sign of life, after looking whether the lease still stands.

        Raises:
            FencedError: Kind ``lease.fenced``.
            StoreError: The sign could not be left; the lease stands until it has been silent for its length.
        """
        self.check()
        with self._ledger.reading() as connection:
            self._check_tenure(connection)
        self._lock.write(BeatStamp(self._clock(), self._generation).encode())

    def mint(self, reason: str, *, floor: int = 0) -> int:
        """
        Start a new generation and go on writing in it.

        Raises:
            FencedError: Kind ``lease.fenced``: this holder was superseded; nothing was minted.
            InvalidInputError: Kind ``generation.out-of-range``.
            DeadlineError: Kind ``control.busy``.
            StoreError: The generation may be used up; this holder stays in its old one and finds itself fenced.
        """
        with self._tenure() as (connection, writer):
            generation = self._ledger.mint(connection, floor, reason)
            self._ledger.set_writer(connection, replace(writer, generation=generation))
            self._lock.write(BeatStamp(self._clock(), generation).encode())
        with self._monitor:
            self._generation = max(self._generation, generation)
        return generation

    @contextmanager
    def guard(self) -> Iterator[None]:
        """
        Run the block, such as a checkpoint's rename, while nobody can take the lease or mint a generation.

        Raises:
            FencedError: Kind ``lease.fenced``: the block did not run.
            DeadlineError: Kind ``control.busy``.
        """
        with self._tenure():
            yield

    def start_beating(self, on_fenced: Callable[[FencedError], None] | None = None) -> None:
        """
        Renew the lease from a daemon thread until it is released or superseded.

        Args:
            on_fenced: Called once from that thread if the lease is superseded; `check` raises from then on.
        """
        assert self._beating is None
        self._beating = threading.Thread(target=self._beat, args=(on_fenced,), name="perdure-writer", daemon=True)
        self._beating.start()

    def release(self) -> None:
        """
        Give the lease back, so that the next writer need not wait; releasing twice is harmless.

        Raises:
            StoreError: The database was not told. The lock is gone all the same, so nobody has to wait.
            DeadlineError: Likewise.
        """
        self._stopped.set()
        if self._beating and self._beating is not threading.current_thread():
            self._beating.join(self._timing.beat_seconds)
        if not self._lock.is_held:
            return
        try:
            with self._ledger.writing() as connection:
                writer = self._ledger.writer(connection)
                if writer and writer.incarnation == self._incarnation:
                    self._ledger.set_writer(connection, None)
        finally:
            self._lock.close()

    @contextmanager
    def _tenure(self) -> Iterator[tuple[sqlite3.Connection, Writer]]:
        self.check()
        with self._ledger.writing() as connection:
            yield connection, self._check_tenure(connection)

    def _check_tenure(self, connection: sqlite3.Connection) -> Writer:
        # Everything compared comes from one transaction, and nothing from this object that another thread may be
        # about to change. The incarnation is compared as well as the number: should a lost database ever hand out a
        # number again, it still cannot make two writers.
        writer = self._ledger.writer(connection)
        newest = self._ledger.newest_generation(connection)
        if writer is None or writer.incarnation != self._incarnation or writer.generation != newest:
            self._fenced = self._lost(newest)
            raise self._fenced
        return writer

    def _lost(self, newest: int) -> FencedError:
        return superseded(self._ledger.directory, self._generation, newest)

    def _beat(self, on_fenced: Callable[[FencedError], None] | None) -> None:
        while not self._stopped.wait(self._timing.beat_seconds):
            try:
                self.renew()
            except FencedError as error:
                if on_fenced and not self._stopped.is_set():
                    on_fenced(error)
                return
            except Exception:  # whatever made this beat fail, another must follow
                logger.warning("cannot renew the lease on %s", self._ledger.directory, exc_info=True)

    def __enter__(self) -> WriterLease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
