"""
One contender at a time, in a process of its own.

Memory is that of the process, and no contender finds what another one has left there. The processes are forked from one
that has imported everything and done nothing.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._replay_peers import CONTENDERS, Rows, newest_source
from benchmarks.measure import evict, scratch
from perdure.files.reading import allocate
from perdure.replay import RingBuffer, RingComponent

CHILD_SECONDS = 600
"""No child needs a tenth of it."""
REST = {"action": (np.int64, ()), "reward": (np.float32, ()), "terminated": (np.bool_, ())}
CASES: dict[str, dict[str, Any]] = {
    "frames": {"obs": (np.uint8, (4, 84, 84)), "next_obs": (np.uint8, (4, 84, 84))} | REST,
    "small": {"obs": (np.float32, (17,)), "next_obs": (np.float32, (17,))} | REST,
}
"""Columns of a transition. What they hold is noise: nobody gets anything for free from bytes that repeat."""
MORE = 1000
SAVES = {"perdure": 4}
OTHER_SAVES = 2
"""The first, and others after `MORE` more transitions each. Peers write everything again, so once more tells it all."""
FEW = 200
STRIDE = 1000


def noise(case: str, count: int, seed: int) -> Iterator[Rows]:
    """Transitions, some at a time."""
    rng = np.random.default_rng(seed)
    for start in range(0, count, STRIDE):
        rows = {}
        for name, (dtype, shape) in CASES[case].items():
            size = (min(STRIDE, count - start), *shape)
            if np.dtype(dtype) == np.uint8:
                rows[name] = np.frombuffer(rng.bytes(int(np.prod(size))), np.uint8).reshape(size)
            elif np.dtype(dtype).kind == "f":
                rows[name] = rng.standard_normal(size, np.float32)
            else:
                rows[name] = rng.integers(0, 2, size).astype(dtype)
        yield rows


def status_bytes(field: str) -> int:
    """A size of this process, from /proc."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def peak_bytes(action: Callable[[], Any]) -> int:
    """By how much the process grows at most during an action."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = status_bytes("VmRSS")
    action()
    return status_bytes("VmHWM") - before


def written_since(folder: Path, seen: set[tuple[int, int]]) -> int:
    """
    Bytes of files that are new or were written again; ``seen`` is brought up to date.

    Older checkpoints are removed meanwhile, with what only they have.
    """
    files = []
    for at, _, names in os.walk(folder):
        for name in names:
            if not name.endswith((".jsonl", ".db")):
                with suppress(FileNotFoundError):
                    files.append((Path(at) / name).stat())
    fresh = {
        (file.st_ino, file.st_mtime_ns): file.st_size for file in files if (file.st_ino, file.st_mtime_ns) not in seen
    }
    seen |= set(fresh)
    return sum(fresh.values())


def save(name: str, case: str, count: int, folder: Path) -> dict[str, Any]:
    """Fill a buffer and save it several times."""
    contender = CONTENDERS[name][1](count, CASES[case])
    for rows in noise(case, count, 0):
        contender.extend(rows)
    blocked, durable, peaks, written = [], [], [], []
    seen: set[tuple[int, int]] = set()
    for number in range(SAVES.get(name, OTHER_SAVES)):
        for rows in noise(case, MORE if number else 0, number):
            contender.extend(rows)

        def whole() -> None:
            began = time.perf_counter()
            blocked.append(contender.save(folder))
            durable.append(time.perf_counter() - began)

        peaks.append(peak_bytes(whole))
        written.append(written_since(folder, seen))
    getattr(contender, "close", lambda: None)()
    return {
        "blocked_seconds": blocked,
        "durable_seconds": durable,
        "peak_bytes": peaks,
        "written_bytes": written,
        "row_bytes": sum(np.dtype(dtype).itemsize * int(np.prod(shape)) for dtype, shape in CASES[case].values()),
    }


def first_step(case: str) -> Callable[[Any, Any], None]:
    """A training step of a small net; called once before, so that nothing is made for the first time in it."""
    import torch

    shape = CASES[case]["obs"][1]
    wide = int(np.prod(shape))
    body = (
        [torch.nn.Conv2d(shape[0], 32, 8, 4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(6)]
        if len(shape) > 1
        else [torch.nn.Linear(wide, 64), torch.nn.ReLU(), torch.nn.Linear(64, 6)]
    )
    net = torch.nn.Sequential(*body)
    net(torch.zeros(1, *shape))
    optimizer = torch.optim.Adam(net.parameters())

    def step(observations: Any, following: Any) -> None:
        now, then = (torch.as_tensor(values).float().reshape(-1, *shape) for values in (observations, following))
        loss = (net(now).max(1).values - net(then).detach().max(1).values).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    step(np.zeros((2, *shape), np.float32), np.zeros((2, *shape), np.float32))
    return step


def warm_up(name: str, case: str) -> None:
    """Save and load a few transitions, so that nothing is imported, compiled or copied on fork for the first time."""
    with scratch() as where:
        for rows in noise(case, FEW, 0):
            saver = CONTENDERS[name][1](FEW, CASES[case])
            saver.extend(rows)
            saver.save(where)
            getattr(saver, "close", lambda: None)()
        loader = CONTENDERS[name][1](FEW, CASES[case])
        loader.load(where)()
        getattr(loader, "close", lambda: None)()


def load(name: str, case: str, count: int, folder: Path) -> dict[str, Any]:
    """Load from a cold disk, draw a batch and take a training step."""
    warm_up(name, case)
    contender = CONTENDERS[name][1](count, CASES[case])
    step = first_step(case)
    evict(folder)
    times: dict[str, float] = {}

    def whole() -> None:
        began = time.perf_counter()
        sample = contender.load(folder)
        batch = sample()
        times["batch_seconds"] = time.perf_counter() - began
        step(*batch)
        times["step_seconds"] = time.perf_counter() - began

    peak = peak_bytes(whole)
    getattr(contender, "close", lambda: None)()
    return times | {"peak_bytes": peak}


def read(name: str, case: str, count: int, folder: Path) -> dict[str, Any]:
    """Read a whole buffer from a cold disk: as we do, verified, or as a plain program does."""
    source = newest_source(folder)
    files = [source.directory / path for path in source.files]

    def plain() -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(partial(_read_plainly, into_fresh=name == "plain-into-memory"), files))

    def verified() -> None:
        choices = {"load": "read"} if name == "verified-into-memory" else {"verify": "eager"}
        RingComponent(RingBuffer(count, CASES[case], rng=0), **choices).restore_parts(source)

    evict(source.directory)
    began, worked = time.perf_counter(), time.process_time()
    (plain if name.startswith("plain") else verified)()
    return {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - worked}


def _read_plainly(path: Path, *, into_fresh: bool) -> memoryview:
    """Read a file as fast as a plain program does, into memory of its size or over and over into the same."""
    size = path.stat().st_size
    buffer = allocate(size if into_fresh else 2**20)
    descriptor = os.open(path, os.O_RDONLY)
    position = 0
    while position < size:
        start = position if into_fresh else 0
        position += os.preadv(descriptor, [buffer[start : start + 2**20]], position)
    os.close(descriptor)
    return buffer


class Processes:
    """Runs `save`, `load` and `read`, each in a fresh process."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        # The compiler is what the first optimizer of a process imports, which takes longer than everything else.
        modules = {"torch", "torch._dynamo", *(module for module, _ in CONTENDERS.values())}
        self._context.set_forkserver_preload(["benchmarks._replay_child", *filter(find_spec, sorted(modules))])

    def run(
        self, action: Callable[..., dict[str, Any]], name: str, case: str, count: int, folder: Path
    ) -> dict[str, Any]:
        """Run an action for a contender; the folder is made if it is not there."""
        folder.mkdir(exist_ok=True)
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_answer, args=(theirs, action, name, case, count, folder))
        process.start()
        theirs.close()
        if not ours.poll(CHILD_SECONDS):
            process.kill()
        try:
            return dict(ours.recv())
        except EOFError as error:
            raise RuntimeError(f"{name} failed to {action.__name__} {case}") from error
        finally:
            process.join(CHILD_SECONDS)


def _answer(to: Any, action: Callable[..., dict[str, Any]], *arguments: Any) -> None:
    to.send(action(*arguments))
