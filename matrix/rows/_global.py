"""The process-wide random streams, which every row ends with."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def seed_streams(seed: int) -> None:
    """Begin all process-wide random streams."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the one that frameworks draw from
    torch.manual_seed(seed)


def streams() -> dict[str, Any]:
    """Where they stand."""
    return {"python": random.getstate(), "numpy": np.random.get_state(legacy=False), "torch": torch.get_rng_state()}  # noqa: NPY002 - as above
