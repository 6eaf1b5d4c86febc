"""Stable-Baselines3's replay buffers as rings: the arrays stay the buffer's own, and every write is announced."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from perdure.core.ring import RingState
from perdure.errors import InvalidInputError
from perdure.replay import Journal, RingContent

Columns = dict[str, NDArray[Any]]

_WRITTEN_AT_HEAD = (
    "observations",
    "next_observations",
    "actions",
    "rewards",
    "dones",
    "timeouts",
    "ep_start",
)
_HEAD_OBSERVATION = "head_observation"


class ReplayRing:
    """
    A replay buffer of SB3 as `perdure.replay.Ring`.

    Arrays that are written at the head are the ring's columns; all others that the buffer holds are copied at each
    save. ``buffer.add`` is replaced by one that announces the write; pickles and copies of the buffer keep the plain
    one.

    Args:
        buffer: Borrowed.

    Raises:
        InvalidInputError: It keeps info dictionaries, which cannot be stored.
    """

    announces_writes = True
    begins_at_zero = True
    random_state = None

    def __init__(self, buffer: ReplayBuffer) -> None:
        if getattr(buffer, "copy_info_dict", False):
            raise InvalidInputError(
                "cannot save a HerReplayBuffer with copy_info_dict=True: info dictionaries are no plain data",
                kind="sb3.replay-infos",
                hint="make the buffer with copy_info_dict=False",
                field="copy_info_dict",
            )
        self.buffer = buffer
        self.journal = Journal((), buffer.buffer_size)
        self.total_count = buffer.size()
        self.n_envs = buffer.n_envs
        # One array holds both observations of a step, so an addition writes one row further.
        self.rows_per_write = 2 if buffer.optimize_memory_usage else 1
        self.refuses_to_move = "episodes are kept by slot" if isinstance(buffer, HerReplayBuffer) else ""
        buffer.add = _AnnouncedAdd(self)  # type: ignore[method-assign]

    def release(self) -> None:
        """Give the buffer its own ``add`` back."""
        vars(self.buffer).pop("add", None)

    def _arrays(self) -> dict[str, NDArray[Any]]:
        found: Columns = {}
        for name, value in vars(self.buffer).items():
            for key, array in value.items() if isinstance(value, dict) else [("", value)]:
                if isinstance(array, np.ndarray) and not array.dtype.hasobject:
                    found[f"{name}.{key}" if key else name] = array
        return found

    def _is_column(self, name: str) -> bool:
        attribute = name.partition(".")[0]
        # Sampling n steps marks the newest row as cut for a moment: whoever copies it behind could see that.
        if attribute == "timeouts" and isinstance(self.buffer, NStepReplayBuffer):
            return False
        return attribute in _WRITTEN_AT_HEAD

    @property
    def columns(self) -> Columns:
        """The arrays that are written at the head, ``(rows, n_envs, ...)``; borrowed."""
        return {name: array for name, array in self._arrays().items() if self._is_column(name)}

    @property
    def mutable(self) -> Columns:
        """All other arrays, and the observation at the head where it belongs to the row before; borrowed."""
        found = {name: array for name, array in self._arrays().items() if not self._is_column(name)}
        if self.buffer.optimize_memory_usage:
            found[_HEAD_OBSERVATION] = self.buffer.observations[self.buffer.pos]
        return found

    @property
    def state(self) -> RingState:
        """Where the buffer stands, in rows."""
        return RingState(self.buffer.buffer_size, self.buffer.pos, self.buffer.size(), self.total_count)

    def watch_reads(self, watch: Callable[[NDArray[np.intp] | None], None]) -> bool:  # noqa: ARG002 - as `Ring` has it
        """Sampling cannot be watched: what it draws is decided within one call."""
        return False

    def adopt(self, content: RingContent) -> None:
        """Go on with what was restored."""
        buffer = self.buffer
        head = content.mutable.get(_HEAD_OBSERVATION)
        arrays: Mapping[str, NDArray[Any]] = {**content.columns, **content.mutable}
        for name in self._arrays():
            attribute, _, key = name.partition(".")
            if key:
                getattr(buffer, attribute)[key] = arrays[name]
            else:
                setattr(buffer, attribute, arrays[name])
        buffer.pos = content.state.head_position
        buffer.full = content.state.size == content.state.capacity
        self.total_count = content.state.total_count
        if head is not None:
            buffer.observations[buffer.pos] = head
        for row in content.breaks:
            self._end_episodes(row)

    def end_episodes(self) -> None:
        """Mark the newest step as the last of its episodes: what comes next belongs to others."""
        if not self.buffer.size():
            return
        row = (self.buffer.pos - 1) % self.buffer.buffer_size
        with self.journal.lock:
            self.journal.before_edit(self.columns, row, 1)
            if isinstance(self.buffer, HerReplayBuffer):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # it warns of what is wanted here
                    self.buffer.truncate_last_trajectory()
            else:
                self._end_episodes(row)

    def _end_episodes(self, row: int) -> None:
        buffer = self.buffer
        running = buffer.dones[row] == 0
        buffer.dones[row][running] = 1
        if buffer.handle_timeout_termination:
            # A cut is no end of the task: the value of what would have come still counts.
            buffer.timeouts[row][running] = 1


class _AnnouncedAdd:
    """``buffer.add`` of a buffer that is being saved."""

    def __init__(self, ring: ReplayRing) -> None:
        self._ring = ring

    def __call__(self, *arguments: Any, **named: Any) -> None:
        ring, buffer = self._ring, self._ring.buffer
        with ring.journal.lock:
            if not ring.journal.is_idle:
                ring.journal.before_write(ring.columns, buffer.pos, ring.rows_per_write)
            type(buffer).add(buffer, *arguments, **named)
            ring.total_count += 1

    def __reduce__(self) -> tuple[Any, ...]:
        # A twin is asked for its method before it has got any attributes of its own, so it answers with its class's.
        return getattr, (self._ring.buffer, "add")
