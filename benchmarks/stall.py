"""
How long a save blocks the training thread (F1), beside what the field uses and one warm copy of the same state.

Everyone saves the same module and Adam state. ``torch.save``, safetensors and synchronous DCP block until their files
are synced, as a user who wants to keep them must; the others block until their call returns. perdure is measured in
each of its modes. Each save follows a training step, as saves do; background work of the one before is over by then.

A call that returns early may still hold training up, by what goes on behind it. So what is measured, too, is how much
later the next two steps end than without a save.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks._save_peers import SIZES, build, every_size, peers, size_of, tensors
from benchmarks._training import Trainer
from benchmarks.measure import MB, alternate, figure, summary

TARGETS = {"6MB": "<=5", "256MB": "<=1.1", "1.5GB": "<=1.1"}
HIDDEN = {"perdure_beside": "beside", "perdure_jax": "jax"}
"""Modes in which the copy is made behind training."""
BESIDE = "<=0.1"
BESIDE_SIZES = ("256MB", "1.5GB")
"""From here on a copy takes long enough to be worth hiding behind compute."""

BATCH = 16
"""Of the steps before and after each save."""
WARM_UP = 2
ROUNDS = {"1.5GB": 9}
"""Where each takes a minute or two; 15 elsewhere."""


def copier(flat: dict[str, torch.Tensor]) -> Callable[[], float]:
    """One warm copy of everything, tensor by tensor."""
    copies = {name: torch.empty_like(tensor) for name, tensor in flat.items()}

    def one() -> float:
        began = time.perf_counter()
        for name, tensor in flat.items():
            copies[name].copy_(tensor)
        return time.perf_counter() - began

    return one


def after_a_step(measured: Callable[[], float], trainer: Trainer) -> Callable[[], float]:
    """Measure something as a training would meet it."""

    def one() -> float:
        trainer.step()
        return measured()

    return one


def measure(size: str, where: Path, *, quick: bool) -> list[dict[str, Any]]:
    """All figures of one size."""
    module, optimizer = build(*SIZES[size])
    chosen = {name: make(module, optimizer, where) for name, make in peers(quick=quick, size=size).items()}
    trainer = Trainer(module, optimizer, BATCH)
    until_two_steps: dict[str, list[float]] = {}

    def contender(name: str, begin: Callable[[], float], finish: Callable[[], object]) -> Callable[[], float]:
        def one() -> float:
            began = time.perf_counter()
            blocked = begin()
            trainer.step()
            trainer.step()
            until_two_steps.setdefault(name, []).append(time.perf_counter() - began)
            finish()
            return blocked

        return after_a_step(one, trainer)

    nothing = contender("nothing", lambda: 0.0, lambda: None)
    copy = contender("copy", copier(tensors(module, optimizer)), lambda: None)
    savers = {name: contender(name, each.begin, each.finish) for name, each in chosen.items()}
    rounds = 7 if quick else ROUNDS.get(size, 15)
    results = alternate({"nothing": nothing, "copy": copy, **savers}, rounds, warm_up=WARM_UP)
    for each in chosen.values():
        each.close()
    raw: dict[str, Any] = {name: summary(values) for name, values in results.items()}
    steps = {name: summary(values[WARM_UP:]) for name, values in until_two_steps.items()}
    raw |= {"state_mb": size_of(module, optimizer) / MB, "until_two_steps": steps}
    medians = {name: raw[name]["median"] for name in results}
    figures = []
    for name in chosen:
        prefix, target = f"stall:{name}@{size}", ""
        if name == "perdure":
            prefix, target = f"F1@{size}", TARGETS.get(size, "")
        elif name in HIDDEN:
            prefix, target = f"F1@{size}:{HIDDEN[name]}", BESIDE if size in BESIDE_SIZES else ""
        figures.append(figure(prefix, medians[name] / medians["copy"], target, raw))
    for name in chosen:
        later = steps[name]["median"] - steps["nothing"]["median"]
        figures.append(figure(f"stall:cost:{name}@{size}", later / medians["copy"], "", raw))
    if size == "6MB":
        figures.append(figure("F1@6MB:milliseconds", medians["perdure"] * 1e3, "<=1", raw))
        figures.append(figure("F1@6MB:beside:milliseconds", medians["perdure_beside"] * 1e3, "<=1", raw))
    return figures


def run(quick: bool) -> dict[str, Any]:  # noqa: FBT001 - the one argument of every benchmark
    """Measure every size."""
    return every_size("stall", measure, quick=quick)
