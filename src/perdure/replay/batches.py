"""What a replay buffer hands out, and the choices of how it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perdure.errors import MissingDependencyError


@dataclass(frozen=True, slots=True)
class Roles:
    """Names of the columns that mean something to the buffer; a column that it does not have is not needed."""

    reward: str = "reward"
    terminated: str = "terminated"
    """The task ended here: nothing follows."""
    truncated: str = "truncated"
    """The episode was cut here: the value of the next observation still counts."""
    next_observations: tuple[str, ...] = ("next_obs",)
    """Columns that hold what came after the step; an n-step sample takes them from its last step."""


@dataclass(frozen=True, slots=True)
class Prioritized:
    """
    Draw in proportion to priority.

    Source: Schaul et al., "Prioritized Experience Replay" (https://arxiv.org/abs/1511.05952).
    """

    alpha: float = 0.6
    """0 is uniform."""
    beta: float = 0.4
    """How far weights undo the bias: 1 is fully. May be given anew at each sample."""
    epsilon: float = 1e-6
    """Added to every priority, so that nothing is never drawn again."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A sample; every array is a copy, owned by the caller."""

    columns: dict[str, NDArray[Any]]
    """By name, each ``(batch, *shape)``, or ``(batch, length, *shape)`` for sequences."""
    indices: NDArray[np.intp]
    """Where the samples came from, shape ``(batch,)``: slot times n_envs plus environment. For `update_priorities`."""
    weights: NDArray[np.float32]
    """Importance weights, shape ``(batch,)``; 1 if sampling is uniform."""
    discount: NDArray[np.float32]
    """Factor of the next value, shape ``(batch,)``: discount to the power of the steps, 0 where the task ended."""
    is_valid: NDArray[np.bool_] | None = None
    """For sequences, shape ``(batch, length)``: False beyond the end of the episode."""

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def torch(self, device: object = None) -> dict[str, Any]:
        """
        Give the columns as tensors; on the CPU they share the batch's memory.

        Raises:
            MissingDependencyError: torch is not installed.
        """
        torch = import_torch()
        return {name: torch.from_numpy(array).to(device or "cpu") for name, array in self.columns.items()}


def import_torch() -> Any:
    """
    Give torch, imported now.

    Raises:
        MissingDependencyError: It is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError(
            "cannot make tensors: torch is not installed",
            kind="dependency.missing",
            hint="pip install 'perdure[torch]'",
            package="torch",
            extra="torch",
        ) from error
    return torch
