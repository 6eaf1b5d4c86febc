"""
How others save and load a module with its optimizer, in their best documented mode and with equal guarantees.

Equal guarantees means durable: each file and directory that a peer leaves without a sync is synced here, and the time
for that counts. Every peer saves the same tensors. Those that are not installed are left out.
"""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

import perdure
from benchmarks.measure import machine, scratch, sync_all

SIZES = {"6MB": (256, 8), "64MB": (1024, 5), "256MB": (2048, 5), "1.5GB": (4224, 7)}
"""Width and number of square layers; with both moments of Adam, three times the weights."""


def build(width: int, layers: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A module with optimizer state."""
    torch.manual_seed(0)
    module = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.randn(2, width)).sum().backward()
    optimizer.step()
    return module, optimizer


def tensors(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Every tensor of both, by name."""
    moments = {f"{index}.{key}": value for index, state in optimizer.state.items() for key, value in state.items()}
    return {**module.state_dict(), **{f"optimizer.{key}": value for key, value in enumerate(moments.values())}}


def jax_arrays(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The same numbers in memory of JAX's own."""
    import jax.numpy as jnp

    return {name: jnp.array(value.numpy(), copy=True) for name, value in tensors(module, optimizer).items()}


def size_of(module: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Bytes of all tensors."""
    return sum(tensor.nbytes for tensor in tensors(module, optimizer).values())


class SavePeer(Protocol):
    """Something that saves a module and its optimizer."""

    def begin(self) -> float:
        """Begin a save, and give the seconds for which it blocks training."""

    def finish(self) -> None:
        """Return once that save is durable."""

    def written(self) -> Path:
        """Where the newest save lies."""

    def load(self) -> None:
        """Load the newest save into the live module and optimizer."""

    def close(self) -> None:
        """Let go of everything."""


class Perdure:
    """`run.save`, and a restore into a new run of the same directory."""

    name, copy = "before", "before"

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer, where: Path) -> None:
        self._where = where
        self._state = self._build(module, optimizer)
        self._run = self._open()
        self._run.restore()

    def _build(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return {"module": module, "optimizer": optimizer}

    def _open(self) -> perdure.Run:
        run = perdure.open(
            self._where, run=self.name, save=None, keep=perdure.Last(1), budget=None, copy=self.copy, quiet=True
        )
        run.track(**self._state)
        return run

    def begin(self) -> float:
        began = time.perf_counter()
        self._handle = self._run.save()
        return time.perf_counter() - began

    def finish(self) -> None:
        self._handle.wait()

    def written(self) -> Path:
        return (self._where / self.name / "latest").resolve()

    def load(self) -> None:
        self._run.close()
        self._run = self._open()
        self._run.restore()

    def close(self) -> None:
        self._run.close()


class PerdureBeside(Perdure):
    """The same, where the optimizer's next step waits for the copy and the save does not."""

    name, copy = "beside", "beside"


class PerdureJax(Perdure):
    """The same with the same numbers in JAX arrays, which never change: nobody waits for a copy."""

    name = "jax"

    def _build(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        from perdure.jax import Pytree

        return {"train": Pytree(jax_arrays(module, optimizer))}


class TorchSave:
    """``torch.save`` and ``torch.load``; blocks until it is durable, as whoever wants to keep it must."""

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer, where: Path) -> None:
        self._module, self._optimizer = module, optimizer
        self._path = where / "state.pt"

    def begin(self) -> float:
        began = time.perf_counter()
        torch.save({"module": self._module.state_dict(), "optimizer": self._optimizer.state_dict()}, self._path)
        sync_all(self._path)
        return time.perf_counter() - began

    def finish(self) -> None:
        """Nothing is left."""

    def written(self) -> Path:
        return self._path

    def load(self) -> None:
        state = torch.load(self._path, weights_only=True)
        self._module.load_state_dict(state["module"])
        self._optimizer.load_state_dict(state["optimizer"])

    def close(self) -> None:
        """Nothing is held."""


class Safetensors:
    """``save_file`` and ``load_file``."""

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer, where: Path) -> None:
        self._tensors = tensors(module, optimizer)
        self._path = where / "state.safetensors"

    def begin(self) -> float:
        from safetensors.torch import save_file

        began = time.perf_counter()
        save_file(self._tensors, self._path)
        sync_all(self._path)
        return time.perf_counter() - began

    def finish(self) -> None:
        """Nothing is left."""

    def written(self) -> Path:
        return self._path

    def load(self) -> None:
        from safetensors.torch import load_file

        for name, tensor in load_file(self._path).items():
            self._tensors[name].detach().copy_(tensor)  # its tensors are mapped: nothing is read before this

    def close(self) -> None:
        """Nothing is held."""


class Numbered:
    """Saves to a folder of its own each time; the one before goes first, which does not count."""

    def __init__(self, where: Path) -> None:
        self._where = where.absolute()
        self._number = 0

    def _next(self) -> Path:
        shutil.rmtree(self.written(), ignore_errors=True)
        self._number += 1
        return self.written()

    def written(self) -> Path:
        return self._where / f"{type(self).__name__}-{self._number}"


class Dcp(Numbered):
    """``torch.distributed.checkpoint``, synchronous."""

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer, where: Path) -> None:
        super().__init__(where)
        self.state = {"module": module.state_dict(), "optimizer": optimizer.state_dict()}

    def begin(self) -> float:
        import torch.distributed.checkpoint as dcp

        path = self._next()
        began = time.perf_counter()
        dcp.save(self.state, checkpoint_id=path, no_dist=True)
        sync_all(path)
        return time.perf_counter() - began

    def finish(self) -> None:
        """Nothing is left."""

    def load(self) -> None:
        import torch.distributed.checkpoint as dcp

        dcp.load(self.state, checkpoint_id=self.written(), no_dist=True)

    def close(self) -> None:
        """Nothing is held."""


class DcpAsync(Dcp):
    """``async_save`` in a thread, with the stager that keeps its buffers from save to save."""

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer, where: Path) -> None:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        super().__init__(module, optimizer, where)
        # Everything else that it offers needs an accelerator.
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
            )
        )

    def begin(self) -> float:
        path = self._next()
        began = time.perf_counter()
        self._future = self._start(path)
        return time.perf_counter() - began

    def _start(self, path: Path) -> Any:
        from torch.distributed.checkpoint import async_save

        return async_save(self.state, checkpoint_id=path, async_stager=self._stager, no_dist=True)

    def finish(self) -> None:
        self._future.result()
        sync_all(self.written())

    def close(self) -> None:
        self._stager.close()


