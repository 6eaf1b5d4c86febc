"""
Whether, when and why a supervised process is started again, and what a run's end is called.

Two rules keep restarts from becoming a storm. A member's unplanned exits are charged to a budget; when it is used up,
the supervisor gives up with an exit code that says why. Only progress beyond everything reached before refills the
budget, because time passes for a process that dies at the same step for ever just as it does for a healthy one. A
member that reports no progress at all is judged by a sliding window instead: nothing better is known about it.

Everything here is a function of values; times are monotonic seconds and random numbers are passed in.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType

from perdure.errors import InvalidInputError

EXIT_DONE = 0
"""Every essential member finished."""
EXIT_FAILED = 1
"""An essential member cannot go on for a reason that a restart does not mend, such as a full disk."""
EXIT_CONFIG = 2
"""An essential member, or the supervisor itself, cannot use its command line or configuration."""
EXIT_FENCED = 12
"""An essential member was superseded by a newer generation elsewhere."""
EXIT_BUDGET_EXHAUSTED = 20
"""An essential member exited too often without progress."""
EXIT_SILENT_TOO_OFTEN = 21
"""An essential member had to be killed for its silence once more than the budget allows."""
EXIT_STOPPED = 75
"""Every essential member stopped on request, after its commit: the same command continues the run."""

FENCED = "lease.fenced"
"""Last words of a member that was superseded, for one that ends with a traceback and not with status 12."""
DISK_FULL = "store.full"
"""Last words of a process that ends because its disk is full: the kind of the error that ended it."""


def _require(condition: bool, field: str, expected: str, value: float) -> None:  # noqa: FBT001 - an assertion's own form
    if not condition:
        raise InvalidInputError(
            f"cannot use {value!r} as {field}: expected {expected}",
            kind="config.bad-value",
            field=field,
        )


class Phase(str, Enum):
    """What a process is busy with, which decides how long it may be silent."""

    STARTING = "starting"
    RESTORING = "restoring"
    RUNNING = "running"
    SAVING = "saving"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class PhaseBudget:
    """How patient the supervisor is in one phase; infinity is allowed and means for ever."""

    silence_seconds: float
    """Longest time without a sign of life."""
    stall_seconds: float = math.inf
    """Longest time for which beats count as signs of life although their progress does not move."""

    def __post_init__(self) -> None:
        _require(self.silence_seconds > 0, "silence_seconds", "more than 0", self.silence_seconds)
        _require(self.stall_seconds > 0, "stall_seconds", "more than 0", self.stall_seconds)


DEFAULT_BUDGETS: Mapping[Phase, PhaseBudget] = MappingProxyType(
    {
        Phase.STARTING: PhaseBudget(silence_seconds=120.0),
        Phase.RESTORING: PhaseBudget(silence_seconds=600.0),
        Phase.RUNNING: PhaseBudget(silence_seconds=30.0),
        Phase.SAVING: PhaseBudget(silence_seconds=600.0),
        Phase.DRAINING: PhaseBudget(silence_seconds=60.0),
    }
)


@dataclass(frozen=True, slots=True)
class Signs:
    """When a process last showed life."""

    phase: Phase
    """As its newest beat says; STARTING before the first one."""
    last_beat: float
    """When its newest beat arrived; its start before the first one."""
    last_output: float
    """When it last wrote to its standard output or error; its start before that."""
    last_moved: float
    """When its phase or its progress counter last changed."""
    progress: int | None = None
    """Its newest progress counter."""

    @classmethod
    def at_start(cls, now: float) -> Signs:
        """Signs of a process that was started just now."""
        return cls(Phase.STARTING, last_beat=now, last_output=now, last_moved=now)

    def with_beat(self, phase: Phase, progress: int | None, now: float) -> Signs:
        """Signs after a beat that arrived just now."""
        is_moved = (phase, progress) != (self.phase, self.progress)
        return replace(
            self,
            phase=phase,
            progress=progress,
            last_beat=now,
            last_moved=now if is_moved else self.last_moved,
        )

    def with_output(self, now: float) -> Signs:
        """Signs after some output that arrived just now."""
        return replace(self, last_output=now)

    def shifted(self, seconds: float, now: float) -> Signs:
        """The same signs later, but not in the future: for a watcher that was blind for so long."""
        return replace(
            self,
            last_beat=min(self.last_beat + seconds, now),
            last_output=min(self.last_output + seconds, now),
            last_moved=min(self.last_moved + seconds, now),
        )


def last_sign(signs: Signs, budget: PhaseBudget) -> float:
    """Say when a process last showed life that counts: any output, or a beat while its progress is not stalled."""
    last_counting_beat = min(signs.last_beat, signs.last_moved + budget.stall_seconds)
    return max(last_counting_beat, signs.last_output)


def silent_at(signs: Signs, budget: PhaseBudget) -> float:
    """Say when a process will be silent for too long, if nothing more is heard of it."""
    return last_sign(signs, budget) + budget.silence_seconds


def is_silent(signs: Signs, budget: PhaseBudget, now: float) -> bool:
    """Say whether a process has been silent for longer than its phase allows."""
    return now >= silent_at(signs, budget)


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often and how soon a member is started again."""

    max_restarts: int = 5
    """Unplanned exits that are answered by a restart before the budget is used up; 0 never restarts."""
    window_seconds: float = 600.0
    """Age at which an unplanned exit of a member that reports no progress is forgiven."""
    backoff_first_seconds: float = 1.0
    """Longest wait before the first restart; each further one doubles it."""
    backoff_limit_seconds: float = 60.0
    """Longest wait before any restart."""
    min_progress: int = 1
    """How far beyond the highest value reached before an exit the progress counter must go to refill the budget."""
    restarts_fenced: bool = False
    """Whether a member that was superseded comes back as a new incarnation: right for actors, wrong for a learner."""

    def __post_init__(self) -> None:
        _require(self.max_restarts >= 0, "max_restarts", "0 or more", self.max_restarts)
        _require(self.window_seconds > 0, "window_seconds", "more than 0", self.window_seconds)
        _require(self.backoff_first_seconds >= 0, "backoff_first_seconds", "0 or more", self.backoff_first_seconds)
        _require(self.backoff_limit_seconds >= 0, "backoff_limit_seconds", "0 or more", self.backoff_limit_seconds)
        _require(self.min_progress >= 1, "min_progress", "1 or more", self.min_progress)


