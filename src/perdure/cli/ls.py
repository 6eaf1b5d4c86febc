"""``perdure ls``."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from perdure.cli.choosing import choose_run
from perdure.cli.exits import Exit, judge
from perdure.cli.text import Cell, Word, ago_text, count_text, number_text, size_text, span_text
from perdure.cli.verb import RUN, Context, Verb
from perdure.core.manifest import short_id
from perdure.inspection import CheckpointSummary, RunListing
from perdure.inspection.verification import in_brief

_HEADINGS = ("ID", ">STEP", ">AGE", ">SIZE", ">NEW", "KEPT BY", "GRADE")
_MORE_HEADINGS = ("SAVED", ">GEN", "WHY", "METRICS")


def _execute(arguments: Namespace, context: Context) -> int:
    listing = choose_run(context, arguments.run).listing()
    output = context.output
    output.document(listing.to_json())
    if output.manner.quiet:
        for checkpoint in listing.checkpoints:
            output.line(checkpoint.id)
    else:
        _print(listing, context)
    return judge(is_whole=listing.is_whole, restores=listing.restorable is not None)


def _print(listing: RunListing, context: Context) -> None:
    output, is_verbose = context.output, context.output.manner.verbose
    if listing.checkpoints:
        headings = _HEADINGS + (_MORE_HEADINGS if is_verbose else ())
        output.table(headings, [_row(each, is_verbose=is_verbose) for each in listing.checkpoints])
    for damage in listing.damaged_directories:
        output.line(Word("damaged", "red"), f"  {in_brief(damage.problem, listing.directory)}")
    if listing.newest is None:
        output.line(f"run {listing.run} has no checkpoint yet")
        return
    output.line(
        f"{count_text(len(listing.checkpoints), 'checkpoint')}, {size_text(listing.size_bytes)} on disk "
        f"({size_text(listing.logical_bytes)} logical), newest committed {ago_text(listing.newest.age_seconds)}"
    )
    if not listing.is_whole:
        output.note(f"something is damaged; next: perdure verify {listing.run}")


def _row(checkpoint: CheckpointSummary, *, is_verbose: bool) -> Sequence[Cell]:
    grade: Cell = checkpoint.grade.value if checkpoint.restores else Word("damaged", "red")
    # The newest one always stays; that is news only where nothing else keeps it.
    kept = checkpoint.kept_by.removesuffix(", newest") or "gc would remove it"
    row: tuple[Cell, ...] = (
        checkpoint.id if is_verbose else short_id(checkpoint.id),
        f"{checkpoint.global_step:,}",
        span_text(checkpoint.age_seconds),
        size_text(checkpoint.size_bytes),
        size_text(checkpoint.new_bytes),
        kept,
        grade,
    )
    if not is_verbose:
        return row
    metrics = ", ".join(f"{name} {number_text(value)}" for name, value in sorted(checkpoint.metrics.items()))
    return (*row, checkpoint.created_at, f"{checkpoint.generation:,}", checkpoint.reason, metrics)


VERB = Verb(
    description=(
        "List the checkpoints of a run, newest first. NEW is what a checkpoint added to the disk beyond what "
        "older ones have already. GRADE is how exactly a resume continues. Sizes of files are compared with "
        "the manifest, their content is not read."
    ),
    arguments=(RUN,),
    exits=(Exit.DEGRADED, Exit.DAMAGED, Exit.NOT_FOUND),
    execute=_execute,
    examples=("perdure ls ppo-ant", "perdure ls -v    # full ids, times, metrics", "perdure ls -q    # ids alone"),
)
