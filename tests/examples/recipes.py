"""Runs an example for a test, in the test's own process: with small settings, until it ends or kills itself."""

import importlib.util
import sys
from functools import partial
from pathlib import Path

import torch
from gymnasium.envs.classic_control import PendulumEnv

import perdure
from perdure import RingBuffer
from tests.lives import die_at_step, digest, seed_all, streams

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def train(store, *, example, die_at=0, **settings):
    """Train and return digests of all that is left, by name."""
    seed_all(1)
    # Steps of a small training are so short that saving would soon be put off.
    perdure.open = partial(perdure.open, budget=None)
    die_at_step(PendulumEnv, die_at)
    module = load(example)
    learner, replay, returns = module.train(module.Settings(store=str(store), **settings))
    states = {
        name: part if isinstance(part, torch.Tensor) else part.state_dict()
        for name, part in vars(learner).items()
        if isinstance(part, torch.Tensor) or hasattr(part, "state_dict")
    }
    assert isinstance(replay, RingBuffer)
    states["replay"] = [replay.columns, replay.total_count, replay.rng.bit_generator.state]
    return {name: digest(state) for name, state in {**states, "returns": returns, **streams()}.items()}
