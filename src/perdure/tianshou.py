"""Tianshou 2: ``perdure.tianshou.train(run, algorithm.create_trainer(params))`` in place of ``trainer.run()``."""

from perdure.extras import require

require("tianshou", extra="tianshou")

from perdure.adapters.tianshou import train  # noqa: E402 - without the check the error would not say what to install

__all__ = ["train"]
