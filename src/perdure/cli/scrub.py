"""``perdure scrub``."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable

from perdure.cli.choosing import choose_run
from perdure.cli.exits import Exit, judge
from perdure.cli.text import Word, count_text, duration_text, size_text
from perdure.cli.verb import RUN, Context, Verb, argument
from perdure.errors import InvalidInputError, NothingRestorableError
from perdure.inspection import Level, RunView, VerifyReport
from perdure.inspection.verification import in_brief

DEFAULT_RATE = "64MiB"
_SIZES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SPANS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class Pace:
    """
    Slows a reader down to a rate.

    Args:
        rate_bytes: Bytes a second.
        clock_seconds: Monotonic seconds.
        sleep: Waits for some seconds.
    """

    def __init__(self, rate_bytes: float, clock_seconds: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._rate_bytes = rate_bytes
        self._clock_seconds = clock_seconds
        self._sleep = sleep
        self._began = clock_seconds()

    def keep(self, done_bytes: int, _total_bytes: int) -> None:
        """Wait until so many bytes are due."""
        ahead = done_bytes / self._rate_bytes - (self._clock_seconds() - self._began)
        if ahead > 0:
            self._sleep(ahead)


def parse_amount(text: str, units: dict[str, int], what: str) -> float:
    """
    Read a number with a unit, such as ``64MiB`` or ``6h``.

    Raises:
        InvalidInputError: Kind ``usage``.
    """
    for unit, factor in units.items():
        number = text.removesuffix(unit)
        if number != text and number.replace(".", "", 1).isdecimal() and float(number) > 0:
            return float(number) * factor
    raise InvalidInputError(
        f"cannot use {text!r} as {what}: it is a number and one of {', '.join(units)}", kind="usage", field=what
    )


def _execute(arguments: Namespace, context: Context) -> int:
    view = choose_run(context, arguments.run)
    rate_bytes = parse_amount(arguments.rate, _SIZES, "--rate")
    every_seconds = parse_amount(arguments.every, _SPANS, "--every") if arguments.every else None
    told: set[str] = set()
    while True:
        report = _pass(view, Pace(rate_bytes, time.monotonic, time.sleep))
        if report is not None:
            _tell(view, report, told, context)
        if every_seconds is None:
            break
        context.output.flush()
        time.sleep(every_seconds)
    if report is None:
        return Exit.NOTHING_RESTORABLE
    context.output.document({**report.to_json(), "restores": report.restores})
    return judge(is_whole=report.is_whole, restores=report.restores)


def _pass(view: RunView, pace: Pace) -> VerifyReport | None:
    try:
        return view.verify("all", Level.HASH, pace.keep)
    except NothingRestorableError:
        return None  # a run that has saved nothing yet will have something to read in the next round


def _tell(view: RunView, report: VerifyReport, told: set[str], context: Context) -> None:
    output = context.output
    damage = [
        (check.directory.name, in_brief(problem, check.directory))
        for check in report.checkpoints
        for problem in check.problems
    ]
    damage += [(each.directory, in_brief(each.problem, report.directory)) for each in report.damaged_directories]
    for name, what in damage:
        if f"{name}: {what}" not in told:
            told.add(f"{name}: {what}")
            view.record("damage-found", checkpoint=name, problem=what, by="scrub")
            output.line(Word("damaged", "red"), f"  {name}: {what}")
    if not output.manner.quiet:
        read = f"{count_text(report.files_checked, 'file')}, {size_text(report.bytes_checked)}"
        verdict = "all whole" if report.is_whole else f"damage found; next: perdure repair {report.run}"
        output.line(f"{verdict}: {read} in {duration_text(report.seconds)}")


VERB = Verb(
    description=(
        "Read every byte of a run's checkpoints in the background, slowly, so that damage "
        "is found while a whole copy may still exist. What is found is printed once and goes into the run's history. "
        "With --every it goes on until it is stopped. It can be done beside a training."
    ),
    arguments=(
        RUN,
        argument(
            "--rate", default=DEFAULT_RATE, metavar="SIZE", help=f"bytes a second at most; {DEFAULT_RATE} if not given"
        ),
        argument("--every", metavar="TIME", help="start again after so long, such as 6h; by default once"),
    ),
    exits=(Exit.DEGRADED, Exit.DAMAGED, Exit.NOT_FOUND, Exit.NOTHING_RESTORABLE),
    execute=_execute,
    examples=("perdure scrub ppo-ant", "perdure scrub ppo-ant --rate 20MiB --every 6h"),
)
