"""Steps of a training whose loop belongs to a framework: counted where the environment makes them."""

from __future__ import annotations

from collections.abc import Callable

from matrix.life import Life


class Steps:
    """
    Tells a life which step has been done.

    Args:
        life: Is told.
        begun: Steps before the running collection; a framework counts them when a collection is over.
    """

    def __init__(self, life: Life, begun: Callable[[], int]) -> None:
        self._life = life
        self._begun = begun
        self._base = -1
        self._within = 0

    def made(self, count: int) -> None:
        """So many steps have been made."""
        base = self._begun()
        if base != self._base:
            self._base, self._within = base, 0
        self._within += count
        self._life.at(base + self._within)
