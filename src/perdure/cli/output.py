"""
What a command says: results on standard output, messages on standard error.

With ``--json`` standard output carries one document and nothing else, and an error is one object on standard error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from perdure.cli.text import Cell, Word, layout, printable
from perdure.errors import PerdureError

JSON_SCHEMA = 1
"""Version of every document; within a version fields are only ever added."""

_COLOURS = {"red": "31", "green": "32", "yellow": "33", "dim": "2"}


@dataclass(frozen=True, slots=True)
class Manner:
    """How a command is to talk."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False
    color: str = "auto"
    """``auto``, ``always`` or ``never``."""


def wants_colour(choice: str, environ: Mapping[str, str], *, is_terminal: bool) -> bool:
    """
    Decide whether to write colours.

    A word on the command line beats the environment, a refusal there beats a wish (no-color.org, force-color.org), and
    without either it is a question of the terminal.
    """
    if choice != "auto":
        return choice == "always"
    if environ.get("NO_COLOR") or environ.get("PERDURE_NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return is_terminal and environ.get("TERM") != "dumb"


class Output:
    """
    Where a command's words go.

    Args:
        out: Standard output.
        err: Standard error.
        manner: How to talk.
        environ: Environment variables.
    """

    def __init__(self, out: TextIO, err: TextIO, manner: Manner, environ: Mapping[str, str]) -> None:
        self.manner = manner
        self.err = err
        self.is_terminal = err.isatty() and environ.get("TERM") != "dumb"
        """Whether a person watches the messages."""
        self._out = out
        self.is_coloured = wants_colour(manner.color, environ, is_terminal=out.isatty())

    @property
    def is_for_people(self) -> bool:
        """Whether text is wanted, not a document."""
        return not self.manner.json

    def line(self, *cells: Cell, gap: str = "") -> None:
        """Write one line of the result; nothing with ``--json``."""
        if self.is_for_people:
            self._out.write(gap.join(self._painted(cell) for cell in cells).rstrip() + "\n")

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """Write a table, two spaces between its columns; see `perdure.cli.text.layout`."""
        for cells in layout(headings, rows):
            self.line(*cells, gap="  ")

    def document(self, content: Mapping[str, Any]) -> None:
        """Write the result as one JSON document; nothing without ``--json``."""
        if self.manner.json:
            self._out.write(json.dumps({"schema": JSON_SCHEMA, **content}, indent=1, allow_nan=False) + "\n")

    def note(self, text: str) -> None:
        """Write a message to a person; nothing with ``--json`` or ``--quiet``."""
        if self.is_for_people and not self.manner.quiet:
            self.err.write(f"perdure: {printable(text)}\n")

    def error(self, error: PerdureError) -> None:
        """Write why the command failed, and what to do about it."""
        if self.manner.json:
            self.err.write(json.dumps({"schema": JSON_SCHEMA, **error.to_json()}) + "\n")
            return
        self.err.write(f"perdure: {printable(error.message)}\n")
        if error.hint:
            self.err.write(f"hint: {printable(error.hint)}\n")

    def ask(self, question: str) -> bool:
        """Ask a person; only ``y`` and ``yes`` mean yes."""
        self.err.write(f"{question} [y/N] ")
        self.err.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    @property
    def can_ask(self) -> bool:
        """Whether there is a person to ask."""
        return self.is_for_people and sys.stdin is not None and sys.stdin.isatty() and self.err.isatty()

    def flush(self) -> None:
        """Make sure that the result has arrived; whatever is wrong with standard output shows here."""
        self._out.flush()

    def abandon(self) -> None:
        """Give up standard output, so that the interpreter does not fail on it once more when it ends."""
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - the device is a name, not a path of ours
            os.dup2(nowhere.fileno(), self._out.fileno())

    def _painted(self, cell: Cell) -> str:
        if not isinstance(cell, Word):
            return printable(cell)
        text = printable(cell.text)
        return f"\x1b[{_COLOURS[cell.colour]}m{text}\x1b[0m" if self.is_coloured else text
