"""What the control database says: which generations were minted, and who is the run's writer."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from perdure.core.leases import Incarnation
from perdure.errors import DeadlineError, FencedError, InvalidInputError
from perdure.files.database import Database
from perdure.files.lockfile import probe

MAXIMUM_GENERATION = 2**63 - 1
_LOCK_SUFFIX = ".lock"


@dataclass(frozen=True, slots=True)
class Writer:
    """The process that may commit to a run."""

    incarnation: Incarnation
    owner: str
    """Its name for people."""
    generation: int
    """The generation it writes in; it is the writer only while this is the newest one."""


@dataclass(frozen=True, slots=True)
class BeatStamp:
    """Content of a writer's lock file: its newest sign of life."""

    boot_seconds: float
    """When it was written, by the machine's clock since boot."""
    generation: int
    """The writer's generation; kept here too, so that losing the database does not set generations back."""

    def encode(self) -> bytes:
        """Return the stamp in a form of fixed length, with a checksum against reads that meet a write half done."""
        text = f"{self.boot_seconds:020.6f} {self.generation:019d}".encode()
        return b"%s %08x\n" % (text, zlib.crc32(text))

    @classmethod
    def decode(cls, content: bytes) -> BeatStamp | None:
        """Return the stamp that ``content`` holds, or None if it holds none."""
        text, _, checksum = content.rstrip(b"\n").rpartition(b" ")
        if checksum != b"%08x" % zlib.crc32(text):
            return None
        seconds, generation = text.split()
        return cls(float(seconds), int(generation))


class Ledger:
    """
    Reads and writes the control database of one run directory and its lock files; decides nothing.

    Args:
        database: The control database.
        lock_directory: Where writers keep their lock files.
    """

    def __init__(self, database: Database, lock_directory: Path) -> None:
        self._database = database
        self.lock_directory = lock_directory

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self._database.path.parent

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection whose reads all see the same moment."""
        with self._database.reading() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """
        Lend a connection that excludes every other writer of the database until the block ends.

        Raises:
            DeadlineError: Kind ``control.busy``; the holder is the run's writer, if the database names one.
        """
        with ExitStack() as stack:
            try:
                connection = stack.enter_context(self._database.writing())
            except DeadlineError as error:
                raise self._naming_the_holder(error) from error
            yield connection

    def newest_generation(self, connection: sqlite3.Connection) -> int:
        """Return the newest generation that was minted, 0 if none was."""
        (newest,) = connection.execute("SELECT max(generation) FROM generations").fetchone()
        return int(newest or 0)

    def mint(self, connection: sqlite3.Connection, floor: int, reason: str) -> int:
        """Record and return a generation above ``floor`` and above every trace of another one."""
        stamps = (BeatStamp.decode(probe(path).content) for path in self.lock_paths())
        traces = [floor, self.newest_generation(connection), *(stamp.generation for stamp in stamps if stamp)]
        if floor < 0 or max(traces) >= MAXIMUM_GENERATION:
            raise InvalidInputError(
                f"cannot mint a generation above {max(traces)} in {self.directory}: expected 0 to 2**63 - 2",
                kind="generation.out-of-range",
                hint="look for a manifest whose generation is damaged",
                field="floor",
            )
        generation = max(traces) + 1
        connection.execute("INSERT INTO generations VALUES (?, ?)", (generation, reason))
        return generation

    def writer(self, connection: sqlite3.Connection) -> Writer | None:
        """Return who was last made the run's writer and did not give it back; it may be dead or superseded."""
        row = connection.execute("SELECT incarnation, owner, generation FROM writer").fetchone()
        incarnation = Incarnation.parse(row[0]) if row else None
        return Writer(incarnation, row[1], row[2]) if incarnation else None

    def set_writer(self, connection: sqlite3.Connection, writer: Writer | None) -> None:
        """Record who the run's writer is."""
        connection.execute("DELETE FROM writer")
        if writer:
            values = (str(writer.incarnation), writer.owner, writer.generation)
            connection.execute("INSERT INTO writer VALUES (?, ?, ?)", values)

    def lock_path(self, incarnation: Incarnation) -> Path:
        """Where a writer keeps its lock file."""
        return self.lock_directory / f"{incarnation}{_LOCK_SUFFIX}"

    def lock_paths(self) -> list[Path]:
        """Lock files of all writers, living and dead."""
        return sorted(self.lock_directory.glob(f"*{_LOCK_SUFFIX}"))

    def _naming_the_holder(self, error: DeadlineError) -> DeadlineError:
        try:
            with self.reading() as connection:
                writer = self.writer(connection)
        except DeadlineError:  # not even readable: the holder is in the middle of a commit
            writer = None
        if writer is None:
            return error
        return DeadlineError(
            f"{error.message}; the run's writer is {writer.owner} (pid {writer.incarnation.pid})",
            kind=error.kind,
            hint=f"wait for its commit, or end process {writer.incarnation.pid} if it hangs or is stopped",
            waited_seconds=error.waited_seconds,
            holder=writer.owner,
        )


def superseded(directory: Path, mine: int, newest: int) -> FencedError:
    """The error for whoever acts in a generation that is not the newest."""
    return FencedError(
        f"cannot write to {directory} in generation {mine}: generation {newest} is current",
        kind="lease.fenced",
        hint="stop this process; its successor goes on",
        generation=mine,
        current_generation=newest,
    )
