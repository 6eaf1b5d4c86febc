"""
How fast a save becomes durable (F3, F15): beside a plain writer of the same disk, and beside what the field uses.

The plain writer has the bytes in aligned memory already, writes them past the page cache in large pieces and syncs:
nothing durable is faster on one file. Peers are given the syncs that they lack. Times run from the call until all is
durable.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks._save_peers import SIZES, SavePeer, build, every_size, peers, size_of
from benchmarks.measure import MB, alternate, figure, seconds, summary, sync_all
from perdure.files.reading import allocate

RATES = {"64MB": ">=0.5", "1.5GB": ">=0.95"}
SOONER = {"6MB": ">=5", "1.5GB": ">=1.8"}
PIECE_BYTES = 8 * 2**20


def raw_writer(where: Path, size_bytes: int) -> Callable[[], float]:
    """Write that many bytes past the page cache, and sync."""
    memory = allocate(-(-size_bytes // 4096) * 4096)
    memory[:] = os.urandom(4096) * (len(memory) // 4096)
    path = where / "raw"

    def write() -> None:
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
        for start in range(0, len(memory), PIECE_BYTES):
            os.write(descriptor, memory[start : start + PIECE_BYTES])
        os.close(descriptor)
        sync_all(path)

    return lambda: seconds(write)


def durable(peer: SavePeer) -> Callable[[], float]:
    """Measure one save until it is durable."""

    def one() -> float:
        began = time.perf_counter()
        peer.begin()
        peer.finish()
        return time.perf_counter() - began

    return one


def measure(size: str, where: Path, *, quick: bool) -> list[dict[str, Any]]:
    """All figures of one size."""
    module, optimizer = build(*SIZES[size])
    state_bytes = size_of(module, optimizer)
    chosen = {name: make(module, optimizer, where) for name, make in peers(quick=quick, size=size).items()}
    contenders = {"raw": raw_writer(where, state_bytes), **{name: durable(each) for name, each in chosen.items()}}
    rounds = 5 if quick or size == "1.5GB" else 11
    results = alternate(contenders, rounds)
    for each in chosen.values():
        each.close()
    raw: dict[str, Any] = {name: summary(values) for name, values in results.items()}
    raw["state_mb"] = state_bytes / MB
    medians = {name: raw[name]["median"] for name in results}
    figures = [
        figure(f"F3@{size}", medians["raw"] / medians["perdure"], RATES.get(size, ""), raw),
        figure(f"F15@{size}", medians["dcp_async"] / medians["perdure"], SOONER.get(size, ""), raw),
        # No file is durable before the disk has taken its bytes: F15 of a writer that does nothing else.
        figure(f"persist:limit@{size}", medians["dcp_async"] / medians["raw"], "", raw),
    ]
    others = [name for name in chosen if name != "perdure"]
    return figures + [figure(f"persist:{name}@{size}", medians["raw"] / medians[name], "", raw) for name in others]


def run(quick: bool) -> dict[str, Any]:  # noqa: FBT001 - the one argument of every benchmark
    """Measure every size."""
    return every_size("persist", measure, quick=quick)
