"""Lock files: held while their process lives, whatever its children do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.errors import DeadlineError, StoreError
from perdure.files.lockfile import LockFile, locked, probe
from tests.waiting import reaped


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "one.lock"


def test_a_lock_is_seen_by_everybody_including_its_own_process(path: Path) -> None:
    """A probe sees that the lock is held and what its holder wrote last, again and again."""
    lock = LockFile(path)
    lock.write(b"first")
    lock.write(b"again")
    for _ in range(3):
        seen = probe(path)
        assert (seen.is_held, seen.content) == (True, b"again")
    lock.close()


def test_closing_removes_the_file(path: Path) -> None:
    """A lock given back leaves nothing, may be closed twice, and can no longer be written."""
    lock = LockFile(path)
    lock.close()
    lock.close()
    assert not path.exists()
    assert not probe(path).is_held
    with pytest.raises(StoreError):
        lock.write(b"late")


def test_a_file_that_exists_is_never_taken_over(path: Path) -> None:
    """A lock file belongs to whoever made it, dead or alive."""
    path.write_bytes(b"left behind")
    with pytest.raises(StoreError) as caught:
        LockFile(path)
    assert caught.value.errno_name == "EEXIST"
    assert (probe(path).is_held, probe(path).content) == (False, b"left behind")


def test_a_block_excludes_others_for_its_duration(path: Path) -> None:
    """Whoever comes meanwhile is told in time that somebody else is inside."""
    with locked(path, 0.0):
        with pytest.raises(DeadlineError) as caught, locked(path, 0.02):
            pytest.fail("two at once")
        assert caught.value.kind == "lock.busy"
    with locked(path, 0.0):
        pass


@pytest.mark.process
def test_a_forked_child_does_not_keep_its_parents_lock(path: Path) -> None:
    """The lock ends with the process that made it although a child forked from it lives on."""
    script = f"""
import os, sys
from pathlib import Path
from perdure.files.lockfile import LockFile
lock = LockFile(Path({os.fspath(path)!r}))
if os.fork() == 0:
    print(os.getpid(), flush=True)  # by now it has done what a child does when it is born
sys.stdin.read()
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert probe(path).is_held
        process.kill()
        assert process.wait(30) == -signal.SIGKILL
        os.kill(child, 0)
        assert path.exists()
        assert not probe(path).is_held
    finally:
        process.kill()
        process.communicate(timeout=30)


@pytest.mark.process
def test_a_child_that_inherits_a_lock_object_does_not_hold_it(path: Path) -> None:
    """In a forked child the lock is given back without disturbing the parent's."""
    lock = LockFile(path)
    child = os.fork()
    if child == 0:
        lock.close()
        os._exit(17 if not lock.is_held and path.exists() else 1)
    assert reaped(child, 30) == 17
    assert lock.is_held
    assert probe(path).is_held
    lock.close()
