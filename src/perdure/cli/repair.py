"""``perdure repair``."""

from __future__ import annotations

from argparse import Namespace

from perdure.cli.choosing import choose_run
from perdure.cli.confirming import DRY_RUN, YES, is_confirmed
from perdure.cli.exits import Exit
from perdure.cli.progress import progress
from perdure.cli.text import Word, count_text
from perdure.cli.verb import RUN, Context, Verb, argument
from perdure.inspection import Repair, RepairPlan, RepairResult
from perdure.inspection.verification import in_brief


def _execute(arguments: Namespace, context: Context) -> int:
    view = choose_run(context, arguments.run)
    output = context.output
    with progress(output, "verifying") as on_progress:
        plan = view.plan_repair(arguments.copies or (), on_progress, without_lost=arguments.without_lost)
    if not output.manner.quiet:
        _print_plan(plan, context)
    output.flush()
    if arguments.dry_run or not plan.rows:
        output.document(
            {
                **plan.to_json(),
                "dry_run": arguments.dry_run,
                "mended": [],
                "put_aside": {},
                "gone_on": {},
                "brought_back": [],
            }
        )
        return _judge(plan)
    what = count_text(len(plan.rows), "checkpoint")
    if not arguments.yes and not is_confirmed(context, f"repair {what}", f"run {plan.run}"):
        output.note("nothing was changed")
        return Exit.FAILURE
    result = view.execute_repair(plan)
    output.document({**plan.to_json(), "dry_run": False, **result.to_json()})
    _print_result(result, context)
    return Exit.OK if plan.is_mendable else _judge(plan)


def _judge(plan: RepairPlan) -> Exit:
    if not plan.rows:
        return Exit.OK
    restores = plan.whole > 0 or any(row.action is not Repair.PUT_ASIDE for row in plan.rows)
    return Exit.DEGRADED if restores else Exit.DAMAGED


def _print_plan(plan: RepairPlan, context: Context) -> None:
    output = context.output
    if not plan.rows:
        all_whole = f"{count_text(plan.whole, 'checkpoint')}, all whole" if plan.whole else "no checkpoint yet"
        output.line(f"nothing to repair: {all_whole}")
        return
    for row in plan.rows:
        colour = "red" if row.action is Repair.PUT_ASIDE else "yellow"
        output.line(f"{row.directory}  ", Word(row.action.value, colour))
        if row.put_aside_because:
            output.line(f"  is whole; was put aside because: {row.put_aside_because}")
        for problem in row.problems:
            output.line(f"  {in_brief(problem, plan.directory / 'snapshots' / row.directory)}")
        for path, source in row.sources.items():
            output.line(f"  {path}  from {source}")
        for path in row.lost:
            output.line(f"  {path}  has no whole copy")
    if not plan.is_mendable:
        output.note("if there is a backup of the run, name it with --from DIR")
    if any(row.can_lose and row.action is Repair.PUT_ASIDE for row in plan.rows):
        output.note("to go on without the transitions that are lost, say --without-lost")


def _print_result(result: RepairResult, context: Context) -> None:
    output = context.output
    if output.manner.quiet:
        for name in (*result.mended, *result.gone_on.values(), *result.brought_back):
            output.line(name)
        return
    if result.mended or not (result.gone_on or result.brought_back):
        output.line(f"mended {count_text(len(result.mended), 'checkpoint')} of run {result.run}")
    for name, renewed in result.gone_on.items():
        output.line(f"{name} goes on as {renewed}, without what is lost")
    for name in result.brought_back:
        output.line(f"brought {name} back from quarantine")
    for name, path in result.put_aside.items():
        output.line(f"put {name} aside: {path}")
    output.note(f"check it: perdure verify {result.run} --level load")


VERB = Verb(
    description=(
        "Put right what is damaged. Every checkpoint is read first; a damaged or missing file is replaced by a "
        "copy with the committed digest, from another checkpoint of the run, from one that was put aside, or "
        "from another place that holds the run. A checkpoint that cannot be mended is put aside, whole as it "
        "lies, so that nothing trips over it. With --without-lost, one that has lost nothing but segments of replay "
        "buffers goes on without the transitions in them, also if a start has put it aside already. Where no other can "
        "be restored, the newest that was put aside comes back if nothing is wrong with its files. The plan comes "
        "first; on a terminal you are asked, elsewhere --yes is needed. Not while the run trains."
    ),
    arguments=(
        RUN,
        argument(
            "--from",
            dest="copies",
            action="append",
            metavar="DIR",
            help="another place that holds the run, such as a backup; may be given several times",
        ),
        argument(
            "--without-lost",
            action="store_true",
            help="go on without transitions of replay buffers of which no whole copy is left",
        ),
        DRY_RUN,
        YES,
    ),
    exits=(Exit.DEGRADED, Exit.DAMAGED, Exit.NOT_FOUND, Exit.HELD),
    execute=_execute,
    examples=(
        "perdure repair ppo-ant --dry-run",
        "perdure repair ppo-ant --from /backup/runs --yes",
        "perdure repair sac-ant --without-lost",
    ),
)
