"""
What it costs to save and restore a replay buffer (F2, F5, F6, F7), beside what others do with the same data.

Each contender fills, saves and loads in processes of its own, so that memory is its own and nothing is found warm. A
save is durable for all of them, a load begins with cold caches, and loads alternate. Bytes are counted, not timed.
"""

from __future__ import annotations

import os
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.replay.harness import STEM, sparse_checkpoint

import perdure
from benchmarks._replay_child import CASES, MORE, Processes, load, read, save
from benchmarks._replay_peers import BATCH, CONTENDERS, is_installed, newest_source
from benchmarks._replay_pictures import play
from benchmarks.measure import MB, alternate, evict, figure, machine, scratch, seconds, summary
from perdure.core.manifest import FileEntry
from perdure.replay import RingBuffer, RingComponent, RingState

SEGMENT_BYTES = 16 * 2**20
PEERS = ("savez", "sb3", "torchrl", "tianshou")


def say(what: str) -> None:
    """Tell whoever waits how far it is."""
    print(f"replay: {what}", file=sys.stderr, flush=True)


def measure_case(processes: Processes, case: str, count: int, rounds: int, *, is_large: bool) -> list[dict[str, Any]]:
    """Everything about one kind of transitions: saves, loads, sampling and reading."""
    label = f"{case}-{count:,}".replace(",", "_")
    figures = []
    with scratch() as where:
        say(f"{label}: perdure")
        ours = processes.run(save, "perdure", case, count, where / "perdure")
        figures += own_figures(label, ours)
        for name in PEERS:
            if not is_installed(name):
                say(f"{name} is left out: {CONTENDERS[name][0]} is not installed")
                continue
            say(f"{label}: {name}")
            theirs = processes.run(save, name, case, count, where / name)
            loads: dict[str, list[dict[str, float]]] = {"perdure": [], name: []}
            for number in range(rounds):
                for which in ("perdure", name) if number % 2 else (name, "perdure"):
                    loads[which].append(processes.run(load, which, case, count, where / which))
            figures += peer_figures(label, name, ours, theirs, loads, is_large=is_large)
            shutil.rmtree(where / name)
        say(f"{label}: sampling and reading")
        run = [processes.run(load, "perdure-run", case, count, where / "perdure") for _ in range(rounds)]
        figures.append(
            figure(f"replay@{label}:whole-run-batch-seconds", median(run, "batch_seconds"), "", {"loads": run})
        )
        figures += measure_reading(processes, label, case, count, where / "perdure", rounds)
    return figures


def measure_large(processes: Processes, count: int, rounds: int) -> list[dict[str, Any]]:
    """Time to the first batch of a buffer of twice the size, where what a start costs in any case weighs less."""
    label, figures = f"frames-{count:,}".replace(",", "_"), []
    with scratch() as where:
        say(f"{label}: perdure")
        processes.run(save, "perdure", "frames", count, where / "perdure")
        for name in filter(is_installed, PEERS):
            say(f"{label}: {name}")
            processes.run(save, name, "frames", count, where / name)
            loads: dict[str, list[dict[str, float]]] = {"perdure": [], name: []}
            for number in range(rounds):
                for which in ("perdure", name) if number % 2 else (name, "perdure"):
                    loads[which].append(processes.run(load, which, "frames", count, where / which))
            first = {key: median(values, "batch_seconds") for key, values in loads.items()}
            shutil.rmtree(where / name)
            figures.append(figure(f"F7@{label}:{name}", first[name] / first["perdure"], ">=100", {"loads": loads}))
    return figures


def median(measured: list[dict[str, float]], field: str) -> float:
    """The median of one thing that was measured several times."""
    return summary([values[field] for values in measured])["median"]


def own_figures(label: str, ours: dict[str, Any]) -> list[dict[str, Any]]:
    """What our saves write and take."""
    changed = MORE * ours["row_bytes"]
    written = max(ours["written_bytes"][1:])
    return [
        figure(
            f"F5@{label}",
            written / (1.05 * changed + SEGMENT_BYTES),
            "<=1",
            {"written_mb": written / MB, "changed_mb": changed / MB, "segment_mb": SEGMENT_BYTES / MB},
        ),
        figure(f"F6@{label}:segments", max(ours["peak_bytes"][1:]) / SEGMENT_BYTES, "<=4", {"saves": ours}),
    ]


