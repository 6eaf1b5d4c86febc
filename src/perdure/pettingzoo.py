"""PettingZoo: ``run.track(env=perdure.pettingzoo.Environment(env))``."""

from perdure.extras import require

require("pettingzoo", extra="pettingzoo")

from perdure.adapters.pettingzoo import Environment  # noqa: E402 - without the check the error would not say what to install

__all__ = ["Environment"]
