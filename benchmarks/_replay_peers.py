"""How others save and load a replay buffer; each only if it is installed, and each durable as ours is."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]
BATCH = 32
"""What DQN draws by default from stacked frames."""


class Peer(Protocol):
    """A buffer with the given content."""

    def save(self, path: Path) -> None:
        """Save all of it."""

    def load(self, path: Path) -> None:
        """Load it, as a new process would, and sample a batch."""


def sync_all(path: Path) -> None:
    """Make a file or all files of a folder durable: none of the peers does."""
    for target in [path, path.parent, *(path.rglob("*") if path.is_dir() else ())]:
        descriptor = os.open(target, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def evict(path: Path) -> None:
    """Take the pages of a file or folder out of the cache; they are clean."""
    for target in [path, *(path.rglob("*") if path.is_dir() else ())]:
        if target.is_file():
            descriptor = os.open(target, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


class Savez:
    """NumPy's own archive of the arrays."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays

    def save(self, path: Path) -> None:
        np.savez(path.with_suffix(".npz"), **self._arrays)
        sync_all(path.with_suffix(".npz"))

    def load(self, path: Path) -> None:
        with np.load(path.with_suffix(".npz")) as archive:
            arrays = {name: archive[name] for name in archive.files}
        rows = np.random.default_rng(0).integers(0, len(arrays["obs"]), BATCH)
        for array in arrays.values():
            array[rows]


class StableBaselines3:
    """``save_to_pkl`` and ``load_from_pkl``, which its ``save_replay_buffer`` calls."""

    def __init__(self, arrays: Arrays) -> None:
        from gymnasium.spaces import Box, Discrete
        from stable_baselines3.common.buffers import ReplayBuffer

        capacity, _, *shape = arrays["obs"].shape
        kind = arrays["obs"].dtype
        low, high = (0, 255) if kind == np.uint8 else (-np.inf, np.inf)
        self._buffer = ReplayBuffer(capacity, Box(low, high, tuple(shape), kind), Discrete(6), device="cpu")
        self._buffer.observations, self._buffer.next_observations = arrays["obs"], arrays["next_obs"]
        self._buffer.full = True

    def save(self, path: Path) -> None:
        from stable_baselines3.common.save_util import save_to_pkl

        save_to_pkl(path.with_suffix(".pkl"), self._buffer)
        sync_all(path.with_suffix(".pkl"))

    def load(self, path: Path) -> None:
        from stable_baselines3.common.save_util import load_from_pkl

        load_from_pkl(path.with_suffix(".pkl")).sample(BATCH)


class TorchRL:
    """``ReplayBuffer.dumps`` and ``loads`` of a storage in memory."""

    def __init__(self, arrays: Arrays) -> None:
        self._capacity = len(arrays["obs"])
        self._buffer = self._empty()
        self._buffer.extend(self._content(arrays))

    def _content(self, arrays: Arrays) -> Any:
        import torch
        from tensordict import TensorDict

        return TensorDict({k: torch.from_numpy(v) for k, v in arrays.items()}, batch_size=[self._capacity])

    def _empty(self) -> Any:
        from torchrl.data import LazyTensorStorage, ReplayBuffer

        return ReplayBuffer(storage=LazyTensorStorage(self._capacity), batch_size=BATCH)

    def save(self, path: Path) -> None:
        self._buffer.dumps(path)
        sync_all(path)

    def load(self, path: Path) -> None:
        buffer = self._empty()
        buffer.loads(path)
        buffer.sample()


class Tianshou:
    """``ReplayBuffer.save_hdf5`` and ``load_hdf5``."""

    def __init__(self, arrays: Arrays) -> None:
        from tianshou.data import Batch, ReplayBuffer

        count = len(arrays["obs"])
        self._buffer = ReplayBuffer(count)
        done = arrays["terminated"][:, 0]
        content = Batch(
            obs=arrays["obs"][:, 0],
            obs_next=arrays["next_obs"][:, 0],
            act=arrays["action"][:, 0],
            rew=arrays["reward"][:, 0],
            terminated=done,
            truncated=np.zeros_like(done),
            done=done,
        )
        self._buffer.set_batch(content)
        self._buffer._size = count

    def save(self, path: Path) -> None:
        self._buffer.save_hdf5(str(path.with_suffix(".hdf5")))
        sync_all(path.with_suffix(".hdf5"))

    def load(self, path: Path) -> None:
        from tianshou.data import ReplayBuffer

        ReplayBuffer.load_hdf5(str(path.with_suffix(".hdf5"))).sample(BATCH)


PEERS: dict[str, tuple[str, Callable[[Arrays], Peer]]] = {
    "savez": ("numpy", Savez),
    "sb3": ("stable_baselines3", StableBaselines3),
    "torchrl": ("torchrl", TorchRL),
    "tianshou": ("tianshou", Tianshou),
}


def installed_peers() -> dict[str, Callable[[Arrays], Peer]]:
    """The peers that can be measured here."""
    return {name: make for name, (module, make) in PEERS.items() if find_spec(module)}
