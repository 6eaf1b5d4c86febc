"""
Markers of a restore: which checkpoint is being restored, how far it got, and how often that killed the process.

``restoring.<checkpoint>`` is written before anything changes and removed when ``restored.<checkpoint>.marker`` stands
in its place. A start that finds the first and not the second knows that the last restore died in between, and begins
again from the beginning: nothing half restored is ever used.
"""

from __future__ import annotations

from perdure.core.recovery import Step
from perdure.store.layout import PROGRESS_FILE
from perdure.store.store import Checkpoint, Store

_RESTORING = "restoring."
_RESTORED = "restored."
_MARKER = ".marker"


class Markers:
    """The restore markers of a run directory."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def deaths(self, checkpoint: Checkpoint) -> int:
        """How many restores of this checkpoint began and never ended, since the last one that did."""
        content = self._store.read_json(_RESTORING + checkpoint.directory.name)
        attempts = content.get("attempts") if content else None
        return attempts if isinstance(attempts, int) else 0

    def begin(self, checkpoint: Checkpoint) -> None:
        """Note durably that this checkpoint is about to be restored."""
        marker = {"checkpoint": checkpoint.manifest.id, "attempts": self.deaths(checkpoint) + 1}
        self._store.replace_json(_RESTORING + checkpoint.directory.name, marker)

    def progress(self, checkpoint: Checkpoint, step: Step) -> None:
        """Note which step is about to run, for those who watch."""
        self._store.note_json(PROGRESS_FILE, {"checkpoint": checkpoint.manifest.id, "step": step.value})

    def give_up(self, checkpoint: Checkpoint) -> None:
        """Note that the restore ended without success and without killing the process."""
        self._store.remove_file(_RESTORING + checkpoint.directory.name)
        self._store.remove_file(PROGRESS_FILE)

    def finish(self, checkpoint: Checkpoint, generation: int) -> None:
        """Note that the restore is complete; only the newest such marker is kept."""
        name = f"{_RESTORED}{checkpoint.directory.name}{_MARKER}"
        stale = [other for other in self._store.names(self._store.directory) if other != name and _is_marker(other)]
        marker = {"checkpoint": checkpoint.manifest.id, "generation": generation}
        self._store.replace_json(name, marker, instead_of=stale)


def _is_marker(name: str) -> bool:
    is_old = name.startswith(_RESTORED) and name.endswith(_MARKER)
    return is_old or name.startswith(_RESTORING) or name == PROGRESS_FILE
