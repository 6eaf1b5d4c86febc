"""
What saving takes from training (F4): steps a second with a save every ten steps, against none, and the slowest steps.

The training is real: forward, backward and Adam on the network that is saved, with batches that make a step long enough
for ten of them to outlast a write. Rounds with and without saves alternate. A save that is not durable when the next
comes due is waited for, for all alike.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from benchmarks._save_peers import SIZES, Make, build, peers, size_of, tensors
from benchmarks._training import Trainer
from benchmarks.measure import MB, alternate, figure, machine, scratch, summary
from benchmarks.persist import raw_writer
from benchmarks.stall import after_a_step, copier

STEPS_PER_SAVE = 10
BATCH = {"6MB": 256, "64MB": 64, "256MB": 64}


def nothing(_: int) -> None:
    """Save nothing."""


class Saver(Protocol):
    """Something that saves beside training."""

    def begin(self) -> object:
        """Begin a save."""

    def finish(self) -> None:
        """Return once it is durable."""


def saver(peer: Saver) -> Callable[[int], None]:
    """Save before every tenth step; the one before is durable by then, or is waited for."""
    begun = [False]

    def at_step(number: int) -> None:
        if number % STEPS_PER_SAVE == 0:
            if begun[0]:
                peer.finish()
            peer.begin()
            begun[0] = True

    return at_step


class Plain:
    """The least that a save beside training can be: one warm copy, and a thread that writes as many bytes and syncs."""

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer, where: Path) -> None:
        self._copy = copier(tensors(module, optimizer))
        self._write = raw_writer(where, size_of(module, optimizer))
        self._thread = threading.Thread()

    def begin(self) -> None:
        """Copy, and begin to write."""
        self._copy()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def finish(self) -> None:
        """Wait for the write."""
        self._thread.join()


def measure(size: str, where: Path, *, quick: bool) -> list[dict[str, Any]]:
    """All figures of one size."""
    module, optimizer = build(*SIZES[size])
    trainer = Trainer(module, optimizer, BATCH[size])
    count = STEPS_PER_SAVE * (3 if quick else 8)
    chosen = {name: make(module, optimizer, where) for name, make in _measured(quick=quick).items()}
    samples: dict[str, list[float]] = {}

    def contender(name: str, at_step: Callable[[int], None], finish: Callable[[], None]) -> Callable[[], float]:
        def one() -> float:
            taken = trainer.steps(count, at_step)
            samples.setdefault(name, []).extend(taken)
            finish()
            return count / sum(taken)

        return one

    contenders = {
        "none": contender("none", nothing, lambda: None),
        "copy": after_a_step(copier(tensors(module, optimizer)), trainer),
    }
    plain = Plain(module, optimizer, where)
    contenders["plain"] = contender("plain", saver(plain), plain.finish)
    contenders |= {name: contender(name, saver(peer), peer.finish) for name, peer in chosen.items()}
    results = alternate(contenders, 3 if quick else 7, warm_up=1)
    for each in chosen.values():
        each.close()
    raw: dict[str, Any] = {name: summary(values) for name, values in results.items()}
    raw |= {f"{name}:p99_seconds": percentile(values) for name, values in samples.items()}
    raw["state_mb"] = size_of(module, optimizer) / MB
    base = raw["none"]["median"]
    # A save before which everything is copied takes that copy at least.
    ten_steps = STEPS_PER_SAVE / base
    figures = [figure(f"interference:limit@{size}", ten_steps / (ten_steps + raw["copy"]["median"]), "", raw)]
    for name in ("plain", *chosen):
        ours = name.startswith("perdure")
        label = {"perdure": f"F4@{size}", "perdure_beside": f"F4@{size}:beside"}.get(
            name, f"interference:{name}@{size}"
        )
        figures.append(figure(label, raw[name]["median"] / base, ">=0.98" if ours else "", raw))
        slowest = raw[f"{name}:p99_seconds"] / raw["none:p99_seconds"]
        figures.append(figure(f"{label}:p99", slowest, "<=1.1" if ours else "", raw))
    return figures


def _measured(*, quick: bool) -> dict[str, Make]:
    # Synchronous ones stop training for as long as `stall` says; here they would only take time. So would those that
    # save arrays of JAX: what is trained is a module.
    left_out = ("safetensors", "dcp", "orbax_async", "perdure_jax")
    return {name: make for name, make in peers(quick=quick).items() if name not in left_out}


def percentile(values: list[float]) -> float:
    """The value below which 99 of 100 lie."""
    return statistics.quantiles(values, n=100)[98]


def run(quick: bool) -> dict[str, Any]:  # noqa: FBT001 - the one argument of every benchmark
    """Measure the sizes at which ten steps outlast a write."""
    torch.set_num_threads(1)
    figures = []
    for size in BATCH:
        if quick and size == "256MB":
            continue
        with scratch() as where:
            figures += measure(size, where, quick=quick)
    return {"benchmark": "interference", "schema": 1, "machine": machine("perdure", "torch"), "figures": figures}
