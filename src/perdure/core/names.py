"""
Names of runs, components, pins and files: what is allowed, and where a component's files lie.

A name that passes here can never leave the directory it is joined to: no absolute paths, no ``..``, no hidden or
control characters, no links to interpret. Readers check names from disk with the same functions as writers.
"""

from __future__ import annotations

import functools
import re
from enum import Enum

from perdure.errors import InvalidInputError

MAXIMUM_NAME_BYTES = 255
MAXIMUM_DEPTH = 16

_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
_PATH = re.compile(f"{_SEGMENT.pattern}(/{_SEGMENT.pattern})*")
_CHECKPOINT = re.compile(r"step-(\d{12,20})-([0-9a-f]{8})")
_RULE = "letters, digits, '_', '-' and '.', not beginning with '-' or '.'"


class Section(str, Enum):
    """The folder of a checkpoint that a component's files belong to."""

    MODEL = "model"
    OPTIMIZER = "optimizer"
    SCHEDULER = "scheduler"
    BUFFER = "buffer"
    RNG = "rng"
    ENVIRONMENT = "env"
    EVALUATION = "eval"
    STATE = "state"
    LEGACY = "legacy"
    """Pickles, asked for by name."""


def check_segment(value: str, what: str) -> str:
    """
    Return ``value`` if it may be one path segment, such as a run's name.

    Raises:
        InvalidInputError: Kind ``name.invalid``.
    """
    if not _SEGMENT.fullmatch(value) or len(value) > MAXIMUM_NAME_BYTES:
        raise InvalidInputError(
            f"cannot use {value[:80]!r} as {what}: only {_RULE}, at most {MAXIMUM_NAME_BYTES} bytes",
            kind="name.invalid",
            hint=f"rename the {what}",
            field=what,
        )
    return value


def check_path(value: str, what: str) -> str:
    """
    Return ``value`` if it is a safe relative path of a few segments, such as ``agents/red/policy``.

    Raises:
        InvalidInputError: Kind ``name.invalid``.
    """
    if len(value) > MAXIMUM_NAME_BYTES or value.count("/") >= MAXIMUM_DEPTH:
        raise InvalidInputError(
            f"cannot use {value[:80]!r} as {what}: longer than {MAXIMUM_NAME_BYTES} bytes or "
            f"deeper than {MAXIMUM_DEPTH} levels",
            kind="name.invalid",
            hint=f"shorten the {what}",
            field=what,
        )
    # A checkpoint lists thousands of paths: one match each, and segments are looked at where one of them is at fault.
    if not _PATH.fullmatch(value):
        for segment in value.split("/"):
            check_segment(segment, what)
    return value


@functools.cache  # asked of every component of every save
def component_stem(name: str, section: Section) -> str:
    """
    Where a component's files lie in a checkpoint, without their ending.

    ``policy`` of section model lies at ``model/policy``; ``agents/red/policy`` at ``agents/red/model/policy``. The
    mapping is injective: the last folder is the section, the rest is the name.
    """
    folder, _, last = name.rpartition("/")
    return f"{folder}/{section.value}/{last}" if folder else f"{section.value}/{last}"


def checkpoint_directory_name(global_step: int, checkpoint_id: str) -> str:
    """
    Name of a committed checkpoint's directory: its step, padded so that names sort by step, and its short id.

    The id makes the name unique for ever: two timelines that reach the same step, before and after a recovery, never
    ask for the same directory.
    """
    return f"step-{global_step:012d}-{checkpoint_id[:8]}"


def parse_checkpoint_directory_name(name: str) -> tuple[int, str] | None:
    """Step and short id of a checkpoint's directory name, or None if ``name`` is not one."""
    match = _CHECKPOINT.fullmatch(name)
    return (int(match[1]), match[2]) if match else None
