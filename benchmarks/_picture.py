"""
Draw figures as bars: ``python -m benchmarks._picture stall < stall.json > stall.svg``.

One bar a figure, on a logarithmic scale, as the ratios of the field lie far apart. Ours are dark; a line marks a
target.
"""

from __future__ import annotations

import json
import math
import re
import sys
from typing import Any
from xml.sax.saxutils import escape

WIDTH, LABEL, ROW, TOP = 760, 250, 22, 34
OURS, OTHERS, TARGET = "#1f4e79", "#b8c4d0", "#c0392b"
NAMES = {
    "torch_save": "torch.save, synced",
    "safetensors": "safetensors, synced",
    "dcp": "DCP, synced",
    "dcp_async": "DCP, asynchronous",
    "dcp_process": "DCP, in a process",
    "torch_checkpointing": "torch_checkpointing",
    "orbax_async": "Orbax, asynchronous",
}


def draw(document: dict[str, Any]) -> str:
    """An SVG image of a benchmark's figures."""
    figures = [figure for figure in document["figures"] if figure["value"] and not _is_left_out(figure["id"])]
    values = [figure["value"] for figure in figures] + [bound for f in figures if (bound := bound_of(f))]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))

    def across(value: float) -> float:
        return LABEL + (math.log10(value) - low) / max(high - low, 1) * (WIDTH - LABEL - 70)

    height = TOP + ROW * len(figures) + 10
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
    lines = [head + ' font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>']
    for power in range(low, high + 1):
        x = across(10.0**power)
        lines.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{height}" stroke="#e5e5e5"/>')
        lines.append(f'<text x="{x:.1f}" y="{TOP - 12}" text-anchor="middle" fill="#666">{10.0**power:g}</text>')
    for number, figure in enumerate(figures):
        lines += _row(figure, TOP + ROW * number, across, across(10.0**low))
    return "\n".join([*lines, "</svg>\n"])


def _is_left_out(name: str) -> bool:
    """Whether a figure is no ratio to one copy, or another kind of cost."""
    return ":milliseconds" in name or ":cost:" in name


def _row(figure: dict[str, Any], y: float, across: Any, start: float) -> list[str]:
    end, middle = across(figure["value"]), y + ROW - 8
    colour = OURS if figure["id"].startswith("F") else OTHERS
    lines = [
        f'<text x="{LABEL - 8}" y="{middle}" text-anchor="end">{escape(label_of(figure["id"]))}</text>',
        f'<rect x="{start:.1f}" y="{y + 3}" width="{max(end - start, 1):.1f}" height="{ROW - 7}" fill="{colour}"/>',
    ]
    if bound := bound_of(figure):
        x = across(bound)
        lines.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + ROW}" stroke="{TARGET}" stroke-width="2"/>')
        end = max(end, x)  # the number stands behind both
    return [*lines, f'<text x="{end + 5:.1f}" y="{middle}" fill="#333">{figure["value"]:.3g}</text>']


def label_of(name: str) -> str:
    """What a figure is of, in words: ``F1@64MB:beside`` is ``perdure, beside, 64 MB (F1)``."""
    contender, _, rest = name.partition("@")
    if not rest:
        return name
    size, *modes = rest.split(":")
    kind, _, peer = contender.rpartition(":")
    words = [NAMES.get(peer, peer) if kind else "perdure", *modes, re.sub(r"(?<=\d)(?=[MG]B)", " ", size)]
    return ", ".join(words) + ("" if kind else f" ({contender})")


def bound_of(figure: dict[str, Any]) -> float | None:
    """The number in a figure's target, if it has one above zero."""
    return float(figure["target"].lstrip("<>=")) or None if figure["target"] else None


if __name__ == "__main__":
    documents = [json.loads(line) for line in sys.stdin if line.startswith("{")]
    sys.stdout.write(draw(next(each for each in documents if each["benchmark"] == sys.argv[1])))
