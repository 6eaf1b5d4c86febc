"""A whole snapshot of a value: its tree with versions, its level of exactness, and the reason for that."""

from __future__ import annotations

import enum
import sys
import time
from collections.abc import Callable
from typing import Any

from perdure.capture.environments.plain import OpaqueValueError, Tree
from perdure.capture.environments.proofs import PROOFS
from perdure.capture.environments.reader import Reader
from perdure.capture.environments.writer import Writer
from perdure.errors import FormatError

__all__ = ["FORMAT", "Level", "check", "fill", "gymnasium_version", "take"]

FORMAT = 1
_REASONS_SHOWN = 3


class Level(enum.Enum):
    """How exactly an environment can be captured."""

    E0 = "E0"
    """Exactly: after a restore every step is the one that would have come."""
    E1 = "E1"
    """Exactly, by living the running episode again, from its beginning and by its actions."""
    E3 = "E3"
    """By a reset only: the episode is cut. What is known of wrappers and spaces is restored all the same."""


def gymnasium_version() -> str:
    """Return the version of the loaded Gymnasium, empty if it is not loaded."""
    return str(getattr(sys.modules.get("gymnasium"), "__version__", ""))


def take(root: object, clock: Callable[[], float] = time.perf_counter) -> Tree:
    """
    Capture an environment, a space or any plain value. Arrays in the tree are borrowed; nothing is changed.

    Returns:
        A plain tree; whatever could not be captured is named in its ``reason``, and what was captured on somebody's
        word, of which there is no proof, in ``unproven``.
    """
    graph, writer = _write(root, clock)
    doubts, unproven = list(writer.doubts), list(writer.unproven)
    # What cannot be captured needs no proof of it.
    for standing in () if doubts else map(PROOFS.standing, writer.units):
        doubts += filter(None, [standing.failed])
        unproven += filter(None, [standing.unproven])
    exact = Level.E1 if writer.replays else Level.E0
    return {
        "format": FORMAT,
        "gymnasium": gymnasium_version(),
        "level": (Level.E3 if doubts else exact).value,
        "reason": _together(doubts),
        "unproven": _together(unproven),
        "graph": graph,
        "shared": writer.shared,
    }


def _together(reasons: list[str]) -> str:
    told = list(dict.fromkeys(reasons))
    more = [f"and {len(told) - _REASONS_SHOWN} more"] if len(told) > _REASONS_SHOWN else []
    return "; ".join([*told[:_REASONS_SHOWN], *more])


def _write(root: object, clock: Callable[[], float]) -> tuple[Tree, Writer]:
    writer = Writer(clock)
    try:
        graph = writer.write(root)
        if writer.aliases:
            # What two attributes share must be shared after a restore too: writing through one shows in both.
            writer = Writer(clock, writer.aliases)
            graph = writer.write(root)
    except OpaqueValueError as error:
        writer = Writer(clock)
        writer.doubts.append(f"it {error}")
        return None, writer
    writer.finish()
    return graph, writer


def check(root: Any, tree: Tree, component: str) -> None:
    """
    Compare a tree with the object that it is to go into; nothing is changed.

    Raises:
        FormatError: The tree is of a newer form.
        IncompatibleError: They differ in class, id, arguments, wrappers, spaces or number.
    """
    if tree["format"] > FORMAT:
        raise FormatError(
            f"cannot restore {component}: its state is of form {tree['format']}, this perdure reads up to {FORMAT}",
            kind="environment.format",
            hint="upgrade perdure",
            schema_version=tree["format"],
            supported_version=FORMAT,
        )
    _reader(tree, component, time.perf_counter).check(tree["graph"], root, component)


def fill(root: Any, tree: Tree, clock: Callable[[], float] = time.perf_counter) -> Any:
    """Put a tree that was checked into the object, copying every array; a tree of a plain value is returned as one."""
    return _reader(tree, "", clock).fill(tree["graph"], root)


def _reader(tree: Tree, component: str, clock: Callable[[], float]) -> Reader:
    return Reader(tree["shared"], clock, component, prunes=tree["gymnasium"] == gymnasium_version())
