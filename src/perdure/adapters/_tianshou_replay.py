"""
Tianshou's replay buffers: the arrays as a ring, and what the buffer knows of its episodes and priorities beside it.

A buffer for several environments is one array cut into equal parts, each written round and round for itself. To the
ring it is an array with several heads: a write is announced as a change in place, which saves the segments it falls in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tianshou.data import (
    Batch,
    PrioritizedReplayBuffer,
    PrioritizedReplayBufferManager,
    PrioritizedVectorReplayBuffer,
    ReplayBuffer,
    ReplayBufferManager,
    VectorReplayBuffer,
)

from perdure.adapters._late_replay import expected_columns
from perdure.capture.objects import does_not_fit
from perdure.core.manifest import Grade
from perdure.core.names import Section
from perdure.core.ring import RingState
from perdure.errors import InvalidInputError
from perdure.replay import Journal, RingContent
from perdure.replay.header import Header

Columns = dict[str, NDArray[Any]]

_KNOWN = frozenset({
    ReplayBuffer, ReplayBufferManager, VectorReplayBuffer,
    PrioritizedReplayBuffer, PrioritizedReplayBufferManager, PrioritizedVectorReplayBuffer,
})  # fmt: skip
_INFO = "info"
_POSITIONS = ("_insertion_idx", "_size", "_ep_return", "_ep_len", "_ep_start_idx")
_PRIORITIES = ("_max_prio", "_min_prio", "_beta")


def parts_of(buffer: ReplayBuffer) -> list[tuple[int, ReplayBuffer]]:
    """The buffers that are written round and round, each with the row that it begins at."""
    if isinstance(buffer, ReplayBufferManager):
        return list(zip(buffer._offset.tolist(), buffer.buffers, strict=True))  # noqa: SLF001 - it has no public name
    return [(0, buffer)]


class BufferRing:
    """
    A replay buffer as `perdure.replay.Ring`.

    ``buffer.add`` and ``buffer.update`` are replaced by ones that announce the write.

    Args:
        buffer: Borrowed.

    Raises:
        InvalidInputError: Kind ``tianshou.replay``: a buffer that changes rows when it is sampled, or moves them.
    """

    announces_writes = True
    begins_at_zero = False
    n_envs = 1
    rows_per_write = 0
    random_state = None
    refuses_to_move = "episodes are kept by slot"

    def __init__(self, buffer: ReplayBuffer) -> None:
        if type(buffer) not in _KNOWN:
            raise InvalidInputError(
                f"cannot save a {type(buffer).__name__}: it changes or moves rows that were written before",
                kind="tianshou.replay",
                hint="use ReplayBuffer, VectorReplayBuffer or their prioritized forms",
                field="buffer",
            )
        self.buffer = buffer
        self.journal = Journal((), 1)
        self.total_count = len(buffer)
        self.form: dict[str, Any] = {}
        self._expected: Header | None = None
        vars(buffer).update(add=_Announced(self, "add"), update=_Announced(self, "update"))

    def release(self) -> None:
        """Give the buffer its own methods back."""
        for name in ("add", "update"):
            vars(self.buffer).pop(name, None)

    @property
    def is_filled(self) -> bool:
        """Whether the buffer has got its arrays yet."""
        return bool(self.buffer._meta.get_keys())  # noqa: SLF001 - it has no public name

    @property
    def columns(self) -> Columns:
        """The buffer's arrays, ``(rows, ...)``; borrowed. Infos that are Python objects are left out."""
        if not self.is_filled:
            assert self._expected is not None
            return expected_columns(self._expected)
        found = {name: _plain(value) for name, value in _leaves(self.buffer._meta)}  # noqa: SLF001
        for name, array in found.items():
            if array.dtype.hasobject and name.partition("/")[0] != _INFO:
                raise InvalidInputError(
                    f"cannot save replay column {name!r}: it holds Python objects",
                    kind="tianshou.replay",
                    hint="give observations and actions of one shape, as arrays",
                    field=name,
                )
        return {name: array for name, array in found.items() if not array.dtype.hasobject}

    @property
    def mutable(self) -> Columns:
        """Nothing: what changes anywhere is small and saved beside the ring."""
        return {}

    @property
    def state(self) -> RingState:
        """Where the buffer stands, in rows; one of several parts counts as full as soon as it holds anything."""
        if not self.is_filled and self._expected is not None:
            return RingState(self._expected.state.capacity, 0, 0, 0)
        parts, capacity = parts_of(self.buffer), self.buffer.maxsize
        if len(parts) == 1:
            part = parts[0][1]
            return RingState(capacity, part._insertion_idx, len(part), self.total_count)  # noqa: SLF001
        return RingState(capacity, 0, capacity if len(self.buffer) else 0, capacity)

    def describe(self) -> dict[str, Any]:
        """Which columns are tensors."""
        leaves = dict(_leaves(self.buffer._meta))  # noqa: SLF001
        return {
            "tensors": [name for name, value in leaves.items() if isinstance(value, torch.Tensor)],
            "objects": [name for name, value in leaves.items() if _plain(value).dtype.hasobject],
        }

    def expect(self, header: Header, form: dict[str, Any]) -> None:
        """Take the form of a checkpoint, for a buffer that has none yet."""
        self._expected, self.form = header, form

    def notice_changes(self) -> None:
        """Nothing: every write is announced."""

    def write(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Announce a write, then do it."""
        buffer = self.buffer
        method = getattr(type(buffer), name)
        with self.journal.lock:
            if not self.is_filled:
                result = method(buffer, *arguments, **named)
                self.total_count = len(buffer)
                return result
            parts = parts_of(buffer)
            if name == "update":
                self.journal.before_edit(self.columns, 0, buffer.maxsize)
            elif len(parts) == 1:
                self.journal.before_write(self.columns, parts[0][1]._insertion_idx, 1)  # noqa: SLF001
                self.total_count += 1
            else:
                chosen = named.get("buffer_ids", arguments[1] if len(arguments) > 1 else None)
                for part in range(len(parts)) if chosen is None else chosen:
                    offset, one = parts[part]
                    self.journal.before_edit(self.columns, offset + one._insertion_idx, 1)  # noqa: SLF001
            return method(buffer, *arguments, **named)

    def end_episodes(self) -> None:
        """Mark the newest step of each part as the last of its episode: what comes next belongs to another."""
        buffer: Any = self.buffer
        with self.journal.lock:
            for offset, part in parts_of(buffer):
                if not len(part):
                    continue
                row = offset + (part._insertion_idx - 1) % part.maxsize  # noqa: SLF001
                self.journal.before_edit(self.columns, row, 1)
                if not buffer.done[row]:
                    buffer.truncated[row] = buffer.done[row] = True
                part._ep_return, part._ep_len, part._ep_start_idx = 0.0, 0, part._insertion_idx  # noqa: SLF001

    def watch_reads(self, watch: Callable[[NDArray[np.intp]], None]) -> bool:  # noqa: ARG002 - as `Ring` has it
        """Sampling cannot be watched: what it draws is read within one call."""
        return False

    def adopt(self, content: RingContent) -> None:
        """Go on with what was restored; where the parts stand is said by `BufferState`."""
        tensors = (self.describe() if self.is_filled else self.form)["tensors"]
        meta = Batch()
        for name, array in content.columns.items():
            *path, last = name.split("/")
            owner = meta
            for key in path:
                if key not in owner.get_keys():
                    setattr(owner, key, Batch())
                owner = getattr(owner, key)
            setattr(owner, last, torch.from_numpy(array) if name in tensors else array)
        if _INFO not in meta.get_keys():
            meta.info = Batch()
        self.buffer.set_batch(meta)
        self.total_count = content.state.total_count


class _Announced:
    """A method of a buffer that is being saved; pickles and copies of the buffer keep the plain one."""

    def __init__(self, ring: BufferRing, name: str) -> None:
        self._ring = ring
        self._name = name

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._ring.write(self._name, arguments, named)

    def __reduce__(self) -> tuple[Any, ...]:
        # A twin is asked for its method before it has got any attributes of its own, so it answers with its class's.
        return getattr, (self._ring.buffer, self._name)


def _leaves(batch: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key in batch.get_keys():
        value = batch[key]
        if isinstance(value, Batch):
            yield from _leaves(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def _plain(value: Any) -> NDArray[Any]:
    return value.detach().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


class BufferState:
    """
    What a replay buffer knows beside its rows: where its parts stand, running episodes, priorities, its generators.

    Args:
        ring: Of the buffer; both are restored together.
    """

    kind = "tianshou.buffer"
    section = Section.STATE

    def __init__(self, ring: BufferRing) -> None:
        self._ring = ring
        self._buffer: Any = ring.buffer

    @property
    def grade(self) -> Grade:
        """Infos that are Python objects are not saved."""
        return Grade.STATISTICAL if self._ring.is_filled and self._ring.describe()["objects"] else Grade.EXACT

    def capture(self) -> object:
        """Positions by part, and priorities if there are any."""
        buffer = self._buffer
        tree = {
            "parts": [
                {
                    **{name: getattr(part, name) for name in _POSITIONS},
                    "last_index": part.last_index,
                    "generator": part._random_state.get_state(legacy=False),  # noqa: SLF001
                }
                for _, part in parts_of(buffer)
            ],
            "last_index": buffer.last_index,
            "lengths": getattr(buffer, "_lengths", None),
            "generator": buffer._random_state.get_state(legacy=False),  # noqa: SLF001
        }
        if isinstance(buffer, PrioritizedReplayBuffer):
            tree["weights"] = buffer.weight._value  # noqa: SLF001
            tree["priorities"] = {name: getattr(buffer, name) for name in _PRIORITIES}
        return tree

    def check(self, tree: object) -> None:
        """Refuse another number of parts."""
        assert isinstance(tree, dict)
        here, there = len(parts_of(self._buffer)), len(tree["parts"])
        if here != there:
            raise does_not_fit("the replay buffer", f"it had {there} parts and has {here} here", here, there)
        if ("weights" in tree) != isinstance(self._buffer, PrioritizedReplayBuffer):
            raise does_not_fit("the replay buffer", "only one of the two is prioritized", "", "")

    def restore(self, tree: object) -> str:
        """Set positions, episodes, priorities and generators."""
        assert isinstance(tree, dict)
        buffer = self._buffer
        for (_, part), saved in zip(parts_of(buffer), tree["parts"], strict=True):
            for name in _POSITIONS:
                object.__setattr__(part, name, saved[name])
            object.__setattr__(part, "last_index", saved["last_index"])
            part._random_state.set_state(saved["generator"])  # noqa: SLF001
        buffer.last_index = tree["last_index"]
        if tree["lengths"] is not None:
            buffer._lengths = tree["lengths"]  # noqa: SLF001
        buffer._random_state.set_state(tree["generator"])  # noqa: SLF001
        if "weights" in tree:
            buffer.weight._value[...] = tree["weights"]  # noqa: SLF001
            for name, value in tree["priorities"].items():
                object.__setattr__(buffer, name, value)
        return ""
