"""``perdure chaos``."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from perdure.cli.exits import Exit
from perdure.cli.text import Word, duration_text
from perdure.cli.verb import Context, Verb, argument
from perdure.errors import InvalidInputError, NotFoundError
from perdure.testing.lives import LIVES
from perdure.testing.rounds import PLACES, Rounds, place

DEFAULT_ROUNDS = 100
_TOLD_EVERY = 25


def _execute(arguments: Namespace, context: Context) -> int:
    if arguments.rounds < 1:
        raise InvalidInputError(
            f"cannot play {arguments.rounds} rounds: at least one is needed", kind="usage", field="--rounds"
        )
    directory = Path(arguments.directory) if arguments.directory else None
    if directory is not None and not directory.is_dir():
        raise NotFoundError(
            f"cannot make a run in {directory}: there is no such directory",
            kind="store.not-found",
            hint="name a directory of the file system that you want to try",
            name=str(directory),
        )
    output = context.output

    def tell(number: int) -> None:
        if number % _TOLD_EVERY == 0 and not output.manner.quiet and output.is_for_people:
            output.note(f"{number:,} of {arguments.rounds:,} rounds")

    with place(arguments.on, directory) as end:
        outcome = Rounds(LIVES[arguments.life], end, arguments.seed).play(arguments.rounds, tell)
    output.document({"on": arguments.on, "life": arguments.life, "seed": arguments.seed, **outcome.to_json()})
    if not output.manner.quiet:
        for violation in outcome.violations:
            output.line(Word("broken", "red"), f"  {violation}")
        verdict = f"{len(outcome.violations)} promises broken" if outcome.violations else "all promises kept"
        ended = "killed" if arguments.on in ("memory", "disk") else "cut from power"
        output.line(
            f"{verdict}: {outcome.ends:,} times {ended}, {outcome.acknowledged:,} changes acknowledged before, "
            f"in {duration_text(outcome.seconds)}"
        )
    return Exit.FAILURE if outcome.violations else Exit.OK


VERB = Verb(
    description=(
        "Make a run that lives in a fresh process each round, end that process without a warning, and let the next "
        "one find out whether everything is there that had been acknowledged. With --on disk processes get SIGKILL, "
        "on the file system of --directory, so that you can try yours. With ext4, xfs or btrfs the power of a file "
        "system in memory is cut; that needs root. Your own runs are not touched, and nothing is left behind."
    ),
    arguments=(
        argument("--on", choices=PLACES, default="disk", metavar="WHERE", help=f"{', '.join(PLACES)}; disk by default"),
        argument(
            "--directory", metavar="DIR", help="where the run of --on disk is made; by default where temporary files go"
        ),
        argument(
            "--life",
            choices=sorted(LIVES),
            default="store",
            metavar="LIFE",
            help="store uses a run directory in every way, run trains and restores a whole run; store by default",
        ),
        argument("--rounds", type=int, default=DEFAULT_ROUNDS, metavar="N", help=f"{DEFAULT_ROUNDS} by default"),
        argument("--seed", type=int, default=1, metavar="N", help="of every choice; 1 by default"),
    ),
    exits=(Exit.NOT_FOUND,),
    execute=_execute,
    examples=(
        "perdure chaos",
        "perdure chaos --directory runs --rounds 500",
        "perdure chaos --on ext4",
    ),
)
