"""A training to save from: forward, backward and an update of the network that is saved."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn


class Trainer:
    """A training loop that is timed step by step."""

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer, batch: int) -> None:
        self._module, self._optimizer = module, optimizer
        first = next(module.parameters())
        self._input = torch.randn(batch, first.shape[1])

    def step(self) -> None:
        """One update."""
        self._optimizer.zero_grad()
        self._module(self._input).square().mean().backward()
        self._optimizer.step()

    def steps(self, count: int, at_step: Callable[[int], None]) -> list[float]:
        """Seconds of each of so many steps, what happens before it included."""
        taken = []
        for number in range(count):
            began = time.perf_counter()
            at_step(number)
            self.step()
            taken.append(time.perf_counter() - began)
        return taken
