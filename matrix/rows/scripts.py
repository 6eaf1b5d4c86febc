"""The rows of scripts of one file: the recipes in ``examples/``, under a run and without any."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium as gym
import torch
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv

from matrix.life import Life
from matrix.row import Framework, Row, State
from matrix.rows._global import seed_spaces, seed_streams, streams, without
from matrix.steps import Steps
from perdure import RingBuffer
from perdure.capture.environments.snapshot import take

EXAMPLES = Path(__file__).parents[2] / "examples"
OF_THE_CLOCK = frozenset({"episode_start_time", "episode_start_times", "time_queue"})
"""What may differ between two trainings that are the same."""
PPO_STEPS = 25
SMALL = {"capacity": 700, "begin": 200, "batch": 16}


class Absent:
    """What a script gets in the place of a run when it trains without perdure: nothing is saved, nothing restored."""

    global_step = 0

    def track(self, objects: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        """Nothing."""

    def counters(self, **values: Any) -> Any:
        """The values."""
        return SimpleNamespace(**values)

    locals = counters

    def loop(self, start: int, stop: int) -> Iterator[int]:
        """A range."""
        return iter(range(start, stop))

    def metric(self, name: str, value: float) -> None:
        """Nothing."""


def script(name: str) -> ModuleType:
    """A script as a module of its own; it runs in the process of a life, which ends with it."""
    spec = importlib.util.spec_from_file_location(f"script_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def training(name: str, physics: type[gym.Env[Any, Any]], settings: Callable[[Life], dict[str, Any]]) -> Any:
    """What a row does: run the script, and tell what its objects have become."""

    def train(life: Life) -> State:
        module = script(name)
        tracked: dict[str, Any] = {}

        @contextmanager
        def opened(*_: Any, keep: Any, **__: Any) -> Iterator[Any]:
            with life.open(keep=keep) as run:
                given: Any = Absent() if run is None else run
                _tell_steps(physics, Steps(life, lambda: given.global_step))
                _listen(given, tracked, life.seed)
                yield given

        module.__dict__["perdure"] = SimpleNamespace(open=opened)
        # Scripts seed what they draw from; the other streams are saved and compared as well.
        seed_streams(life.seed)
        module.train(module.Settings(seed=life.seed, **settings(life)))
        return state_of(tracked)

    return train


def _tell_steps(physics: type[gym.Env[Any, Any]], steps: Steps) -> None:
    step = physics.step

    def counted(env: Any, action: Any) -> Any:
        result = step(env, action)
        steps.made(1)
        return result

    physics.step = counted  # type: ignore[method-assign] # the class is this life's own: its process ends with it


def _listen(run: Any, tracked: dict[str, Any], seed: int) -> None:
    track = run.track

    def listening(objects: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        heard = {**(objects or {}), **named}
        tracked.update(heard)
        for env in heard.values():
            if isinstance(env, gym.vector.VectorEnv):
                seed_spaces(env, seed)
        track(objects, **named)

    run.track = listening


def state_of(tracked: Mapping[str, Any]) -> State:
    """Everything that a script consists of, by group."""
    found: dict[str, Any] = {
        group: {} for group in ("parameters", "optimizer", "replay", "environment", "curves", "rng")
    }
    for name, value in tracked.items():
        if isinstance(value, torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler):
            found["optimizer"][name] = value.state_dict()
        elif isinstance(value, torch.nn.Module):
            found["parameters"][name] = value.state_dict()
        elif isinstance(value, torch.Tensor):
            found["parameters"][name] = value.detach()
        elif isinstance(value, RingBuffer):
            found["replay"][name] = [value.columns, value.total_count, value.rng.bit_generator.state]
        elif isinstance(value, gym.Env | gym.vector.VectorEnv):
            env = take(value)
            found["environment"][name] = without({"graph": env["graph"], "shared": env["shared"]}, OF_THE_CLOCK)
        elif isinstance(value, gym.Space):
            found["rng"][name] = value.np_random.bit_generator.state
        else:
            found["curves"][name] = value
    return {**found, "rng": {**found["rng"], **streams()}}


def _ppo(life: Life) -> dict[str, Any]:
    envs = life.environments or 4
    return {"envs": envs, "steps": PPO_STEPS, "updates": life.steps // (envs * PPO_STEPS)}


def _off_policy(life: Life) -> dict[str, Any]:
    return {"steps": life.steps, **SMALL}


FRAMEWORK = Framework(
    "Scripts",
    ("gymnasium", "torch", "numpy"),
    (
        Row("PPO, examples/ppo.py", "CartPole-v1 x 4, SyncVectorEnv", training("ppo", CartPoleEnv, _ppo)),
        Row("DQN, examples/dqn.py", "CartPole-v1", training("dqn", CartPoleEnv, _off_policy), other_number=""),
        Row("SAC, examples/sac.py", "Pendulum-v1", training("sac", PendulumEnv, _off_policy), other_number=""),
        Row("TD3, examples/td3.py", "Pendulum-v1", training("td3", PendulumEnv, _off_policy), other_number=""),
    ),
)
