"""Windows of consecutive rows in a ring, pure: n-step returns, sequences and episodes, right at every seam."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perdure.core.ring import RingState

Slots = NDArray[np.intp]
Ends = Callable[[Slots, Slots], NDArray[np.bool_]]
"""Says of slots and environments whether an episode was terminated or truncated there."""


@dataclass(frozen=True, slots=True)
class Episode:
    """Consecutive steps of one environment."""

    environment: int
    slots: Slots
    """In order of time, shape ``(length,)``."""
    begins: bool
    """Whether the step before the first one ended an episode; False where the ring no longer knows."""
    ends: bool
    """Whether the last step ended it; False if it is still going on."""


@dataclass(frozen=True, slots=True)
class Returns:
    """The n-step returns of a batch, each array of shape ``(batch,)``."""

    rewards: NDArray[np.float64]
    """Discounted sums over the steps that there were."""
    last: Slots
    """Slots of each window's last step, whose next observation the value is to be taken at."""
    discounts: NDArray[np.float64]
    """Discount to the power of the steps that there were."""


def ages_of(slots: Slots, state: RingState) -> Slots:
    """Place of each slot in ring order: 0 is the oldest row."""
    return (slots - state.tail_position) % state.capacity


def n_step_returns(
    rewards: NDArray[Any],
    ends: Ends,
    slots: Slots,
    environments: Slots,
    state: RingState,
    *,
    steps: int,
    discount: float,
) -> Returns:
    """
    Sum rewards forward from each slot until ``steps`` steps, the end of the episode or the newest row.

    A window that is cut short is a correct return of fewer steps, not a window into another episode or into rows from
    before the ring's seam.

    Args:
        rewards: Shape ``(capacity, n_envs)``.
        ends: Where an episode was terminated or truncated.
        slots: Where the windows begin, shape ``(batch,)``.
        environments: Of the same shape.
        state: Where the ring stands.
        steps: At least 1.
        discount: Of one step.
    """
    ages = ages_of(slots, state)
    total = np.zeros(len(slots), np.float64)
    factor = np.ones(len(slots), np.float64)
    last = slots.copy()
    is_open = np.ones(len(slots), np.bool_)
    for step in range(steps):
        is_open &= ages + step < state.size
        here = (slots + step) % state.capacity
        total += np.where(is_open, factor * rewards[here, environments], 0.0)
        factor = np.where(is_open, factor * discount, factor)
        last = np.where(is_open, here, last)
        is_open &= ~ends(here, environments)
    return Returns(total, last, factor)


def sequence_slots(
    ends: Ends, starts: Slots, environments: Slots, state: RingState, length: int
) -> tuple[Slots, NDArray[np.bool_]]:
    """
    Follow each start for ``length`` steps.

    Returns:
        Slots of shape ``(batch, length)``, and whether each still belongs to the episode of its start; beyond that the
        last one is repeated.
    """
    ages = ages_of(starts, state)
    slots = np.empty((len(starts), length), np.intp)
    is_valid = np.empty((len(starts), length), np.bool_)
    last = starts.copy()
    is_open = np.ones(len(starts), np.bool_)
    for step in range(length):
        is_open &= ages + step < state.size
        last = np.where(is_open, (starts + step) % state.capacity, last)
        slots[:, step] = last
        is_valid[:, step] = is_open
        is_open &= ~ends(last, environments)
    return slots, is_valid


def find_episodes(ends: Ends, n_envs: int, state: RingState) -> list[Episode]:
    """Cut all rows held into episodes, environment by environment, oldest first."""
    order = (state.tail_position + np.arange(state.size)) % state.capacity
    episodes = []
    for environment in range(n_envs):
        flags = ends(order, np.full(state.size, environment))
        stops = [*(np.flatnonzero(flags) + 1).tolist(), state.size]
        start = 0
        for stop in stops:
            if stop > start:
                is_first = start > 0 or state.total_count == state.size
                episodes.append(Episode(environment, order[start:stop], is_first, bool(flags[stop - 1])))
            start = stop
    return episodes
