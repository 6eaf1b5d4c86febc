"""
Durability: how much was tried to break the promises of perdure, how often that worked, and who else it worked on.

States after a power cut that were made from recordings; file system calls that were let fail; real power cuts and real
kills; damaged files; planted bugs, which have to be found; and other writers of checkpoints under the same power cuts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from multiprocessing import get_context
from typing import Any

from tests.durability.damage import explore_damage
from tests.durability.planted import BUGS
from tests.durability.tiers import ACTS, Report, explore_family, explore_workload, fail_every_call
from tests.durability.workloads import FAMILIES, WORKLOADS

from benchmarks.measure import figure, machine
from perdure.testing.powercut import what_is_missing

FILE_SYSTEMS = ("ext4", "xfs")
DEADLINE_SECONDS = 3_600.0


@dataclass(frozen=True)
class Effort:
    """Numbers of cases."""

    stride: int
    cuts: int
    kills: int


QUICK = Effort(stride=8, cuts=100, kills=100)
FULL = Effort(stride=1, cuts=1_000, kills=1_000)


def run(quick: bool) -> dict[str, Any]:  # noqa: FBT001 - the one argument of every benchmark
    """Break everything, and count what gave way."""
    effort = QUICK if quick else FULL
    share = 0.0 if quick else 1.0
    states = _explore_states(effort.stride)
    calls = _collect(lambda report: [fail_every_call(act, report) for act in sorted(ACTS)])
    damage = _collect(explore_damage)
    kills = [_rounds("--rounds", str(effort.kills), "--life", life) for life in ("store", "run")]
    cuts = [_rounds("--rounds", str(effort.cuts), "--on", system) for system in FILE_SYSTEMS if _can_cut(system)]
    clones = [_rounds("--rounds", str(effort.cuts // 5), "--on", "btrfs")] if _can_cut("btrfs") else []
    controls = [
        _command("-m", "tests.durability.controls", "--on", system) for system in FILE_SYSTEMS if _can_cut(system)
    ]
    planted = _find_planted()
    broken = [states, calls, damage, *kills, *cuts, *clones]
    violations = sum(len(each["violations"]) for each in broken)
    return {
        "benchmark": "durability",
        "schema": 1,
        "figures": [
            figure("F9 states after a power cut", states["cases"], f">={share * 20_000:.0f}", states),
            figure("F9 power cuts", _total(cuts, "ends"), f">={share * 2_000:.0f}", {"rounds": cuts}),
            figure("durability.clones of btrfs", _total(clones, "ends"), f">={share * 200:.0f}", {"rounds": clones}),
            figure("F8 damaged files noticed", _noticed(damage), ">=1", damage),
            figure("F8 damaged files", damage["cases"], ">=10000", damage),
            figure("durability.failed calls", calls["cases"], ">=1", calls),
            figure("durability.kills", _total(kills, "ends"), f">={share * 1_000:.0f}", {"rounds": kills}),
            figure("durability.broken promises", violations, "<=0", {}),
            figure("durability.planted bugs found", _share(planted.values()), ">=1", planted),
            figure("durability.other writers caught", _caught(controls), ">=1", {"on": controls}),
        ],
        "machine": machine("torch", "safetensors", "orbax-checkpoint"),
    }


def _explore_states(stride: int) -> dict[str, Any]:
    """Crash states of every history: a share of the histories for each processor, distinct states counted once."""
    began, shares = time.monotonic(), os.cpu_count() or 1
    names = [*sorted(WORKLOADS), *sorted(FAMILIES)]
    with ProcessPoolExecutor(shares, get_context("spawn")) as processes:
        reports = list(
            processes.map(_explore_histories, [names[share::shares] for share in range(shares)], repeat(stride))
        )
    return {
        "cases": len(set().union(*(report.states for report in reports))),
        "violations": [problem for report in reports for problem in report.violations],
        "seconds": time.monotonic() - began,
    }


def _explore_histories(names: Sequence[str], stride: int) -> Report:
    report = Report()
    for name in names:
        if name in WORKLOADS:
            explore_workload(name, report)
        else:
            explore_family(name, stride, report)
    return report


def _collect(explore: Callable[[Report], object]) -> dict[str, Any]:
    report, began = Report(), time.monotonic()
    explore(report)
    return {"cases": report.tried, "violations": report.violations, "seconds": time.monotonic() - began}


def _noticed(damage: Mapping[str, Any]) -> float:
    return 1 - len(damage["violations"]) / damage["cases"]


def _can_cut(system: str) -> bool:
    missing = what_is_missing(system)
    if missing:
        sys.stderr.write(f"benchmarks: power is not cut on {system}: {missing}\n")
    return not missing


def _rounds(*arguments: str) -> dict[str, Any]:
    began = time.monotonic()
    outcome = _command("-m", "perdure.testing.rounds", *arguments)
    kept = {name: outcome[name] for name in ("ends", "acknowledged", "violations")}
    return {"arguments": list(arguments), **kept, "seconds": time.monotonic() - began}


def _command(*arguments: str) -> dict[str, Any]:
    ended = subprocess.run(
        [sys.executable, *arguments], check=False, capture_output=True, text=True, timeout=DEADLINE_SECONDS
    )
    if not ended.stdout:
        raise RuntimeError(ended.stderr)
    outcome: dict[str, Any] = json.loads(ended.stdout)
    return outcome


def _find_planted() -> dict[str, bool]:
    found = {}
    for name, bug in BUGS.items():
        if bug.tier == "power cuts" and not _can_cut("ext4"):
            continue
        with bug.plant():
            found[name] = bool(bug.problems())
    return found


def _total(outcomes: list[dict[str, Any]], name: str) -> int | None:
    return sum(outcome[name] for outcome in outcomes) if outcomes else None


def _share(values: Any) -> float:
    values = list(values)
    return sum(values) / len(values)


def _caught(controls: list[dict[str, Any]]) -> float | None:
    tried = sum(len(each["tried"]) for each in controls)
    return sum(len(each["caught"]) for each in controls) / tried if tried else None
