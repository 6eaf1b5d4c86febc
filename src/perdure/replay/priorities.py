"""A tree of sums over priorities: draws in proportion to them, in a time that grows with the count's logarithm."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class SumTree:
    """
    A binary tree in one array: node ``i`` is the sum of nodes ``2i`` and ``2i + 1``; the leaves are the priorities.

    Every node is always exactly the sum of its children as they are, so a tree rebuilt from its leaves is bit-equal to
    the one that was updated step by step.

    Args:
        count: How many leaves; all are 0 at first.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._first = 1 << max(0, count - 1).bit_length()
        self._nodes = np.zeros(2 * self._first, np.float64)

    @property
    def leaves(self) -> NDArray[np.float64]:
        """The priorities, shape ``(count,)``; a view, to be read only."""
        return self._nodes[self._first : self._first + self._count]

    @property
    def total(self) -> float:
        """The sum of all priorities."""
        return float(self._nodes[1])

    def set(self, indices: NDArray[np.intp], values: NDArray[np.float64]) -> None:
        """Set some priorities; of an index that comes twice, the last value counts."""
        nodes = np.asarray(indices, np.intp) + self._first
        self._nodes[nodes] = values
        while len(nodes) and nodes[0] > 1:
            nodes = np.unique(nodes >> 1)
            self._nodes[nodes] = self._nodes[2 * nodes] + self._nodes[2 * nodes + 1]

    def fill(self, values: NDArray[np.float64]) -> None:
        """Set all priorities."""
        self.leaves[:] = values
        first = self._first
        while first > 1:
            level = self._nodes[first : 2 * first]
            self._nodes[first // 2 : first] = level[0::2] + level[1::2]
            first //= 2

    def find(self, positions: NDArray[np.float64]) -> NDArray[np.intp]:
        """Find the leaves in which points between 0 and `total` lie when the priorities are laid end to end."""
        nodes = np.ones(len(positions), np.intp)
        rest = positions.copy()
        while nodes[0] < self._first:
            left = self._nodes[2 * nodes]
            # Rounding can push a point past the last sum; it then belongs to the last leaf that is not empty.
            goes_right = (rest >= left) & (self._nodes[2 * nodes + 1] > 0)
            rest -= np.where(goes_right, left, 0.0)
            nodes = 2 * nodes + goes_right
        return nodes - self._first
