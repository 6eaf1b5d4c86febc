"""
How much work a SIGKILL costs (F14), when all save at the same expense: disk-only savers against the memory tier.

Real trainings are killed at random moments and started again. What is lost is what they had done beyond the save that
the next start comes to, the step under way included. First the cost of a save is measured for each: what steps with
saves take longer than steps without, so that waiting counts as much as background work that slows training down. Each
then saves as often as the same share of the time allows. The memory tier does not get more: a tenth of its share goes
to the saves to the disk that are made besides.

What can be won has a limit: a save to memory costs a copy of the state at least, and half of the step that is under way
is lost whoever saves. The limit is a figure, too.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._loss_child import NEVER_SECONDS, PROGRESS
from benchmarks._save_peers import SIZES as SAVED
from benchmarks._save_peers import build, tensors
from benchmarks.measure import figure, machine, scratch
from benchmarks.stall import copier

SHARE = 0.1
"""Part of the time that saving may take; perdure's own default."""
DISK_PART = 0.1
"""Part of the share that a run with a memory tier spends on saves to the disk."""
SEED = 14
DEADLINE_SECONDS = 120.0
MODES = ("torch_save", "perdure_disk", "perdure_ram", "perdure_ram_beside")
KILLS = {"6MB": 20, "64MB": 12, "256MB": 6}
"""Of each mode, by size: the larger, the longer until a mode has saved."""
QUICK_KILLS = 4
LEAST_COST_SHARE = 0.02
"""A save whose cost is lost in the noise is taken to cost this part of a step."""


@dataclass(frozen=True)
class Plan:
    """How often a mode saves at its share."""

    mode: str
    save_seconds: float
    ram_seconds: float
    step_seconds: float


def measured_cost(mode: str, size: str, where: Path) -> dict[str, float]:
    """What a save of this mode's own tier costs a training, from a process of its own."""
    words = [sys.executable, "-m", "benchmarks._loss_child", mode, size, str(where), "cost"]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        environment = {**os.environ, "PERDURE_MEMORY": memory}
        done = subprocess.run(
            words, check=True, capture_output=True, text=True, timeout=DEADLINE_SECONDS, env=environment
        )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def plan(size: str) -> tuple[list[Plan], dict[str, Any]]:
    """Measure what saves cost, and how often each mode may save for its share."""
    costs: dict[str, dict[str, float]] = {}
    for mode in MODES:
        with scratch() as where:
            costs[mode] = measured_cost(mode, size, where)
    step_seconds = statistics.median(found["step_seconds"] for found in costs.values())

    def interval(mode: str, share: float) -> float:
        return max(costs[mode]["cost_seconds"], LEAST_COST_SHARE * step_seconds) / share

    plans = []
    for mode in MODES:
        if mode.startswith("perdure_ram"):
            disk = interval("perdure_disk", SHARE * DISK_PART)
            plans.append(Plan(mode, disk, interval(mode, SHARE * (1 - DISK_PART)), step_seconds))
        else:
            plans.append(Plan(mode, interval(mode, SHARE), NEVER_SECONDS, step_seconds))
    return plans, costs


class Life:
    """A process that trains until it is killed."""

    def __init__(self, plan: Plan, size: str, where: Path, memory: str) -> None:
        words = [sys.executable, "-m", "benchmarks._loss_child", plan.mode, size, str(where), "train"]
        self._where = where
        self._process = subprocess.Popen(
            [*words, str(plan.save_seconds), str(plan.ram_seconds)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PERDURE_MEMORY": memory},
        )
        assert self._process.stdout is not None
        self.began_at = int(self._process.stdout.readline())

    def kill(self, step_seconds: float) -> float:
        """End it here and now; the steps that it had done, and the part of the one under way."""
        self._process.send_signal(signal.SIGKILL)
        killed_at = time.monotonic()
        self._process.communicate(timeout=DEADLINE_SECONDS)
        steps, ended_at = PROGRESS.unpack_from((self._where / "progress").read_bytes())
        return float(steps) + min(1.0, max(0.0, killed_at - ended_at) / step_seconds)


def lose(plan: Plan, size: str, kills: int, longest_seconds: float) -> list[float]:
    """Steps lost by each of so many kills, at moments that are random within what a mode saves in."""
    moments = random.Random(SEED)
    lost = []
    with scratch() as where, tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        life = Life(plan, size, where, memory)
        try:
            for _ in range(kills):
                time.sleep(longest_seconds * (1 + moments.random()))
                came_to = life.kill(plan.step_seconds)
                life = Life(plan, size, where, memory)
                lost.append(came_to - life.began_at)
        finally:
            life.kill(plan.step_seconds)
    return lost


def _least_loss(save_seconds: float, step_seconds: float) -> float:
    """Steps that a kill costs on average if saves that take so long are made as often as the share allows."""
    return max(1, math.ceil(save_seconds / (SHARE * (1 - DISK_PART)) / step_seconds)) / 2


def measure(size: str, *, quick: bool) -> list[dict[str, Any]]:
    """All figures of one size."""
    plans, costs = plan(size)
    one_copy = min(copier(tensors(*build(*SAVED[size])))() for _ in range(5))
    raw: dict[str, Any] = {"share": SHARE, "costs": costs, "copy_seconds": one_copy}
    # At the same moments for all: after the first save of the one that saves least often, and random from then on.
    longest = max(plans[0].save_seconds, plans[1].save_seconds, 10 * plans[0].step_seconds)
    for each in plans:
        lost = lose(each, size, QUICK_KILLS if quick else KILLS[size], longest)
        print(f"loss: {size} {each.mode} {statistics.mean(lost):.1f} steps", file=sys.stderr, flush=True)
        raw[each.mode] = {
            "mean_steps": statistics.mean(lost),
            "steps": lost,
            "save_seconds": each.save_seconds,
            "ram_seconds": each.ram_seconds if each.ram_seconds < NEVER_SECONDS else None,
        }
    means = {mode: raw[mode]["mean_steps"] for mode in MODES}
    return [
        figure(f"F14@{size}", means["torch_save"] / means["perdure_ram"], ">=100", raw),
        figure(f"F14@{size}:beside", means["torch_save"] / means["perdure_ram_beside"], ">=100", raw),
        figure(f"loss:own_disk@{size}", means["perdure_disk"] / means["perdure_ram"], "", raw),
        figure(f"loss:disk_to_own_disk@{size}", means["torch_save"] / means["perdure_disk"], "", raw),
        figure(f"loss:limit@{size}", means["torch_save"] / _least_loss(one_copy, plans[0].step_seconds), "", raw),
    ]


def run(quick: bool) -> dict[str, Any]:  # noqa: FBT001 - the one argument of every benchmark
    """Measure every size; the largest only if it need not be quick."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    figures = [each for size in list(KILLS)[: 1 if quick else None] for each in measure(size, quick=quick)]
    return {"benchmark": "loss", "schema": 1, "machine": machine("perdure", "torch"), "figures": figures}
