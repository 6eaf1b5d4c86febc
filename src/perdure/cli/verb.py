"""What a verb consists of, and what it is given to work with."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perdure.cli.exits import Exit
from perdure.cli.output import Output


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a verb: what the parser, the help and the reference are made of."""

    names: tuple[str, ...]
    """``("run",)`` for a positional one, ``("-n", "--last")`` for an option."""
    help: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Passed to argparse as they are."""


def argument(*names: str, help: str, **settings: Any) -> Argument:  # noqa: A002 - argparse's own word
    """Describe an argument in argparse's words."""
    return Argument(names, help, settings)


@dataclass(frozen=True, slots=True)
class Context:
    """What every verb works with."""

    store: Path
    output: Output
    environ: Mapping[str, str]
    command: tuple[str, ...] | None
    """What stood behind ``--``; None if nothing did."""


@dataclass(frozen=True, slots=True)
class Verb:
    """
    A verb of the command line.

    Attributes:
        description: What it does, in full sentences.
        arguments: Its own arguments; those of every verb come on top.
        exits: Codes it can end with beside failure, usage and interruption.
        execute: Does it; returns an exit code.
        takes_command: Whether ``-- COMMAND`` may follow.
        examples: Command lines worth knowing.
    """

    description: str
    arguments: tuple[Argument, ...]
    exits: tuple[Exit, ...]
    execute: Callable[[Namespace, Context], int]
    takes_command: bool = False
    examples: tuple[str, ...] = ()


RUN = argument(
    "run",
    nargs="?",
    metavar="RUN",
    help="name or directory of a run; by default that of PERDURE_RUN, or the only run of the store",
)
"""The argument by which most verbs know their run."""
