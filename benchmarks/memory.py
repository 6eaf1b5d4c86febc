"""
What saving takes of memory (F6): the peak during saves, and whether it grows over a thousand of them.

Each contender runs in a process of its own, so that none finds memory that another has left. Counted is what the
process grows by at most, from a state that is built and warm, as a multiple of that state.
"""

from __future__ import annotations

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
GROWTH_SAVES = 1000
WARM_SAVES = 100
ALLOWED_GROWTH = "<=0.01"
"""A hundredth of the state over all saves: what the allocator may shift without anything being kept."""


def status(field: str) -> int:
    """A size of this process, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def child(name: str, size: str, saves: int, where: Path) -> dict[str, float]:
    """Save so often, two at a time where that can be, and tell the peak and the growth."""
    torch.set_num_threads(1)
    module, optimizer = build(*SIZES[size])
    gc.collect()
    base = status("VmRSS")
    peer = peers(quick=False)[name](module, optimizer, where)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    early = base
    for number in range(saves):
        peer.begin()
        peer.finish()
        if number == WARM_SAVES:
            gc.collect()
            early = status("VmRSS")
    gc.collect()
    late, peak = status("VmRSS"), status("VmHWM")
    peer.close()
    return {"state_bytes": size_of(module, optimizer), "peak_bytes": peak - base, "growth_bytes": late - early}


def measured(name: str, size: str, saves: int) -> dict[str, float]:
    """The same in a process of its own."""
    with scratch() as where:
        command = [sys.executable, "-m", "benchmarks.memory", name, size, str(saves), str(where)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=900)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
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
    raw = measured("perdure", GROWTH_SIZE, 300 if quick else GROWTH_SAVES)
    figures.append(figure("F6:growth", raw["growth_bytes"] / raw["state_bytes"], ALLOWED_GROWTH, raw))
    packages = ("perdure", "torch", "safetensors", "orbax-checkpoint")
    return {"benchmark": "memory", "schema": 1, "machine": machine(*packages), "figures": figures}


if __name__ == "__main__":
    print(json.dumps(child(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))))
