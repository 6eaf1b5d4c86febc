"""``perdure verify``."""

from __future__ import annotations

from argparse import Namespace

from perdure.cli.choosing import choose
from perdure.cli.exits import Exit, judge
from perdure.cli.progress import progress
from perdure.cli.text import Word, count_text, duration_text, size_text
from perdure.cli.verb import Context, Verb, argument
from perdure.core.manifest import short_id
from perdure.inspection import Level, VerifyReport
from perdure.inspection.verification import in_brief


def _execute(arguments: Namespace, context: Context) -> int:
    view, selector = choose(context, arguments.words)
    with progress(context.output, "verifying") as on_progress:
        report = view.verify(selector or "all", Level(arguments.level), on_progress)
    context.output.document({**report.to_json(), "restores": report.restores})
    if not context.output.manner.quiet:
        _print(report, context)
    return judge(is_whole=report.is_whole, restores=report.restores)


def _print(report: VerifyReport, context: Context) -> None:
    output = context.output
    for damage in report.damaged_directories:
        output.line(Word("damaged", "red"), f"  {in_brief(damage.problem, report.directory)}")
    for check in report.checkpoints:
        for problem in check.problems:
            output.line(Word("damaged", "red"), f"  {short_id(check.id)}: {in_brief(problem, check.directory)}")
    for check in report.checkpoints:
        name = f"{short_id(check.id)}  step {check.global_step:,}"
        if check.restores:
            if output.manner.verbose or not report.is_whole:
                output.line(f"{name}  ", Word("restores", "green"))
        else:
            of = f" of {', '.join(check.damaged_components)}" if check.damaged_components else ""
            output.line(
                f"{name}  ", Word(f"does not restore: {count_text(len(check.problems), 'bad file')}{of}", "red")
            )
    checked = f"{count_text(len(report.checkpoints), 'manifest')}, {count_text(report.files_checked, 'file')}"
    took = duration_text(report.seconds)
    verdict = "all whole" if report.is_whole else "damage found"
    output.line(f"{verdict}: {checked}, {size_text(report.bytes_checked)} in {took} (level {report.level.value})")
    if not report.is_whole:
        what = (
            "a restart puts it aside and resumes from the newest that restores" if report.restores else "none restores"
        )
        output.note(f"{what}; next: perdure repair {report.run}")


VERB = Verb(
    description=(
        "Check that checkpoints are what was committed: that manifests are whole (meta), that every file is "
        "there with its length (sizes), that every byte is the one that was written (hash), or that every "
        "component can be taken apart as well (load). A file that checkpoints share is hashed once. Nothing is "
        "changed, and it can be done beside a training."
    ),
    arguments=(
        argument(
            "words",
            nargs="*",
            metavar="[RUN] [CKPT]",
            help="the run, and which of its checkpoints; without CKPT all, without RUN as in `perdure ls`",
        ),
        argument(
            "--level",
            choices=tuple(level.value for level in Level),
            default=Level.HASH.value,
            metavar="LEVEL",
            help="meta, sizes, hash or load; hash by default",
        ),
    ),
    exits=(Exit.DEGRADED, Exit.DAMAGED, Exit.NOT_FOUND, Exit.NOTHING_RESTORABLE),
    execute=_execute,
    examples=("perdure verify ppo-ant", "perdure verify ppo-ant latest --level sizes"),
)
