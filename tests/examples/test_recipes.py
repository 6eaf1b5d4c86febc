"""The examples of SAC and TD3, killed at a random step and started again, end with the bits of an unhurt run."""

import pytest

import perdure
from tests.examples.recipes import train
from tests.lives import Lives

SETTINGS = {"steps": 1_000, "capacity": 600, "begin": 200, "batch": 16, "save_steps": 100}


@pytest.mark.process
@pytest.mark.parametrize("example", ["sac", "td3"])
def test_killed_recipes_end_bit_identical(example, tmp_path):
    """Nets, targets, moments, temperature, replay, streams and returns are those of a run that was never killed."""
    lives = Lives(train, ["torch", "gymnasium"])
    expected, ended = lives.compare(tmp_path, SETTINGS["steps"], example=example, **SETTINGS)

    assert expected == ended


@pytest.mark.process
def test_a_forgotten_temperature_shows(tmp_path):
    """The comparison is not blind: without the learned temperature a resumed SAC ends elsewhere."""
    lives = Lives(train_forgetting, ["torch", "gymnasium"])
    expected, ended = lives.compare(tmp_path, 700, **{**SETTINGS, "steps": 700})

    assert expected["actor"] != ended["actor"]


def train_forgetting(store, **settings):
    """Train with SAC; the temperature is not tracked, and no save is under way when a step is done."""
    track, boundary = perdure.Run.track, perdure.Run._boundary

    def settled(run, kind):
        boundary(run, kind)
        # A resume from before the first update forgets nothing: whoever is killed has saved a later step.
        for handle in run._saver._handles:
            handle.wait()

    perdure.Run.track = lambda run, *objects, temperature=None, **named: track(run, *objects, **named)
    perdure.Run._boundary = settled
    return train(store, example="sac", **settings)
