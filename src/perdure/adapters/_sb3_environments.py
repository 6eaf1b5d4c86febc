"""
Stable-Baselines3's vector environments: their wrappers, their sub-environments, and those in worker processes.

Importing this makes the classes of SB3 and sb3-contrib known to `perdure.capture.environments`, here and in every worker
that is asked for its state.
"""

from __future__ import annotations

import inspect
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecCheckNan,
    VecEnv,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
    VecVideoRecorder,
)
from stable_baselines3.common.vec_env.stacked_observations import StackedObservations

from perdure.adapters._sb3_logs import read_file, rewrite_file
from perdure.capture.environments import level_of, register_environment
from perdure.capture.environments.plain import Tree
from perdure.capture.environments.snapshot import Level, check, fill, take
from perdure.core.manifest import Grade
from perdure.core.names import Section
from perdure.errors import DeadlineError, InternalError, PerdureError

_ENTRY = "_perdure_serve"
_ANSWER_SECONDS = 60.0
"""A worker is idle when it is asked, so answers take milliseconds."""

# The buffers for observations, rewards and infos of a step are written before they are read, so they are no state.
_STATE_OF: dict[type, tuple[str, ...]] = {
    DummyVecEnv: ("envs", "_seeds", "_options"),
    SubprocVecEnv: ("_seeds", "_options"),
    VecNormalize: ("venv", "obs_rms", "ret_rms", "returns", "old_obs", "old_reward"),
    VecFrameStack: ("venv", "stacked_obs"),
    VecTransposeImage: ("venv",),
    VecExtractDictObs: ("venv",),
    VecCheckNan: ("venv",),
    VecVideoRecorder: ("venv", "step_id"),
    StackedObservations: ("stacked_obs", "sub_stacked_observations"),
    RunningMeanStd: ("mean", "var", "count"),
}
_MONITOR_LISTS = {"rewards": float, "episode_returns": float, "episode_lengths": int, "episode_times": float}
_MONITOR_VALUES = ("needs_reset", "total_steps", "current_reset_info")
_VEC_MONITOR_VALUES = ("episode_returns", "episode_lengths", "episode_count")


def _log_of(owner: Any) -> Tree:
    """The file that a monitor writes, and for how long it has been running: its times continue where they stood."""
    writer = owner.results_writer
    return {
        "elapsed_seconds": time.time() - owner.t_start,
        "file": None if writer is None else read_file(writer.file_handler),
    }


def _set_log(owner: Any, log: Tree) -> None:
    owner.t_start = time.time() - log["elapsed_seconds"]
    if owner.results_writer is not None and log["file"] is not None:
        rewrite_file(owner.results_writer.file_handler, log["file"])


def _monitor_state(monitor: Any) -> Tree:
    # As arrays: a long run has a million episodes.
    lists = {name: np.array(getattr(monitor, name), kind) for name, kind in _MONITOR_LISTS.items()}
    return {"log": _log_of(monitor), **lists, **{name: getattr(monitor, name) for name in _MONITOR_VALUES}}


def _set_monitor_state(monitor: Any, state: Tree) -> None:
    _set_log(monitor, state["log"])
    for name in _MONITOR_LISTS:
        setattr(monitor, name, state[name].tolist())
    for name in _MONITOR_VALUES:
        setattr(monitor, name, state[name])


def _vec_monitor_state(monitor: Any) -> Tree:
    return {
        "log": _log_of(monitor),
        "inner": take(monitor.venv),
        **{name: getattr(monitor, name) for name in _VEC_MONITOR_VALUES},
    }
