"""What can go wrong, as values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kill:
    """A member and all that it started are killed with SIGKILL: there is no time for a last word."""

    member: str

    def __str__(self) -> str:
        return f"kill {self.member}"


@dataclass(frozen=True, slots=True)
class Freeze:
    """A member is stopped with SIGSTOP: alive by every look at the process table, and silent."""

    member: str

    def __str__(self) -> str:
        return f"freeze {self.member}"


@dataclass(frozen=True, slots=True)
class Thaw:
    """A frozen member goes on with SIGCONT, and does not know that time has passed."""

    member: str

    def __str__(self) -> str:
        return f"thaw {self.member}"


@dataclass(frozen=True, slots=True)
class DeleteNewestCheckpoint:
    """The run's newest committed checkpoint is deleted with everything in it, as by a careless `rm -r`."""

    def __str__(self) -> str:
        return "delete the newest checkpoint"


Fault = Kill | Freeze | Thaw | DeleteNewestCheckpoint
