"""`perdure demo`: a distributed training that loses its processes and its newest checkpoint, and goes on."""

from __future__ import annotations

import json
import shutil
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Protocol

from rich.console import Console

from perdure.core.restarts import EXIT_STOPPED
from perdure.demo.acts import plan_acts
from perdure.demo.display import shown
from perdure.demo.plot import draw
from perdure.demo.project import RUNS
from perdure.demo.report import Report
from perdure.demo.session import Session
from perdure.demo.settings import plan
from perdure.demo.table import print_report
from perdure.demo.training import Training
from perdure.errors import InvalidInputError
from perdure.extras import require
from perdure.supervise.claims import LOCK_FILE, exclusive
from perdure.supervise.supervisor import LOGS
from perdure.surroundings import Surroundings

DISTURBED = "disturbed"
UNDISTURBED = "undisturbed"
PLOT_FILE = "learning-curve.png"
REPORT_FILE = "report.json"
EXIT_INTERRUPTED = 130
EXIT_FAILED = 1
_PACKAGES = ("torch", "gymnasium", "zmq", "matplotlib")
_DISTRIBUTIONS = ("perdure", "torch", "numpy", "gymnasium", "pyzmq")
_PROJECT_FILES = tuple(f"{run}.{ending}" for run in (DISTURBED, UNDISTURBED) for ending in ("toml", "json", "over"))
_OURS = (RUNS, LOGS, PLOT_FILE, REPORT_FILE, LOCK_FILE, *_PROJECT_FILES)
_TABLE_WIDTH = 160


class Options(Protocol):
    """What the user asks for; see `run_demo`."""

    seed: int
    seconds: float | None
    quick: bool
    out: str
    keep: bool
    json: bool
    quiet: bool
    color: str | None


def run_demo(options: Options) -> int:
    """
    Run the demo: a disturbed run, an undisturbed one from the same seed, a report of both.

    Leaves in ``options.out``: ``report.json``, ``learning-curve.png``, the processes' output in ``logs/``, the project
    files that both runs were started from; ``runs/`` too if ``options.keep`` or if something went wrong. No process
    outlives this call, whatever ends it, and none outlives this process.

    Args:
        options: ``seed`` of everything random. ``seconds``, about how long both runs may take. ``quick``, a short run
            that shows the mechanisms and need not learn. ``out``, the directory of the report. ``keep``, whether to
            keep the runs. ``json``, whether to print the report as a document. ``quiet``, whether to show no progress.
            ``color``, which is ``never`` for no colours.

    Returns:
        0 if every fault was recovered and the final return reached its target, 130 if interrupted, else 1.

    Raises:
        MissingDependencyError: A package that the demo is made of is not installed.
        InvalidInputError: Kind ``demo.directory-in-use``: something else lies in the directory.
        LeaseHeldError: Another demo is writing into the directory.
    """
    for package in _PACKAGES:
        require(package, extra="demo")
    directory = Path(options.out)
    console = Console(stderr=True, no_color=has_no_colour(options))
    check_directory(directory)
    with exclusive(directory):
        clear(directory)
        settings = plan(seed=options.seed, quick=options.quick, seconds=options.seconds)
        trainings: list[Training] = []
        with shown(console, is_quiet=options.quiet or options.json) as display:
            for name, acts in ((DISTURBED, plan_acts(settings.updates)), (UNDISTURBED, ())):
                session = Session(name, directory, settings, acts, display.hear, time.time)
                trainings.append(session.run())
                if trainings[-1].exit_code >= EXIT_STOPPED and not session.has_timed_out:
                    console.print("interrupted; no process is left")
                    return EXIT_INTERRUPTED
        versions = {name: metadata.version(name) for name in _DISTRIBUTIONS}
        report = Report(settings, trainings[0], trainings[1], host=Surroundings().host(), versions=versions)
        publish(report, directory, as_json=options.json, no_colour=has_no_colour(options))
        tidy(directory, keeps_runs=options.keep or bool(report.failures))
        return EXIT_FAILED if report.failures else 0


def has_no_colour(options: Options) -> bool | None:
    """Say whether colours are refused; None leaves it to the environment."""
    return True if options.color == "never" else None


def check_directory(directory: Path) -> None:
    """
    Make sure that nothing is in the way of a report, and nothing of anybody else's in the way of its removal.

    Raises:
        InvalidInputError: Kind ``demo.directory-in-use``.
    """
    if directory.exists() and not directory.is_dir():
        strangers = ["a file"]
    else:
        strangers = sorted(path.name for path in directory.glob("*") if path.name not in _OURS)
    if strangers:
        raise InvalidInputError(
            f"cannot write the demo's report to {directory}: {strangers[0]} is there",
            kind="demo.directory-in-use",
            hint="name another directory with --out",
            field="out",
        )


def clear(directory: Path) -> None:
    """Remove the report of an earlier demo: its runs would be resumed instead of begun."""
    for folder in (RUNS, LOGS):
        shutil.rmtree(directory / folder, ignore_errors=True)
    for name in (PLOT_FILE, REPORT_FILE, *_PROJECT_FILES):
        (directory / name).unlink(missing_ok=True)


def publish(report: Report, directory: Path, *, as_json: bool, no_colour: bool | None = None) -> None:
    """Write the report and its picture, and print it."""
    document = {**report.to_json(), "directory": str(directory), "plot": str(directory / PLOT_FILE)}
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    draw(report, directory / PLOT_FILE)
    (directory / REPORT_FILE).write_text(text, encoding="utf-8")
    if as_json:
        sys.stdout.write(text)
    else:
        width = None if sys.stdout.isatty() else _TABLE_WIDTH
        print_report(report, Console(width=width, no_color=no_colour), directory / PLOT_FILE)
    sys.stdout.flush()


def tidy(directory: Path, *, keeps_runs: bool) -> None:
    """Put the processes' output where it stays, and remove the runs unless they are to be kept."""
    for name in (DISTURBED, UNDISTURBED):
        logs = directory / RUNS / name / LOGS
        if logs.is_dir():
            shutil.copytree(logs, directory / LOGS / name)
    if not keeps_runs:
        shutil.rmtree(directory / RUNS)
