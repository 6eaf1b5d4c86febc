"""Settings: what a run is opened with, checked before anything is made on the disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perdure.core.leases import Timing
from perdure.core.retention import KeepPolicy, Last
from perdure.core.saving import DEFAULT_BUDGET_SHARE, Budget, Every, SavePolicy
from perdure.errors import InvalidInputError

DEFAULT_SAVE = Every(seconds=600)
DEFAULT_KEEP = Last(3)
_WORDS = {"copy": ("before", "beside"), "on_failed_save": ("warn", "raise")}


@dataclass(frozen=True, slots=True)
class Settings:
    """
    The arguments of `perdure.open`, which explains them.

    Raises:
        InvalidInputError: Kind ``open.invalid`` or ``policy.invalid``: a word or number cannot be used.
    """

    save: SavePolicy | None = DEFAULT_SAVE
    keep: KeepPolicy | None = DEFAULT_KEEP
    resume: str = "auto"
    accept: tuple[str, ...] = ()
    unpickle: tuple[str, ...] = ()
    budget: float | None = DEFAULT_BUDGET_SHARE
    copy: str = "before"
    memory_bytes: int | None = None
    ram: SavePolicy | None = None
    algorithm: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    on_failed_save: str = "warn"
    timing: Timing = field(default_factory=Timing)
    quiet: bool = False

    def __post_init__(self) -> None:
        for name, allowed in _WORDS.items():
            value = getattr(self, name)
            if value not in allowed:
                raise InvalidInputError(
                    f"cannot use {name}={value!r}: it is {' or '.join(map(repr, allowed))}",
                    kind="open.invalid",
                    field=name,
                )
        self.make_budget()

    def make_budget(self) -> Budget | None:
        """The budget that saving begins with; None for no limit."""
        return None if self.budget is None else Budget(self.budget)
