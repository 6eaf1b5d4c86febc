"""The report for people: a table of faults and what the run came to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from perdure.demo.incidents import Incident
from perdure.demo.report import Report
from perdure.demo.training import Training

_SHORT_SECONDS = 10.0


def print_report(report: Report, console: Console, plot: Path) -> None:
    """Print the table, the outcome of both runs and where the plot is."""
    console.print(fault_table(report))
    console.print()
    for line in outcome_lines(report, plot):
        console.print(line, highlight=False, soft_wrap=True)


def fault_table(report: Report) -> Table:
    """Return the table of faults, one row each."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("fault")
    for heading in ("at update", "detected after", "back after", "steps lost"):
        table.add_column(heading, justify="right")
    table.add_column("samples dropped")
    table.add_column("")
    for incident in report.disturbed.incidents:
        table.add_row(
            incident.act.title,
            str(incident.update),
            after_text(incident, incident.detected_at),
            after_text(incident, incident.back_at),
            f"{incident.steps_lost:,}",
            counts_text(incident.samples_dropped),
            verdict(incident),
        )
    return table


def verdict(incident: Incident) -> Text:
    """Say in a word whether a fault was recovered."""
    return Text("not recovered", "red") if incident.failures else Text("recovered", "green")


def after_text(incident: Incident, at: float | None) -> str:
    """Say how long after a fault something happened."""
    return "never" if at is None else seconds_text(max(0.0, at - incident.began_at))


def seconds_text(seconds: float) -> str:
    """Return a time in seconds, with as many digits as matter."""
    return f"{seconds:.2f} s" if seconds < _SHORT_SECONDS else f"{seconds:.1f} s"


def counts_text(counts: Mapping[str, int]) -> str:
    """Return counts by reason in one line."""
    return ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items())) or "none"


def outcome_lines(report: Report, plot: Path) -> list[Text]:
    """Say what the runs came to."""
    settings, useful = report.settings, report.useful
    lines = [_training_line(report.disturbed), _training_line(report.undisturbed)]
    if useful is not None:
        lines += [
            Text(
                f"useful time   {useful.share:.2f} of the undisturbed run's speed, at {useful.faults_a_minute:.1f} "
                f"faults a minute; {useful.share_within:.2f} of its own time not spent on getting back to where it was"
            ),
            Text(f"              computed for one fault a minute: {useful.share_at_one_a_minute:.2f}"),
        ]
    lines += [
        Text(
            f"shortened     beats every {settings.beat_seconds:g} s instead of 5 s, "
            f"leases of {settings.lease_seconds:g} s instead of 30 s"
        ),
        Text(f"plot          {plot}"),
    ]
    if report.failures:
        lines += [Text(f"failed        {failure}", "red") for failure in report.failures]
    else:
        count = len(report.disturbed.incidents)
        lines.append(Text(f"succeeded     {count} faults, {count} recoveries", "green"))
    return lines


def _training_line(training: Training) -> Text:
    reached = "not evaluated" if training.final_return is None else f"final return {training.final_return:.0f}"
    last = training.curve[-1] if training.curve else None
    done = f"{last.update} updates, {last.step:,} steps in {training.whole_seconds:.1f} s" if last else "no update"
    return Text(
        f"{training.name:<13} {reached}, {done}, {training.checkpoints_saved} checkpoints, "
        f"generation {training.generation}"
    )
