"""RLlib: ``config.callbacks(perdure.rllib.checkpointing("runs", run="ppo"))``."""

from perdure.extras import require

require("ray", extra="rllib")

from perdure.adapters.rllib import Checkpointing, checkpointing  # noqa: E402 - without the check the error would not say what to install

__all__ = ["Checkpointing", "checkpointing"]
