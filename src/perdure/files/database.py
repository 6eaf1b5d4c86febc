"""
A run's SQLite file: where the numbers live that must never go back.

The journal is deleted at commit and SQLite runs at ``synchronous=EXTRA``, set explicitly and read back: at Python's
default, FULL, a power cut can undo the last acknowledged commit, because the directory is not synced after the
journal's deletion, and a generation would be handed out twice. Write-ahead logging is avoided: SQLite before 3.51.3
can damage such a database when two processes write, and many Pythons carry an older one.

Every use opens a connection of its own. That costs a fraction of a millisecond, and nothing is shared between threads
or with forked children. While the file is in use, nothing else in the process may open and close it: POSIX drops all
of a process's locks on a file when any of its descriptors is closed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path

from perdure.errors import CorruptionError, DeadlineError, FormatError, PerdureError, StoreError
from perdure.files.door import FILE_MODE, Files, explained
from perdure.files.lockfile import locked

SCHEMA_VERSION = 1
DEFAULT_WAIT_SECONDS = 10.0
_APPLICATION_ID = 0x70647265  # "pdre"
_SYNCHRONOUS_EXTRA = 3
_SCHEMA = (
    "CREATE TABLE generations (generation INTEGER PRIMARY KEY CHECK (generation > 0), reason TEXT NOT NULL)",
    "CREATE TABLE writer (incarnation TEXT NOT NULL, owner TEXT NOT NULL, generation INTEGER NOT NULL)",
)
_DAMAGED = ("not a database", "malformed")
_MESSAGES = {
    "locked": "control.busy",
    "full": "store.full",
    "readonly": "store.read-only",
    "unable to open": "store.forbidden",
    "disk I/O": "store.broken",
}


class Database:
    """
    Opens, or creates, or replaces if it is damaged, a run's database.

    A damaged file is set aside as ``NAME.damaged-1`` and so on, and a new one takes its place. What it knew is lost;
    whoever mints generations names a floor for that reason.

    Args:
        path: The file; its directory exists.
        wait_seconds: Longest wait for another process that uses it.
        files: The file system, for what SQLite does not do itself.

    Raises:
        FormatError: Kind ``control.newer`` or ``control.foreign``: a newer perdure, or something else, wrote it.
        StoreError: The file system refuses.
        DeadlineError: Kind ``control.busy``: another process keeps it locked.
    """

    def __init__(self, path: Path, *, wait_seconds: float = DEFAULT_WAIT_SECONDS, files: Files | None = None) -> None:
        self.path = path
        self.wait_seconds = wait_seconds
        self.damaged_path: Path | None = None
        """Where a damaged predecessor was put when this object was made, if there was one."""
        self._files = files or Files()
        with locked(path.with_name(f"{path.name}.lock"), wait_seconds):
            self._create_file()
            try:
                is_made = self._check()
            except CorruptionError:
                self.damaged_path = self._set_aside()
                self._create_file()
                is_made = False
            if not is_made:
                self._create_schema()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection whose reads all see the same moment; keep it briefly, commits wait for it."""
        with self._explained(), closing(self._connect()) as connection:
            connection.execute("BEGIN")
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """
        Lend a connection inside a transaction that excludes every other writer until the block ends.

        What the block changed is durable when it has ended, and undone if it raised. A transaction that changes
        nothing writes nothing.

        Raises:
            DeadlineError: Kind ``control.busy``.
            StoreError: The commit may or may not have happened.
        """
        with self._explained(), closing(self._connect()) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")

    def _connect(self) -> sqlite3.Connection:
        # mode=rw: a file that vanished must be noticed, not silently made anew without its schema and rights.
        connection = sqlite3.connect(
            f"{self.path.absolute().as_uri()}?mode=rw", uri=True, timeout=self.wait_seconds, isolation_level=None
        )
        try:
            self._make_durable(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _make_durable(self, connection: sqlite3.Connection) -> None:
        (journal,) = connection.execute("PRAGMA journal_mode = DELETE").fetchone()
        connection.execute("PRAGMA synchronous = EXTRA")
        (synchronous,) = connection.execute("PRAGMA synchronous").fetchone()
        if journal != "delete" or synchronous != _SYNCHRONOUS_EXTRA:
            raise StoreError(
                f"cannot use {self.path}: SQLite runs it with journal {journal} and synchronous {synchronous}, "
                "which does not survive a power cut",
                kind="control.not-durable",
                hint="use a Python whose SQLite is 3.12 or newer and built without omissions",
                path=str(self.path),
            )

    def _create_file(self) -> None:
        with explained("create", self.path):
            if self._files.status(self.path) is None:
                self._files.close(self._files.open_new(self.path))
                self._files.sync_directory(self.path.parent)
            elif self.path.stat().st_mode & 0o777 != FILE_MODE:
                self.path.chmod(FILE_MODE)

    def _check(self) -> bool:
        """Check that the file is whole and ours; returns whether its tables are made. Waits for no writer."""
        with self.reading() as connection:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if verdict != "ok":
            raise self._damaged(verdict)
        if (application, version, tables) == (0, 0, 0):
            return False
        if application != _APPLICATION_ID:
            raise FormatError(
                f"cannot use {self.path}: it is a database of something else",
                kind="control.foreign",
                hint="move the file away; perdure makes a new one",
                path=str(self.path),
            )
        if version > SCHEMA_VERSION:
            raise FormatError(
                f"cannot use {self.path}: its schema is version {version} and this perdure knows {SCHEMA_VERSION}",
                kind="control.newer",
                hint="upgrade perdure",
                path=str(self.path),
                schema_version=version,
                supported_version=SCHEMA_VERSION,
            )
        return True

    def _create_schema(self) -> None:
        with self.writing() as connection:
            for statement in _SCHEMA:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _set_aside(self) -> Path:
        names = (self.path.with_name(f"{self.path.name}.damaged-{number}") for number in count(1))
        target = next(name for name in names if self._files.status(name) is None)
        journal = self.path.with_name(f"{self.path.name}-journal")
        with explained("set aside", self.path):
            # The journal goes first: left behind, it would be rolled back into the new database.
            if self._files.status(journal) is not None:
                self._files.rename(journal, target.with_name(f"{target.name}-journal"))
            self._files.rename(self.path, target)
            self._files.sync_directory(self.path.parent)
        return target

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise self._translate(error) from error

    def _translate(self, error: sqlite3.DatabaseError) -> PerdureError:
        # By message, because error codes reach Python only since 3.11; the texts are part of SQLite's interface.
        text = str(error)
        if any(part in text for part in _DAMAGED):
            return self._damaged(text)
        kind = next((kind for part, kind in _MESSAGES.items() if part in text), "store.failed")
        if kind == "control.busy":
            return DeadlineError(
                f"cannot use {self.path}: another process has kept it locked for {self.wait_seconds:g} s",
                kind=kind,
                hint="see which process it is with `fuser`, and whether it hangs",
                waited_seconds=self.wait_seconds,
            )
        return StoreError(
            f"cannot use {self.path}: {text}",
            kind=kind,
            hint="check the free space and the rights of the run directory",
            path=str(self.path),
        )

    def _damaged(self, what: str) -> CorruptionError:
        return CorruptionError(
            f"cannot use {self.path}: {what}",
            kind="control.damaged",
            hint="start the run again: a damaged control database is set aside and made anew",
            path=str(self.path),
            actual=what,
        )
