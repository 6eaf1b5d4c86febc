"""Pacing: when the saves of one tier are due, and what past ones have taught about their cost."""

from __future__ import annotations

import math
from collections.abc import Mapping

from perdure.core.saving import Budget, Cost, Save, SaveContext, SavePolicy, decide_save

_NEWS = 1.5


class Pace:
    """
    The saves of one tier. All methods but `learn` are called in the training thread.

    Args:
        policy: When to save; None saves only when asked.
        budget: Share of time that saving may cost; None for no limit.
        seconds: Monotonic time now.
    """

    def __init__(self, policy: SavePolicy | None, budget: Budget | None, seconds: float) -> None:
        self._policy = policy
        self._budget = budget
        self._step = 0
        self._seconds = seconds
        self.cost = Cost()
        self._told = self.chosen

    @property
    def stretch(self) -> float:
        """Factor by which the budget has lengthened the intervals."""
        return self._budget.stretch if self._budget else 1.0

    @property
    def interval_seconds(self) -> float | None:
        """The interval that an adaptive policy has chosen; None without one."""
        return self._policy.interval_seconds(self.cost) if self._policy else None

    @property
    def chosen(self) -> dict[str, float | None]:
        """Both, as the log has them."""
        return {"stretch": self.stretch, "interval_seconds": self.interval_seconds}

    def has_news(self) -> bool:
        """
        Whether what is chosen differs by half or more from what it was when this last said so.

        A cost is measured anew by each save, and so moves with each: the log of a run that saves every second would
        fill with it.
        """
        news = any(_differ(self._told[name], value) for name, value in self.chosen.items())
        if news:
            self._told = self.chosen
        return news

    def restart(self, step: int, seconds: float) -> None:
        """Count from here."""
        self._step = step
        self._seconds = seconds

    def since(self, seconds: float) -> float:
        """Seconds since the last save or restore."""
        return seconds - self._seconds

    def decide(
        self,
        step: int,
        seconds: float,
        metrics: Mapping[str, float],
        saved: Mapping[str, tuple[float, float]],
        *,
        moved: bool,
        stop: bool = False,
        final: bool = False,
        remaining_seconds: float = math.inf,
    ) -> Save | None:
        """Whether a save is due at this boundary."""
        context = SaveContext(
            steps=step - self._step,
            seconds=seconds - self._seconds,
            metrics=metrics,
            saved=saved,
            moved=moved,
            stop_requested=stop,
            final=final,
            stretch=self.stretch,
            cost=self.cost,
            remaining_seconds=remaining_seconds,
        )
        decision = decide_save(self._policy, context)
        return decision if isinstance(decision, Save) else None

    def learn(self, reason: str, *, blocked_seconds: float, write_seconds: float, interval_seconds: float) -> None:
        """Take a committed save's cost into account; called in the writer's thread."""
        self.cost = self.cost.after(blocked_seconds, write_seconds)
        # Only intervals of our own are ours to stretch: what asked, improved or stopped came when it came.
        if self._budget is not None and reason.startswith("every-"):
            self._budget = self._budget.after(blocked_seconds + write_seconds, interval_seconds)


def _differ(told: float | None, now: float | None) -> bool:
    if not told or not now:
        return told != now
    return max(told / now, now / told) >= _NEWS
