"""
When to save: triggers as values, and the decision as a function.

A trigger looks at what happened since the last save and says whether one is due; ``|`` joins triggers, and the first
that is due wins. The budget keeps what saving costs below a share of the time between saves: when a save turned out
dearer than that, the interval stretches, and it shrinks back once saves are cheap again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from perdure.errors import InvalidInputError

DEFAULT_BUDGET_SHARE = 0.10
_LARGEST_STRETCH = 64.0
_SHRINK = 0.75
_NEWEST_WEIGHT = 0.3
_UNKNOWN_COST_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What a save costs, as an average in which newer saves weigh more; all zero before the first."""

    saves: int = 0
    blocked_seconds: float = 0.0
    """Time that training waited."""
    write_seconds: float = 0.0
    """Time that the writer was at work beside training."""

    @property
    def seconds(self) -> float:
        """All of it: what is written beside training takes bandwidth and some of a core from it."""
        return self.blocked_seconds + self.write_seconds

    def after(self, blocked_seconds: float, write_seconds: float) -> Cost:
        """The cost with one more save taken in."""
        weight = 1.0 if self.saves == 0 else _NEWEST_WEIGHT
        return Cost(
            self.saves + 1,
            self.blocked_seconds + weight * (blocked_seconds - self.blocked_seconds),
            self.write_seconds + weight * (write_seconds - self.write_seconds),
        )


@dataclass(frozen=True, slots=True)
class SaveContext:
    """What a decision is based on, all of it since the last save or restore."""

    steps: int
    """Environment steps done."""
    seconds: float
    """Time passed."""
    metrics: Mapping[str, float]
    """Newest value of each metric."""
    saved: Mapping[str, tuple[float, float]]
    """Lowest and highest value of each metric among the checkpoints so far."""
    moved: bool = True
    """Whether the run has gone on at all."""
    stop_requested: bool = False
    final: bool = False
    stretch: float = 1.0
    """Factor by which the budget has lengthened the intervals."""
    cost: Cost = Cost()
    """What saves have cost so far."""
    remaining_seconds: float = math.inf
    """Time until a process that was asked to stop will be killed."""


@dataclass(frozen=True, slots=True)
class Save:
    """A save is due; the reason goes into the manifest."""

    reason: str


@dataclass(frozen=True, slots=True)
class Skip:
    """No save is due."""

    reason: str


class SavePolicy:
    """Says whether a save is due. Combine with ``|``."""

    __slots__ = ()

    def due(self, context: SaveContext) -> str | None:
        """The reason to save now, or None."""
        raise NotImplementedError

    def interval_seconds(self, cost: Cost) -> float | None:
        """The interval that this policy chooses for itself, or None if it does not choose one."""
        del cost
        return None

    def __or__(self, other: SavePolicy) -> AnySave:
        return AnySave((self, other))


@dataclass(frozen=True, slots=True)
class AnySave(SavePolicy):
    """Save when any of the policies says so; the first that does gives the reason."""

    policies: tuple[SavePolicy, ...]

    def due(self, context: SaveContext) -> str | None:
        """The first reason among the policies, or None."""
        return next((reason for policy in self.policies if (reason := policy.due(context))), None)

    def interval_seconds(self, cost: Cost) -> float | None:
        """The shortest interval among those that choose one."""
        chosen = [policy.interval_seconds(cost) for policy in self.policies]
        return min((seconds for seconds in chosen if seconds is not None), default=None)


@dataclass(frozen=True, slots=True)
class Every(SavePolicy):
    """
    Save every so many environment steps, or every so many seconds.

    Join two with ``|`` for whichever comes first: ``Every(steps=100_000) | Every(seconds=1200)``.
    """

    steps: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        given = [value for value in (self.steps, self.seconds) if value is not None]
        if len(given) != 1 or given[0] <= 0:
            raise InvalidInputError(
                "cannot use this Every(): it takes exactly one of steps= and seconds=, greater than zero",
                kind="policy.invalid",
                hint="write Every(steps=100_000) | Every(seconds=1200) for whichever comes first",
                field="steps" if self.seconds is None else "seconds",
            )

    def due(self, context: SaveContext) -> str | None:
        """Due once the stretched interval has passed."""
        if self.steps is not None:
            return "every-steps" if context.steps >= self.steps * context.stretch else None
        assert self.seconds is not None
        return "every-seconds" if context.seconds >= self.seconds * context.stretch else None


