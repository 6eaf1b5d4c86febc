"""
Does a resumed training end where an uninterrupted one ends (F10)? Differing bits of each row of the matrix.

Beside them stands what the framework's own documented save and load ends with on the same row, and the seconds from the
start of a training to its first step, resumed in either way. The quick form takes the rows that the tests take.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from matrix.page import line_of
from matrix.processes import Server
from matrix.row import Framework, Row, load, module_names
from matrix.runner import RowResult, Runner

from benchmarks.measure import figure, machine

_QUICK_TRIALS = ("kill",)


def figures(framework: Framework, result: RowResult) -> list[dict[str, Any]]:
    """What one row shows: bits of ours, bits of theirs, and how long a resume takes beside theirs."""
    # A row that fails has no bits, and must not be taken for one that has none that differ.
    name = f"{framework.name}/{result.algorithm}/{result.environment}"
    compared = [outcome for outcome in result.outcomes if outcome.bits is not None]
    bits = max((outcome.bits for outcome in compared if outcome.bits is not None), default=None)
    raw = result.to_json()
    found = [{**figure(f"F10@{name}", bits, "<=0" if result.grade == "exact" else "", raw), "holds": result.holds}]
    own = result.own
    if own is None:
        return found
    if "error" in own:
        return [*found, figure(f"resume:own-bits@{name}", None, "", own)]
    resumed = [outcome.first_step_seconds for outcome in compared if outcome.resumed_at]
    ours = min((seconds for seconds in resumed if seconds is not None), default=None)
    ratio = ours / own["first_step_seconds"] if ours is not None and own["first_step_seconds"] else None
    restores = [outcome.restore_seconds for outcome in compared if outcome.restore_seconds is not None]
    seconds = {
        "ours_seconds": ours,
        "own_seconds": own["first_step_seconds"],
        "restore_seconds": min(restores, default=None),
    }
    return [
        *found,
        figure(f"resume:own-bits@{name}", own["bits"], "", own),
        figure(f"resume:own-drift@{name}", own["relative_l2"], "", own),
        figure(f"resume:seconds@{name}", ratio, "", seconds),
    ]


def run(quick: bool) -> dict[str, Any]:  # noqa: FBT001 - the one argument of every benchmark
    """Run all rows, or a few of them."""
    # The first training with an environment that needs a trial waits for it, however busy the machine is.
    os.environ.setdefault("PERDURE_PROBE", "120")
    modules = {name: framework for name in module_names() if (framework := load(name)) is not None}
    server = Server(list(modules))
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="perdure-resume-") as where:
        for module, framework in modules.items():
            runner = Runner(module, framework, server, Path(where) / framework.name)
            for row in _wanted(framework, quick=quick):
                result = runner.run(row, _QUICK_TRIALS if quick else None)
                print(line_of(result.to_json()), file=sys.stderr, flush=True)
                found += figures(framework, result)
    packages = sorted({package for framework in modules.values() for package in framework.packages})
    return {"benchmark": "resume", "schema": 1, "machine": machine("perdure", *packages), "figures": found}


def _wanted(framework: Framework, *, quick: bool) -> list[Row]:
    return [row for row in framework.rows if row.in_suite or not quick]
