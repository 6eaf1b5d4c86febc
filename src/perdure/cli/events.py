"""``perdure events``."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from perdure.cli.choosing import choose_run
from perdure.cli.exits import Exit
from perdure.cli.text import Cell, Word, count_text, duration_text, number_text, size_text, span_text
from perdure.cli.verb import RUN, Context, Verb, argument
from perdure.core.manifest import short_id
from perdure.errors import InvalidInputError
from perdure.inspection.documents import age_seconds, plain

EVENT_HEADINGS = (">AGE", "EVENT", ">STEP", ">GEN", "DETAIL")
"""Of the columns that `event_row` fills."""
_DEFAULT_COUNT = 20
_IN_COLUMNS = ("at", "event", "step", "generation", "schema")
_OF_A_MEMBER = ("role", "pid", "exit_code", "signal")
"""What a member's name and the reason of its fault say well enough."""
_SELF_EXPLANATORY = ("reason", "kind", "error", "member", "note", "phase")
BAD = ("save-failed", "quarantined", "retention-failed", "member-fault", "member-lost", "member-gave-up", "mint-failed")
"""Events that mean that something went wrong."""


def _execute(arguments: Namespace, context: Context) -> int:
    if arguments.last < 0:
        raise InvalidInputError(
            f"cannot print the last {arguments.last} events: a count is at least 0", kind="usage", field="--last"
        )
    view = choose_run(context, arguments.run)
    chosen = [each for each in view.events() if str(each.get("event", "")).startswith(arguments.only or "")]
    shown = chosen[-arguments.last :] if arguments.last else chosen
    output = context.output
    output.document({"run": view.run, "events": plain(shown)})
    if shown:
        now = time.time()
        output.table(EVENT_HEADINGS, [event_row(each, now) for each in shown])
    if not output.manner.quiet:
        of = f" of {len(chosen):,}" if len(shown) < len(chosen) else ""
        output.line(f"{len(shown):,}{of} events" if of or len(shown) != 1 else "1 event")
    return Exit.OK


def event_row(event: Mapping[str, Any], now: float) -> Sequence[Cell]:
    """Return an event as the five cells of a table: age, name, step, generation, detail."""
    name = str(event.get("event", "?"))
    return (
        span_text(age_seconds(event.get("at"), now)),
        Word(name, "red") if name in BAD else name,
        number_text(event["step"]) if event.get("step") is not None else "",
        number_text(event["generation"]) if event.get("generation") is not None else "",
        ", ".join(_details(event)),
    )


def _details(event: Mapping[str, Any]) -> Iterator[str]:
    """Say what an event carries beside its name, time, step and generation, as far as people want to know it."""
    hidden = (*_IN_COLUMNS, *_OF_A_MEMBER) if "member" in event else _IN_COLUMNS
    for name, value in event.items():
        if name in hidden or value in (None, "", [], {}) or (name, value) == ("stretch", 1.0):
            continue
        if name.endswith("_seconds") or name == "seconds":
            label = "took" if name == "seconds" else name.removesuffix("_seconds").replace("_", " ")
            yield f"{label} {duration_text(value)}" if isinstance(value, (int, float)) else f"{label} {value}"
        elif name == "bytes" and isinstance(value, int):
            yield size_text(value)
        elif name in _SELF_EXPLANATORY:
            yield str(value)
        elif name == "checkpoint":
            yield short_id(value) if len(str(value)) == 32 else str(value)
        elif isinstance(value, list):
            yield from _listed(name, value)
        elif isinstance(value, dict):
            yield f"{name} " + " ".join(f"{key} {number_text(inner)}" for key, inner in value.items())
        else:
            yield f"{name.replace('_', ' ')} {number_text(value)}"


def _listed(name: str, values: Sequence[Any]) -> Iterator[str]:
    """Spell out what was skipped, because that is what went wrong; count the rest."""
    if name == "skipped":
        for value in values:
            known = value if isinstance(value, dict) else {}
            yield f"skipped {known.get('name', '?')} ({known.get('reason', '?')})"
    elif name == "notes":
        yield from (str(value) for value in values)
    else:
        yield count_text(len(values), name.removesuffix("s"))


VERB = Verb(
    description=(
        "Print the history of a run, oldest first: starts and restores with what was skipped and why, saves "
        "and their cost, removals, faults and restarts of supervised processes."
    ),
    arguments=(
        RUN,
        argument(
            "-n",
            "--last",
            type=int,
            default=_DEFAULT_COUNT,
            metavar="COUNT",
            help=f"how many, counted from the newest; 0 for all, {_DEFAULT_COUNT} by default",
        ),
        argument("--only", metavar="EVENT", help="only events whose name begins so, such as save or member"),
    ),
    exits=(Exit.NOT_FOUND,),
    execute=_execute,
    examples=("perdure events ppo-ant", "perdure events ppo-ant --only restored -n 0"),
)
