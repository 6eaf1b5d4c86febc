"""
One life of a training for `benchmarks.loss`: it restores, says from where, and trains until it is killed.

    python -m benchmarks._loss_child MODE SIZE DIRECTORY train SAVE_SECONDS RAM_SECONDS
    python -m benchmarks._loss_child MODE SIZE DIRECTORY cost

Two numbers in the file ``progress`` say how many steps are done and when the last one ended, whatever becomes of the
process.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import statistics
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

import perdure
from benchmarks._save_peers import SIZES, build
from benchmarks._training import Trainer
from benchmarks.interference import BATCH
from benchmarks.measure import sync_all
from perdure import Every

PROGRESS = struct.Struct("=qd")
NEVER_SECONDS = 1e9
ROUNDS = 9


class Saver(Protocol):
    """Saves a training when that is due."""

    def restore(self) -> int:
        """Bring the training to the newest save; the steps done by then."""

    def at_step(self, step: int) -> None:
        """Take note that so many steps are done; saves if that is due."""

    def settle(self) -> None:
        """Return once nothing is being written."""

    @property
    def saves(self) -> int:
        """Saves so far."""


class TorchSave:
    """``torch.save`` to a second file, synced and renamed: whole whenever the process dies; training waits for it."""

    def __init__(self, state: dict[str, Any], where: Path, save: Every | None) -> None:
        self._state = state
        self._path = where / "state.pt"
        self._save = save
        self._step = 0
        self._saved_at = time.perf_counter()
        self.saves = 0

    def restore(self) -> int:
        if not self._path.exists():
            return 0
        content = torch.load(self._path, weights_only=True)
        for name, value in self._state.items():
            value.load_state_dict(content[name])
        self._step = content["step"]
        return self._step

    def at_step(self, step: int) -> None:
        now = time.perf_counter()
        if self._save is None:
            return
        is_due = now - self._saved_at >= self._save.seconds if self._save.seconds else step % self._save.steps == 0
        if is_due:
            self._saved_at = now
            temporary = self._path.with_suffix(".new")
            torch.save({**{n: v.state_dict() for n, v in self._state.items()}, "step": step}, temporary)
            sync_all(temporary)
            temporary.rename(self._path)
            sync_all(self._path)
            self.saves += 1

    def settle(self) -> None:
        """Nothing is left."""


class Perdure:
    """A run, with or without its memory tier."""

    def __init__(self, state: dict[str, Any], where: Path, save: Every | None, ram: Every | None, copy: str) -> None:
        self._run = perdure.open(
            where, run="run", save=save, ram=ram, copy=copy, keep=perdure.Last(1), budget=None, quiet=True
        )
        self._run.track(**state)
        self._count = self._run.counters(global_step=0)

    def restore(self) -> int:
        self._run.restore()
        return int(self._count.global_step)

    def at_step(self, step: int) -> None:
        self._count.global_step = step
        self._run.boundary()

    def settle(self) -> None:
        self._run._saver.drain(60)

    @property
    def saves(self) -> int:
        counts = self._run.statistics()
        return counts.saved + counts.memory_saves + counts.in_flight


def make(mode: str, state: dict[str, Any], where: Path, save: Every | None, ram: Every | None) -> Saver:
    """The saver of a mode: who saves, and to which tiers."""
    if mode == "torch_save":
        return TorchSave(state, where, save)
    return Perdure(state, where, save, ram if mode.startswith("perdure_ram") else None, _copy_of(mode))


def _copy_of(mode: str) -> str:
    return "beside" if mode.endswith("_beside") else "before"


def train(saver: Saver, trainer: Trainer, where: Path) -> None:
    """Train until killed, and keep the progress where it outlives the process."""
    with (where / "progress").open("w+b") as file:
        file.truncate(mmap.PAGESIZE)
        progress = mmap.mmap(file.fileno(), mmap.PAGESIZE)
    step = saver.restore()
    PROGRESS.pack_into(progress, 0, step, time.monotonic())
    print(step, flush=True)
    while True:
        trainer.step()
        step += 1
        PROGRESS.pack_into(progress, 0, step, time.monotonic())
        saver.at_step(step)


def cost(mode: str, state: dict[str, Any], trainer: Trainer, where: Path) -> dict[str, float]:
    """
    What one save takes from training: rounds of steps with saves against the same steps without, in turns.

    All that a save costs is in it: waiting, and the bandwidth and cores that its background work takes.
    """
    step_seconds = statistics.median(trainer.steps(20, lambda _: None))
    began = time.perf_counter()
    probe = TorchSave(state, where, Every(steps=1))
    probe.at_step(1)
    # Saves that do not overlap: a write takes about as long as this one did, and one to memory a part of that.
    apart = max(1, math.ceil(1.5 * (time.perf_counter() - began) / step_seconds))
    is_memory = mode.startswith("perdure_ram")
    apart = max(1, apart // 4) if is_memory else apart
    every = Every(steps=apart)
    saver = make(mode, state, where, None if is_memory else every, every)
    saver.restore()
    count, waited = [0], [0.0]
    steps = max(2 * apart, 10)

    def saving(_: int) -> None:
        count[0] += 1
        before = time.perf_counter()
        saver.at_step(count[0])
        waited[0] += time.perf_counter() - before

    def seconds(at_step: Callable[[int], None]) -> float:
        before = time.perf_counter()
        trainer.steps(steps, at_step)
        return time.perf_counter() - before

    seconds(saving)
    costs = []
    for _ in range(ROUNDS):
        saver.settle()
        without = seconds(lambda _: None)
        saves, waited[0] = saver.saves, 0.0
        longer = seconds(saving) - without
        # Many steps differ from as many others by more than a small save costs. It costs what was waited for at least.
        costs.append(max(longer, waited[0]) / max(1, saver.saves - saves))
    return {"cost_seconds": statistics.median(costs), "step_seconds": step_seconds, "steps_apart": apart}


def main(mode: str, size: str, directory: str, what: str, *intervals: str) -> None:
    """One life."""
    torch.set_num_threads(1)
    where = Path(directory)
    module, optimizer = build(*SIZES[size])
    state = {"module": module, "optimizer": optimizer}
    trainer = Trainer(module, optimizer, BATCH[size])
    if what == "cost":
        print(json.dumps(cost(mode, state, trainer, where)), flush=True)
        os._exit(0)  # as in a crash: nothing that is measured depends on the way out
    save, ram = (Every(seconds=float(text)) for text in intervals)
    train(make(mode, state, where, save, ram), trainer, where)


if __name__ == "__main__":
    main(*sys.argv[1:])
