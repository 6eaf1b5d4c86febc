"""
How perdure and others save and load a replay buffer; each only if it is installed, and each durable as ours is.

A contender owns a full ring of transitions. It is filled in its own way of holding them, without a copy beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

import perdure
from benchmarks.measure import sync_all
from perdure.core.manifest import ComponentEntry, FileEntry, decode_manifest
from perdure.files.door import Files
from perdure.files.reading import open_checked, read_verified
from perdure.replay import RingBuffer, RingComponent

Rows = Mapping[str, NDArray[Any]]
Forms = Mapping[str, tuple[Any, tuple[int, ...]]]
Sampler = Callable[[], tuple[Any, Any]]
"""Draws a batch; gives observations and next observations, as arrays or tensors."""
BATCH = 32
"""What DQN draws by default from stacked frames."""
NETS_BYTES = 6_000_000


class Contender(Protocol):
    """A buffer of ``capacity`` transitions of the given forms."""

    def extend(self, rows: Rows) -> None:
        """Add transitions, each column ``(count, *shape)``."""

    def save(self, where: Path) -> float:
        """Save everything durably; returns for how many seconds training had to wait."""

    def load(self, where: Path) -> Sampler:
        """Load what was saved, as a new process would."""


def _timed(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


class Perdure:
    """A `RingBuffer` in a run of nets; saves write behind training, a load restores the buffer alone."""

    def __init__(self, capacity: int, forms: Forms) -> None:
        self._ring = RingBuffer(capacity, forms, rng=0)
        self._nets = np.zeros(NETS_BYTES // 8)
        self._run: Any = None

    def extend(self, rows: Rows) -> None:
        """Add to the ring."""
        self._ring.add_batch(**rows)

    def _open(self, where: Path) -> Any:
        run = perdure.open(where, run="replay", save=None, keep=perdure.Last(1), budget=None, quiet=True)
        run.track(nets=self._nets, replay=self._ring)
        run.restore()
        return run

    def save(self, where: Path) -> float:
        """Save the run, and wait until it is durable."""
        self._run = self._run or self._open(where)
        handle = self._run.save()
        handle.wait()
        return float(handle.blocked_seconds)

    def _sample(self) -> tuple[Any, Any]:
        batch = self._ring.sample(BATCH)
        return batch["obs"], batch["next_obs"]

    def load(self, where: Path) -> Sampler:
        """Restore the buffer, as the run does when it comes to it."""
        component = RingComponent(self._ring)
        source = newest_source(where)
        component.check_parts(source)
        component.restore_parts(source)
        return self._sample

    def close(self) -> None:
        """Give the run up."""
        if self._run is not None:
            self._run.close()


class PerdureRun(Perdure):
    """The same; a load brings the whole run to life: lease, generation, nets, buffer, sanity check."""

    def load(self, where: Path) -> Sampler:
        """Restore the whole run."""
        self._run = self._open(where)
        return self._sample


@dataclass(frozen=True)
class Source:
    """A committed replay buffer as its component reads it."""

    directory: Path
    entry: ComponentEntry
    files: Mapping[str, FileEntry]

    def read(self, path: str) -> memoryview:
        """Read a verified file."""
        return read_verified(Files(), self.directory, self.files[path])

    def open(self, path: str) -> int:
        """Open a file of the right length."""
        return open_checked(Files(), self.directory, self.files[path])

    def tell(self, done_bytes: int, total_bytes: int) -> None:
        """Nobody waits."""


def newest_source(where: Path) -> Source:
    """The replay buffer of the newest checkpoint of the run below a folder."""
    directory = (where / "replay" / "latest").resolve()
    manifest = decode_manifest((directory / "manifest.json").read_bytes(), "manifest.json")
    listed = {file.path: file for file in manifest.files}
    (entry,) = [entry for entry in manifest.components if entry.kind == "replay.ring"]
    return Source(directory, entry, {path: listed[path] for path in entry.files})


class Savez:
    """NumPy's own archive of the arrays, and of the nets."""

    def __init__(self, capacity: int, forms: Forms) -> None:
        self._arrays = {name: np.zeros((capacity, *shape), dtype) for name, (dtype, shape) in forms.items()}
        self._nets = np.zeros(NETS_BYTES // 8)
        self._head = 0

    def extend(self, rows: Rows) -> None:
        """Write at the head."""
        self._head = _write(self._arrays, rows, self._head)

    def save(self, where: Path) -> float:
        """Write the archive."""
        target = where / "all.npz"
        return _timed(lambda: (np.savez(target, head=self._head, nets=self._nets, **self._arrays), sync_all(target)))

    def load(self, where: Path) -> Sampler:
        """Read the archive."""
        with np.load(where / "all.npz") as archive:
            arrays = {name: archive[name] for name in archive.files}
        rng = np.random.default_rng(0)

        def sample() -> tuple[Any, Any]:
            rows = rng.integers(0, len(arrays["obs"]), BATCH)
            return arrays["obs"][rows], arrays["next_obs"][rows]

        return sample


class StableBaselines3:
    """``save_to_pkl`` and ``load_from_pkl``, which its ``save_replay_buffer`` calls."""

    def __init__(self, capacity: int, forms: Forms) -> None:
        from gymnasium.spaces import Box, Discrete
        from stable_baselines3.common.buffers import ReplayBuffer

        kind, shape = forms["obs"]
        low, high = (0, 255) if kind == np.uint8 else (-np.inf, np.inf)
        self._buffer = ReplayBuffer(capacity, Box(low, high, shape, kind), Discrete(6), device="cpu")

    def extend(self, rows: Rows) -> None:
        """Write into the buffer's arrays."""
        buffer = self._buffer
        arrays = {
            "obs": buffer.observations[:, 0], "next_obs": buffer.next_observations[:, 0],
            "action": buffer.actions[:, 0, 0], "reward": buffer.rewards[:, 0], "terminated": buffer.dones[:, 0],
        }  # fmt: skip
        head = buffer.pos
        buffer.pos = _write(arrays, rows, head)
        buffer.full = buffer.full or buffer.pos <= head

    def save(self, where: Path) -> float:
        """Pickle the buffer."""
        from stable_baselines3.common.save_util import save_to_pkl

        target = where / "buffer.pkl"
        return _timed(lambda: (save_to_pkl(target, self._buffer), sync_all(target)))

    def load(self, where: Path) -> Sampler:
        """Unpickle the buffer."""
        from stable_baselines3.common.save_util import load_from_pkl

        buffer = load_from_pkl(where / "buffer.pkl")

        def sample() -> tuple[Any, Any]:
            batch = buffer.sample(BATCH)
            return batch.observations, batch.next_observations

        return sample


class TorchRL:
    """``ReplayBuffer.dumps`` and ``loads`` of a storage in memory."""

    def __init__(self, capacity: int, forms: Forms) -> None:
        from torchrl.data import LazyTensorStorage, ReplayBuffer

        del forms  # the storage takes them from the first transitions
        self._buffer = ReplayBuffer(storage=LazyTensorStorage(capacity), batch_size=BATCH)

    def extend(self, rows: Rows) -> None:
        """Extend the buffer."""
        import torch
        from tensordict import TensorDict

        tensors = {name: torch.from_numpy(np.array(values)) for name, values in rows.items()}
        self._buffer.extend(TensorDict(tensors, batch_size=[len(rows["obs"])]))

    def save(self, where: Path) -> float:
        """Dump the buffer into the same folder again and again, its fastest way."""
        target = where / "dump"
        return _timed(lambda: (self._buffer.dumps(target), sync_all(target)))

    def load(self, where: Path) -> Sampler:
        """Load the dump."""
        self._buffer.loads(where / "dump")

        def sample() -> tuple[Any, Any]:
            batch = self._buffer.sample()
            return batch["obs"], batch["next_obs"]

        return sample


class Tianshou:
    """``ReplayBuffer.save_hdf5`` and ``load_hdf5``."""

    def __init__(self, capacity: int, forms: Forms) -> None:
        from tianshou.data import Batch, ReplayBuffer

        arrays = {name: np.zeros((capacity, *shape), dtype) for name, (dtype, shape) in forms.items()}
        ended = arrays["terminated"]
        self._arrays = arrays
        self._buffer = ReplayBuffer(capacity)
        columns = {"obs": "obs", "obs_next": "next_obs", "act": "action", "rew": "reward"}
        ends = {"terminated": ended, "truncated": np.zeros_like(ended), "done": ended}
        self._buffer.set_batch(Batch(**{name: arrays[column] for name, column in columns.items()}, **ends))

    def extend(self, rows: Rows) -> None:
        """Write into the buffer's arrays."""
        self._buffer._insertion_idx = _write(self._arrays, rows, self._buffer._insertion_idx)
        self._buffer._size = min(self._buffer.maxsize, self._buffer._size + len(rows["obs"]))

    def save(self, where: Path) -> float:
        """Write the HDF5 file."""
        target = where / "buffer.hdf5"
        return _timed(lambda: (self._buffer.save_hdf5(str(target)), sync_all(target)))

    def load(self, where: Path) -> Sampler:
        """Read the HDF5 file."""
        from tianshou.data import ReplayBuffer

        buffer = ReplayBuffer.load_hdf5(str(where / "buffer.hdf5"))

        def sample() -> tuple[Any, Any]:
            batch, _ = buffer.sample(BATCH)
            return batch.obs, batch.obs_next

        return sample


def _write(arrays: Mapping[str, NDArray[Any]], rows: Rows, head: int) -> int:
    """Write rows that fit before the end from the head on; returns where the head is then."""
    stop = head + len(rows["obs"])
    for name, values in rows.items():
        arrays[name][head:stop] = values
    return stop % len(arrays["obs"])


CONTENDERS: dict[str, tuple[str, Callable[[int, Forms], Contender]]] = {
    "perdure": ("perdure", Perdure),
    "perdure-run": ("perdure", PerdureRun),
    "savez": ("numpy", Savez),
    "sb3": ("stable_baselines3", StableBaselines3),
    "torchrl": ("torchrl", TorchRL),
    "tianshou": ("tianshou", Tianshou),
}


def is_installed(name: str) -> bool:
    """Whether a contender can be measured here."""
    return find_spec(CONTENDERS[name][0]) is not None