@dataclass(frozen=True, slots=True)
class History:
    """What is remembered of a member across its incarnations."""

    faults: tuple[float, ...] = ()
    """When it exited unplanned, as far as no progress has made up for it; oldest first."""
    highest_progress: int | None = None
    """Highest progress counter that it ever reported; None if it reports none."""
    progress_mark: int | None = None
    """Progress that the next refill is measured from: the highest value at the last exit or refill."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended."""

    status: int
    """Its exit code, or the number of the signal that ended it, negated."""
    is_silent: bool = False
    """Whether the supervisor killed it because of its silence."""
    is_stop_requested: bool = False
    """Whether the supervisor had asked it to stop."""
    last_words: str = ""
    """Note of its last beat: the kind of the error that ended it, if it could say so."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Start a new incarnation."""

    after_seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Never start the member again."""

    reason: str
    """One of ``config-error``, ``fenced``, ``disk-full``, ``restart-budget-exhausted``, ``silent-too-often``."""
    exit_code: int
    """What the supervisor exits with if the run cannot do without the member."""


@dataclass(frozen=True, slots=True)
class Done:
    """The member ended as planned."""


def decide(ended: Exit, history: History, policy: RestartPolicy, now: float, jitter: float) -> Restart | GiveUp | Done:
    """
    Decide what follows an exit.

    The wait before a restart is drawn from zero to an exponentially growing limit ("full jitter"), so that members
    which died of one cause do not come back in step.

    Args:
        ended: The exit.
        history: What happened before, this exit not included.
        policy: The member's policy.
        now: Time of the exit.
        jitter: A random number from 0 to 1.
    """
    if ended.is_stop_requested or ended.status == EXIT_DONE:
        return Done()
    if ended.status == EXIT_CONFIG:
        return GiveUp("config-error", EXIT_CONFIG)
    if (ended.status == EXIT_FENCED or ended.last_words == FENCED) and not policy.restarts_fenced:
        return GiveUp("fenced", EXIT_FENCED)
    if ended.last_words == DISK_FULL:
        return GiveUp("disk-full", EXIT_FAILED)
    charged = len(charged_faults(history, policy, now))
    if charged < policy.max_restarts:
        return Restart(jitter * backoff_limit(charged, policy))
    if ended.is_silent:
        return GiveUp("silent-too-often", EXIT_SILENT_TOO_OFTEN)
    return GiveUp("restart-budget-exhausted", EXIT_BUDGET_EXHAUSTED)


def charged_faults(history: History, policy: RestartPolicy, now: float) -> tuple[float, ...]:
    """Unplanned exits that count against the budget: all since the last refill, or those within the window."""
    if history.highest_progress is not None:
        return history.faults
    return tuple(fault for fault in history.faults if now - fault < policy.window_seconds)


def backoff_limit(charged_count: int, policy: RestartPolicy) -> float:
    """Say how long, in seconds, a restart may be put off after so many charged exits."""
    doublings = min(charged_count, 64)  # beyond any limit, and short of overflowing a float
    return min(policy.backoff_limit_seconds, policy.backoff_first_seconds * 2.0**doublings)


def with_fault(history: History, policy: RestartPolicy, now: float) -> History:
    """History after an unplanned exit: one more charge, and progress starts to count from the highest so far."""
    return replace(
        history,
        faults=(*charged_faults(history, policy, now), now),
        progress_mark=history.highest_progress,
    )


def with_progress(history: History, progress: int, policy: RestartPolicy) -> History:
    """
    History after a report of progress, which may refill the budget.

    The first report ever only sets the mark: a process that restored step 40,000 has not made 40,000 steps.
    """
    if history.highest_progress is None or history.progress_mark is None:
        return replace(history, highest_progress=progress, progress_mark=progress)
    highest = max(history.highest_progress, progress)
    if highest - history.progress_mark < policy.min_progress:
        return replace(history, highest_progress=highest)
    return History(faults=(), highest_progress=highest, progress_mark=highest)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an essential member stands, as far as the run's end depends on it."""

    is_done: bool = False
    """Whether it ended as planned."""
    gave_up_code: int | None = None
    """The exit code of the reason why it was given up, if it was."""


def judge_run(essential: Iterable[Outcome]) -> int | None:
    """
    Say with which exit code the run is over, or None while it goes on.

    It is over when every essential member is done, or as soon as one of them was given up.
    """
    outcomes = tuple(essential)
    for outcome in outcomes:
        if outcome.gave_up_code is not None:
            return outcome.gave_up_code
    return EXIT_DONE if all(outcome.is_done for outcome in outcomes) else None


def judge_stop(essential_statuses: Iterable[int | None], signal_number: int) -> int:
    """
    Say with which exit code a run ends that was asked to stop by a signal.

    Args:
        essential_statuses: Last exit status of every essential member, negative for signals; None if it never ran.
        signal_number: The signal that asked.
    """
    is_clean = all(status in (EXIT_DONE, EXIT_STOPPED) for status in essential_statuses)
    return EXIT_STOPPED if is_clean else 128 + signal_number


def describe_status(status: int) -> str:
    """Describe an exit status in words: ``exit code 3``, ``SIGKILL``."""
    if status >= 0:
        return f"exit code {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:  # real-time signals have no names
        return f"signal {-status}"
