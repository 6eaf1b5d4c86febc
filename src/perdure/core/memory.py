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
        arenas: How many captures can be on their way at once.
        kept: How many stay in memory beside them: that of the memory tier's newest checkpoint.
    """

    state_bytes: int
    available_bytes: int | None
    limit_bytes: int | None
    arenas: int
    kept: int = 0

    @property
    def captures(self) -> int:
        """How many captures there is memory for."""
        return self.arenas + self.kept

    @property
    def needed_bytes(self) -> int:
        """Memory that captures will take."""
        return self.captures * self.state_bytes

    @property
    def arena_limit_bytes(self) -> int | None:
        """Memory that one capture may take; None for no limit."""
        return None if self.limit_bytes is None else self.limit_bytes // self.captures


def plan_memory(
    state_bytes: int, available_bytes: int | None, limit_bytes: int | None, *, has_memory_tier: bool = False
) -> MemoryPlan:
    """
    Decide for two arenas, or one if that is all there is room for.

    Args:
        state_bytes: What one capture copies.
        available_bytes: What the host can give, or None if nobody knows.
        limit_bytes: What the user allows, or None for no limit.
        has_memory_tier: Whether the newest checkpoint stays in memory besides.

    Raises:
        InvalidInputError: Kind ``memory.too-small``: there is no room for one.
    """
    room = min((size for size in (available_bytes, limit_bytes) if size is not None), default=None)
    kept = int(has_memory_tier)
    for arenas in range(WANTED_ARENAS, 0, -1):
        plan = MemoryPlan(state_bytes, available_bytes, limit_bytes, arenas, kept)
        if room is None or plan.needed_bytes <= room:
            return plan
    copies = "two copies of its state, as the memory tier keeps one, take" if kept else "a copy of its state takes"
    raise InvalidInputError(
        f"cannot save this run: {copies} {plan.needed_bytes:,} bytes of memory and there is room for {room:,}",
        kind="memory.too-small",
        hint="free memory, raise memory_bytes= of perdure.open, or track less"
        + (", or open the run without ram=" if kept else ""),
        field="memory_bytes",
    )