def peer_figures(
    label: str,
    name: str,
    ours: dict[str, Any],
    theirs: dict[str, Any],
    loads: dict[str, list[dict[str, float]]],
    *,
    is_large: bool,
) -> list[dict[str, Any]]:
    """One peer beside ours: time blocked, bytes, memory, time to the first batch and to the first step."""
    blocked = {key: summary(values["blocked_seconds"][1:])["median"] for key, values in (("us", ours), ("it", theirs))}
    raw = {"perdure": ours, name: theirs}
    first = {key: median(values, "batch_seconds") for key, values in loads.items()}
    step = {key: median(values, "step_seconds") for key, values in loads.items()}
    return [
        figure(f"F2@{label}:{name}", blocked["us"] / blocked["it"], "<=0.002" if is_large else "", raw),
        figure(f"F5@{label}:{name}-writes", theirs["written_bytes"][-1] / max(1, ours["written_bytes"][-1]), "", {}),
        figure(f"F7@{label}:{name}", first[name] / first["perdure"], ">=100" if is_large else "", {"loads": loads}),
        figure(f"F7@{label}:{name}-first-step", step[name] / step["perdure"], "", {"seconds": step}),
    ]


def measure_reading(
    processes: Processes, label: str, case: str, count: int, folder: Path, rounds: int
) -> list[dict[str, Any]]:
    """Sampling after a restore against plain memory; the rate of a verified read against that of a plain one."""
    source = newest_source(folder)

    def restored(**choices: str) -> RingBuffer:
        ring = RingBuffer(count, CASES[case], rng=0)
        RingComponent(ring, **choices).restore_parts(source)
        return ring

    rings = {"mapped": restored(verify="eager"), "memory": restored(load="read")}
    for array in rings["mapped"].columns.values():
        array.max()
    # As many as take long enough to be timed.
    repeats = max(20, 50 * MB // (BATCH * sum(array[0].nbytes for array in rings["mapped"].columns.values())))

    def sampled(name: str) -> float:
        return seconds(lambda: [rings[name].sample(BATCH) for _ in range(repeats)])

    times = alternate({name: partial(sampled, name) for name in rings}, 2 * rounds + 3)
    figures = [ratio(f"F7@{label}:sampling", times, "memory", "mapped", ">=0.95")]
    if case == "small":
        return figures
    rings.clear()
    # In processes of their own: memory that another one has left would be ready at hand, which new memory never is.
    contenders = ("plain", "verified", "plain-into-memory", "verified-into-memory")
    worked: dict[str, list[float]] = {name: [] for name in contenders}

    def measured(name: str) -> float:
        result = processes.run(read, name, case, count, folder)
        worked[name].append(result["cpu_seconds"] / (os.cpu_count() or 1))
        return float(result["seconds"])

    times = alternate({name: partial(measured, name) for name in contenders}, rounds + 2, 1)
    figures.append(ratio(f"F7@{label}:verified-read", times, "plain", "verified", ">=0.95"))
    # Where a host keeps the disk's bytes in its memory, reads are faster than all processors together can digest.
    plain, busy = summary(times["plain"])["median"], summary(worked["verified"])["median"]
    figures.append(
        figure(f"F7@{label}:verified-read:limit", plain / max(plain, busy), "", {"busy_seconds": worked["verified"]})
    )
    figures.append(ratio(f"F7@{label}:eager", times, "plain-into-memory", "verified-into-memory", ">=0.9"))
    return figures


def ratio(name: str, times: dict[str, list[float]], above: str, below: str, target: str) -> dict[str, Any]:
    """A figure that is one median over another."""
    raw = {key: summary(values) for key, values in times.items()}
    return figure(name, raw[above]["median"] / raw[below]["median"], target, raw)


def measure_codings(count: int) -> list[dict[str, Any]]:
    """What coding makes of stacks of frames: of a game, and of noise, of which nothing but the stacks repeats."""
    figures = []
    for kind, target in (("game", ">=70"), ("noise", ">=5")):
        frames, what = play(kind, count + 8)
        with scratch() as where:
            raw = {"frames": what} | {codec: save_stacks(frames, where / codec, codec) for codec in ("raw", "auto")}
        shrunk = raw["raw"]["buffer_bytes"] / raw["auto"]["buffer_bytes"]
        figures.append(figure(f"replay@stacks-{kind}:shrinks", shrunk, target, raw))
    return figures


def save_stacks(frames: NDArray[np.uint8], where: Path, codec: str) -> dict[str, float]:
    """Save stacks of four frames, restore them, and look at every row."""
    count = len(frames) - 4

    def ring_of(run: perdure.Run) -> tuple[RingBuffer, RingComponent]:
        ring = RingBuffer(count, CASES["frames"], rng=0)
        component = RingComponent(ring, codec=codec)
        run.track(replay=component)
        return ring, component

    with perdure.open(where, run="stacks", save=None, quiet=True) as run:
        ring, _ = ring_of(run)
        run.restore()
        for at in range(count):
            ring.add(obs=frames[at : at + 4], next_obs=frames[at + 1 : at + 5], action=0, reward=0.0, terminated=False)
        saved = seconds(lambda: run.save().wait())
    evict(where)
    with perdure.open(where, run="stacks", save=None, quiet=True) as run:
        ring, component = ring_of(run)
        first = seconds(lambda: (run.restore(), ring.sample(BATCH)))
        rest = seconds(component.verification.finish)
        for at in range(count):
            if not np.array_equal(ring.columns["next_obs"][at, 0], frames[at + 1 : at + 5]):
                raise RuntimeError(f"row {at} came back wrong")
    buffer_bytes = sum(path.stat().st_size for path in where.rglob("buffer/replay/*"))
    return {"buffer_bytes": buffer_bytes, "save_seconds": saved, "first_batch_seconds": first, "rest_seconds": rest}


def capture_seconds(capacity: int) -> float:
    """How long marking takes after 1,000 more frames in a full ring of this capacity; nothing is written."""
    ring = RingBuffer(capacity, CASES["frames"], rng=0)
    component = RingComponent(ring)
    state = RingState(capacity, 5, capacity, 3 * capacity + 5)
    ring._state = state
    capture = component.capture_parts(STEM)
    capture.on_committed(Path("nowhere"), {part.path: FileEntry(part.path, 0, "") for part in capture.parts})
    ring._state = RingState(capacity, 5 + MORE, capacity, state.total_count + MORE)
    took = []
    for _ in range(30):
        captured: list[Any] = []
        took.append(seconds(lambda: captured.append(component.capture_parts(STEM))))  # noqa: B023 - called at once
        captured[0].on_aborted()
    return summary(took)["median"]


def measure_flatness() -> list[dict[str, Any]]:
    """Marking and restoring at 1, 4 and 28 GB; the last is larger than many a machine's memory, and sparse."""
    sizes = {"1GB": 17_716, "4GB": 70_864, "28GB": 500_000}
    marking = {name: capture_seconds(rows) for name, rows in sizes.items()}
    ready = {}
    for name, rows in sizes.items():
        component = RingComponent(RingBuffer(rows, CASES["frames"], rng=0), verify="first-touch")
        with scratch() as where:
            source = sparse_checkpoint(where, component._groups, RingState(rows, 5, rows, rows + 5))
            ready[name] = min(seconds(lambda: component.restore_parts(source)) for _ in range(3))  # noqa: B023
    return [
        figure("F2@28GB:flat", marking["28GB"] / marking["1GB"], "<=3", {"seconds": marking}),
        figure("F7@28GB:seconds", ready["28GB"], "<=1", {"seconds": ready}),
    ]


def run(quick: bool) -> dict[str, Any]:  # noqa: FBT001 - the one argument of every benchmark
    """Measure stacked frames, small rows, codings, and sizes beyond memory."""
    sizes = {"frames": 3_000, "small": 50_000} if quick else {"frames": 50_000, "small": 1_000_000}
    rounds = 2 if quick else 3
    processes = Processes()
    figures = []
    for case, count in sizes.items():
        figures += measure_case(processes, case, count, rounds, is_large=case == "frames" and not quick)
    if not quick:
        figures += measure_large(processes, 2 * sizes["frames"], rounds)
    say("codings, and sizes beyond memory")
    figures += measure_codings(2_000 if quick else 20_000)
    figures += measure_flatness()
    packages = ("perdure", "numpy", "stable-baselines3", "torchrl", "tianshou", "lz4", "zstandard", "ale-py")
    return {"benchmark": "replay", "schema": 1, "machine": machine(*packages), "figures": figures}
