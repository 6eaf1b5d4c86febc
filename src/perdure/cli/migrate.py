"""``perdure migrate``."""

from __future__ import annotations

from argparse import Namespace

from perdure.cli.choosing import choose_run
from perdure.cli.confirming import DRY_RUN, YES, is_confirmed
from perdure.cli.exits import Exit
from perdure.cli.text import Word, count_text
from perdure.cli.verb import RUN, Context, Verb, argument
from perdure.inspection import Renewal, RenewalPlan


def _execute(arguments: Namespace, context: Context) -> int:
    view = choose_run(context, arguments.run)
    plan = view.plan_renewal(trust_unsigned=arguments.sign)
    output = context.output
    if not output.manner.quiet:
        _print_plan(plan, context)
    output.flush()
    if arguments.dry_run or not plan.renewed:
        output.document({**plan.to_json(), "dry_run": arguments.dry_run, "renewed": [], "failed": {}})
        return Exit.DEGRADED if plan.refused else Exit.OK
    what = count_text(len(plan.renewed), "manifest")
    if not arguments.yes and not is_confirmed(context, f"rewrite {what}", f"run {plan.run}"):
        output.note("nothing was changed")
        return Exit.FAILURE
    failed = view.execute_renewal(plan)
    renewed = [row.directory for row in plan.renewed if row.directory not in failed]
    problems = {name: error.to_json() for name, error in failed.items()}
    output.document({**plan.to_json(), "dry_run": False, "renewed": renewed, "failed": problems})
    for name, error in failed.items():
        output.note(f"{name} stays as it is: {error.message}")
    if not output.manner.quiet:
        output.line(f"rewrote {count_text(len(renewed), 'manifest')} of run {plan.run}")
    return Exit.DEGRADED if plan.refused or failed else Exit.OK


def _print_plan(plan: RenewalPlan, context: Context) -> None:
    output = context.output
    rows = [
        (
            row.directory,
            "-" if row.schema_version is None else str(row.schema_version),
            row.key or "-",
            Word(row.action.value, "red") if row.action is Renewal.REFUSE else row.action.value,
            row.why,
        )
        for row in plan.rows
    ]
    if rows:
        output.table(("CHECKPOINT", ">SCHEMA", "KEY", "PLAN", "WHY"), rows)
    key = f"signed with key {plan.key}" if plan.key else "unsigned, as no key is set"
    output.line(
        f"to rewrite: {count_text(len(plan.renewed), 'manifest')} of {len(plan.rows)} "
        f"(schema {plan.schema_version}, {key})"
    )


VERB = Verb(
    description=(
        "Rewrite manifests that are of an older schema or signed with an older key. Reading needs no migration: "
        "older schemas are always understood. It is for before an older perdure is given up, and before a key is. "
        "With --sign, manifests without a signature by a known key get one, which vouches for them from then on: "
        "be sure of who wrote them. Each is replaced atomically. The plan comes first; on a terminal you are "
        "asked, elsewhere --yes is needed. Not while the run trains."
    ),
    arguments=(
        RUN,
        argument("--sign", action="store_true", help="sign also what no known key has signed"),
        DRY_RUN,
        YES,
    ),
    exits=(Exit.DEGRADED, Exit.NOT_FOUND, Exit.HELD),
    execute=_execute,
    examples=("perdure migrate ppo-ant --dry-run", "perdure migrate ppo-ant --sign --yes"),
)
