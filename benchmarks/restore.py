"""
How fast a save is read back into live objects, verified, with cold caches: beside a plain reader and the field.

The plain reader reads a file of the same size in large pieces into memory that is there. Whoever starts again has no
such memory, so the limit of a restore is a plain reader that gets new memory each time; it is measured as well. Ours
checks every byte against its digest on the way, and runs the sanity check; the others check nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks._save_peers import SIZES, SavePeer, build, every_size, peers, size_of
from benchmarks.measure import MB, alternate, evict, figure, seconds, summary
from perdure.files.reading import allocate

PIECE_BYTES = 8 * 2**20
TARGETS = {"1.5GB": ">=0.8"}


def raw_readers(where: Path, size_bytes: int) -> dict[str, Callable[[], float]]:
    """Read that many bytes through the page cache, which has none of them, into memory that is there and into new."""
    memory = allocate(size_bytes)
    path = where / "raw-read"
    path.write_bytes(memory)
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)

    def read(memory: memoryview) -> None:
        for start in range(0, size_bytes, PIECE_BYTES):
            os.preadv(descriptor, [memory[start : start + PIECE_BYTES]], start)

    def one(read: Callable[[], None]) -> float:
        evict(path)
        return seconds(read)

    return {
        "raw": lambda: one(lambda: read(memory)),
        "raw_new_memory": lambda: one(lambda: read(allocate(size_bytes))),
    }


def cold(peer: SavePeer) -> Callable[[], float]:
    """Measure one load of the newest save."""

    def one() -> float:
        evict(peer.written())
        return seconds(peer.load)

    return one


def measure(size: str, where: Path, *, quick: bool) -> list[dict[str, Any]]:
    """All figures of one size."""
    module, optimizer = build(*SIZES[size])
    state_bytes = size_of(module, optimizer)
    left_out = ("perdure_beside", "dcp_async", "dcp_process")  # the same files as others
    chosen = {
        n: make(module, optimizer, where) for n, make in peers(quick=quick, size=size).items() if n not in left_out
    }
    for each in chosen.values():
        each.begin()
        each.finish()
    contenders = {**raw_readers(where, state_bytes), **{name: cold(each) for name, each in chosen.items()}}
    results = alternate(contenders, 5, warm_up=1)
    for each in chosen.values():
        each.close()
    raw: dict[str, Any] = {name: summary(values) for name, values in results.items()}
    raw["state_mb"] = state_bytes / MB
    medians = {name: raw[name]["median"] for name in results}
    return [
        figure(
            f"restore:{name}@{size}",
            medians["raw"] / medians[name],
            TARGETS.get(size, "") if name == "perdure" else "",
            raw,
        )
        for name in ("raw_new_memory", *chosen)
    ]


def run(quick: bool) -> dict[str, Any]:  # noqa: FBT001 - the one argument of every benchmark
    """Measure every size."""
    return every_size("restore", measure, quick=quick)
