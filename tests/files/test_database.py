"""The control database: durable, private, exclusive, and made anew when it is damaged."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from perdure.errors import CorruptionError, DeadlineError, FormatError, StoreError
from perdure.files.database import SCHEMA_VERSION, Database

INSERT = "INSERT INTO generations VALUES (?, 'test')"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "control.db"


def stored(database: Database) -> list[int]:
    with database.reading() as connection:
        return [row[0] for row in connection.execute("SELECT generation FROM generations ORDER BY 1")]


def store(database: Database, generation: int) -> None:
    with database.writing() as connection:
        connection.execute(INSERT, (generation,))


def test_every_connection_is_durable(path: Path) -> None:
    """The journal is deleted at commit and the directory synced, on connections for reading and for writing alike."""
    database = Database(path)
    for lend in (database.reading, database.writing):
        with lend() as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
            assert connection.execute("PRAGMA synchronous").fetchone() == (3,)


def test_a_database_that_cannot_be_durable_is_refused(path: Path) -> None:
    """Where SQLite keeps another journal than asked for, nothing is promised on top of it."""
    with closing(sqlite3.connect(":memory:")) as connection, pytest.raises(StoreError) as caught:
        Database(path)._make_durable(connection)
    assert caught.value.kind == "control.not-durable"


def test_a_database_left_in_another_mode_is_brought_back(path: Path) -> None:
    """A write-ahead log that another tool switched on is switched off again, with what it held kept."""
    store(Database(path), 5)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    assert stored(Database(path)) == [5]
    assert not path.with_name("control.db-wal").exists()


def test_only_this_user_can_read_it(path: Path) -> None:
    """The file is made private, and private again if it was not."""
    Database(path)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    Database(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_block_that_raises_changes_nothing(path: Path) -> None:
    """A transaction whose block raises is undone, and the exception comes out unchanged."""
    database = Database(path)
    with pytest.raises(KeyError), database.writing() as connection:
        connection.execute(INSERT, (1,))
        raise KeyError
    assert stored(database) == []


def test_two_writers_exclude_each_other(path: Path) -> None:
    """A second writer waits no longer than it was told to, and readers are not disturbed."""
    database = Database(path, wait_seconds=0.05)
    with database.writing():
        with pytest.raises(DeadlineError) as caught, database.writing():
            pytest.fail("two at once")
        assert stored(database) == []
    assert (caught.value.kind, caught.value.waited_seconds) == ("control.busy", 0.05)


def test_opening_disturbs_nobody_and_waits_for_nobody(path: Path) -> None:
    """A database that is made already can be opened and read while somebody is inside a transaction."""
    with Database(path).writing():
        assert stored(Database(path, wait_seconds=0.0)) == []


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda content: b"no database at all" * 300, id="other-content"),
        pytest.param(lambda content: content[: len(content) // 2 + 7], id="truncated"),
        pytest.param(lambda content: bytes(len(content)), id="zeros"),
        pytest.param(lambda content: content[:4096] + b"\xff" * (len(content) - 4096), id="pages-overwritten"),
    ],
)
def test_a_damaged_file_is_set_aside_and_replaced(path: Path, damage) -> None:
    """A file that fails its check is kept under another name, with its bytes, and a new database works in its place."""
    store(Database(path), 5)
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    database = Database(path)
    assert database.damaged_path == path.with_name("control.db.damaged-1")
    assert database.damaged_path.read_bytes() == damaged
    assert stored(database) == []
    store(database, 6)
    assert stored(Database(path)) == [6]


def test_a_second_damaged_file_does_not_replace_the_first(path: Path) -> None:
    """Damaged files are numbered."""
    for _ in range(2):
        path.write_bytes(b"no database at all" * 300)
        Database(path)
    assert sorted(each.name for each in path.parent.glob("*.damaged-*")) == [
        "control.db.damaged-1",
        "control.db.damaged-2",
    ]


def test_a_damaged_file_takes_its_journal_along(path: Path) -> None:
    """The journal of a process that is still at work on a damaged file cannot be rolled back into the new one."""
    database = Database(path)
    path.with_name("control.db-journal").write_bytes(b"another process's")
    target = database._set_aside()
    assert target.with_name("control.db.damaged-1-journal").read_bytes() == b"another process's"
    assert not path.with_name("control.db-journal").exists()


def test_damage_met_later_is_named(path: Path) -> None:
    """A file damaged while it is in use raises, and is only replaced when it is opened again."""
    database = Database(path)
    path.write_bytes(b"no database at all" * 300)
    with pytest.raises(CorruptionError) as caught:
        stored(database)
    assert caught.value.kind == "control.damaged"
    assert not list(path.parent.glob("*.damaged-*"))


def test_a_file_that_vanishes_is_not_silently_made_anew(path: Path) -> None:
    """A database deleted under an open object is an error for that object, and made again by the next."""
    database = Database(path)
    path.unlink()
    with pytest.raises(StoreError):
        stored(database)
    assert not path.exists()
    assert stored(Database(path)) == []


def test_an_empty_file_is_a_database_not_yet_made(path: Path) -> None:
    """A crash between making the file and making its tables leaves nothing to repair."""
    path.touch()
    assert Database(path).damaged_path is None


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        (f"PRAGMA user_version = {SCHEMA_VERSION + 1}", "control.newer"),
        ("PRAGMA application_id = 1", "control.foreign"),
    ],
)
def test_what_is_not_ours_to_change_is_refused(path: Path, statement: str, kind: str) -> None:
    """A newer schema, or another program's database, is left as it is."""
    Database(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
    content = path.read_bytes()
    with pytest.raises(FormatError) as caught:
        Database(path)
    assert caught.value.kind == kind
    assert path.read_bytes() == content


def test_a_directory_that_does_not_exist_is_named(tmp_path: Path) -> None:
    """The error says which path could not be used and why."""
    with pytest.raises(StoreError) as caught:
        Database(tmp_path / "absent" / "control.db")
    assert caught.value.errno_name == "ENOENT"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("database or disk is full", "store.full"),
        ("attempt to write a readonly database", "store.read-only"),
        ("disk I/O error", "store.broken"),
        ("unable to open database file", "store.forbidden"),
        ("something new", "store.failed"),
    ],
)
def test_the_file_systems_refusals_have_the_kinds_they_have_elsewhere(path: Path, text: str, kind: str) -> None:
    """What SQLite says about the disk becomes a `StoreError` with its path."""
    error = Database(path)._translate(sqlite3.OperationalError(text))
    assert isinstance(error, StoreError)
    assert (error.kind, error.path) == (kind, str(path))


KILLED = """
import sys
from pathlib import Path
from perdure.files.database import Database
database = Database(Path(sys.argv[1]))
with database.writing() as connection:
    connection.execute("INSERT INTO generations VALUES (1, 'acknowledged')")
with database.writing() as connection:
    connection.execute("PRAGMA cache_size = 1")
    for number in range(2, 3000):
        connection.execute("INSERT INTO generations VALUES (?, ?)", (number, "x" * 200))
    print("inside", flush=True)
    sys.stdin.read()
"""


@pytest.mark.process
def test_a_writer_killed_inside_a_transaction_leaves_the_last_commit(path: Path) -> None:
    """After SIGKILL the half-written pages are rolled back and the database is free at once."""
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, os.fspath(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"inside\n"
    os.kill(child.pid, signal.SIGKILL)
    child.communicate(timeout=30)
    assert path.with_name("control.db-journal").exists()
    database = Database(path, wait_seconds=5)
    assert database.damaged_path is None
    assert stored(database) == [1]
