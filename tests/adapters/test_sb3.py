"""Stable-Baselines3: one callback, and a training that was interrupted ends with the very bits of one that was not."""

import functools
import os
import random
import shutil
import signal

import numpy as np
import pytest
from stable_baselines3.common.callbacks import BaseCallback

from perdure.errors import StoppedError
from tests.adapters.sb3_cases import CASES, TOTAL, crash, learn, state


@functools.cache
def unhurt(name):
    """What a training ends with that knows nothing of perdure."""
    model = CASES[name](1)
    model.learn(TOTAL, log_interval=None)
    return state(model)


@pytest.fixture(scope="module")
def crashed(tmp_path_factory):
    """Give what a case leaves behind that has crashed at a random step, a copy each time."""

    @functools.cache
    def make(name):
        where = tmp_path_factory.mktemp(name)
        # The first rollout of ARS, which is of whole episodes, takes 400 steps.
        at = random.Random(name).randrange(*((405, 795) if name == "ARS" else (200, 300)))
        crash(CASES[name](1), where / "runs", at)
        return where / "runs"

    def copy(name):
        where = tmp_path_factory.mktemp(name) / "runs"
        shutil.copytree(make(name), where, symlinks=True)
        return where

    return copy


@pytest.mark.parametrize("name", ["PPO-VecNormalize", "DQN", "SAC-gSDE", "DQN-HER", "RecurrentPPO", "ARS"])
def test_a_crashed_training_ends_bit_identical(name, crashed, trials):
    """
    A training that crashed at a random step and is resumed in a fresh model ends where one without perdure ends.

    The environment of DQN-HER is not Gymnasium's: it is called exact because a trial has shown it.
    """
    model = CASES[name](7)
    report = learn(model, crashed(name), save=None)

    assert report.checkpoint is not None
    assert "exact" == report.grade.value
    assert unhurt(name) == state(model)


class Forget(BaseCallback):
    """Undoes the restore of one thing, when the first rollout has started."""

    def __init__(self, forget):
        super().__init__()
        self.forget = forget
        self.is_done = False

    def _on_rollout_start(self):
        if not self.is_done:
            self.is_done = True
            self.forget(self.model)

    def _on_step(self):
        return True


FORGOTTEN = {
    "PPO-VecNormalize shuffling": lambda model: np.random.seed(3),
    "PPO-VecNormalize returns": lambda model: model.env.returns.fill(0),
    "DQN actions": lambda model: model.action_space.seed(9),
    "DQN calls": lambda model: setattr(model, "_n_calls", 3),
    "SAC-gSDE entropy": lambda model: model.log_ent_coef.data.zero_(),
    "DQN-HER episodes": lambda model: model.replay_buffer._current_ep_start.fill(0),
    "RecurrentPPO memory": lambda model: [part.zero_() for pair in model._last_lstm_states for part in pair],
}


@pytest.mark.parametrize("what", FORGOTTEN)
def test_the_comparison_bites(what, crashed):
    """A resume that lacks one piece of state ends with other bits, so that comparing them proves something."""
    name = what.split()[0]
    model = CASES[name](7)
    learn(model, crashed(name), save=None, others=[Forget(FORGOTTEN[what])])

    assert unhurt(name) != state(model)


class SendSignal(BaseCallback):
    """Asks the program to stop, in the middle of a rollout."""

    def _on_step(self):
        if self.n_calls == 70:
            os.kill(os.getpid(), signal.SIGTERM)
        return True


@pytest.mark.parametrize("name", ["DQN"])
def test_a_signal_stops_at_the_next_rollout(name, tmp_path):
    """SIGTERM ends learn with status 75 once the rollout is used and all is committed; the same command continues."""
    with pytest.raises(StoppedError) as stopped:
        learn(CASES[name](1), tmp_path, save=None, others=[SendSignal()])
    model = CASES[name](7)
    report = learn(model, tmp_path, save=None)

    assert (75, "SIGTERM") == (stopped.value.code, stopped.value.signal)
    assert 140 <= stopped.value.step == report.step
    assert unhurt(name) == state(model)


def test_a_finished_training_does_nothing_again(tmp_path):
    """Running the command of a finished training once more trains no further and saves nothing."""
    first, again = CASES["PPO"](1), CASES["PPO"](7)
    learn(first, tmp_path, total=256)
    saved = list((tmp_path / "t" / "snapshots").iterdir())
    learn(again, tmp_path, total=256)

    assert state(first) == state(again)
    assert sorted(saved) == sorted((tmp_path / "t" / "snapshots").iterdir())


@pytest.mark.parametrize("name", ["TD3"])
def test_a_longer_total_goes_on_from_the_end(name, tmp_path):
    """A finished training that is given a larger total ends where one ends that had it from the beginning."""
    whole = CASES[name](1)
    whole.learn(512, log_interval=None)
    expected = state(whole)
    learn(CASES[name](1), tmp_path, total=256)
    model = CASES[name](7)
    report = learn(model, tmp_path, total=512)

    assert 256 == report.step
    assert expected == state(model)
