"""``perdure run``."""

from __future__ import annotations

import json
import sys
import time
import uuid
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from perdure.cli.choosing import RUN_VARIABLE
from perdure.cli.exits import MEANINGS, Exit
from perdure.cli.output import JSON_SCHEMA, Output
from perdure.cli.parser import STORE_VARIABLE
from perdure.cli.text import duration_text
from perdure.cli.verb import Context, Verb, argument
from perdure.errors import PerdureError, StoreError
from perdure.files.door import Files
from perdure.inspection.documents import plain, rfc3339
from perdure.inspection.finishing import finish_write
from perdure.store.keyfile import environment_keys
from perdure.store.layout import EVENTS_FILE
from perdure.store.log import Log
from perdure.store.store import Checkpoint, Store
from perdure.supervise.config import CONFIG_FILE, ProjectConfig, config_for_command, read_config
from perdure.supervise.supervisor import Supervisor

DEFAULT_RUN = "default"
"""As in `perdure.open`, so that both mean the same run."""


def _execute(arguments: Namespace, context: Context) -> int:
    config = _configure(arguments, context)
    reporter = _Reporter(config, context.output)
    supervisor = Supervisor(config, config.directory, on_event=reporter.event, on_output=reporter.member_line)
    code = supervisor.run()
    _finish_write(config, reporter, context)
    reporter.end(code)
    return code


def _finish_write(config: ProjectConfig, reporter: _Reporter, context: Context) -> None:
    """Nobody is started again who would do it: what a dead learner left in memory is written to the disk here."""
    files = Files()
    store = Store(config.directory, files, lambda: uuid.uuid4().hex, environment_keys(files, context.environ))
    try:
        finished = finish_write(store, lambda: rfc3339(time.time()), by="supervisor")
    except PerdureError as error:
        context.output.note(f"what memory holds of run {config.run} was not written to the disk: {error.message}")
        return
    if finished is not None:
        reporter.write_finished(finished)


def _configure(arguments: Namespace, context: Context) -> ProjectConfig:
    """Return what to supervise: words of the command line beat the environment, and that beats the file."""
    run = arguments.run or context.environ.get(RUN_VARIABLE)
    if context.command is not None:
        return config_for_command(context.command, store=context.store, run=run or DEFAULT_RUN, cwd=Path.cwd())
    config = read_config(Path(arguments.config))
    is_store_given = bool(arguments.store or context.environ.get(STORE_VARIABLE))
    return replace(config, store=context.store.absolute() if is_store_given else config.store, run=run or config.run)


class _Reporter:
    """Tells people, scripts and the run's history what happens; lack of a listener never ends a training."""

    def __init__(self, config: ProjectConfig, output: Output) -> None:
        self._config = config
        self._output = output
        self._history = Log(Files(), config.directory / EVENTS_FILE)
        self._has_begun = False
        self._is_heard = True
        self._width = max(len(name) for role in config.roles for name in role.members)
        self._is_alone = sum(role.replicas for role in config.roles) == 1

    def event(self, event: Mapping[str, object]) -> None:
        """Record an event and print it."""
        if not self._has_begun:
            # Only now is this surely the run's only supervisor.
            self._has_begun = True
            self._record({"event": "run-supervised", "members": [n for r in self._config.roles for n in r.members]})
        self._record(event)
        if self._output.manner.json:
            self._print(json.dumps({"schema": JSON_SCHEMA, "type": "item", **plain(event)}))
        elif sentence := _sentence(event):
            self._output.note(sentence)

    def member_line(self, member: str, line: str) -> None:
        """Forward a line of a member's output, as it came: to standard error where standard output is for JSON."""
        text = line if self._is_alone else f"{member:<{self._width}}  {line}"
        if self._output.manner.json:
            sys.stderr.write(text.rstrip("\n") + "\n")
        else:
            self._print(text.rstrip("\n"))

    def write_finished(self, checkpoint: Checkpoint) -> None:
        """Say that a checkpoint has come from memory to the disk; the history has it already."""
        manifest = checkpoint.manifest
        if self._output.manner.json:
            fields = {"event": "write-finished", "checkpoint": manifest.id, "step": manifest.global_step}
            self._print(json.dumps({"schema": JSON_SCHEMA, "type": "item", **fields}))
        else:
            self._output.note(f"step {manifest.global_step:,}, which only memory had, is on the disk")

    def end(self, code: int) -> None:
        """Say how it ended."""
        if self._output.manner.json:
            self._print(json.dumps({"schema": JSON_SCHEMA, "type": "summary", "exit_code": code}))
        elif code:
            why = MEANINGS[Exit(code)] if code in set(Exit) else f"ended by signal {code - 128}"
            self._output.note(f"run {self._config.run} ended with status {code}: {why}")

    def _record(self, event: Mapping[str, Any]) -> None:
        try:
            self._history.append({"at": rfc3339(time.time()), **event})
        except StoreError as error:
            # The disk that refuses a line of history must not end the training that it belongs to.
            self._output.note(error.message)

    def _print(self, line: str) -> None:
        if not self._is_heard:
            return
        try:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        except OSError:
            # Whoever read this has gone away. The training goes on, and its output is in logs/ all the same.
            self._is_heard = False
            self._output.abandon()


def _sentence(event: Mapping[str, Any]) -> str:
    member = event.get("member")
    match event.get("event"):
        case "member-started" if event.get("restart_count"):
            return f"{member} restarted (pid {event['pid']})"
        case "member-fault":
            after = duration_text(float(event["detected_after_seconds"]))
            note = f" ({event['note']})" if event.get("note") else ""
            return f"{member} failed: {event['reason']}{note}, noticed after {after}"
        case "member-waiting":
            return f"{member} restarts in {duration_text(float(event['restart_after_seconds']))}"
        case "member-running":
            return f"{member} is back after {duration_text(float(event['recovered_after_seconds']))}"
        case "member-gave-up":
            return f"{member} is given up: {event['reason']}"
        case "member-unreaped":
            return f"{member} was killed and has not died; going on without it"
        case "member-unlogged":
            return f"the log of {member} cannot be written: {event['reason']}"
        case "run-stopping" if event.get("signal"):
            return f"stopping all members on {event['signal']}"
    return ""


VERB = Verb(
    description=(
        "Run a command, or the roles of a perdure.toml, and look after the processes: one that dies or falls "
        "silent is killed with its children and started again, until it fails too often without progress. A "
        "script that uses perdure continues where its last save left it. The first SIGTERM or Ctrl-C asks "
        "everybody to save and stop, the second one kills. What a dead learner has left in memory alone is on "
        "the disk when this ends."
    ),
    arguments=(
        argument(
            "--config",
            metavar="FILE",
            default=CONFIG_FILE,
            help=f"what to run without a command; {CONFIG_FILE} by default",
        ),
        argument(
            "--run",
            metavar="NAME",
            help=f"the run; {RUN_VARIABLE}, or what the file says, or {DEFAULT_RUN!r} by default",
        ),
    ),
    exits=(Exit.NOT_FOUND, Exit.HELD, Exit.FENCED, Exit.GAVE_UP, Exit.SILENT, Exit.STOPPED),
    execute=_execute,
    takes_command=True,
    examples=("perdure run -- python train.py", "perdure run --run ppo-ant -- python train.py --seed 1", "perdure run"),
)
