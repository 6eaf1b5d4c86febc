"""
TorchRL's replay buffers: the storage as a ring, and what its sampler, writer and generator know beside it.

The tensors of a storage are its ring's columns, in place. A storage that has not been written to yet has none, so the
form of the data is written beside the ring: a restore needs no example.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import NonTensorData, TensorDict, TensorDictBase, is_tensor_collection, is_tensorclass
from torchrl.data import ReplayBuffer, RoundRobinWriter, TensorStorage
from torchrl.data.replay_buffers.samplers import RandomSampler, SliceSampler

from perdure.adapters._late_replay import expected_columns
from perdure.capture.objects import does_not_fit
from perdure.core.manifest import Grade
from perdure.core.names import Section
from perdure.core.ring import RingState
from perdure.errors import InvalidInputError
from perdure.replay import Journal, RingContent
from perdure.replay.header import Header

Columns = dict[str, NDArray[Any]]

_WHOLE = "value"
"""Name of the one column of a storage that holds a plain tensor."""
_ENDS = ("next/done", "next/truncated", "done", "truncated")
_TREE = "~segment_tree"
_TREE_PACKAGE = "torchrl._torchrl"


def storage_of(replay: ReplayBuffer) -> TensorStorage:
    """
    The storage of a replay buffer, if it is one whose content can be saved as a ring.

    Raises:
        InvalidInputError: Kind ``torchrl.replay``: it keeps objects, lives elsewhere, or is written in another order.
    """
    len(replay)  # one that is made late is made now
    storage, writer = replay._storage, replay._writer  # noqa: SLF001 - they have no public names
    why, hint = "", "use LazyTensorStorage or LazyMemmapStorage on the CPU, with the default writer"
    if not isinstance(storage, TensorStorage):
        why = f"a {type(storage).__name__} keeps objects, not rows of arrays"
    elif not isinstance(writer, RoundRobinWriter):
        why = f"a {type(writer).__name__} does not write round and round"
    elif getattr(replay, "shared", False):
        why, hint = "other processes write to it", "make it with shared=False and extend it in the training process"
    elif str(storage.device) not in ("cpu", "auto"):
        why = f"its storage is on {storage.device}"
    elif storage.initialized and _is_special(storage._storage):  # noqa: SLF001
        why = "its storage is a tensorclass or a tree of its own"
    if why:
        raise InvalidInputError(
            f"cannot save this replay buffer: {why}", kind="torchrl.replay", hint=hint, field="replay"
        )
    return storage


def _is_special(content: Any) -> bool:
    return is_tensorclass(content) or not (is_tensor_collection(content) or isinstance(content, torch.Tensor))


def _leaves(content: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(content, torch.Tensor):
        yield _WHOLE, content
        return
    for key, value in content.items(include_nested=True, leaves_only=True):
        yield "/".join(key) if isinstance(key, tuple) else key, value


def _column(name: str, value: Any) -> NDArray[Any]:
    if not isinstance(value, torch.Tensor):
        raise InvalidInputError(
            f"cannot save replay column {name!r}: it holds objects, not numbers",
            kind="torchrl.replay",
            hint="leave it out of what the buffer is extended with",
            field=name,
        )
    plain = value.detach().as_subclass(torch.Tensor)
    # NumPy has no such type, but the same bits.
    return plain.view(torch.uint16).numpy() if plain.dtype is torch.bfloat16 else plain.numpy()


class StorageRing:
    """
    A storage as `perdure.replay.Ring`.

    ``storage.set`` is replaced by one that announces the write. Rows that are changed in another way are noticed by
    the storage's own count of changes, and everything is then saved again.

    Args:
        replay: Borrowed.

    Raises:
        InvalidInputError: Kind ``torchrl.replay``: it cannot be saved as a ring.
    """

    announces_writes = True
    n_envs = 1
    rows_per_write = 0
    random_state = None

    def __init__(self, replay: ReplayBuffer) -> None:
        self.storage = storage_of(replay)
        self._writer: Any = replay._writer  # noqa: SLF001
        self.journal = Journal((), 1)
        self.total_count = 0
        self._head = self._writer._cursor  # noqa: SLF001
        self._expected: Header | None = None
        self._revision = self.storage._mutation_revision  # noqa: SLF001
        self.form: dict[str, Any] = {}
        moves = type(replay._sampler) in (RandomSampler, SliceSampler)  # noqa: SLF001
        self.refuses_to_move = "" if moves else f"a {type(replay._sampler).__name__} keeps values by slot"  # noqa: SLF001
        self.begins_at_zero = moves
        self.storage.set = _AnnouncedSet(self)
        if self.is_filled:
            self.total_count = len(self.storage)

    @property
    def is_filled(self) -> bool:
        """Whether the storage has got its arrays yet."""
        return bool(self.storage.initialized)

    def release(self) -> None:
        """Give the storage its own ``set`` back."""
        vars(self.storage).pop("set", None)

    @property
    def columns(self) -> Columns:
        """The storage's tensors, ``(rows, ...)``; borrowed. Before the first write, the shapes of a checkpoint."""
        if self.is_filled:
            return {name: _column(name, leaf) for name, leaf in _leaves(self.storage._storage)}  # noqa: SLF001
        assert self._expected is not None
        return expected_columns(self._expected)

    @property
    def mutable(self) -> Columns:
        """Nothing: what samplers know is small and saved beside the ring."""
        return {}

    @property
    def capacity(self) -> int:
        """Rows of the ring."""
        if self.is_filled:
            return len(self.storage._storage)  # noqa: SLF001
        assert self._expected is not None
        return self._expected.state.capacity

    @property
    def state(self) -> RingState:
        """Where the storage stands, in rows."""
        size = self.storage._len_along_dim0 if self.is_filled else 0  # noqa: SLF001
        return RingState(self.capacity, self._head, size, self.total_count)

    def describe(self) -> dict[str, Any]:
        """What of the storage's form does not follow from its columns."""
        content: Any = self.storage._storage  # noqa: SLF001
        types = {name: str(leaf.dtype).removeprefix("torch.") for name, leaf in _leaves(content)}
        return {"batch_size": list(getattr(content, "batch_size", ())), "types": types}

    def expect(self, header: Header, form: dict[str, Any]) -> None:
        """Take the form of a checkpoint, for a storage that has none yet."""
        self._expected, self.form = header, form

    def notice_changes(self) -> None:
        """Have everything saved again if the storage was changed otherwise than through ``set``."""
        if self.storage._mutation_revision != self._revision:  # noqa: SLF001
            self._revision = self.storage._mutation_revision  # noqa: SLF001
            with self.journal.lock:
                self.journal.before_edit(self.columns, 0, self.capacity)

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Announce a write, then do it."""
        with self.journal.lock:
            if self.is_filled:
                self._announce(cursor)
            type(self.storage).set(self.storage, cursor, data, set_cursor=set_cursor)
            self._head = self._writer._cursor  # noqa: SLF001
            self._revision += 1
            self.total_count += 1 if isinstance(cursor, int) else len(self._slots(cursor))

    def _announce(self, cursor: Any) -> None:
        slots = self._slots(cursor)
        count, capacity = len(slots), self.capacity
        if (slots == (self._head + np.arange(count)) % capacity).all():
            self.journal.before_write(self.columns, self._head, min(count, capacity))
            return
        sorted_slots = np.unique(slots)
        for run in np.split(sorted_slots, np.flatnonzero(np.diff(sorted_slots) > 1) + 1):
            if len(run):
                self.journal.before_edit(self.columns, int(run[0]), len(run))

    def _slots(self, cursor: Any) -> NDArray[Any]:
        first = cursor[0] if isinstance(cursor, tuple) else cursor
        if isinstance(first, torch.Tensor) and first.dtype is not torch.bool:
            return np.atleast_1d(first.cpu().numpy())
        return np.atleast_1d(np.arange(self.capacity)[np.asarray(first) if isinstance(first, range) else first])

    def watch_reads(self, watch: Callable[[NDArray[np.intp]], None]) -> bool:  # noqa: ARG002 - as `Ring` has it
        """Sampling cannot be watched: what it draws is read within one call."""
        return False

    def adopt(self, content: RingContent) -> None:
        """Go on with what was restored."""
        storage: Any = self.storage
        types = (self.describe() if self.is_filled else self.form)["types"]
        tensors = {name: _tensor(array, types[name]) for name, array in content.columns.items()}
        if self.is_filled:
            batch_size = getattr(storage._storage, "batch_size", None)  # noqa: SLF001
        else:
            batch_size = self.form["batch_size"]
            storage.device = torch.device("cpu")
        if set(tensors) == {_WHOLE}:
            storage._storage = tensors[_WHOLE]  # noqa: SLF001
        else:
            storage._storage = _nested(tensors, batch_size)  # noqa: SLF001
        storage.initialized = True
        vars(storage).pop("_storage_keys", None)
        inner = int(np.prod(next(iter(content.columns.values())).shape[1 : storage.ndim]))
        if storage.ndim > 1:
            storage.max_size = content.state.capacity * inner
        storage._len = content.state.size * inner  # noqa: SLF001
        self._writer._cursor = self._head = content.state.head_position  # noqa: SLF001
        self.total_count = content.state.total_count
        for row in content.breaks:
            for name in _ENDS:
                if name in content.columns:
                    content.columns[name][row] = True
        storage._bump_mutation_revision()  # noqa: SLF001 - caches of trajectories are of another content
        self._revision = storage._mutation_revision  # noqa: SLF001


def _tensor(array: NDArray[Any], kind: str) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if kind == "bfloat16" else tensor


def _nested(tensors: Mapping[str, torch.Tensor], batch_size: Any) -> TensorDictBase:
    content = TensorDict({}, batch_size=batch_size)
    for name, tensor in tensors.items():
        content.set(tuple(name.split("/")), tensor)
    return content


class _AnnouncedSet:
    """``storage.set`` of a storage that is being saved; pickles and copies of the storage keep the plain one."""

    def __init__(self, ring: StorageRing) -> None:
        self._ring = ring

    def __call__(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        self._ring.set(cursor, data, set_cursor=set_cursor)

    def __reduce__(self) -> tuple[Any, ...]:
        # A twin is asked for its method before it has got any attributes of its own, so it answers with its class's.
        return getattr, (self._ring.storage, "set")


class Sampling:
    """
    What a replay buffer knows beside its content: priorities, order of sampling, counts, transforms, its generator.

    Args:
        replay: Borrowed; restored in place.
    """

    kind = "torchrl.sampling"
    section = Section.STATE

    def __init__(self, replay: ReplayBuffer) -> None:
        self._replay: Any = replay
        # What a thread has drawn in advance depends on when it ran, so it is drawn again.
        self.grade = Grade.STATISTICAL if getattr(replay, "_prefetch", False) else Grade.EXACT

    def capture(self) -> object:
        """The states of the buffer's parts, as they themselves give them."""
        replay = self._replay
        rng = replay._rng  # noqa: SLF001
        return {
            "sampler": pack(replay._sampler.state_dict()),  # noqa: SLF001
            "sampler_class": type(replay._sampler).__name__,  # noqa: SLF001
            "writer": pack(replay._writer.state_dict()),  # noqa: SLF001
            "transforms": pack(replay._transform.state_dict()),  # noqa: SLF001
            "generator": None if rng is None else rng.get_state(),
        }

    def check(self, tree: object) -> None:
        """Nothing is known of the parts but that they accept their own state, and of what class the sampler is."""
        assert isinstance(tree, dict)
        here = type(self._replay._sampler).__name__  # noqa: SLF001
        if tree["sampler_class"] != here:
            there = tree["sampler_class"]
            raise does_not_fit("the replay buffer", f"its sampler was a {there} and is a {here} here", here, there)

    def restore(self, tree: object) -> str:
        """Hand the states to the parts; where the writer stands is the ring's to say."""
        assert isinstance(tree, dict)
        replay = self._replay
        replay._sampler.load_state_dict(unpack(tree["sampler"]))  # noqa: SLF001
        cursor = replay._writer._cursor  # noqa: SLF001
        replay._writer.load_state_dict(unpack(tree["writer"]))  # noqa: SLF001
        replay._writer._cursor = cursor  # noqa: SLF001
        replay._transform.load_state_dict(unpack(tree["transforms"]))  # noqa: SLF001
        if tree["generator"] is not None and replay._rng is not None:  # noqa: SLF001
            replay._rng.set_state(tree["generator"])  # noqa: SLF001
        return ""


def pack(value: Any) -> Any:
    """A state as plain data: segment trees as their leaves, tensor dictionaries as dictionaries."""
    if type(value).__module__ == _TREE_PACKAGE:
        leaves = torch.as_tensor(value[torch.arange(len(value))])
        return {_TREE: type(value).__name__, "leaves": leaves}
    if isinstance(value, NonTensorData):
        return pack(value.data)
    if is_tensor_collection(value):
        return {key: pack(item) for key, item in value.to_dict().items()}
    if isinstance(value, Mapping):
        return {key: pack(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [pack(item) for item in value] if isinstance(value, list) else tuple(pack(item) for item in value)
    return value


def unpack(value: Any) -> Any:
    """
    What `pack` made plain, in memory of its own.

    What was read from a file lies anywhere, and a product of matrices may differ in its last bit with the alignment.
    """
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict) and _TREE in value:
        leaves = value["leaves"]
        tree = getattr(importlib.import_module(_TREE_PACKAGE), value[_TREE])(len(leaves))
        tree[torch.arange(len(leaves))] = leaves
        return tree
    if isinstance(value, dict):
        return {key: unpack(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [unpack(item) for item in value] if isinstance(value, list) else tuple(unpack(item) for item in value)
    return value
