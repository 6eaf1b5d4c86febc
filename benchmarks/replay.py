"""
What it costs to save and restore a replay buffer (F2, F5, F6, F7), beside what others do with the same data.

A save of a run of nets and a replay buffer is measured against a synchronous ``np.savez`` of the same arrays and fsync,
a restore against peers that load everything, with cold caches for both, and sampling afterwards against a buffer that
was never restored. Bytes are counted, not timed.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tests.replay.harness import STEM, source_of, sparse_checkpoint

import perdure
from benchmarks._replay_peers import BATCH, evict, installed_peers
from benchmarks.measure import MB, alternate, figure, machine, scratch, seconds, summary
from perdure.core.manifest import FileEntry, Manifest, decode_manifest
from perdure.files.reading import allocate
from perdure.replay import RingBuffer, RingComponent, RingState

FRAMES = {"obs": (np.uint8, (4, 84, 84)), "next_obs": (np.uint8, (4, 84, 84))}
SMALL = {"obs": (np.float32, (17,)), "next_obs": (np.float32, (17,))}
REST = {"action": (np.int64, ()), "reward": (np.float32, ()), "terminated": (np.bool_, ())}
NETS_BYTES = 6 * MB
MORE = 1000
SEGMENT_BYTES = 16 * 2**20
LARGE = ("frames-2.8GB",)
"""Cases that are large enough for the targets that speak of buffers of gigabytes."""


def filled(columns: dict[str, Any], count: int) -> RingBuffer:
    """A full ring of noise."""
    ring = RingBuffer(count, columns | REST, rng=0)
    rng = np.random.default_rng(0)
    for start in range(0, count, 1000):
        add(ring, rng, min(1000, count - start))
    return ring


def add(ring: RingBuffer, rng: np.random.Generator, count: int) -> None:
    """Add transitions of noise."""
    rows = {}
    for name, array in ring.columns.items():
        shape = (count, *array.shape[2:])
        size = int(np.prod(shape)) * array.itemsize
        noise = np.frombuffer(rng.bytes(size), np.uint8)
        rows[name] = noise.view(array.dtype).reshape(shape) if array.dtype == np.uint8 else rng.integers(0, 2, shape)
        rows[name] = rows[name].astype(array.dtype)
    ring.add_batch(**rows)


def peak_memory(action: Callable[[], Any]) -> tuple[float, float]:
    """Seconds that an action takes, and by how many bytes the process grows at most meanwhile."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _status("VmRSS")
    took = seconds(action)
    return took, _status("VmHWM") - before


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(float(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def newest(where: Path) -> tuple[Path, Manifest]:
    """The directory and manifest of the newest checkpoint."""
    directory = (where / "replay" / "latest").resolve()
    return directory, decode_manifest((directory / "manifest.json").read_bytes(), "manifest.json")


def replay_source(where: Path) -> Any:
    """The newest checkpoint's replay buffer, as its component reads it."""
    directory, manifest = newest(where)
    listed = {file.path: file for file in manifest.files}
    (entry,) = [entry for entry in manifest.components if entry.kind == "replay.ring"]
    return source_of(directory, {path: listed[path] for path in entry.files})


def measure_saves(label: str, ring: RingBuffer, where: Path, rounds: int) -> list[dict[str, Any]]:
    """Blocked time, bytes and memory of saves of a whole run, after each 1,000 more transitions."""
    nets = np.random.default_rng(1).random(NETS_BYTES // 8)
    rng = np.random.default_rng(2)
    peer = installed_peers()["savez"]({**ring.columns, "nets": nets})
    row_bytes = sum(array.nbytes for array in ring.columns.values()) / ring.capacity
    with perdure.open(where, run="replay", save=None, keep=perdure.Last(2), budget=None, quiet=True) as handle:
        handle.track(nets=nets, replay=ring)
        handle.restore()
        first: list[float] = []

        def whole() -> None:
            save = handle.save()
            first.append(save.blocked_seconds)
            save.wait()

        first_seconds, first_peak = peak_memory(whole)
        written: list[float] = []
        peaks: list[float] = []

        def ours() -> float:
            seen = {path.stat().st_ino for path in newest(where)[0].rglob("*")}
            add(ring, rng, MORE)
            blocked: list[float] = []
            _, peak = peak_memory(lambda: (save := handle.save(), blocked.append(save.blocked_seconds), save.wait()))
            files = [path for path in (newest(where)[0] / "buffer").rglob("*") if path.is_file()]
            written.append(sum(path.stat().st_size for path in files if path.stat().st_ino not in seen))
            peaks.append(peak)
            return blocked[0]

        times = alternate({"perdure": ours, "savez": lambda: seconds(lambda: peer.save(where / "all"))}, rounds, 1)
        before = _status("VmRSS")
        for _ in range(10):
            add(ring, rng, 10)
            handle.save().wait()
        grown = _status("VmRSS") - before
    medians = {name: summary(values)["median"] for name, values in times.items()}
    changed = MORE * row_bytes
    raw = {name: summary(values) for name, values in times.items()}
    raw |= {"first_blocked": first[0], "first_durable": first_seconds, "buffer_mb": row_bytes * ring.capacity / MB}
    return [
        figure(f"F2@{label}", medians["perdure"] / medians["savez"], "<=0.002" if label in LARGE else "", raw),
        figure(
            f"F5@{label}",
            max(written) / (1.05 * changed + SEGMENT_BYTES),
            "<=1",
            {"written_mb": max(written) / MB, "changed_mb": changed / MB, "segment_mb": SEGMENT_BYTES / MB},
        ),
        figure(
            f"F6@{label}:segments",
            max(peaks) / SEGMENT_BYTES,
            "<=4",
            {"peak_mb": max(peaks) / MB, "first_peak_mb": first_peak / MB},
        ),
        figure(f"F6@{label}:growth", grown / SEGMENT_BYTES, "<=1", {"grown_mb": grown / MB, "saves": 10}),
    ]


def measure_peers(label: str, ring: RingBuffer, where: Path, rounds: int, *, is_large: bool) -> list[dict[str, Any]]:
    """Cold restores until the first batch, ours against each peer; what a peer's second save writes."""
    figures = []
    columns = {name: (array.dtype, array.shape[2:]) for name, array in ring.columns.items()}
    source = replay_source(where)

    def ours() -> float:
        evict(source.directory)
        fresh = RingBuffer(ring.capacity, columns, rng=0)
        component = RingComponent(fresh)
        took = seconds(lambda: (component.check_parts(source), component.restore_parts(source), fresh.sample(BATCH)))
        component.verification and component.verification.finish()
        return took

    for name, make in installed_peers().items():
        path = where / f"peer-{name}"
        peer = make(ring.columns)
        saved = [seconds(lambda: peer.save(path)) for _ in range(2)]  # noqa: B023 - called at once
        target = next(where.glob(f"peer-{name}*"))

        def theirs(target: Path = target, peer: Any = peer, path: Path = path) -> float:
            evict(target)
            return seconds(lambda: peer.load(path))

        times = alternate({"perdure": ours, name: theirs}, rounds, 1)
        medians = {key: summary(values)["median"] for key, values in times.items()}
        size = sum(file.stat().st_size for file in [target, *target.rglob("*")] if file.is_file())
        raw = {key: summary(values) for key, values in times.items()} | {"saves": saved, "second_save_mb": size / MB}
        figures.append(
            figure(f"F7@{label}:{name}", medians[name] / medians["perdure"], ">=100" if is_large else "", raw)
        )
        for file in [*target.rglob("*"), target]:
            file.rmdir() if file.is_dir() else file.unlink()
    return figures


def measure_reading(label: str, ring: RingBuffer, where: Path, rounds: int) -> list[dict[str, Any]]:
    """Sampling after a restore against before one; the rate of a whole verified read against a plain one."""
    columns = {name: (array.dtype, array.shape[2:]) for name, array in ring.columns.items()}
    source = replay_source(where)
    mapped = RingBuffer(ring.capacity, columns, rng=0)
    component = RingComponent(mapped, verify="eager")
    component.restore_parts(source)
    for array in mapped.columns.values():
        array.max()

    def sampled(which: RingBuffer) -> float:
        return seconds(lambda: [which.sample(BATCH) for _ in range(repeats)])

    # As many as take long enough to be timed.
    repeats = max(20, 50 * MB // (BATCH * sum(array[0].nbytes for array in ring.columns.values())))
    times = alternate({"mapped": lambda: sampled(mapped), "memory": lambda: sampled(ring)}, rounds + 4)
    medians = {name: summary(values)["median"] for name, values in times.items()}
    raw = {name: summary(values) for name, values in times.items()}
    figures = [figure(f"F7@{label}:sampling", medians["memory"] / medians["mapped"], ">=0.95", raw)]
    if "small" in label:
        return figures
    files = [source.directory / path for path in source.files]

    def read(path: Path, *, into_fresh: bool) -> memoryview:
        size = path.stat().st_size
        buffer = allocate(size if into_fresh else 2**20)
        descriptor = os.open(path, os.O_RDONLY)
        position = 0
        while position < size:
            start = position if into_fresh else 0
            position += os.preadv(descriptor, [buffer[start : start + 2**20]], position)
        os.close(descriptor)
        return buffer

    def plain(*, into_fresh: bool) -> float:
        evict(source.directory)
        with ThreadPoolExecutor(4) as pool:
            return seconds(lambda: list(pool.map(partial(read, into_fresh=into_fresh), files)))

    def restored(**choices: str) -> float:
        evict(source.directory)
        fresh = RingComponent(RingBuffer(ring.capacity, columns, rng=0), **choices)
        return seconds(lambda: fresh.restore_parts(source))

    contenders = {
        "plain": lambda: plain(into_fresh=False),
        "verified": lambda: restored(verify="eager"),
        "plain_into_memory": lambda: plain(into_fresh=True),
        "verified_into_memory": lambda: restored(load="read"),
    }
    times = alternate(contenders, rounds, 1)
    medians = {name: summary(values)["median"] for name, values in times.items()}
    raw = {name: summary(values) for name, values in times.items()}
    for name, ending in (("verified-read", ""), ("verified-read-into-memory", "_into_memory")):
        ratio = medians[f"plain{ending}"] / medians[f"verified{ending}"]
        figures.append(figure(f"F7@{label}:{name}", ratio, ">=0.95", raw))
    return figures


def capture_seconds(capacity: int) -> float:
    """How long marking takes after 1,000 more frames in a full ring of this capacity; nothing is written."""
    ring = RingBuffer(capacity, {"obs": FRAMES["obs"]} | REST, rng=0)
    component = RingComponent(ring)
    state = RingState(capacity, 5, capacity, 3 * capacity + 5)
    ring._state = state
    capture = component.capture_parts(STEM)
    capture.on_committed(Path("nowhere"), {part.path: FileEntry(part.path, 0, "") for part in capture.parts})
    ring._state = RingState(capacity, 5 + MORE, capacity, state.total_count + MORE)
    took = []
    for _ in range(30):
        began = time.perf_counter()
        capture = component.capture_parts(STEM)
        took.append(time.perf_counter() - began)
        capture.on_aborted()
    return summary(took)["median"]


def measure_flatness() -> list[dict[str, Any]]:
    """Marking and restoring at 1, 4 and 28 GB; the last is larger than this machine's memory, and sparse."""
    sizes = {"1GB": 35_432, "4GB": 141_728, "28GB": 1_000_000}
    marking = {name: capture_seconds(rows) for name, rows in sizes.items()}
    ready = {}
    for name, rows in sizes.items():
        ring = RingBuffer(rows, {"obs": FRAMES["obs"]} | REST, rng=0)
        component = RingComponent(ring, verify="first-touch")
        with scratch() as where:
            source = sparse_checkpoint(where, component._groups, RingState(rows, 5, rows, rows + 5))
            ready[name] = min(seconds(lambda: component.restore_parts(source)) for _ in range(3))  # noqa: B023
    return [
        figure("F2@28GB:flat", marking["28GB"] / marking["1GB"], "<=3", {"seconds": marking}),
        figure("F7@28GB:seconds", ready["28GB"], "<=1", {"seconds": ready}),
    ]


def run(quick: bool) -> dict[str, Any]:  # noqa: FBT001 - the one argument of every benchmark
    """Measure stacked frames, small rows, and sizes beyond memory."""
    cases = [("frames-0.2GB", FRAMES, 3_000), ("small-8MB", SMALL, 50_000)]
    if not quick:
        cases = [("frames-1GB", FRAMES, 18_000), ("frames-2.8GB", FRAMES, 50_000), ("small-150MB", SMALL, 1_000_000)]
    rounds = 3 if quick else 5
    figures = []
    for label, columns, count in cases:
        with scratch() as where:
            ring = filled(columns, count)
            figures += measure_saves(label, ring, where, rounds)
            figures += measure_peers(label, ring, where, rounds, is_large=label in LARGE)
            figures += measure_reading(label, ring, where, rounds)
            del ring
    figures += measure_flatness()
    packages = ("perdure", "numpy", "stable-baselines3", "torchrl", "tianshou")
    return {"benchmark": "replay", "schema": 1, "machine": machine(*packages), "figures": figures}
