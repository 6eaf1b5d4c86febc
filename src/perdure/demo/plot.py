"""The learning curve as a picture: the disturbed run beside the undisturbed one, with every fault and recovery."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from perdure.demo.acts import LEARNER
from perdure.demo.incidents import Incident
from perdure.demo.report import Report
from perdure.demo.training import Training
from perdure.extras import require

_INK, _QUIET, _GRID = "#1c2430", "#5f6b7a", "#e6e9ee"
_BLUE, _GREY = "#1f5fbf", "#a3abb6"
_RED, _GREEN = "#c8371f", "#1d8a4e"
_SIZE_INCHES = (11.0, 7.2)
_DOTS_PER_INCH = 150
_HIGHEST_RETURN = 500


def draw(report: Report, path: Path) -> None:
    """
    Draw the report's picture into a PNG file.

    Raises:
        MissingDependencyError: Matplotlib is not installed.
    """
    require("matplotlib", extra="demo")
    # The figure is made without pyplot, which would look for a display and keep the figure alive.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE_INCHES, facecolor="white")
    FigureCanvasAgg(figure)
    returns, progress = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [2.6, 1], "hspace": 0.09})
    figure.subplots_adjust(left=0.065, right=0.975, top=0.76, bottom=0.075)
    for axes in (returns, progress):
        _dress(axes)
        for number, incident in enumerate(report.disturbed.incidents, 1):
            _mark(axes, number if axes is returns else None, incident, report.disturbed)
    _draw_returns(returns, report)
    _draw_progress(progress, report)
    _write_heading(figure, report)
    figure.savefig(path, dpi=_DOTS_PER_INCH)


def _dress(axes: Any) -> None:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_GREY)
    axes.tick_params(colors=_QUIET, labelsize=9, length=0)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def _draw_returns(axes: Any, report: Report) -> None:
    target = report.settings.target_return
    if target is not None:
        axes.axhline(target, color=_QUIET, linewidth=0.8, linestyle=(0, (4, 3)))
        place = axes.get_yaxis_transform()
        axes.text(0.004, target + 5, f"{target:.0f} to reach", transform=place, color=_QUIET, fontsize=8.5, va="bottom")
    for training, colour, width in _runs(report):
        _draw_line(axes, training, [point.value for point in training.curve], colour, width)
        axes.plot(
            [point.seconds for point in training.evaluations],
            [point.value for point in training.evaluations],
            linestyle="none",
            marker="o",
            markersize=4,
            markerfacecolor="white",
            markeredgecolor=colour,
            label=f"{training.name}: evaluated",
        )
    axes.set_ylim(0, _HIGHEST_RETURN * 1.12)
    axes.set_ylabel("return", color=_INK, fontsize=10)
    axes.legend(loc="lower right", fontsize=8.5, frameon=True, framealpha=0.92, edgecolor="none", labelcolor=_INK)


def _draw_progress(axes: Any, report: Report) -> None:
    for training, colour, width in _runs(report):
        _draw_line(axes, training, [point.update for point in training.curve], colour, width)
    most = max((point.update for training, *_ in _runs(report) for point in training.curve), default=1)
    axes.set_ylim(0, most * 1.06)
    axes.set_ylabel("updates", color=_INK, fontsize=10)
    axes.set_xlabel("seconds since the first update", color=_INK, fontsize=10)
    axes.set_xlim(0, max(report.disturbed.whole_seconds, report.undisturbed.whole_seconds, 1.0) * 1.01)


def _runs(report: Report) -> tuple[tuple[Training, str, float], ...]:
    return (report.undisturbed, _GREY, 1.4), (report.disturbed, _BLUE, 2.0)


def _draw_line(axes: Any, training: Training, values: Sequence[float], colour: str, width: float) -> None:
    """Draw a value of every update; dotted where the learner was away, so that no line claims that it learned."""
    seconds = [point.seconds for point in training.curve]
    bounds = [0, *_interruptions(training), len(seconds)]
    for number, (start, end) in enumerate(pairwise(bounds)):
        name = f"{training.name}: mean of the last 50 episodes" if number == 0 else None
        axes.plot(
            seconds[start:end], values[start:end], color=colour, linewidth=width, solid_capstyle="round", label=name
        )
        if number:
            gap = slice(start - 1, start + 1)
            axes.plot(seconds[gap], values[gap], color=colour, linewidth=0.9, linestyle=(0, (1, 2)))


def _interruptions(training: Training) -> list[int]:
    """Return the positions in the curve at which a new life of the learner begins."""
    seconds = [point.seconds for point in training.curve]
    faults = [
        incident.began_at - training.began_at for incident in training.incidents if incident.act.member == LEARNER
    ]
    positions = (bisect_right(seconds, fault) for fault in faults)
    return [position for position in positions if 0 < position < len(seconds)]


def _mark(axes: Any, number: int | None, incident: Incident, training: Training) -> None:
    """Shade the time from a fault to its recovery; with a number, where there is one."""
    began = incident.began_at - training.began_at
    back = None if incident.back_at is None else incident.back_at - training.began_at
    axes.axvspan(began, training.whole_seconds if back is None else back, color=_RED, alpha=0.10, linewidth=0)
    axes.axvline(began, color=_RED, linewidth=1.1)
    if back is not None:
        axes.axvline(back, color=_GREEN, linewidth=1.1)
    if number is not None:
        axes.text(
            began,
            1.0,
            str(number),
            transform=axes.get_xaxis_transform(),
            color="white",
            fontsize=9,
            fontweight="bold",
            ha="center",
            va="center",
            bbox={"boxstyle": "circle,pad=0.28", "facecolor": _RED, "edgecolor": "none"},
            zorder=5,
        )


def _write_heading(figure: Any, report: Report) -> None:
    title = "PPO on CartPole, disturbed and undisturbed, from the same seed"
    figure.text(0.028, 0.955, title, color=_INK, fontsize=15, fontweight="bold", va="center")
    useful = report.useful
    facts = f"seed {report.settings.seed}, {report.settings.actors} actors, 1 learner, 1 evaluator"
    if useful is not None:
        facts += f"; {useful.share:.2f} of the undisturbed speed at {useful.faults_a_minute:.1f} faults a minute"
    figure.text(0.028, 0.918, facts, color=_QUIET, fontsize=10, va="center")
    for number, incident in enumerate(report.disturbed.incidents, 1):
        line, column = divmod(number - 1, 2)
        figure.text(
            0.036 + 0.45 * column,
            0.875 - 0.042 * line,
            str(number),
            color="white",
            fontsize=8,
            fontweight="bold",
            ha="center",
            va="center",
            bbox={"boxstyle": "circle,pad=0.25", "facecolor": _RED, "edgecolor": "none"},
        )
        figure.text(
            0.052 + 0.45 * column, 0.875 - 0.042 * line, _story(incident), color=_INK, fontsize=9.5, va="center"
        )


def _story(incident: Incident) -> str:
    if incident.back_at is None:
        return f"{incident.act.title}: not back"
    lost = f", {incident.steps_lost:,} steps lost" if incident.steps_lost else ""
    return f"{incident.act.title}: back after {incident.back_at - incident.began_at:.1f} s{lost}"
