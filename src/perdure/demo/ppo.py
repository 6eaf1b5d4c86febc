"""
Proximal policy optimization, small and whole.

The clipped objective is that of Schulman et al., "Proximal Policy Optimization Algorithms", 2017; the advantages are
generalised ones (Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation", 2015).
The batch may be an update or two old, because actors do not wait for the learner: the ratio is taken against the policy
that really acted, which is what the clipping is for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from perdure.demo.policy import Floats
from perdure.demo.rollout import Flags, Rollout

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """How PPO learns."""

    rate: float = 3e-4
    """Learning rate at the start; it falls to a tenth on the way to the last update."""
    discount: float = 0.99
    trace: float = 0.95
    """Decay of the advantage's trace, lambda in the papers."""
    clip: float = 0.2
    """How far the probability ratio may move from 1 before it stops paying."""
    epochs: int = 4
    """Passes over each batch."""
    minibatches: int = 4
    """Optimizer steps in each pass."""
    value_weight: float = 0.5
    entropy_weight: float = 0.01
    largest_gradient: float = 0.5
    """Norm to which longer gradients are cut."""


@dataclass(frozen=True, slots=True)
class Minibatch:
    """Rows of a batch, in any order."""

    observations: torch.Tensor
    actions: torch.Tensor
    log_probabilities: torch.Tensor
    advantages: torch.Tensor
    targets: torch.Tensor
    """What the value function should have said."""

    def select(self, rows: torch.Tensor) -> Minibatch:
        """Return some of the rows."""
        return Minibatch(
            self.observations[rows],
            self.actions[rows],
            self.log_probabilities[rows],
            self.advantages[rows],
            self.targets[rows],
        )


@dataclass(frozen=True, slots=True)
class Losses:
    """The three parts of the objective; scalars with gradients."""

    policy: torch.Tensor
    value: torch.Tensor
    entropy: torch.Tensor

    def total(self, settings: Hyperparameters) -> torch.Tensor:
        """Return what is minimised: more entropy is better, so that it is subtracted."""
        return self.policy + settings.value_weight * self.value - settings.entropy_weight * self.entropy


def make_networks(features: int, actions: int, hidden: int = 64) -> tuple[nn.Sequential, nn.Sequential]:
    """
    Make a policy and a value network, with orthogonal weights from torch's global generator.

    The policy's last layer begins near zero, so that it explores evenly at first.
    """
    from torch import nn

    def network(outputs: int, last_gain: float) -> nn.Sequential:
        layers = [nn.Linear(features, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, outputs)]
        for layer, gain in zip(layers, (2**0.5, 2**0.5, last_gain), strict=True):
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)
        return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])

    return network(actions, 0.01), network(1, 1.0)


def advantages_of(
    rewards: Floats,
    values: Floats,
    successor_values: Floats,
    terminated: Flags,
    ended: Flags,
    settings: Hyperparameters,
) -> Floats:
    """
    Return generalised advantages; all arrays have shape (steps, environments).

    An episode that was cut off by the limit of time did not fail: its successor keeps its value, only the trace ends.
    """
    surprises = rewards + settings.discount * successor_values * ~terminated - values
    advantages = np.empty_like(surprises)
    carried = np.zeros_like(surprises[0])
    for t in reversed(range(len(surprises))):
        carried = surprises[t] + settings.discount * settings.trace * carried * ~ended[t]
        advantages[t] = carried
    return advantages


def losses_of(policy: nn.Module, value: nn.Module, batch: Minibatch, settings: Hyperparameters) -> Losses:
    """Compute the clipped policy loss, the squared error of the values and the policy's entropy."""
    import torch

    logs = torch.log_softmax(policy(batch.observations), dim=-1)
    chosen = logs.gather(1, batch.actions[:, None]).squeeze(1)
    ratio = (chosen - batch.log_probabilities).exp()
    advantages = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
    clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
    return Losses(
        policy=-torch.minimum(ratio * advantages, clipped * advantages).mean(),
        value=0.5 * (value(batch.observations).squeeze(-1) - batch.targets).square().mean(),
        entropy=-(logs.exp() * logs).sum(-1).mean(),
    )


def improve(
    policy: nn.Module, value: nn.Module, optimizer: torch.optim.Optimizer, rollout: Rollout, settings: Hyperparameters
) -> None:
    """Make one update: all passes over one batch. Draws the minibatches from torch's global generator."""
    import torch
    from torch.nn.utils import clip_grad_norm_

    batch = _prepare(value, rollout, settings)
    count = len(batch.targets)
    for _ in range(settings.epochs):
        for rows in torch.randperm(count).tensor_split(settings.minibatches):
            optimizer.zero_grad()
            losses_of(policy, value, batch.select(rows), settings).total(settings).backward()  # type: ignore[no-untyped-call]
            for network in (policy, value):  # each by itself: the value's error is many times larger than the policy's
                clip_grad_norm_(network.parameters(), settings.largest_gradient)
            optimizer.step()


def _prepare(value: nn.Module, rollout: Rollout, settings: Hyperparameters) -> Minibatch:
    import torch

    with torch.no_grad():
        values = value(torch.from_numpy(rollout.observations)).squeeze(-1).numpy()
        successor_values = value(torch.from_numpy(rollout.successors)).squeeze(-1).numpy()
    # In units of what a policy that never falls is worth: a value network takes long to reach 100, and not 1.
    rewards = rollout.rewards * np.float32(1 - settings.discount)
    advantages = advantages_of(rewards, values, successor_values, rollout.terminated, rollout.ended, settings)
    return Minibatch(
        observations=torch.from_numpy(rollout.observations).flatten(0, 1),
        actions=torch.from_numpy(rollout.actions).flatten(),
        log_probabilities=torch.from_numpy(rollout.log_probabilities).flatten(),
        advantages=torch.from_numpy(advantages).flatten(),
        targets=torch.from_numpy(advantages + values).flatten(),
    )
