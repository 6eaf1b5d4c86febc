"""``perdure gc``."""

from __future__ import annotations

from argparse import Namespace

from perdure.cli.choosing import choose_run
from perdure.cli.confirming import DRY_RUN, YES, is_confirmed
from perdure.cli.exits import Exit
from perdure.cli.progress import progress
from perdure.cli.text import Word, count_text, size_text, span_text
from perdure.cli.verb import RUN, Context, Verb, argument
from perdure.core.keeping import FORMS
from perdure.core.manifest import short_id
from perdure.inspection import GcPlan, GcResult, parse_keep


def _execute(arguments: Namespace, context: Context) -> int:
    view = choose_run(context, arguments.run)
    policy = parse_keep(" | ".join(arguments.keep)) if arguments.keep else None
    output = context.output
    with progress(output, "verifying the newest checkpoint") as on_progress:
        plan = view.plan_gc(policy, on_progress)
    if not output.manner.quiet:
        _print_plan(plan, context)
    # Nobody can be said to have seen a plan that has not arrived.
    output.flush()
    if arguments.dry_run or not plan.removed:
        output.document({**plan.to_json(), "dry_run": arguments.dry_run, "removed": [], "spared": {}})
        return Exit.OK
    what = count_text(len(plan.removed), "checkpoint")
    if not arguments.yes and not is_confirmed(context, f"remove {what}", f"run {plan.run}"):
        output.note("nothing was removed")
        return Exit.FAILURE
    result = view.execute(plan)
    output.document({**plan.to_json(), "dry_run": False, **result.to_json()})
    _print_result(plan, result, context)
    return Exit.OK


def _print_plan(plan: GcPlan, context: Context) -> None:
    output = context.output
    rows = [
        (
            short_id(row.id),
            f"{row.global_step:,}",
            span_text(row.age_seconds),
            size_text(row.size_bytes),
            Word(row.action, "red") if row.action == "remove" else row.action,
            row.why,
        )
        for row in plan.rows
    ]
    if rows:
        output.table(("ID", ">STEP", ">AGE", ">SIZE", "PLAN", "WHY"), rows)
    if plan.removed:
        output.line(
            f"to remove: {count_text(len(plan.removed), 'checkpoint')} of {len(plan.rows)}, "
            f"{size_text(plan.freed_bytes)} come free (keep {plan.policy})"
        )
        return
    output.line(f"nothing to remove: all {count_text(len(plan.rows), 'checkpoint')} stay")
    if plan.policy is None:
        output.note(f"run {plan.run} records no keep policy; say one, such as --keep last:3")


def _print_result(plan: GcPlan, result: GcResult, context: Context) -> None:
    output = context.output
    if output.manner.quiet:
        for each in result.removed:
            output.line(each)
        return
    output.line(f"removed {count_text(len(result.removed), 'checkpoint')} of run {plan.run}")
    for each, why in result.spared.items():
        output.note(f"{short_id(each)} was left alone: {why}")


VERB = Verb(
    description=(
        "Remove checkpoints that the keep policy does not keep. The plan comes first, with the reason for "
        "every row; on a terminal you are asked, elsewhere --yes is needed. Pinned checkpoints, the newest "
        "one and what is being restored always stay, and nothing goes before the newest one has been "
        "verified. It is safe beside a training: then the one before the newest stays too, because a save in "
        "flight may share files with it."
    ),
    arguments=(
        RUN,
        argument(
            "--keep",
            action="append",
            metavar="POLICY",
            help=f"what to keep instead of the run's own policy: {FORMS}; may be given several times",
        ),
        DRY_RUN,
        YES,
    ),
    exits=(Exit.NOT_FOUND, Exit.HELD),
    execute=_execute,
    examples=(
        "perdure gc ppo-ant --dry-run",
        "perdure gc ppo-ant --keep last:3 --keep best:eval/return --yes",
        "perdure gc ppo-ant --keep 'last:1 | every:1000000'",
    ),
)
