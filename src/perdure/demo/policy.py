"""
The policy as the actors and the evaluator use it: a forward pass in NumPy.

The network is so small that importing a framework takes longer than a minute of using it. Only the learner, which needs
gradients, imports one; the others get the weights as plain arrays and multiply them here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Actions = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Policy:
    """A network of linear layers with tanh between them that gives the logits of a categorical distribution."""

    layers: tuple[tuple[Floats, Floats], ...]
    """Weight, shape (outputs, inputs), and bias, shape (outputs,), of every layer in order; borrowed."""

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.generic]]) -> Policy:
        """Take the arrays of a ``torch.nn.Sequential``, called ``0.weight``, ``0.bias``, ``2.weight`` and so on."""
        positions = sorted({int(name.split(".")[0]) for name in arrays})
        return cls(
            tuple(
                (
                    arrays[f"{i}.weight"].astype(np.float32, copy=False),
                    arrays[f"{i}.bias"].astype(np.float32, copy=False),
                )
                for i in positions
            )
        )

    def logits(self, observations: Floats) -> Floats:
        """Return the logits, shape (batch, actions), for observations of shape (batch, inputs)."""
        hidden = observations
        for weight, bias in self.layers[:-1]:
            hidden = np.tanh(hidden @ weight.T + bias)
        weight, bias = self.layers[-1]
        logits: Floats = hidden @ weight.T + bias
        return logits

    def sample(self, observations: Floats, generator: np.random.Generator) -> tuple[Actions, Floats]:
        """Draw actions; returns them and their log-probabilities, both of shape (batch,)."""
        logs = log_softmax(self.logits(observations))
        # Adding Gumbel noise and taking the largest draws from the categorical distribution (Gumbel, 1954).
        actions = np.argmax(logs + generator.gumbel(size=logs.shape), axis=1)
        return actions, np.take_along_axis(logs, actions[:, None], axis=1)[:, 0]

    def best(self, observations: Floats) -> Actions:
        """Return the likeliest action for every observation, shape (batch,)."""
        actions: Actions = np.argmax(self.logits(observations), axis=1)
        return actions


def log_softmax(logits: Floats) -> Floats:
    """Return log-probabilities over the last axis, without overflow."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    logs: Floats = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return logs
