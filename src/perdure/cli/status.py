"""``perdure status``."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator

from perdure.cli.choosing import choose_run
from perdure.cli.events import EVENT_HEADINGS, event_row
from perdure.cli.exits import Exit, judge
from perdure.cli.runs import COLOURS
from perdure.cli.text import Cell, Word, ago_text, count_text, duration_text, size_text, span_text
from perdure.cli.verb import RUN, Context, Verb
from perdure.core.manifest import short_id
from perdure.inspection import RunStatus
from perdure.inspection.documents import age_seconds


def _execute(arguments: Namespace, context: Context) -> int:
    status = choose_run(context, arguments.run).status()
    output = context.output
    output.document(status.to_json())
    if output.manner.quiet:
        output.line(status.state)
    else:
        _print(status, context)
    return judge(is_whole=not status.problems, restores=not status.is_lost)


def _print(status: RunStatus, context: Context) -> None:
    """Answer in this order: is anything wrong, how much would be lost, what is going on."""
    output, now = context.output, time.time()
    output.line(f"{status.run}  ", Word(status.state, COLOURS.get(status.state, "red")))
    for problem in status.problems:
        output.line(Word("  problem     ", "red"), problem)
    for name, cell in _facts(status, now):
        output.line(f"  {name:<10}  ", cell)
    if status.members:
        output.line("")
        rows = [
            (each.member, each.role, each.state, span_text(age_seconds(each.at, now)), f"{each.faults:,}")
            for each in status.members
        ]
        output.table(("MEMBER", "ROLE", "STATE", ">SINCE", ">FAULTS"), rows)
    if status.last_events:
        output.line("")
        output.table(EVENT_HEADINGS, [event_row(each, now) for each in status.last_events])
    if status.problems:
        output.note(
            f"next: perdure verify {status.run}" if status.checkpoints else f"next: perdure events {status.run}"
        )


def _facts(status: RunStatus, now: float) -> Iterator[tuple[str, Cell]]:
    best = status.restorable
    if best is not None:
        last = f", {duration_text(status.restore_seconds)} last time" if status.restore_seconds is not None else ""
        facts = f"grade {best.grade.value}, {size_text(best.size_bytes)}{last}"
        saved = ago_text(best.age_seconds)
        yield "resumes", f"{short_id(best.id)} at step {best.global_step:,}, saved {saved} ({facts})"
    else:
        yield (
            "resumes",
            Word("nothing: no checkpoint can be restored", "red") if status.is_lost else "no checkpoint yet",
        )
    if status.in_memory is not None:
        saved = ago_text(age_seconds(status.in_memory.at, now))
        newer = f"{short_id(status.in_memory.checkpoint)} at step {status.in_memory.global_step:,}, saved {saved}"
        yield "memory", f"{newer}: what a restart resumes, unless this machine goes down first"
    if status.at_risk_seconds is not None:
        yield "at risk", f"{span_text(status.at_risk_seconds)} of work since the last save"
    if status.writer is not None:
        silence = status.writer.silent_seconds
        heard = "on another machine" if silence is None else f"last sign of life {ago_text(silence)}"
        yield "writer", f"{status.writer.owner}, generation {status.writer.generation}, {heard}"
    elif status.generation is not None:
        yield "writer", f"none; generation {status.generation} was the last"
    if status.supervisor_pid is not None:
        yield "supervisor", f"pid {status.supervisor_pid}"
    taken = f"{count_text(status.checkpoints, 'checkpoint')}, {size_text(status.size_bytes)}"
    yield "disk", f"{taken}; {size_text(status.free_bytes)} free"
    for restore in status.restoring if status.writer is not None else ():
        yield "restoring", f"{short_id(restore.checkpoint)}, attempt {restore.attempts}, {restore.step or 'begun'}"
    if status.staging:
        what = "being written or removed" if status.writer else "left over, the next start clears it"
        yield "staging", f"{', '.join(status.staging[:3])} ({what})"
    for note in status.quarantined[-3:]:
        yield "put aside", f"{note.get('directory')} at {note.get('at')}: {note.get('reason')}"


VERB = Verb(
    description=(
        "Say how a run is doing: whether anything is wrong, what a restart would resume from, how much work "
        "is at risk, who is at work on it, and what happened last. With --quiet only the state: training, "
        "restoring, silent, restarting, interrupted, stopped or empty."
    ),
    arguments=(RUN,),
    exits=(Exit.DEGRADED, Exit.DAMAGED, Exit.NOT_FOUND),
    execute=_execute,
    examples=("perdure status", "perdure status ppo-ant --json"),
)
