"""
What the demo's processes have in common: how they begin, how they end, and how they say what they are doing.

What a process has to say to those who watch the demo is one JSON object a line on its standard output, with ``event``
as in the run's own history. The supervisor keeps every line in the process's log.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from perdure.demo.settings import Settings, read_settings
from perdure.errors import PerdureError
from perdure.supervise.beats import MEMBER_VARIABLE, RESTART_COUNT_VARIABLE


def serve(work: Callable[[Settings], None]) -> int:
    """
    Do a process's work with the settings that its command line names.

    Returns:
        What to exit with: 0, or the code of the error that ended it, such as 12 for a process that was fenced.
    """
    try:
        work(read_settings(Path(sys.argv[1])))
    except PerdureError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def member_name() -> str:
    """Return the name that the supervisor gave to this process."""
    return os.environ[MEMBER_VARIABLE]


def restart_count() -> int:
    """Return how often the supervisor has restarted this member."""
    return int(os.environ[RESTART_COUNT_VARIABLE])


def over_file(settings_file: Path) -> Path:
    """Return the file that appears beside a run's settings when nothing more will go wrong in it."""
    return settings_file.with_suffix(".over")


def is_undisturbed() -> bool:
    """Say whether nothing more will go wrong, so that this process's run may come to its end."""
    return over_file(Path(sys.argv[1])).exists()


def tell(event: str, **facts: object) -> None:
    """Say something to those who watch the demo."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def heard(line: str) -> Mapping[str, Any] | None:
    """Return what a line of output says to those who watch, or None if it is meant for the log alone."""
    if not line.startswith("{"):
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None
