"""Experience: what an actor collects with one version of the policy, and how it plays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perdure.demo.policy import Actions, Floats, Policy
from perdure.errors import MissingDependencyError

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Rollout:
    """Steps of several environments side by side: arrays of shape (steps, environments, …)."""

    observations: Floats
    """What was seen; (steps, environments, features)."""
    successors: Floats
    """What was seen next, before any reset; the same shape."""
    actions: Actions
    log_probabilities: Floats
    """Logarithm of the probability with which the acting policy chose the action."""
    rewards: Floats
    terminated: Flags
    """The pole fell: nothing follows, and the successor is worth nothing."""
    ended: Flags
    """The episode ended, by falling or by the limit of time: what follows belongs to another one."""

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Rollout:
        """Take what `arrays` gave; borrowed."""
        return cls(**{each.name: arrays[each.name] for each in fields(cls)})

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name; borrowed."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @property
    def steps(self) -> int:
        """Environment steps in it."""
        return self.rewards.size


def side_by_side(rollouts: Sequence[Rollout]) -> Rollout:
    """Put rollouts of equal length beside each other: one batch."""
    parts = [rollout.arrays() for rollout in rollouts]
    return Rollout.from_arrays({name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]})


class Environments:
    """
    Several CartPoles that one process steps together; episodes follow each other without a gap.

    Args:
        count: How many.
        generator: Where the seed of every one comes from.

    Raises:
        MissingDependencyError: Gymnasium is not installed.
    """

    def __init__(self, count: int, generator: np.random.Generator) -> None:
        try:
            import gymnasium
        except ImportError as error:
            raise MissingDependencyError(
                "cannot make an environment: gymnasium is not installed",
                kind="dependency.missing",
                hint="pip install 'perdure[demo]'",
                package="gymnasium",
                extra="demo",
            ) from error
        self._envs = [gymnasium.make("CartPole-v1", disable_env_checker=True) for _ in range(count)]
        seeds = generator.integers(2**31, size=count)
        self._seen: Floats = np.stack(
            [env.reset(seed=int(seed))[0] for env, seed in zip(self._envs, seeds, strict=True)]
        )
        self._returns = np.zeros(count)

    def collect(self, policy: Policy, steps: int, generator: np.random.Generator) -> tuple[Rollout, list[float]]:
        """Play ``steps`` steps in each; returns them and the returns of the episodes that ended meanwhile."""
        rows, finished = [], []
        for _ in range(steps):
            seen = self._seen
            actions, logs = policy.sample(seen, generator)
            successors, terminated, ended = self._step(actions)
            rows.append((seen, successors, actions, logs, np.ones(len(actions), np.float32), terminated, ended))
            finished += [float(total) for total in self._returns[ended]]
            self._returns[ended] = 0.0
        return Rollout(*(np.stack(column) for column in zip(*rows, strict=True))), finished

    def evaluate(self, policy: Policy) -> list[float]:
        """Play one whole episode in each, always with the likeliest action; returns their returns."""
        alive = np.ones(len(self._envs), bool)
        totals = np.zeros(len(self._envs))
        self._seen = np.stack([env.reset()[0] for env in self._envs])
        while alive.any():
            _, _, ended = self._step(policy.best(self._seen))
            totals += alive
            alive &= ~ended
        self._returns[:] = 0.0
        return [float(total) for total in totals]

    def _step(self, actions: Actions) -> tuple[Floats, Flags, Flags]:
        """Take one step in each and begin new episodes where one ended; returns successors, terminated, ended."""
        successors = np.empty_like(self._seen)
        following = np.empty_like(self._seen)
        terminated, ended = np.zeros(len(self._envs), bool), np.zeros(len(self._envs), bool)
        for i, (env, action) in enumerate(zip(self._envs, actions, strict=True)):
            successors[i], _, terminated[i], is_cut, _ = env.step(int(action))
            ended[i] = terminated[i] or is_cut
            following[i] = env.reset()[0] if ended[i] else successors[i]
        self._returns += 1.0
        self._seen = following
        return successors, terminated, ended
