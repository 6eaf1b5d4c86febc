"""How much host memory saving takes, and how many captures there is room for: a decision from a few numbers."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.errors import InvalidInputError

WANTED_ARENAS = 2
"""One is written while the next save fills the other."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """
    What saving will take of the host's memory.

    Attributes:
        state_bytes: What one capture copies; for optimizers that have not stepped yet, what they will have.
        available_bytes: What the host can give, or None if nobody knows.
        limit_bytes: What the user allows for all captures together, or None for no limit.
        arenas: How many captures can be in memory at once.
    """

    state_bytes: int
    available_bytes: int | None
    limit_bytes: int | None
    arenas: int

    @property
    def needed_bytes(self) -> int:
        """Memory that captures will take."""
        return self.arenas * self.state_bytes

    @property
    def arena_limit_bytes(self) -> int | None:
        """Memory that one capture may take; None for no limit."""
        return None if self.limit_bytes is None else self.limit_bytes // self.arenas


def plan_memory(state_bytes: int, available_bytes: int | None, limit_bytes: int | None) -> MemoryPlan:
    """
    Decide for two arenas, or one if that is all there is room for.

    Raises:
        InvalidInputError: Kind ``memory.too-small``: there is no room for one.
    """
    room = min((size for size in (available_bytes, limit_bytes) if size is not None), default=None)
    if room is None:
        return MemoryPlan(state_bytes, available_bytes, limit_bytes, WANTED_ARENAS)
    arenas = next((count for count in range(WANTED_ARENAS, 0, -1) if count * state_bytes <= room), 0)
    if arenas == 0:
        raise InvalidInputError(
            f"cannot save this run: a copy of its state takes {state_bytes:,} bytes of memory and there is room for "
            f"{room:,}",
            kind="memory.too-small",
            hint="free memory, raise memory_bytes= of perdure.open, or track less",
            field="memory_bytes",
        )
    return MemoryPlan(state_bytes, available_bytes, limit_bytes, arenas)
