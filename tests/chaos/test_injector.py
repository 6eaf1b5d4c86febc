"""Faults that happen to real processes and real checkpoints."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import perdure
from perdure.chaos import DeleteNewestCheckpoint, Freeze, Injector, Kill, Thaw
from perdure.errors import NotFoundError, StoreError
from perdure.inspection import RunView
from tests.waiting import reaped, wait_until


@pytest.fixture
def child():
    """A process group of its own that does nothing until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import signal; print('here', flush=True); signal.pause()"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    process.stdout.readline()
    yield process
    if process.returncode is None and process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
    process.stdout.close()


@pytest.fixture
def run(tmp_path):
    """A run with three checkpoints, and its directory."""
    array = np.zeros(3)
    with perdure.open(tmp_path, run="r", save=None, keep=None, quiet=True) as run:
        run.track(array=array)
        count = run.counters(global_step=0)
        for _ in range(3):
            array += 1
            count.global_step += 10
            run.save()
    return tmp_path


def injector(pid=None, root=None):
    """An injector of one process and one run."""
    return Injector(lambda _member: pid, lambda: RunView(root, "r").checkpoints() if root else ())


def state_of(pid):
    """The kernel's letter for what a process is doing."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]


@pytest.mark.process
def test_a_killed_member_dies_of_sigkill(child):
    """Kill ends the member's process with SIGKILL and says which one it was."""
    injection = injector(child.pid).inject(Kill("actor-1"))
    assert injection.facts == {"pid": child.pid, "signal": "SIGKILL"}
    child.returncode = reaped(child.pid, 10)
    assert child.returncode == -signal.SIGKILL


@pytest.mark.process
def test_a_frozen_member_stands_still_until_it_is_thawed(child):
    """Freeze stops a process without ending it, and Thaw lets it go on."""
    injector(child.pid).inject(Freeze("actor-1"))
    wait_until(lambda: state_of(child.pid) == "T", 10)
    injector(child.pid).inject(Thaw("actor-1"))
    wait_until(lambda: state_of(child.pid) == "S", 10)


@pytest.mark.parametrize("fault", [Kill("a"), Freeze("a"), Thaw("a")])
def test_a_member_without_a_process_cannot_be_hit(fault):
    """A signal for a member that has no process is an error that names the member."""
    with pytest.raises(NotFoundError, match=f"cannot {fault}") as caught:
        injector().inject(fault)
    assert caught.value.kind == "chaos.no-process"
    assert caught.value.name == "a"


def test_a_member_that_has_just_gone_cannot_be_hit():
    """A process that is gone when the signal is sent is the same as none."""

    def gone(_group, _number):
        raise ProcessLookupError

    with pytest.raises(NotFoundError) as caught:
        Injector(lambda _member: 4711, list, signal_group=gone).inject(Kill("a"))
    assert caught.value.kind == "chaos.no-process"


def test_the_newest_checkpoint_is_deleted(run):
    """The newest checkpoint goes, the others stay, and the injection names it and the one to fall back to."""
    newest, middle, _ = RunView(run, "r").checkpoints()
    injection = injector(root=run).inject(DeleteNewestCheckpoint())
    assert injection.facts == {"checkpoint": newest.id, "step": 30, "fallback": middle.id}
    assert not newest.directory.exists()
    assert [each.global_step for each in RunView(run, "r").checkpoints()] == [20, 10]


def test_the_last_checkpoint_has_no_fallback(run):
    """Deleting the only checkpoint leaves none to fall back to, and another deletion is an error."""
    for expected in (True, True, False):
        facts = injector(root=run).inject(DeleteNewestCheckpoint()).facts
        assert expected == (facts["fallback"] is not None)
    with pytest.raises(NotFoundError) as caught:
        injector(root=run).inject(DeleteNewestCheckpoint())
    assert caught.value.kind == "chaos.no-checkpoint"


def test_a_checkpoint_that_cannot_be_deleted_is_an_error(run):
    """A file system that refuses shows as a store error."""

    def refuse(_path):
        raise PermissionError(13, "not allowed")

    checkpoints = RunView(run, "r").checkpoints()
    with pytest.raises(StoreError):
        Injector(lambda _member: None, lambda: checkpoints, remove=refuse).inject(DeleteNewestCheckpoint())
