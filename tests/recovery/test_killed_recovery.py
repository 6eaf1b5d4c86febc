"""A recovery that is killed anywhere: the next start ends in the same state, under a higher generation."""

import json
import os
import signal

import numpy as np
import pytest

import perdure
from perdure.errors import PerdureError
from perdure.files.door import Files
from tests.waiting import reaped

CHANGES = ("open_new", "write", "sync", "rename", "unlink", "make_directory", "append", "symlink", "remove_directory")


class MortalFiles(Files):
    """A file system that kills the process just before its n-th change; counts them if it is never to."""

    def __init__(self, kill_at):
        self.kill_at = kill_at
        self.count = 0


def _mortal(name):
    def method(self, *args, **kwargs):
        if self.count == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1
        return getattr(Files, name)(self, *args, **kwargs)

    return method


for _name in CHANGES:
    setattr(MortalFiles, _name, _mortal(_name))


class Little:
    """A run without torch: arrays, a generator and counters."""

    def __init__(self, where, files=None):
        self.array = np.zeros(100)
        self.rng_data = np.random.default_rng(0)
        self.run = perdure.open(where, run="t", quiet=True, save=None, keep=None)
        if files is not None:
            self.run._store.files = files
        self.run.track(array=self.array, data=self.rng_data)
        self.count = self.run.counters(global_step=0)

    def advance(self):
        self.array += self.rng_data.random(100)
        self.count.global_step += 1

    def state(self):
        return self.array.tobytes(), self.rng_data.bit_generator.state, self.count.global_step


@pytest.fixture
def saved(tmp_path):
    """A run directory with two checkpoints, and the state of the newest."""
    little = Little(tmp_path)
    for _ in range(2):
        little.advance()
        little.run.save().wait()
    little.run.close()
    return tmp_path, little.state()


def killed_restore(where, kill_at):
    """Restore in a child that dies at a change; returns how it ended."""
    child = os.fork()
    if child == 0:
        try:
            Little(where, MortalFiles(kill_at)).run.restore()
        finally:
            os._exit(7)
    return reaped(child, 60)


@pytest.mark.process
def test_killed_at_every_change_it_ends_in_the_same_state(saved):
    """For every change that a restore makes to the file system: killed before it, the next start restores the same."""
    where, expected = saved
    counting = MortalFiles(-1)
    little = Little(where, counting)
    little.run.restore()
    little.run.close()
    generation = 2

    assert counting.count > 20
    for kill_at in range(counting.count):
        assert -signal.SIGKILL == killed_restore(where, kill_at)
        again = Little(where)
        report = again.run.restore()
        again.run.close()

        assert expected == again.state()
        assert report.generation > generation
        assert () == report.skipped
        generation = report.generation


@pytest.mark.process
def test_a_checkpoint_that_kills_twice_is_passed_over(saved):
    """After two deaths while restoring one checkpoint, the one before it is used and the first is kept aside."""
    where, _ = saved
    for _ in range(2):
        assert -signal.SIGKILL == killed_restore(where, 16)
    little = Little(where)
    report = little.run.restore()
    little.run.close()

    assert 1 == little.count.global_step
    assert "killed the process 2 times" in report.skipped[0].reason


@pytest.mark.process
def test_the_only_checkpoint_is_never_passed_over(tmp_path):
    """However often restoring it has killed the process, the only checkpoint is tried again."""
    little = Little(tmp_path)
    little.advance()
    little.run.save().wait()
    little.run.close()
    for _ in range(4):
        assert -signal.SIGKILL == killed_restore(tmp_path, 16)
    again = Little(tmp_path)

    assert 1 == again.run.restore().step
    again.run.close()


@pytest.mark.process
def test_a_killed_first_start_leaves_nothing_in_the_way(tmp_path):
    """A start from nothing that is killed anywhere is followed by one that works."""
    counting = MortalFiles(-1)
    Little(tmp_path / "count", counting).run.restore()
    for kill_at in range(counting.count):
        where = tmp_path / str(kill_at)
        assert -signal.SIGKILL == killed_restore(where, kill_at)
        little = Little(where)
        little.advance()
        little.run.save().wait()
        little.run.close()

        assert 1 == len(list((where / "t" / "snapshots").iterdir()))


def test_markers_say_where_a_restore_stands(saved):
    """After a restore there is one `restored` marker and nothing that says one is under way."""
    where, _ = saved
    little = Little(where)
    report = little.run.restore()
    little.run.close()
    names = {path.name for path in (where / "t").iterdir()}
    marker = next(name for name in names if name.startswith("restored."))

    assert not any(name.startswith("restoring.") or name == "progress.json" for name in names)
    content = json.loads((where / "t" / marker).read_text())
    assert (report.checkpoint, 2) == (content["checkpoint"], content["generation"])


def test_an_error_in_a_restore_is_no_death(saved):
    """A restore that ends in an error, and not in a death, does not count against the checkpoint."""
    where, expected = saved
    for _ in range(3):
        little = Little(where)
        little.run.track(extra=np.zeros(1))
        with pytest.raises(PerdureError):
            little.run.restore()
        little.run.close()
    again = Little(where)
    again.run.restore()
    again.run.close()

    assert expected == again.state()