@dataclass(frozen=True, slots=True)
class Adaptive(SavePolicy):
    """
    Save at the interval at which least is lost, whatever a save turns out to cost.

    Saving often costs time, saving rarely costs the work since the last save when something fails. With a cost of C for
    each save and a fault every M seconds on average, the sum is least at an interval of sqrt(2 C M) (J. W. Young, "A
    first order approximation to the optimum checkpoint interval", 1974). C is measured; an interval never gets so short
    that saving takes more than its share of the time.

    Args:
        seconds_between_faults: How long the run goes on between two faults, on average.
        share: Time that saving may take at most.
    """

    seconds_between_faults: float = 86_400.0
    share: float = DEFAULT_BUDGET_SHARE

    def __post_init__(self) -> None:
        if self.seconds_between_faults <= 0 or not 0 < self.share <= 1:
            raise InvalidInputError(
                "cannot use this Adaptive(): seconds_between_faults is above zero and share between 0 and 1",
                kind="policy.invalid",
                field="seconds_between_faults",
            )

    def interval_seconds(self, cost: Cost) -> float:
        """Seconds between saves of this cost; before the first save, those of one that costs a second."""
        seconds = cost.seconds if cost.saves else _UNKNOWN_COST_SECONDS
        return max(math.sqrt(2 * seconds * self.seconds_between_faults), seconds / self.share)

    def due(self, context: SaveContext) -> str | None:
        """Due once the interval for the cost so far has passed."""
        return "adaptive" if context.seconds >= self.interval_seconds(context.cost) else None


@dataclass(frozen=True, slots=True)
class OnImprovement(SavePolicy):
    """Save when a metric is better than at every checkpoint so far; the first value is an improvement."""

    metric: str
    mode: str = "max"

    def __post_init__(self) -> None:
        check_mode(self.mode)

    def due(self, context: SaveContext) -> str | None:
        """Due when the newest value beats the best one that has been saved."""
        value = context.metrics.get(self.metric)
        if value is None or value != value:  # noqa: PLR0124 - not a number is never an improvement
            return None
        lowest, highest = context.saved.get(self.metric, (None, None))
        best = highest if self.mode == "max" else lowest
        return f"improved {self.metric}" if best is None or is_better(value, best, self.mode) else None


def check_mode(mode: str) -> None:
    """Refuse a mode that is neither ``max`` nor ``min``."""
    if mode not in ("max", "min"):
        raise InvalidInputError(f"cannot use mode {mode!r}: it is 'max' or 'min'", kind="policy.invalid", field="mode")


def is_better(value: float, than: float, mode: str) -> bool:
    """Whether ``value`` is strictly better."""
    return value > than if mode == "max" else value < than


def decide_save(policy: SavePolicy | None, context: SaveContext) -> Save | Skip:
    """
    Decide at a boundary whether to save.

    A stop and the end of the run save whatever has not been saved, policy or not. Only if a stop leaves less time than
    a save takes is it left: what is being written already can use that time, and a save that is cut short is lost.
    """
    if not context.moved:
        return Skip("nothing has happened since the last save")
    if context.stop_requested:
        has_time = context.cost.saves == 0 or context.cost.seconds <= context.remaining_seconds
        return Save("preemption") if has_time else Skip("no time is left for it")
    if context.final:
        return Save("final")
    reason = policy.due(context) if policy is not None else None
    return Save(reason) if reason else Skip("not due")


def widen(ranges: Mapping[str, tuple[float, float]], metrics: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """The ranges with one more checkpoint's metrics taken in."""
    merged = dict(ranges)
    for name, value in metrics.items():
        lowest, highest = merged.get(name, (value, value))
        merged[name] = (min(lowest, value), max(highest, value))
    return merged


@dataclass(frozen=True, slots=True)
class Budget:
    """
    The share of time that saving may cost, and how far intervals are stretched to keep to it.

    Attributes:
        share: Allowed cost of a save as a share of the time since the one before.
        stretch: Factor on every interval, at least 1.
    """

    share: float = DEFAULT_BUDGET_SHARE
    stretch: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise InvalidInputError(
                f"cannot use a save budget of {self.share}: it is a share of time between 0 and 1",
                kind="policy.invalid",
                field="budget",
            )

    def after(self, cost_seconds: float, interval_seconds: float) -> Budget:
        """
        The budget after a save that cost ``cost_seconds`` and came ``interval_seconds`` after the one before.

        Stretches at once to what would have been within the share, and shrinks step by step only where the shorter
        interval would still have been within it, so that it does not swing.
        """
        if interval_seconds <= 0:
            return self
        used = cost_seconds / interval_seconds
        if used > self.share:
            return replace(self, stretch=min(self.stretch * used / self.share, _LARGEST_STRETCH))
        if used / _SHRINK <= self.share:
            return replace(self, stretch=max(self.stretch * _SHRINK, 1.0))
        return self
