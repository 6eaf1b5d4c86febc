"""``perdure demo``."""

from __future__ import annotations

from argparse import Namespace

from perdure.cli.exits import Exit
from perdure.cli.verb import Context, Verb, argument
from perdure.demo.main import run_demo


def _execute(arguments: Namespace, _context: Context) -> int:
    return run_demo(arguments)


VERB = Verb(
    description=(
        "Train PPO on CartPole with a learner, four actors and an evaluator, about two minutes on two cores. "
        "Meanwhile the learner is killed, an actor is killed, another is frozen past its lease and thawed, "
        "and the newest checkpoint is deleted. It ends with a table of faults and recoveries and a learning "
        "curve beside that of an undisturbed run, and succeeds only if every fault was recovered and the "
        "return reaches 400."
    ),
    arguments=(
        argument("--seconds", type=float, metavar="SECONDS", help="about how long to train"),
        argument("--quick", action="store_true", help="a short run that shows the mechanisms and need not learn"),
        argument("--seed", type=int, default=0, metavar="SEED", help="of everything random; 0 by default"),
        argument("--out", metavar="DIR", default="demo-report", help="where the report goes; demo-report by default"),
        argument("--keep", action="store_true", help="keep the runs that were trained"),
    ),
    exits=(Exit.HELD,),
    execute=_execute,
    examples=("perdure demo", "perdure demo --quick --json"),
)
