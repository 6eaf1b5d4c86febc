"""What a restore did, as a value that is printed, logged and tested."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perdure.core.manifest import Grade


@dataclass(frozen=True, slots=True)
class RestoredComponent:
    """What became of one component."""

    name: str
    status: str
    """``loaded``, ``missing`` (the checkpoint has none) or ``unknown`` (nothing tracks it)."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class SkippedCheckpoint:
    """A newer checkpoint that could not be used, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """
    The outcome of a restore.

    Attributes:
        checkpoint: Full id, or None if the run starts fresh.
        step: Environment step that training continues from.
        generation: The generation that this process now is.
        grade: How exactly the run continues.
        components: What became of each component.
        skipped: Newer checkpoints that could not be used.
        steps_lost: Environment steps that had been done beyond ``step``, as far as the logs know.
        seconds: How long it took.
        notes: What else a user should know, such as changed versions.
    """

    checkpoint: str | None
    step: int
    generation: int
    grade: Grade
    components: tuple[RestoredComponent, ...] = ()
    skipped: tuple[SkippedCheckpoint, ...] = ()
    steps_lost: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The report for people, at most eight lines."""
        if self.checkpoint is None:
            return [f"starting fresh (generation {self.generation})"]
        loaded = [component.name for component in self.components if component.status == "loaded"]
        facts = f"generation {self.generation}, {self.steps_lost:,} steps lost, {self.seconds:.2f} s"
        lines = [
            f"resumed {self.checkpoint[:8]} at step {self.step:,} ({facts}, grade {self.grade.value})",
            f"loaded {', '.join(loaded)}",
        ]
        lines += [f"skipped {skip.name}: {skip.reason}" for skip in self.skipped[:2]]
        if len(self.skipped) > 2:
            lines.append(f"skipped {len(self.skipped) - 2} more")
        lines += [
            f"{c.name}: {c.status}{f' ({c.note})' if c.note else ''}"
            for c in self.components
            if c.status != "loaded" or c.note
        ]
        lines += list(self.notes)
        return lines if len(lines) <= 8 else [*lines[:7], f"and {len(lines) - 7} more notes"]

    def to_json(self) -> dict[str, Any]:
        """The report as one JSON-able object."""
        return {
            "checkpoint": self.checkpoint,
            "step": self.step,
            "generation": self.generation,
            "grade": self.grade.value,
            "components": [{"name": c.name, "status": c.status, "note": c.note} for c in self.components],
            "skipped": [{"name": s.name, "reason": s.reason} for s in self.skipped],
            "steps_lost": self.steps_lost,
            "seconds": self.seconds,
            "notes": list(self.notes),
        }
