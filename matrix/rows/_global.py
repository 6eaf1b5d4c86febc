"""What every row ends with or leaves out: the process-wide random streams, and clocks."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
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


def seed_spaces(envs: Any, seed: int) -> None:
    """Begin the streams of a vector environment's spaces, which Gymnasium itself draws from the system's entropy."""
    for space in (envs.single_action_space, envs.single_observation_space, envs.action_space, envs.observation_space):
        space.seed(seed)


def without(tree: Any, names: Collection[str]) -> Any:
    """A tree without what stands under some names, such as what a clock wrote into it."""
    if isinstance(tree, Mapping):
        return {key: without(value, names) for key, value in tree.items() if key not in names}
    if isinstance(tree, list | tuple):
        return [without(item, names) for item in tree]
    return tree