class DcpProcess(DcpAsync):
    """``async_save`` in a process of its own, which needs a process group of one."""

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer, where: Path) -> None:
        import torch.distributed as dist

        super().__init__(module, optimizer, where)
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def _start(self, path: Path) -> Any:
        from torch.distributed.checkpoint import async_save
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        return async_save(
            self.state,
            checkpoint_id=path,
            async_stager=self._stager,
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
        )

    def close(self) -> None:
        import torch.distributed as dist

        super().close()
        dist.destroy_process_group()


class TorchCheckpointing(Numbered):
    """
    Meta's ``torch_checkpointing``: copied in a thread, written by a process of its own.

    The optimizer's step waits for the copy, as its documentation has it. All is by its defaults but for writes past the
    page cache, which fail on ext4 (``EINVAL``) in 0.1.1. Nothing is synced by itself.
    """

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer, where: Path) -> None:
        from torch_checkpointing import CheckpointManager
        from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

        super().__init__(where)
        self._state = {"module": module, "optimizer": optimizer}
        self._manager = CheckpointManager(
            CheckpointManager.Config(storage_config=LocalFileSystemStorageConfig(use_direct_io=False))
        )
        lock = self._manager.lock()
        self._hooks = [
            optimizer.register_step_pre_hook(lambda *_: lock.acquire_or_raise()),
            optimizer.register_step_post_hook(lambda *_: lock.release()),
        ]

    def _live(self) -> dict[str, Any]:
        return {name: value.state_dict() for name, value in self._state.items()}

    def begin(self) -> float:
        path = self._next()
        began = time.perf_counter()
        self._future = self._manager.save(str(path), self._live())
        return time.perf_counter() - began

    def finish(self) -> None:
        self._future.result()
        sync_all(self.written())

    def load(self) -> None:
        self._manager.load(str(self.written()), into=self._live())

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._manager.close()


class Orbax(Numbered):
    """Orbax's ``AsyncCheckpointer`` with the same numbers in JAX arrays, which never change and need no staging."""

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer, where: Path) -> None:
        import orbax.checkpoint as ocp

        super().__init__(where)
        self._tree = jax_arrays(module, optimizer)
        self._checkpointer = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())
        self._arguments = ocp.args

    def begin(self) -> float:
        path = self._next()
        began = time.perf_counter()
        self._checkpointer.save(path, args=self._arguments.StandardSave(self._tree))
        return time.perf_counter() - began

    def finish(self) -> None:
        self._checkpointer.wait_until_finished()
        sync_all(self.written())

    def load(self) -> None:
        import jax

        jax.block_until_ready(self._checkpointer.restore(self.written()))

    def close(self) -> None:
        self._checkpointer.close()


Make = Callable[[nn.Module, torch.optim.Optimizer, Path], SavePeer]

_PEERS: Mapping[str, tuple[str, Make]] = {
    "perdure": ("torch", Perdure),
    "perdure_beside": ("torch", PerdureBeside),
    "perdure_jax": ("jax", PerdureJax),
    "torch_save": ("torch", TorchSave),
    "safetensors": ("safetensors", Safetensors),
    "dcp": ("torch", Dcp),
    "dcp_async": ("torch", DcpAsync),
    "dcp_process": ("torch", DcpProcess),
    "torch_checkpointing": ("torch_checkpointing", TorchCheckpointing),
    "orbax_async": ("orbax", Orbax),
}


def peers(*, quick: bool, size: str = "") -> dict[str, Make]:
    """
    Those that can be measured here, all in one process.

    Args:
        quick: Leave out the one that takes long to start.
        size: Of the state: at the largest there is no memory for another copy of it in arrays of JAX.
    """
    warnings.filterwarnings("ignore", module="torch.distributed")
    left_out = {"dcp_process"} if quick else set()
    if size == "1.5GB":
        left_out.add("perdure_jax")
    return {name: make for name, (module, make) in _PEERS.items() if find_spec(module) and name not in left_out}


def every_size(benchmark: str, measure: Callable[..., list[dict[str, Any]]], *, quick: bool) -> dict[str, Any]:
    """
    The document of a benchmark that measures every size; the largest only if it need not be quick.

    Args:
        benchmark: Its name.
        measure: Gives the figures of a size, given its name, an empty directory, and ``quick``.
        quick: Whether fewer rounds are enough.
    """
    torch.set_num_threads(1)
    figures = []
    for size in SIZES:
        if quick and size == "1.5GB":
            continue
        with scratch() as where:
            figures += measure(size, where, quick=quick)
    packages = ("perdure", "torch", "safetensors", "torch_checkpointing", "orbax-checkpoint", "numpy")
    return {"benchmark": benchmark, "schema": 1, "machine": machine(*packages), "figures": figures}
