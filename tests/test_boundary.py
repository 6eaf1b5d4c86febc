"""Boundaries of a loop that is not perdure's: the same promises as those of `run.loop`."""

import os
import signal

import numpy as np
import pytest
import torch

import perdure
from perdure import Every, UntrackedStateWarning
from perdure.errors import StoppedError


def opened(where, **options):
    return perdure.open(where, run="t", quiet=True, budget=None, **options)


def foreign_loop(run, until, on_step=lambda step: None):
    """What a framework's loop does: boundaries before the first step and after each, and one finish."""
    total = np.zeros(1)
    run.track(total=total)
    count = run.counters(global_step=0)
    run.boundary(moved=False)
    while count.global_step < until:
        total += count.global_step
        count.global_step += 1
        on_step(count.global_step)
        run.boundary()
        run._saver.drain(30)
    run.finish()
    return total[0]


def steps(where):
    return sorted(int(path.name.split("-")[1]) for path in (where / "t" / "snapshots").iterdir())


def test_a_foreign_loop_saves_by_policy_and_at_its_end(tmp_path):
    """Boundaries save when a save is due, and finish saves the end if that has not happened."""
    with opened(tmp_path, save=Every(steps=4), keep=None) as run:
        foreign_loop(run, 10)

    assert [4, 8, 10] == steps(tmp_path)


def test_a_foreign_loop_continues(tmp_path):
    """The first boundary restores, and a finished run saves nothing again."""
    with opened(tmp_path, save=None) as run:
        assert 10 == foreign_loop(run, 5)
    with opened(tmp_path, save=None) as run:
        assert 45 == foreign_loop(run, 10)
    with opened(tmp_path, save=None) as run:
        assert 45 == foreign_loop(run, 10)

    assert [5, 10] == steps(tmp_path)


def test_a_signal_ends_a_foreign_loop_at_the_next_boundary(tmp_path):
    """The first boundary takes signals over; after one, the next boundary commits and ends with status 75."""
    before = signal.getsignal(signal.SIGTERM)
    with opened(tmp_path, save=None) as run, pytest.raises(StoppedError) as stopped:
        foreign_loop(run, 10, lambda step: step == 3 and os.kill(os.getpid(), signal.SIGTERM))

    assert (75, 3) == (stopped.value.code, stopped.value.step)
    assert [3] == steps(tmp_path)
    assert before == signal.getsignal(signal.SIGTERM)


def test_an_audit_names_what_nothing_tracks_once(tmp_path):
    """State in given variables that is not tracked is named in one warning, and the audit is not repeated."""
    net, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    with opened(tmp_path) as run:
        run.track(net=net)
        with pytest.warns(UntrackedStateWarning, match="not saved: agent.other;"):
            run.audit({"agent.net": net, "agent.other": other})
        run.audit({"agent.other": other})
