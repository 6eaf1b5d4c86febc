"""Stable-Baselines3: one callback, and a training that was interrupted ends with the very bits of one that was not."""

import functools
import random
import shutil

import pytest

from tests.adapters.sb3_cases import CASES, TOTAL, crash, learn, state


@functools.cache
def unhurt(name):
    """What a training ends with that knows nothing of perdure."""
    model = CASES[name](1)
    model.learn(TOTAL, log_interval=None)
    return state(model)


@pytest.fixture(scope="module")
def crashed(tmp_path_factory):
    """Give directories that a crash at a random step of a case has left behind, each a copy."""

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
