"""TorchRL: ``perdure.torchrl.track(run, ...)`` and ``for batch in perdure.torchrl.collect(run, collector)``."""

from perdure.extras import require

require("torchrl", extra="torchrl")

from perdure.adapters.torchrl import Checkpointing, collect, track  # noqa: E402 - without the check the error would not say what to install

__all__ = ["Checkpointing", "collect", "track"]
