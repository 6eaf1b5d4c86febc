"""``perdure runs``."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from perdure.cli.exits import Exit
from perdure.cli.text import Cell, Word, count_text, size_text, span_text
from perdure.cli.verb import Context, Verb
from perdure.inspection import RunSummary, runs

COLOURS = {"training": "green", "restoring": "yellow", "restarting": "yellow", "stopped": "dim", "empty": "dim"}
"""Colours of the states that are as they should be; the others are red."""

_HEADINGS = ("RUN", "STATE", ">STEP", ">AGE", ">CKPTS", ">SIZE", "PROBLEM")


def _execute(_arguments: Namespace, context: Context) -> int:
    found = runs(context.store)
    output = context.output
    output.document({"store": str(context.store), "runs": [each.to_json() for each in found]})
    if output.manner.quiet:
        for each in found:
            output.line(each.run)
    elif found:
        output.table(_HEADINGS, [_row(each) for each in found])
        output.line(_footer(found))
    else:
        output.line(f"no runs in {context.store} yet")
    return Exit.DEGRADED if any(each.problems for each in found) else Exit.OK


def _row(each: RunSummary) -> Sequence[Cell]:
    has_checkpoint = each.global_step is not None
    more = len(each.problems) - 1
    problem = each.problems[0] + (f" (and {more} more)" if more else "") if each.problems else ""
    return (
        each.run,
        Word(each.state, COLOURS.get(each.state, "red")),
        f"{each.global_step:,}" if has_checkpoint else "-",
        span_text(each.age_seconds) if has_checkpoint else "-",
        f"{each.checkpoints:,}",
        size_text(each.size_bytes),
        Word(problem, "red") if problem else "",
    )


def _footer(found: Sequence[RunSummary]) -> str:
    troubled = sum(bool(each.problems) for each in found)
    return f"{count_text(len(found), 'run')}, {size_text(sum(each.size_bytes for each in found))} on disk" + (
        f"; {troubled} with problems, `perdure status RUN` tells more" if troubled else ""
    )


VERB = Verb(
    description=(
        "List the runs of a store, those with the newest checkpoint first. STEP and AGE are of the checkpoint "
        "that a restart would resume from. SIZE counts files that checkpoints share once."
    ),
    arguments=(),
    exits=(Exit.DEGRADED, Exit.NOT_FOUND),
    execute=_execute,
    examples=("perdure runs", "perdure runs --store /data/runs --json"),
)
