"""Complaints: what the training thread is warned of about its saves, once each and no more often than it helps."""

from __future__ import annotations

import warnings

from perdure.capture.writer import SaveHandle
from perdure.core.memory import WANTED_ARENAS, MemoryPlan
from perdure.saver import describe_failure

STALL_SECONDS = 30.0
"""A save that is longer in the making is worth a warning, and another each time that the wait has doubled."""
_AT_BOUNDARY = 5
"""Frames from a warning up to the program's own line, by way of a boundary of its loop."""
_AT_RESTORE = 4


class SaveFailedWarning(UserWarning):
    """A background save failed; training goes on and the checkpoints before it are safe."""


class SaveBudgetWarning(UserWarning):
    """Saving costs more time than its budget, or more memory than there is, so it happens less often."""


class SaveStalledWarning(SaveFailedWarning):
    """A save has been in the making for long; training goes on, and what it does meanwhile is not saved."""


class Complaints:
    """Remembers what has been said of one run."""

    def __init__(self) -> None:
        self._told_stretch = 1.0
        self._told_stall_seconds = STALL_SECONDS / 2

    def of_failure(self, handle: SaveHandle) -> None:
        """A save failed, and training is to go on."""
        warnings.warn(f"{describe_failure(handle)}; training goes on", SaveFailedWarning, stacklevel=_AT_BOUNDARY)

    def of_stretch(self, stretch: float) -> None:
        """The budget has this stretch now: said again only when it has doubled, for the first warning says it all."""
        if stretch == 1.0:
            self._told_stretch = 1.0
        elif stretch > self._told_stretch:
            self._told_stretch = 2 * stretch
            warnings.warn(
                f"saving costs more than its share of the time; the interval is now {stretch:.1f} times as long",
                SaveBudgetWarning,
                stacklevel=_AT_BOUNDARY,
            )

    def of_stall(self, seconds: float, holder: str) -> None:
        """The save that is being written has been in the making for so long, and all wait for ``holder``."""
        if seconds < STALL_SECONDS:
            self._told_stall_seconds = STALL_SECONDS / 2
        elif seconds >= 2 * self._told_stall_seconds:
            self._told_stall_seconds = seconds
            warnings.warn(
                f"nothing is being saved: all waits for {holder}; training goes on, look at the disk",
                SaveStalledWarning,
                stacklevel=_AT_BOUNDARY,
            )

    def of_memory(self, plan: MemoryPlan) -> None:
        """Captures will lie in this memory."""
        if plan.arenas < WANTED_ARENAS:
            room = plan.available_bytes if plan.limit_bytes is None else plan.limit_bytes
            warnings.warn(
                f"there is memory for one capture of {plan.state_bytes:,} bytes, not for {WANTED_ARENAS} ({room:,} "
                "bytes are free): a save that comes due while another is being written is skipped",
                SaveBudgetWarning,
                stacklevel=_AT_RESTORE,
            )
