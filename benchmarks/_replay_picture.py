"""
Draw what the replay benchmark has measured: ``python -m benchmarks._replay_picture RESULT.json PICTURE.svg``.

The result is what ``python -m benchmarks replay --json`` prints last.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks._replay_peers import CONTENDERS
from benchmarks.measure import MB, summary

LABELS = {
    "perdure": "perdure",
    "savez": "np.savez",
    "sb3": "Stable-Baselines3",
    "torchrl": "TorchRL",
    "tianshou": "Tianshou",
}
OURS, THEIRS = "#1f6f8b", "#b8b8b8"
"""Colours."""


def read_bars(figures: list[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """For each panel its bars by contender, of the case of stacked frames."""
    panels: dict[str, dict[str, float]] = {
        "seconds that training waits\nfor a second save": {},
        "megabytes that a second\nsave writes": {},
        "seconds to the first batch\nafter a restart, cold": {},
    }
    waits, writes, loads = panels.values()
    ours: list[float] = []
    for figure in figures:
        row, _, rest = figure["id"].partition("@frames-")
        peer = rest.partition(":")[2]
        if row == "F2" and peer in LABELS:
            for name in ("perdure", peer):
                waits[name] = summary(figure["raw"][name]["blocked_seconds"][1:])["median"]
                writes[name] = figure["raw"][name]["written_bytes"][1] / MB
        if row == "F7" and peer in LABELS:
            seconds = {
                name: [load["batch_seconds"] for load in found] for name, found in figure["raw"]["loads"].items()
            }
            ours += seconds["perdure"]
            loads |= {"perdure": summary(ours)["median"], peer: summary(seconds[peer])["median"]}
    return panels


def draw(figures: list[Mapping[str, Any]], target: Path) -> None:
    """Draw the panels side by side, on logarithmic scales."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "perdure"
    names = [name for name in reversed(CONTENDERS) if name in LABELS]
    panels = read_bars(figures)
    page, axes = plt.subplots(1, len(panels), figsize=(10, 2.6), sharey=True)
    for axis, (title, bars) in zip(axes, panels.items(), strict=True):
        shown = [name for name in names if name in bars]
        values = [bars[name] for name in shown]
        axis.barh([LABELS[name] for name in shown], values, color=[OURS if n == "perdure" else THEIRS for n in shown])
        axis.set_xscale("log")
        axis.set_xlim(min(values) / 3, max(values) * 12)
        axis.set_title(title, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
        for place, value in enumerate(values):
            axis.text(
                value * 1.15, place, f"{value:,.3g}" if value < 1000 else f"{value:,.0f}", va="center", fontsize=9
            )
    page.tight_layout()
    page.savefig(target, metadata={"Date": None})


def main() -> None:
    """Do what the command line says."""
    source, target = map(Path, sys.argv[1:])
    draw(json.loads(source.read_text(encoding="utf-8").strip().splitlines()[-1])["figures"], target)


if __name__ == "__main__":
    main()
