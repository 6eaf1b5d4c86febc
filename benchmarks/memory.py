"""
What saving takes of memory (F6): the peak during saves, and whether it grows over a thousand of them.

Each contender runs in a process of its own, so that none finds memory that another has left. Counted is what the
process grows by at most, from a state that is built and warm, as a multiple of that state.
"""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks._save_peers import SIZES, build, peers, size_of
from benchmarks.measure import MB, figure, machine, scratch

SIZE = "64MB"
SAVES = 6
GROWTH_SIZE = "6MB"
GROWTH_MARKS = (100, 1000, 2000)
QUICK_MARKS = (50, 150, 300)
"""Saves after which the size is taken: from the first to the second allocators warm up, from there on it is growth."""
ALLOWED_GROWTH = "<=0.01"
"""A hundredth of the state over all saves: what the allocator may shift without anything being kept."""


def status(field: str) -> int:
    """A size of this process, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def child(name: str, size: str, where: Path, marks: list[int]) -> dict[str, Any]:
    """Save as often as the last mark says, and tell the peak, and the size at each mark."""
    torch.set_num_threads(1)
    module, optimizer = build(*SIZES[size])
    peer = peers(quick=False)[name](module, optimizer, where)  # some have the state in arrays of their own
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what building has left free is given back at some time: before, for all alike
    base = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    sizes = []
    for number in range(1, marks[-1] + 1):
        peer.begin()
        peer.finish()
        if number in marks:
            gc.collect()
            sizes.append(status("VmRSS"))
    peak = status("VmHWM")
    peer.close()
    return {
        "state_bytes": size_of(module, optimizer),
        "peak_bytes": peak - base,
        "bytes_at": dict(zip(marks, sizes, strict=True)),
    }


def measured(name: str, size: str, *marks: int) -> dict[str, Any]:
    """The same in a process of its own."""
    with scratch() as where:
        command = [sys.executable, "-m", "benchmarks.memory", name, size, str(where), *map(str, marks)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=900)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run(quick: bool) -> dict[str, Any]:  # noqa: FBT001 - the one argument of every benchmark
    """Measure the peak of all, and the growth of ours."""
    figures = []
    for name in peers(quick=quick):
        raw = measured(name, SIZE, SAVES)
        raw["state_mb"] = raw["state_bytes"] / MB
        ours = name == "perdure"
        label = f"F6@{SIZE}" if ours else f"memory:{name}@{SIZE}"
        figures.append(figure(label, raw["peak_bytes"] / raw["state_bytes"], "<=2.1" if ours else "", raw))
    raw = measured("perdure", GROWTH_SIZE, *(QUICK_MARKS if quick else GROWTH_MARKS))
    begun, warm, late = raw["bytes_at"].values()
    figures.append(figure("memory:warm-up", (warm - begun) / raw["state_bytes"], "", raw))
    figures.append(figure("F6:growth", (late - warm) / raw["state_bytes"], ALLOWED_GROWTH, raw))
    packages = ("perdure", "torch", "safetensors", "torch_checkpointing", "orbax-checkpoint")
    return {"benchmark": "memory", "schema": 1, "machine": machine(*packages), "figures": figures}


if __name__ == "__main__":
    contender, state, directory, *after = sys.argv[1:]
    print(json.dumps(child(contender, state, Path(directory), [int(number) for number in after])))
