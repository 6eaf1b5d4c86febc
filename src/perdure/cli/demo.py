"""``perdure demo``."""

from __future__ import annotations

import importlib
from argparse import Namespace

from perdure.cli.verb import Context, Verb, argument
from perdure.errors import MissingDependencyError


def _execute(arguments: Namespace, _context: Context) -> int:
    try:
        run_demo = importlib.import_module("perdure.demo.main").run_demo
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"cannot run the demo: package {error.name} is not installed",
            kind="dependency.missing",
            hint="pip install 'perdure[demo]'",
            package=error.name,
            extra="demo",
        ) from error
    return int(run_demo(arguments))


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
    exits=(),
    execute=_execute,
    examples=("perdure demo", "perdure demo --quick --json"),
)
