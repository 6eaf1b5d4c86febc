"""Stable-Baselines3: ``model.learn(steps, callback=perdure.sb3.Checkpointing(run))``."""

from perdure.extras import require

require("stable_baselines3", extra="sb3")

from perdure.adapters.sb3 import Checkpointing  # noqa: E402 - without the check the error would not say what to install

__all__ = ["Checkpointing"]
