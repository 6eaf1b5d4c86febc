"""
The order of a restore, and what to do about each checkpoint that might be restored.

The order matters: a model before the optimizer that is tied to it, counters after the data they count, random number
generators last of all state, because building and filling the rest may draw from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from perdure.core.names import Section

MAXIMUM_RESTORE_DEATHS = 2
"""So often may a process die while restoring one checkpoint before the one before it is used."""


class Step(str, Enum):
    """One step of a recovery, in order."""

    VERIFY = "verify"
    MODELS = "models"
    REPLAY = "replay"
    COUNTERS = "counters"
    GENERATORS = "generators"
    SANITY = "sanity"
    GENERATION = "generation"


_STEP_OF = {
    Section.MODEL: Step.MODELS,
    Section.OPTIMIZER: Step.MODELS,
    Section.SCHEDULER: Step.MODELS,
    Section.BUFFER: Step.REPLAY,
    Section.STATE: Step.COUNTERS,
    Section.EVALUATION: Step.COUNTERS,
    Section.LEGACY: Step.COUNTERS,
    Section.ENVIRONMENT: Step.COUNTERS,
    Section.RNG: Step.GENERATORS,
}
_WITHIN = list(_STEP_OF)

STATE_STEPS = (Step.MODELS, Step.REPLAY, Step.COUNTERS, Step.GENERATORS)
"""The steps that change live objects."""


def plan_restore(sections: Mapping[str, Section], last: str) -> dict[Step, tuple[str, ...]]:
    """
    Say in which step each component is restored.

    Args:
        sections: Section by component name.
        last: The component that closes its step: the process-wide generators.
    """
    ordered = sorted(sections, key=lambda name: (name == last, _WITHIN.index(sections[name]), name))
    return {step: tuple(name for name in ordered if _STEP_OF[sections[name]] is step) for step in STATE_STEPS}


@dataclass(frozen=True, slots=True)
class Difference:
    """Components that only the checkpoint has, and components that only the program has."""

    unknown: tuple[str, ...]
    missing: tuple[str, ...]


def compare_components(saved: Iterable[str], tracked: Iterable[str], accepted: Iterable[str]) -> Difference:
    """Which differences are left after those that the user accepts by name, or all with ``*``."""
    saved_names, tracked_names, fine = set(saved), set(tracked), set(accepted)
    if "*" in fine:
        return Difference((), ())
    return Difference(
        tuple(sorted(saved_names - tracked_names - fine)), tuple(sorted(tracked_names - saved_names - fine))
    )


def should_pass_over(deaths: int, *, has_older: bool) -> bool:
    """
    Whether to use the checkpoint before this one, because restoring it has killed the process too often.

    The only checkpoint is never given up: whatever killed the process, trying again loses nothing.
    """
    return deaths >= MAXIMUM_RESTORE_DEATHS and has_older
