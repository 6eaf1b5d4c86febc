"""
How long a save blocks the training thread (F1), beside what the field uses and one warm copy of the same state.

Everyone saves the same module and Adam state. ``torch.save``, safetensors and synchronous DCP block until their files
are synced, as a user who wants to keep them must; the others block until their call returns. perdure is measured in
both of its modes. Background work of one save is over before the next begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks._save_peers import SIZES, SavePeer, build, every_size, peers, size_of, tensors
from benchmarks.measure import MB, alternate, figure, summary

TARGETS = {"6MB": "<=5", "256MB": "<=1.1", "1.5GB": "<=1.1"}
BESIDE = "<=0.1"
BESIDE_SIZES = ("256MB", "1.5GB")
"""From here on a copy takes long enough to be worth hiding behind compute."""


def blocked(peer: SavePeer) -> Callable[[], float]:
    """Measure one save."""

    def one() -> float:
        seconds = peer.begin()
        peer.finish()
        return seconds

    return one


def copier(flat: dict[str, torch.Tensor]) -> Callable[[], float]:
    """One warm copy of everything, tensor by tensor."""
    copies = {name: torch.empty_like(tensor) for name, tensor in flat.items()}

    def one() -> float:
        began = time.perf_counter()
        for name, tensor in flat.items():
            copies[name].copy_(tensor)
        return time.perf_counter() - began

    return one


def measure(size: str, where: Path, *, quick: bool) -> list[dict[str, Any]]:
    """All figures of one size."""
    module, optimizer = build(*SIZES[size])
    chosen = {name: make(module, optimizer, where) for name, make in peers(quick=quick).items()}
    contenders = {"copy": copier(tensors(module, optimizer)), **{name: blocked(each) for name, each in chosen.items()}}
    results = alternate(contenders, 7 if quick else 15)
    for each in chosen.values():
        each.close()
    raw: dict[str, Any] = {name: summary(values) for name, values in results.items()}
    raw["state_mb"] = size_of(module, optimizer) / MB
    medians = {name: raw[name]["median"] for name in results}
    figures = []
    for name in chosen:
        prefix, target = f"stall:{name}@{size}", ""
        if name == "perdure":
            prefix, target = f"F1@{size}", TARGETS.get(size, "")
        elif name == "perdure_beside":
            prefix, target = f"F1@{size}:beside", BESIDE if size in BESIDE_SIZES else ""
        figures.append(figure(prefix, medians[name] / medians["copy"], target, raw))
    if size == "6MB":
        figures.append(figure("F1@6MB:milliseconds", medians["perdure"] * 1e3, "<=1", raw))
        figures.append(figure("F1@6MB:beside:milliseconds", medians["perdure_beside"] * 1e3, "<=1", raw))
    return figures


def run(quick: bool) -> dict[str, Any]:  # noqa: FBT001 - the one argument of every benchmark
    """Measure every size."""
    return every_size("stall", measure, quick=quick)
