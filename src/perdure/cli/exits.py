"""Exit codes: a promise to scripts. An unknown one other than 0 must be taken for a failure."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """How a command ended."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    DEGRADED = 3
    DAMAGED = 4
    NOT_FOUND = 10
    HELD = 11
    FENCED = 12
    NOTHING_RESTORABLE = 13
    GAVE_UP = 20
    SILENT = 21
    STOPPED = 75
    INTERRUPTED = 130
    PIPE_CLOSED = 141


MEANINGS = {
    Exit.OK: "done",
    Exit.FAILURE: "failed",
    Exit.USAGE: "the command line or a configuration file cannot be used",
    Exit.DEGRADED: "done, but something is damaged or late; a run can still go on from an intact checkpoint",
    Exit.DAMAGED: "damage that leaves nothing of what was asked for to be restored",
    Exit.NOT_FOUND: "no such store, run, checkpoint, pin or file",
    Exit.HELD: "another process holds it; try again later",
    Exit.FENCED: "superseded by a newer generation; do not retry",
    Exit.NOTHING_RESTORABLE: "there is no checkpoint to restore",
    Exit.GAVE_UP: "supervised processes exited too often without progress",
    Exit.SILENT: "supervised processes fell silent too often",
    Exit.STOPPED: "stopped on request after a save; run the same command again",
    Exit.INTERRUPTED: "interrupted (Ctrl-C)",
    Exit.PIPE_CLOSED: "the reader of the output went away",
}
"""What each code means, for people."""

SIGNALLED = "signal n ended the command, or what it supervised"
"""What 128 and the number of a signal means."""


def judge(*, is_whole: bool, restores: bool) -> Exit:
    """Return the code for what was looked at: whole, damaged in part, or damaged so that nothing of it restores."""
    if is_whole:
        return Exit.OK
    return Exit.DEGRADED if restores else Exit.DAMAGED
