"""Stable-Baselines3: one callback, and a training that was interrupted ends with the very bits of one that was not."""

import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from stable_baselines3.common.callbacks import BaseCallback

from perdure import Every
from perdure.errors import StoppedError
from tests.adapters.sb3_cases import CASES, TOTAL, crash, learn, state
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]


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
        at = random.Random(name).randrange(*((405, 795) if name == "ARS" else (200, 400)))
        crash(CASES[name](1), where / "runs", at)
        return where / "runs"

    def copy(name):
        where = tmp_path_factory.mktemp(name) / "runs"
        shutil.copytree(make(name), where, symlinks=True)
        return where

    return copy


@pytest.mark.parametrize("name", CASES)
def test_a_crashed_training_ends_bit_identical(name, crashed):
    """A training that crashed at a random step and is resumed in a fresh model ends where one without perdure ends."""
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


def shift_observation(model):
    model._last_obs = model._last_obs + 0.01


FORGOTTEN = {
    "PPO observation": shift_observation,
    "PPO shuffling": lambda model: np.random.seed(3),
    "PPO-VecNormalize returns": lambda model: model.env.returns.fill(0),
    "PPO-gSDE matrices": lambda model: model.policy.reset_noise(2),
    "DQN actions": lambda model: model.action_space.seed(9),
    "DQN calls": lambda model: setattr(model, "_n_calls", 3),
    "SAC entropy": lambda model: model.log_ent_coef.data.zero_(),
    "TD3 noise": lambda model: model.action_noise.reset(),
    "TD3 updates": lambda model: setattr(model, "_n_updates", model._n_updates + 1),
    "DQN-HER episodes": lambda model: model.replay_buffer._current_ep_start.fill(0),
    "RecurrentPPO memory": lambda model: [part.zero_() for pair in model._last_lstm_states for part in pair],
    "ARS weights": lambda model: model.weights.zero_(),
}


@pytest.mark.parametrize("what", FORGOTTEN)
def test_the_comparison_bites(what, crashed):
    """A resume that lacks one piece of state ends with other bits, so that comparing them proves something."""
    name = what.split()[0]
    model = CASES[name](7)
    learn(model, crashed(name), save=None, others=[Forget(FORGOTTEN[what])])

    assert unhurt(name) != state(model)


@pytest.mark.process
@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_a_killed_program_ends_bit_identical(name, tmp_path):
    """A program that gets SIGKILL and is started again ends where a training without perdure ends."""
    command = [sys.executable, "-m", "tests.adapters.sb3_cases", name, str(tmp_path), "100"]

    def start():
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    log = tmp_path / "t" / "events.jsonl"
    process = start()
    wait_until(lambda: log.exists() and log.read_text().count('"saved"') >= 2, 120, process)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL

    output, errors = start().communicate(timeout=240)

    assert unhurt(name) == json.loads(output or errors)
    assert 1 == log.read_text().count('"restored"')


class SendSignal(BaseCallback):
    """Asks the program to stop, in the middle of a rollout."""

    def _on_step(self):
        if self.n_calls == 70:
            os.kill(os.getpid(), signal.SIGTERM)
        return True


@pytest.mark.parametrize("name", ["PPO", "DQN"])
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


@pytest.mark.parametrize("name", ["PPO-gSDE", "TD3"])
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


def test_resuming_twice_is_as_exact_as_once(tmp_path):
    """A training that crashes again after a resume ends bit-identical too, with replay from two generations."""
    crash(CASES["SAC"](1), tmp_path, 300)
    crash(CASES["SAC"](7), tmp_path, 700, save=Every(steps=40))
    model = CASES["SAC"](8)
    report = learn(model, tmp_path, save=None)

    assert report.step > 300
    assert unhurt("SAC") == state(model)
