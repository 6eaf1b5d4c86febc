"""A recovery whose file system fails at any call: an error or the exact state, and nothing is lost by it."""

import shutil
from itertools import count

import pytest

from perdure.errors import PerdureError
from perdure.testing import EINTR, EIO, ENOSPC, FAILED_SYNC, SHORT_WRITE, FaultyFiles
from tests.recovery.test_killed_recovery import Little


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run directory with two checkpoints, and the states of both, the newest first."""
    where = tmp_path_factory.mktemp("saved")
    little, states = Little(where / "runs"), []
    for _ in range(2):
        little.advance()
        little.run.save().wait()
        states.insert(0, little.state())
    little.run.close()
    return where / "runs", states


CASES = [(fault, False) for fault in (EIO, ENOSPC, EINTR, FAILED_SYNC, SHORT_WRITE)] + [(EIO, True), (ENOSPC, True)]


@pytest.mark.parametrize(
    ("fault", "forever"), CASES, ids=[f"{fault.name} {'for ever' if forever else 'once'}" for fault, forever in CASES]
)
def test_a_restore_at_which_any_call_fails_is_an_error_or_exact(saved, tmp_path, fault, forever):
    """Whatever call fails, no wrong state comes out, and the next start restores a whole one that was saved."""
    source, states = saved
    newest = max(path.name for path in (source / "t" / "snapshots").iterdir())
    for at in count(1):
        where = tmp_path / str(at)
        shutil.copytree(source, where, symlinks=True)
        files = FaultyFiles(fault, at, forever=forever)
        little = Little(where, files)
        try:
            little.run.restore()
        except PerdureError:
            pass
        else:
            assert little.state() in states, (at, files.struck)
        little.run.close()
        if not files.struck:
            break

        again = Little(where)
        report = again.run.restore()
        again.run.close()

        # What a disk could not read may have been put aside, whole as it lies.
        left = sorted(path.name for path in (where / "t" / "snapshots").iterdir())
        aside = [path for path in (where / "t" / "quarantine").iterdir() if path.is_dir()]
        assert len(left) + len(aside) == 2
        assert again.state() == states[0 if left[-1] == newest else 1], (at, files.struck, report.skipped)
        shutil.rmtree(where)
    assert at > 5
