"""A replay buffer for home-made training systems: a ring of rows in plain arrays, sampled in several ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perdure.core.ring import RingState, spans
from perdure.errors import InvalidInputError
from perdure.replay.batches import Batch, Prioritized, Roles, import_torch
from perdure.replay.journal import Journal
from perdure.replay.priorities import SumTree
from perdure.replay.rings import RingContent
from perdure.replay.rows import empty_columns, fit_rows
from perdure.replay.windows import Episode, find_episodes, n_step_returns, sequence_slots


class RingBuffer:
    """
    The newest transitions of some environments, in preallocated arrays of shape ``(rows, n_envs, *shape)``.

    One row is one step of all environments. Adding copies into the ring; sampling copies out of it. May be used from
    several threads. Memory is taken as rows are first written.

    Args:
        capacity: Transitions to hold, a multiple of ``n_envs``.
        columns: By name, the element type and shape of one transition, as in ``{"obs": (np.uint8, (4, 84, 84))}``;
            or an example transition as arrays or numbers. Episode numbers, recurrent states and the like are columns.
        n_envs: Environments that step together.
        rng: Seed or generator to sample with; its state is saved and restored with the buffer.
        prioritized: Sample by priority; uniform if None.
        roles: What the columns mean.

    Raises:
        InvalidInputError: A name, type or size cannot be used.

    Example:
        >>> buffer = RingBuffer(100_000, {"obs": (np.float32, (3,)), "reward": (np.float32, ())}, rng=7)
        >>> buffer.add(obs=np.zeros(3, np.float32), reward=1.0)
        >>> buffer.sample(2)["obs"].shape
        (2, 3)
    """

    announces_writes = True
    rows_per_write = 0
    begins_at_zero = False
    refuses_to_move = ""

    def __init__(
        self,
        capacity: int,
        columns: Mapping[str, Any],
        *,
        n_envs: int = 1,
        rng: int | np.random.Generator | None = None,
        prioritized: Prioritized | None = None,
        roles: Roles | None = None,
    ) -> None:
        if capacity < 1 or n_envs < 1 or capacity % n_envs:
            raise InvalidInputError(
                f"cannot make a replay buffer of {capacity} transitions of {n_envs} environments: the capacity must be "
                "a positive multiple of n_envs",
                kind="replay.invalid-capacity",
                field="capacity",
            )
        self._rows = capacity // n_envs
        self._n_envs = n_envs
        self._columns = empty_columns(self._rows, n_envs, columns)
        self._state = RingState(self._rows, 0, 0, 0)
        self.rng = rng if isinstance(rng, np.random.Generator) else np.random.default_rng(rng)
        self.roles = roles or Roles()
        self._prioritized = prioritized
        self._tree = SumTree(capacity) if prioritized else None
        self._largest_priority = 1.0
        self._watch: Callable[[NDArray[np.intp] | None], None] | None = None
        self._journal = Journal((), self._rows)

    def __len__(self) -> int:
        return self._state.size * self._n_envs

    @property
    def capacity(self) -> int:
        """The most transitions that it holds."""
        return self._rows * self._n_envs

    @property
    def n_envs(self) -> int:
        """Environments that step together."""
        return self._n_envs

    @property
    def total_count(self) -> int:
        """Transitions ever added."""
        return self._state.total_count * self._n_envs

    @property
    def state(self) -> RingState:
        """Where the ring stands, in rows."""
        return self._state

    @property
    def journal(self) -> Journal:
        """Where writes are announced to pending saves."""
        return self._journal

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The ring's arrays, ``(rows, n_envs, *shape)``: views for reading, valid until the next restore."""
        self._read(None)
        return dict(self._columns)

    def torch(self, name: str) -> Any:
        """
        Give a column as a tensor that shares its memory, ``(rows, n_envs, *shape)``; valid until the next restore.

        Raises:
            MissingDependencyError: torch is not installed.
        """
        return import_torch().from_numpy(self.columns[name])

    # Adding

    def add(self, **row: Any) -> None:
        """
        Add one step of every environment.

        Args:
            row: Every column's value, ``(n_envs, *shape)``, or ``(*shape)`` if there is one environment. Copied.

        Raises:
            InvalidInputError: A column is missing, unknown, or of another shape or kind; nothing was added.
        """
        self._add(fit_rows(self._columns, row, None))

    def add_batch(self, **rows: Any) -> None:
        """
        Add several steps, oldest first.

        Args:
            rows: Every column's values, ``(steps, n_envs, *shape)``, or ``(steps, *shape)`` if there is one
                environment. Copied. Of more steps than the ring has rows, the last ones stay.

        Raises:
            InvalidInputError: As in `add`, or the numbers of steps differ; nothing was added.
        """
        count = max((len(values) for values in rows.values()), default=0)
        self._add(fit_rows(self._columns, rows, count))

    def _add(self, rows: Mapping[str, NDArray[Any]]) -> None:
        count = len(next(iter(rows.values())))
        skipped = max(0, count - self._rows)
        with self._journal.lock:
            state = self._state
            first = (state.head_position + skipped) % self._rows
            self._journal.before_write(self._columns, first, count - skipped)
            position = skipped
            for start, stop in spans(first, count - skipped, self._rows):
                for name, values in rows.items():
                    self._columns[name][start:stop] = values[position : position + stop - start]
                position += stop - start
            if self._tree is not None and self._prioritized is not None:
                slots = (first + np.arange(count - skipped)) % self._rows
                value = self._largest_priority**self._prioritized.alpha
                self._tree.set(self._indices(slots), np.full((count - skipped) * self._n_envs, value))
            self._state = RingState(
                self._rows,
                (state.head_position + count) % self._rows,
                min(self._rows, state.size + count),
                state.total_count + count,
            )

    def _indices(self, slots: NDArray[np.intp]) -> NDArray[np.intp]:
        return (slots[:, None] * self._n_envs + np.arange(self._n_envs)).ravel()

    # Sampling

    def sample(
        self,
        batch_size: int,
        *,
        n_step: int = 1,
        discount: float = 0.99,
        beta: float | None = None,
        rng: np.random.Generator | None = None,
    ) -> Batch:
        """
        Draw transitions, with replacement.

        Args:
            batch_size: How many.
            n_step: Sum rewards over up to so many steps; the next observation and the end are those of the last one.
            discount: Of one step.
            beta: In place of the buffer's own, if sampling is by priority.
            rng: In place of the buffer's own.

        Raises:
            InvalidInputError: Kind ``replay.empty``.
            CorruptionError: A part of the buffer that was restored turned out to be damaged.
        """
        with self._journal.lock:
            indices, weights = self._draw(batch_size, beta, rng or self.rng)
            slots, environments = np.divmod(indices, self._n_envs)
            self._read(slots)
            columns = {name: array[slots, environments] for name, array in self._columns.items()}
            factor = self._look_ahead(columns, slots, environments, n_step, discount)
        return Batch(columns, indices, weights, factor)

    def _look_ahead(
        self,
        columns: dict[str, NDArray[Any]],
        slots: NDArray[np.intp],
        environments: NDArray[np.intp],
        steps: int,
        discount: float,
    ) -> NDArray[np.float32]:
        """Replace what an n-step sample takes from its last step; returns the factor of the next value."""
        roles = self.roles
        last, factor = slots, np.full(len(slots), discount)
        if steps > 1:
            rewards = self._columns[self._role(roles.reward)]
            self._read(self._following(slots, steps))
            found = n_step_returns(
                rewards, self._ends, slots, environments, self._state, steps=steps, discount=discount
            )
            last, factor = found.last, found.discounts
            columns[roles.reward] = found.rewards.astype(rewards.dtype)
            for name in {*roles.next_observations, roles.terminated, roles.truncated} & set(self._columns):
                columns[name] = self._columns[name][last, environments]
        if roles.terminated in self._columns:
            factor = np.where(self._columns[roles.terminated][last, environments], 0.0, factor)
        return factor.astype(np.float32)

    def sample_sequences(self, batch_size: int, length: int, *, rng: np.random.Generator | None = None) -> Batch:
        """
        Draw stretches of consecutive steps of one environment, for recurrent networks.

        A stretch begins anywhere and never goes on into another episode or over the ring's seam: `Batch.is_valid` is
        False there, and the last step is repeated. Columns are ``(batch, length, *shape)``.

        Raises:
            InvalidInputError: Kind ``replay.empty``.
        """
        with self._journal.lock:
            indices, weights = self._draw(batch_size, None, rng or self.rng)
            starts, environments = np.divmod(indices, self._n_envs)
            self._read(self._following(starts, length))
            slots, is_valid = sequence_slots(self._ends, starts, environments, self._state, length)
            columns = {name: array[slots, environments[:, None]] for name, array in self._columns.items()}
        return Batch(columns, indices, weights, np.ones(batch_size, np.float32), is_valid)

    def episodes(self) -> list[Episode]:
        """Cut what is held into episodes, environment by environment, oldest first."""
        with self._journal.lock:
            self._read(np.concatenate([np.arange(*span) for span in self._state.spans] or [np.empty(0, np.intp)]))
            return find_episodes(self._ends, self._n_envs, self._state)

    def read(self, episode: Episode) -> dict[str, NDArray[Any]]:
        """Copy an episode's columns, each ``(length, *shape)``; right only if it was not overwritten meanwhile."""
        with self._journal.lock:
            self._read(episode.slots)
            return {name: array[episode.slots, episode.environment] for name, array in self._columns.items()}

    def update_priorities(self, indices: NDArray[np.intp], priorities: NDArray[Any] | Sequence[float]) -> None:
        """
        Set the priorities of samples, such as their absolute errors.

        Args:
            indices: `Batch.indices`.
            priorities: Finite and not negative, shape ``(batch,)``.

        Raises:
            InvalidInputError: The buffer is not prioritized, or a priority is not a number.
        """
        values = np.asarray(priorities, np.float64)
        if self._tree is None or self._prioritized is None or not np.all(np.isfinite(values) & (values >= 0)):
            raise InvalidInputError(
                "cannot set priorities: the buffer is not prioritized, or one is negative or no number",
                kind="replay.invalid-priority",
                hint="make the buffer with prioritized=Prioritized(), and give absolute errors",
                field="priorities",
            )
        values = values + self._prioritized.epsilon
        with self._journal.lock:
            self._tree.set(np.asarray(indices), values**self._prioritized.alpha)
            self._largest_priority = max(self._largest_priority, float(values.max(initial=0.0)))

    def _draw(
        self, count: int, beta: float | None, rng: np.random.Generator
    ) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        held = len(self)
        if held == 0:
            raise InvalidInputError("cannot sample: the replay buffer is empty", kind="replay.empty", field="buffer")
        if self._tree is None or self._prioritized is None:
            offsets = rng.integers(0, held, count)
            return (self._state.tail_position * self._n_envs + offsets) % self.capacity, np.ones(count, np.float32)
        # One point in each of `count` equal parts of the whole: the same expectation, less variance.
        points = (np.arange(count) + rng.random(count)) * (self._tree.total / count)
        indices = self._tree.find(points)
        chances = self._tree.leaves[indices] / self._tree.total
        weights = (held * chances) ** -(self._prioritized.beta if beta is None else beta)
        return indices, (weights / weights.max()).astype(np.float32)

    def _ends(self, slots: NDArray[np.intp], environments: NDArray[np.intp]) -> NDArray[np.bool_]:
        ends = np.zeros(slots.shape, np.bool_)
        for name in (self.roles.terminated, self.roles.truncated):
            if name in self._columns:
                ends |= self._columns[name][slots, environments].astype(np.bool_)
        return ends

    def _role(self, name: str) -> str:
        if name not in self._columns:
            raise InvalidInputError(
                f"cannot sum rewards: the buffer has no column {name!r}",
                kind="replay.no-such-column",
                hint="name it with roles=Roles(reward=...)",
                field=name,
            )
        return name

    def _following(self, slots: NDArray[np.intp], length: int) -> NDArray[np.intp]:
        return ((slots[:, None] + np.arange(length)) % self._rows).ravel()

    def _read(self, slots: NDArray[np.intp] | None) -> None:
        if self._watch is not None:
            self._watch(slots)

    # What the replay store asks for, see `perdure.replay.rings.Ring`

    @property
    def mutable(self) -> dict[str, NDArray[Any]]:
        """Priorities, if there are any."""
        if self._tree is None:
            return {}
        return {
            "priority": self._tree.leaves.reshape(self._rows, self._n_envs),
            "largest_priority": np.array([self._largest_priority]),
        }

    @property
    def random_state(self) -> Mapping[str, Any]:
        """State of the generator."""
        return self.rng.bit_generator.state

    def watch_reads(self, watch: Callable[[NDArray[np.intp] | None], None]) -> bool:
        """Have samples looked at before they are handed out."""
        self._watch = watch
        return True

    def adopt(self, content: RingContent) -> None:
        """Go on with what was restored."""
        self._columns = dict(content.columns)
        self._state = content.state
        if content.random_state is not None:
            self.rng.bit_generator.state = dict(content.random_state)
        if self.roles.truncated in self._columns and content.breaks:
            self._columns[self.roles.truncated][list(content.breaks)] = True
        if self._tree is not None:
            held = np.zeros((self._rows, self._n_envs), np.bool_)
            for start, stop in content.state.spans:
                held[start:stop] = True
            self._tree.fill(np.where(held, content.mutable["priority"], 0.0).ravel())
            self._largest_priority = float(content.mutable["largest_priority"][0])
