"""
What a ring is to the replay store: arrays that are written round and round, whoever owns them.

`perdure.replay.RingBuffer` is one. An adapter makes a framework's own preallocated arrays one by answering these few
questions about them; the arrays stay where they are and the framework goes on using them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from perdure.core.ring import RingState
from perdure.replay.journal import Journal

Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class RingContent:
    """What a ring is brought to by a restore; the arrays are the ring's from then on."""

    columns: Columns
    """Arrays of the shapes and types that the ring has, plain, contiguous and writable."""
    mutable: Columns
    state: RingState
    random_state: Mapping[str, Any] | None = None
    breaks: tuple[int, ...] = field(default=())
    """Slots after which rows were lost: their episodes must be made to end there."""


@runtime_checkable
class Ring(Protocol):
    """
    A ring of rows in plain arrays.

    All methods and properties are called in the thread that saves, with `Journal.lock` held where it says so.
    """

    @property
    def journal(self) -> Journal:
        """One for the ring's whole life; the store sets its groups."""
        ...

    @property
    def columns(self) -> Columns:
        """
        The arrays that are written at the head only, each of shape ``(capacity, ...)``; borrowed.

        A row that was added must not change until it is overwritten, unless `Journal.before_edit` is told first.
        """
        ...

    @property
    def mutable(self) -> Columns:
        """
        Arrays that may change anywhere, such as priorities; borrowed under the lock and copied at once.

        Those whose first dimension is the capacity hold one value a row and move with their rows.
        """
        ...

    @property
    def state(self) -> RingState:
        """Where the ring stands; read under the lock."""
        ...

    @property
    def n_envs(self) -> int:
        """Transitions in one row."""
        ...

    @property
    def random_state(self) -> Mapping[str, Any] | None:
        """JSON-able state of the generator that sampling draws from, if the ring has one of its own."""
        ...

    @property
    def announces_writes(self) -> bool:
        """
        Whether `Journal.before_write` is called, with the lock held, before rows are overwritten.

        Where a framework gives no way to do that, the store keeps the rows ahead of the head at each save, and a save
        that the ring overtakes all the same is given up with an error, never torn.
        """
        ...

    @property
    def rows_per_write(self) -> int:
        """The most rows that one write can reach beyond what `state` says, if writes are not announced."""
        ...

    @property
    def begins_at_zero(self) -> bool:
        """Whether a ring that is not full must hold its rows from slot 0 on."""
        ...

    @property
    def refuses_to_move(self) -> str:
        """Why rows cannot be given other slots, such as positions kept as values; '' if they can."""
        ...

    def watch_reads(self, watch: Callable[[NDArray[np.intp] | None], None]) -> bool:
        """
        Call ``watch`` before rows are read: with the slots of a sample, or with None before the arrays are handed out.

        It raises if they are damaged, and returns when they are in memory.

        Returns:
            Whether the ring can do that; if not it has done nothing.
        """
        ...

    def adopt(self, content: RingContent) -> None:
        """Go on with other arrays and positions; called with the lock held. Cannot fail half-way."""
        ...
