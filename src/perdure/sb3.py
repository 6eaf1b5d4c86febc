"""Stable-Baselines3: ``model.learn(steps, callback=perdure.sb3.Checkpointing(run))``."""

from perdure.adapters.sb3 import Checkpointing

__all__ = ["Checkpointing"]
