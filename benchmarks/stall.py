"""
How long a save blocks the training thread (F1), beside what the field uses and one warm copy of the same state.

Everyone saves the same module and Adam state. ``torch.save`` and safetensors block until their file is synced, as a
user who wants to keep it must; DCP blocks until its asynchronous save has staged the state, in its cached mode; perdure
blocks until `run.save` returns. Background work of one save is over before the next begins.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

import perdure
from benchmarks.measure import MB, alternate, figure, machine, scratch, seconds, summary

SIZES = {"6MB": (256, 8), "256MB": (2048, 5)}
"""Width and number of square layers; with both moments of Adam, three times the weights."""
TARGETS = {"6MB": "<=5", "256MB": "<=1.1"}


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


def synced(path: Path) -> None:
    """Make a file durable, name included, as a careful user would."""
    for target in (path, path.parent):
        descriptor = os.open(target, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def contenders(
    module: nn.Module, optimizer: torch.optim.Optimizer, where: Path, run: perdure.Run
) -> dict[str, Callable[[], float]]:
    """Each gives the seconds for which its save blocks."""
    from torch.distributed.checkpoint import async_save
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    state = {"model": module.state_dict(), "optimizer": optimizer.state_dict()}
    flat = tensors(module, optimizer)
    copies = {name: torch.empty_like(tensor) for name, tensor in flat.items()}
    # Its buffers are kept from save to save; everything else that it offers needs an accelerator.
    stager = DefaultStager(
        StagingOptions(
            use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
        )
    )
    numbers = iter(range(10**6))

    def ours() -> float:
        began = time.perf_counter()
        handle = run.save()
        blocked = time.perf_counter() - began
        handle.wait()
        return blocked

    def dcp() -> float:
        began = time.perf_counter()
        future = async_save(state, checkpoint_id=where / f"dcp-{next(numbers)}", async_stager=stager, no_dist=True)
        blocked = time.perf_counter() - began
        future.result()
        return blocked

    def torch_save() -> float:
        path = where / "torch.pt"
        return seconds(lambda: (torch.save(state, path), synced(path)))

    def safetensors() -> float:
        path = where / "state.safetensors"
        return seconds(lambda: (save_file(flat, path), synced(path)))

    def copy() -> float:
        return seconds(lambda: [copies[name].copy_(tensor) for name, tensor in flat.items()])

    return {"copy": copy, "perdure": ours, "dcp_async": dcp, "torch_save": torch_save, "safetensors": safetensors}


def run(quick: bool) -> dict[str, Any]:  # noqa: FBT001 - the one argument of every benchmark
    """Measure both sizes."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module="torch.distributed")
    figures = []
    for size, (width, layers) in SIZES.items():
        rounds = 7 if quick else 15
        module, optimizer = build(width, layers)
        state_bytes = sum(tensor.nbytes for tensor in tensors(module, optimizer).values())
        with (
            scratch() as where,
            perdure.open(where, run="stall", save=None, keep=perdure.Last(1), budget=None, quiet=True) as handle,
        ):
            handle.track(module=module, optimizer=optimizer)
            handle.restore()
            results = alternate(contenders(module, optimizer, where, handle), rounds)
        raw = {name: summary(values) for name, values in results.items()} | {"state_mb": state_bytes / MB}
        medians = {name: summary(values)["median"] for name, values in results.items()}
        for name in ("perdure", "dcp_async", "torch_save", "safetensors"):
            prefix = f"F1@{size}" if name == "perdure" else f"stall:{name}@{size}"
            target = TARGETS[size] if name == "perdure" else ""
            figures.append(figure(prefix, medians[name] / medians["copy"], target, raw))
        if size == "6MB":
            figures.append(figure("F1@6MB:milliseconds", medians["perdure"] * 1e3, "<=1", raw))
    packages = ("perdure", "torch", "safetensors", "numpy")
    return {"benchmark": "stall", "schema": 1, "machine": machine(*packages), "figures": figures}
