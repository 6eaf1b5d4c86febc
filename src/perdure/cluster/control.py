"""
A run's control: its generations, and the one process that may write to it.

Liveness and safety are kept apart. That a writer lives is seen from a lock that the kernel drops at its death, and from
a stamp in the locked file that it renews; both are only hints. Safe is the database: each writer has a generation of
its own, and a commit happens inside a transaction in which that generation is the newest. A frozen writer that wakes
up is thereby refused at its next commit, whatever it believes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from perdure.cluster.identity import boot_clock, new_incarnation
from perdure.cluster.ledger import BeatStamp, Ledger, Writer, superseded
from perdure.cluster.writer import WriterLease
from perdure.core.leases import Incarnation, Timing
from perdure.errors import LeaseHeldError
from perdure.files.database import DEFAULT_WAIT_SECONDS, Database
from perdure.files.door import DIRECTORY_MODE, explained
from perdure.files.lockfile import LockFile, probe

DATABASE_NAME = "control.db"
LOCKS_NAME = "leases"


class Control:
    """
    Opens the control of a run directory, making it if there is none.

    Any number of processes may have it open. It holds no resource between calls; any thread may call any method.

    Args:
        directory: The run directory; exists.
        timing: How long a writer may be silent; alike in all processes of the run.
        clock: Seconds since boot, alike in all processes of the machine.
        identify: Names a new incarnation of this process.
        wait_seconds: Longest wait for another process that is in the middle of a commit.

    Raises:
        FormatError: The control database is of a newer perdure or of something else.
        StoreError: The file system refuses.
        DeadlineError: Another process keeps the database locked.
    """

    def __init__(
        self,
        directory: Path,
        *,
        timing: Timing | None = None,
        clock: Callable[[], float] = boot_clock,
        identify: Callable[[], Incarnation] = new_incarnation,
        wait_seconds: float = DEFAULT_WAIT_SECONDS,
    ) -> None:
        self._timing = timing or Timing()
        self._clock = clock
        self._identify = identify
        locks = directory / LOCKS_NAME
        with explained("make directory", locks):
            locks.mkdir(DIRECTORY_MODE, exist_ok=True)
        database = Database(directory / DATABASE_NAME, wait_seconds=wait_seconds)
        self.damaged_path = database.damaged_path
        """Where a damaged control database was put when this object was made, if there was one."""
        self._ledger = Ledger(database, locks)

    def generation(self) -> int:
        """Return the newest generation, 0 if none was ever minted here."""
        with self._ledger.reading() as connection:
            return self._ledger.newest_generation(connection)

    def writer(self) -> Writer | None:
        """Return who is the run's writer, if one is alive and not superseded."""
        with self._ledger.reading() as connection:
            writer = self._ledger.writer(connection)
            newest = self._ledger.newest_generation(connection)
        is_current = writer and writer.generation == newest and self._is_alive(writer)
        return writer if is_current else None

    def mint(self, floor: int, reason: str) -> int:
        """
        Start a new generation, which fences whoever works in an older one, the run's writer included.

        It is above every generation that was ever minted here and above ``floor``, and it survives power loss when
        this returns. A writer that wants to go on mints through its own lease.

        Args:
            floor: Highest generation seen anywhere else, such as in manifests: what makes up for a lost database.
            reason: Why, for people.

        Raises:
            InvalidInputError: Kind ``generation.out-of-range``.
            DeadlineError: Kind ``control.busy``: somebody is in the middle of a commit and the error says who.
            StoreError: The generation may be used up; nobody has it.
        """
        with self._ledger.writing() as connection:
            return self._ledger.mint(connection, floor, reason)

    def acquire(self, owner: str, *, floor: int = 0, reason: str = "opened for writing") -> WriterLease:
        """
        Become the run's writer, in a new generation.

        A former writer that is dead, superseded or has been silent for the length of a lease is replaced. A crash
        leaves a lock file that the next writer clears away.

        Args:
            owner: Name of this process for people.
            floor: As in `mint`.
            reason: As in `mint`.

        Returns:
            The lease, to be renewed or set beating by the caller, and to be released.

        Raises:
            LeaseHeldError: Kind ``lease.held``: another writer is alive.
            DeadlineError: As in `mint`.
            StoreError: The file system refuses.
        """
        with ExitStack() as undo:
            with self._ledger.writing() as connection:
                former = self._ledger.writer(connection)
                if former and former.generation == self._ledger.newest_generation(connection):
                    self._refuse_if_alive(former)
                incarnation = self._identify()
                generation = self._ledger.mint(connection, floor, reason)
                self._clear_dead_locks()
                lock = LockFile(self._ledger.lock_path(incarnation))
                undo.callback(lock.close)
                lock.write(BeatStamp(self._clock(), generation).encode())
                writer = Writer(incarnation, owner, generation)
                self._ledger.set_writer(connection, writer)
            undo.pop_all()
        return WriterLease(self._ledger, lock, writer, timing=self._timing, clock=self._clock)

    @contextmanager
    def guard(self, generation: int) -> Iterator[None]:
        """
        Run the block, such as a checkpoint's rename, while no generation can be minted.

        Raises:
            FencedError: Kind ``lease.fenced``: the newest generation is another one; the block did not run.
            DeadlineError: As in `mint`.
        """
        with self._ledger.writing() as connection:
            newest = self._ledger.newest_generation(connection)
            if newest != generation:
                raise superseded(self._ledger.directory, generation, newest)
            yield

    def _refuse_if_alive(self, writer: Writer) -> None:
        remaining = self._remaining_seconds(writer)
        if remaining is not None and remaining <= 0:
            return
        raise LeaseHeldError(
            f"cannot write to {self._ledger.directory}: {writer.owner} (pid {writer.incarnation.pid}) does",
            kind="lease.held",
            hint="stop that process, or use another run name",
            owner=writer.owner,
            expires_in_seconds=remaining,
        )

    def _is_alive(self, writer: Writer) -> bool:
        remaining = self._remaining_seconds(writer)
        return remaining is None or remaining > 0

    def _remaining_seconds(self, writer: Writer) -> float | None:
        """Time until a writer is replaceable, 0 if it is now; None if it lives under a clock we cannot read."""
        seen = probe(self._ledger.lock_path(writer.incarnation))
        if not seen.is_held:
            return 0.0
        stamp = BeatStamp.decode(seen.content)
        if stamp is None or writer.incarnation.boot != self._identify().boot:
            return None
        age = max(0.0, self._clock() - stamp.boot_seconds)
        return max(0.0, self._timing.lease_seconds - age)

    def _clear_dead_locks(self) -> None:
        # Lock files are made inside a transaction like this one: none can be found between its making and its locking.
        for path in self._ledger.lock_paths():
            if not probe(path).is_held:
                with contextlib.suppress(OSError):  # clutter costs nothing; a writer that cannot start does
                    path.unlink()
