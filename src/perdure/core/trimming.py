"""What is kept of a ring, pure: how many rows a restore asks for, and how they are laid out in another ring."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from perdure.core.ring import RingState, Span, overlap


@dataclass(frozen=True, slots=True)
class All:
    """Restore every transition; the default."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """Restore no transition: the buffer begins empty, though what it has counted goes on."""


@dataclass(frozen=True, slots=True)
class Recent:
    """Restore the newest ``transitions`` only, rounded down to whole rows of the ring."""

    transitions: int


@dataclass(frozen=True, slots=True)
class MaxAge:
    """
    Restore what is less than ``steps`` environment steps older than the newest transition.

    With ``column``, the steps are the values of that column, which must not fall from one row to the next; without,
    each row counts one step of every environment.
    """

    steps: int
    column: str | None = None


Trim = All | Nothing | Recent | MaxAge


def plan_trim(trim: Trim, state: RingState, n_envs: int, stamps: Sequence[int] | None = None) -> int:
    """
    Rows to keep.

    Args:
        trim: What was asked for.
        state: The ring as it was saved.
        n_envs: Transitions of one row.
        stamps: The values of ``MaxAge.column``, oldest first; None if it has no column.
    """
    match trim:
        case Nothing():
            return 0
        case Recent(transitions):
            return min(state.size, max(0, transitions) // n_envs)
        case MaxAge(steps, _) if stamps is not None:
            return sum(1 for stamp in stamps if stamps[-1] - stamp < steps)
        case MaxAge(steps, _):
            return min(state.size, max(0, steps) // n_envs)
        case _:
            return state.size


@dataclass(frozen=True, slots=True)
class Move:
    """A run of rows that keeps its order and changes its place."""

    source: int
    target: int
    count: int


@dataclass(frozen=True, slots=True)
class Repacking:
    """How the rows of a ring are laid out in another one."""

    moves: tuple[Move, ...]
    state: RingState
    breaks: tuple[int, ...]
    """Slots after which rows are missing, so that what follows is not what came next."""


def plan_repacking(state: RingState, capacity: int, lost: Collection[Span] = ()) -> Repacking:
    """
    Lay the newest rows of a ring out from slot 0 of another one, in their order and without the lost ones.

    Args:
        state: The ring that the rows are in.
        capacity: Rows of the new ring.
        lost: Slots whose rows are gone.
    """
    runs = [run for span in state.spans for run in without(span, lost)]
    excess = sum(stop - start for start, stop in runs) - capacity
    moves: list[Move] = []
    breaks: list[int] = []
    target = 0
    for start, stop in runs:
        skipped = min(max(0, excess), stop - start)
        excess -= skipped
        if skipped == stop - start:
            continue
        if moves and (moves[-1].source + moves[-1].count) % state.capacity != start + skipped:
            breaks.append(target - 1)
        moves.append(Move(start + skipped, target, stop - start - skipped))
        target += stop - start - skipped
    if moves and moves[-1].source + moves[-1].count != (state.head_position or state.capacity):
        breaks.append(target - 1)
    return Repacking(tuple(moves), RingState(capacity, target % capacity, target, state.total_count), tuple(breaks))


def without(span: Span, lost: Collection[Span]) -> list[Span]:
    """What is left of a span; the lost ones may overlap."""
    runs = []
    start = span[0]
    for gap in sorted(gap for gone in lost if (gap := overlap(span, gone))):
        if gap[0] > start:
            runs.append((start, gap[0]))
        start = max(start, gap[1])
    if start < span[1]:
        runs.append((start, span[1]))
    return runs
