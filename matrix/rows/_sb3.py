"""How a training of Stable-Baselines3 is lived, what it ends with, and SB3's own save and load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import torch._dynamo  # the first optimizer of each process would import it, which takes seconds
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecNormalize

import perdure
import perdure.sb3
from matrix.life import Life
from matrix.row import Own, State
from matrix.rows._global import streams, without
from perdure.capture.environments.snapshot import take

Make: TypeAlias = Callable[[int, int | None], BaseAlgorithm]
"""From a seed and a number of environments (None for the usual one) to a model that has learned nothing."""

OF_THE_CLOCK = frozenset({"t", "t_start", "episode_times", "log", "results_writer", "start_time"})
"""What may differ between two trainings that are the same."""
_SETTINGS = frozenset({"seed", "policy_kwargs", "replay_buffer_kwargs", "start_time"})


class EveryStep(BaseCallback):
    """Tells a life which step has been done."""

    def __init__(self, life: Life) -> None:
        super().__init__()
        self._life = life

    def _on_step(self) -> bool:
        self._life.at(self.num_timesteps)
        return True


def training(make: Make) -> Callable[[Life], State]:
    """What a row does: build, learn, tell."""

    def train(life: Life) -> State:
        model = make(life.seed, life.environments)
        # What is captured by its log is watched in every life, so that the ends can be compared.
        take(model.env)
        with life.open() as run:
            savers = [] if run is None else [perdure.sb3.Checkpointing(run)]
            model.learn(life.steps, callback=[*savers, EveryStep(life)])
        return _closed(model)

    return train


def own(make: Make) -> Own:
    """SB3's documented way: save the model, the replay buffer and the normaliser; load all three and go on learning."""

    def save(life: Life, folder: Path) -> None:
        model = make(life.seed, None)
        model.learn(life.steps // 2)
        model.save(folder / "model")
        if getattr(model, "replay_buffer", None) is not None:
            model.save_replay_buffer(folder / "replay")  # type: ignore[attr-defined]
        normalizer = model.get_vec_normalize_env()
        if normalizer is not None:
            normalizer.save(str(folder / "normalizer.pkl"))

    def load(life: Life, folder: Path) -> State:
        fresh = make(life.seed, None)
        env = fresh.get_env()
        assert env is not None
        saved = folder / "normalizer.pkl"
        if isinstance(env, VecNormalize) and saved.exists():
            env = VecNormalize.load(str(saved), env.venv)
        model = type(fresh).load(folder / "model", env=env)
        if (folder / "replay.pkl").exists():
            model.load_replay_buffer(folder / "replay")  # type: ignore[attr-defined]
        model.learn(life.steps - model.num_timesteps, callback=EveryStep(life), reset_num_timesteps=False)
        return _closed(model)

    return Own(save, load)


def _closed(model: BaseAlgorithm) -> State:
    found = state_of(model)
    env = model.get_env()
    assert env is not None
    env.close()
    return found


def state_of(model: BaseAlgorithm) -> dict[str, Any]:
    """Everything that a training consists of, by group; borrowed."""
    names, tensors = model._get_torch_save_params()  # noqa: SLF001 - the list that the framework itself saves by
    declared = {name: _reach(model, name) for name in [*names, *tensors]}
    learned = {
        name: value.state_dict() if hasattr(value, "state_dict") else value.detach()
        for name, value in declared.items()
        if hasattr(value, "state_dict") or isinstance(value, torch.Tensor)
    }
    replay = getattr(model, "replay_buffer", None)
    env = take(model.env)
    return {
        "parameters": {name: value for name, value in learned.items() if "optimizer" not in name},
        "optimizer": {name: value for name, value in learned.items() if "optimizer" in name},
        "counters": {
            name: value
            for name, value in vars(model).items()
            if isinstance(value, bool | int | float | np.ndarray | dict | torch.Tensor | tuple | np.generic)
            and name not in _SETTINGS
        },
        "curves": [without(episode, OF_THE_CLOCK) for episode in model.ep_info_buffer or ()],
        "noise": [
            getattr(one, "noise_prev", None) for one in getattr(model.action_noise, "noises", [model.action_noise])
        ],
        "environment": without({"graph": env["graph"], "shared": env["shared"]}, OF_THE_CLOCK),
        "replay": {
            name: value
            for name, value in (vars(replay) if replay is not None else {}).items()
            if isinstance(value, dict | np.ndarray | int)
        },
        "rng": {**streams(), "actions": model.action_space.np_random.bit_generator.state},
    }


def _reach(owner: Any, path: str) -> Any:
    for part in path.split("."):
        owner = getattr(owner, part)
    return owner
