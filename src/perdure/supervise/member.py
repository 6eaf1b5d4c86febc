"""
One member of a supervised run: where it stands across all its incarnations.

A member moves through these states::

    waiting ──due──> alive ──exit──> done · gave-up · waiting         (exit code 0 · hopeless · else)
                       ├──silent──> killed ──dead, or overdue──> waiting · gave-up
                       └──run ends──> stopping ──dead──> stopped      (SIGTERM, then SIGKILL after the grace)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from perdure.core.restarts import History, Outcome, Phase, Signs, silent_at
from perdure.supervise.beats import Beat
from perdure.supervise.config import RoleConfig
from perdure.supervise.process import Process


class MemberState(str, Enum):
    """Where a member stands; see the module's drawing."""

    WAITING = "waiting"
    ALIVE = "alive"
    STOPPING = "stopping"
    KILLED = "killed"
    DONE = "done"
    GAVE_UP = "gave-up"
    STOPPED = "stopped"


_OVER = (MemberState.DONE, MemberState.GAVE_UP, MemberState.STOPPED)


@dataclass(frozen=True, slots=True)
class MemberStatistics:
    """One member at one moment."""

    name: str
    role: str
    state: MemberState
    pid: int | None
    """Process id and process group of its incarnation; None while it has none."""
    restart_count: int
    phase: Phase
    progress: int | None
    step: int | None
    generation: int | None


@dataclass(frozen=True, slots=True)
class SupervisorStatistics:
    """The whole run at one moment."""

    members: tuple[MemberStatistics, ...]
    ignored_beats_count: int
    """Datagrams that were no beats, or were those of strangers or of earlier incarnations."""


class Member:
    """The supervisor's own record of a member; only its thread writes to it."""

    def __init__(self, name: str, role: RoleConfig, now: float) -> None:
        self.name = name
        self.role = role
        self.state = MemberState.WAITING
        self.due_at = now
        """When its state has lasted too long; of a waiting one, when it is to be started."""
        self.process: Process | None = None
        self.signs = Signs.at_start(now)
        self.beat: Beat | None = None
        """Newest beat of this incarnation."""
        self.history = History()
        self.restart_count = 0
        self.faulted_at: float | None = None
        """Death or last sign of life of the incarnation before, until this one has recovered."""
        self.was_silent = False
        """Whether this incarnation was killed for its silence."""
        self.status: int | None = None
        """How the incarnation before ended, negative for signals."""
        self.gave_up_code: int | None = None
        self.is_logged = True
        """Whether its output last reached its log."""

    @property
    def is_over(self) -> bool:
        """Whether it will never run again."""
        return self.state in _OVER

    @property
    def deadline(self) -> float:
        """When the supervisor has to act, unless something happens before."""
        if self.state is MemberState.ALIVE:
            return silent_at(self.signs, self.role.budgets[self.signs.phase])
        return math.inf if self.is_over else self.due_at

    @property
    def outcome(self) -> Outcome:
        """What it contributes to the run's end."""
        return Outcome(is_done=self.state is MemberState.DONE, gave_up_code=self.gave_up_code)

    def statistics(self) -> MemberStatistics:
        """Describe it as it is now; any thread may ask."""
        process, beat = self.process, self.beat
        return MemberStatistics(
            name=self.name,
            role=self.role.name,
            state=self.state,
            pid=process.pid if process else None,
            restart_count=self.restart_count,
            phase=self.signs.phase,
            progress=self.signs.progress,
            step=beat.step if beat else None,
            generation=beat.generation if beat else None,
        )
