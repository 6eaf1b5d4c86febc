"""
What to keep: policies as values, and the plan as a function that says of each checkpoint why it stays.

A plan only ever names committed checkpoints, and never the newest one; deleting happens elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from perdure.core.manifest import Manifest
from perdure.core.saving import check_mode
from perdure.errors import InvalidInputError


class KeepPolicy:
    """Says which checkpoints to keep, and why. Combine with ``|``: what any policy keeps is kept."""

    __slots__ = ()

    def reasons(self, checkpoints: Sequence[Manifest]) -> dict[str, str]:
        """Reason to keep by checkpoint id; ``checkpoints`` come oldest first."""
        raise NotImplementedError

    def __or__(self, other: KeepPolicy) -> AnyKeep:
        return AnyKeep((self, other))


@dataclass(frozen=True, slots=True)
class AnyKeep(KeepPolicy):
    """Keep what any of the policies keeps."""

    policies: tuple[KeepPolicy, ...]

    def reasons(self, checkpoints: Sequence[Manifest]) -> dict[str, str]:
        """The policies' reasons, joined."""
        return merge_reasons([policy.reasons(checkpoints) for policy in self.policies])


@dataclass(frozen=True, slots=True)
class Last(KeepPolicy):
    """Keep the newest ``count`` checkpoints."""

    count: int

    def __post_init__(self) -> None:
        _check_positive(self.count, "count")

    def reasons(self, checkpoints: Sequence[Manifest]) -> dict[str, str]:
        """``last i/n``, counted from the newest."""
        newest = list(reversed(checkpoints))[: self.count]
        return {checkpoint.id: f"last {i}/{self.count}" for i, checkpoint in enumerate(newest, 1)}


@dataclass(frozen=True, slots=True)
class Best(KeepPolicy):
    """Keep the ``count`` checkpoints with the best value of a metric; equal values prefer the older one."""

    metric: str
    count: int = 1
    mode: str = "max"

    def __post_init__(self) -> None:
        _check_positive(self.count, "count")
        check_mode(self.mode)

    def reasons(self, checkpoints: Sequence[Manifest]) -> dict[str, str]:
        """``best metric``; a checkpoint without the metric is never the best."""
        sign = -1.0 if self.mode == "max" else 1.0
        known = [c for c in checkpoints if c.metrics.get(self.metric, float("nan")) == c.metrics.get(self.metric)]
        ranked = sorted(known, key=lambda checkpoint: sign * checkpoint.metrics[self.metric])
        return {checkpoint.id: f"best {self.metric}" for checkpoint in ranked[: self.count]}


@dataclass(frozen=True, slots=True)
class EverySteps(KeepPolicy):
    """Keep the first checkpoint at or after every multiple of ``steps``: a coarse history that never thins out."""

    steps: int

    def __post_init__(self) -> None:
        _check_positive(self.steps, "steps")

    def reasons(self, checkpoints: Sequence[Manifest]) -> dict[str, str]:
        """``milestone n`` for the first checkpoint of each interval."""
        first: dict[int, Manifest] = {}
        for checkpoint in checkpoints:
            first.setdefault(checkpoint.global_step // self.steps, checkpoint)
        return {checkpoint.id: f"milestone {interval * self.steps:,}" for interval, checkpoint in first.items()}


def _check_positive(value: int, field: str) -> None:
    if value < 1:
        raise InvalidInputError(
            f"cannot keep {field}={value}: it must be at least 1", kind="policy.invalid", field=field
        )


def merge_reasons(reasons: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Join reasons by id, in order, separated by commas."""
    merged: dict[str, str] = {}
    for some in reasons:
        for key, reason in some.items():
            merged[key] = f"{merged[key]}, {reason}" if key in merged else reason
    return merged


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """
    What a clean-up would do.

    Attributes:
        keep: Why each kept checkpoint is kept, by id.
        remove: Checkpoints to remove, oldest first.
    """

    keep: dict[str, str]
    remove: tuple[Manifest, ...]


def plan_retention(
    checkpoints: Sequence[Manifest],
    policy: KeepPolicy | None,
    pins: Mapping[str, str],
    protected: Collection[str] = (),
) -> RetentionPlan:
    """
    Plan which checkpoints stay.

    Args:
        checkpoints: All committed ones, in any order.
        policy: What to keep; None keeps all.
        pins: Pin names by checkpoint id; pinned checkpoints always stay.
        protected: Ids in use, such as one that is being restored.
    """
    ordered = sorted(checkpoints, key=lambda checkpoint: checkpoint.order)
    everything = {checkpoint.id: "no policy" for checkpoint in ordered}
    keep = merge_reasons(
        [
            everything if policy is None else policy.reasons(ordered),
            {key: f"pin:{name}" for key, name in pins.items()},
            dict.fromkeys(protected, "in use"),
            # Whatever a policy says, a run never loses its only way to go on.
            {ordered[-1].id: "newest"} if ordered else {},
        ]
    )
    remove = tuple(checkpoint for checkpoint in ordered if checkpoint.id not in keep)
    present = {checkpoint.id for checkpoint in ordered}
    return RetentionPlan({key: reason for key, reason in keep.items() if key in present}, remove)
