"""Making faults happen: signals to real processes, removals of real files."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perdure.chaos.faults import DeleteNewestCheckpoint, Fault, Freeze, Kill
from perdure.errors import NotFoundError
from perdure.files.door import explained
from perdure.inspection import CheckpointSummary


@dataclass(frozen=True, slots=True)
class Injection:
    """A fault that has happened."""

    fault: Fault
    facts: Mapping[str, object] = field(default_factory=dict)
    """What it hit: ``pid`` and ``signal``, or ``checkpoint``, ``step`` and ``fallback``, the checkpoint before it."""


class Injector:
    """
    Makes faults happen to one supervised run.

    Args:
        pid_of: Process id of a member, which leads a process group of its own; None if it has none now. It must not be
            reaped between this answer and the signal: ask and inject in the supervisor's thread.
        checkpoints: The run's committed checkpoints, newest first.
        signal_group: Sends a signal to a process group.
        remove: Removes a directory with all that is in it.
    """

    def __init__(
        self,
        pid_of: Callable[[str], int | None],
        checkpoints: Callable[[], Sequence[CheckpointSummary]],
        signal_group: Callable[[int, int], None] = os.killpg,
        remove: Callable[[Path], None] = shutil.rmtree,
    ) -> None:
        self._pid_of = pid_of
        self._checkpoints = checkpoints
        self._signal_group = signal_group
        self._remove = remove

    def inject(self, fault: Fault) -> Injection:
        """
        Make a fault happen now.

        Raises:
            NotFoundError: Kind ``chaos.no-process`` or ``chaos.no-checkpoint``: nothing is there to be hit.
            StoreError: The checkpoint cannot be removed; it may be damaged.
        """
        if isinstance(fault, DeleteNewestCheckpoint):
            return self._delete(fault)
        if isinstance(fault, Kill):
            return self._signal(fault, fault.member, signal.SIGKILL)
        number = signal.SIGSTOP if isinstance(fault, Freeze) else signal.SIGCONT
        return self._signal(fault, fault.member, number)

    def _signal(self, fault: Fault, member: str, number: signal.Signals) -> Injection:
        pid = self._pid_of(member)
        if pid is None:
            raise _nobody(fault, member)
        try:
            self._signal_group(pid, number)
        except ProcessLookupError as error:
            raise _nobody(fault, member) from error
        return Injection(fault, {"pid": pid, "signal": number.name})

    def _delete(self, fault: DeleteNewestCheckpoint) -> Injection:
        found = self._checkpoints()
        if not found:
            raise NotFoundError(f"cannot {fault}: there is none", kind="chaos.no-checkpoint", name=None)
        newest = found[0]
        with explained("delete", newest.directory):
            self._remove(newest.directory)
        fallback = found[1].id if len(found) > 1 else None
        return Injection(fault, {"checkpoint": newest.id, "step": newest.global_step, "fallback": fallback})


def _nobody(fault: Fault, member: str) -> NotFoundError:
    return NotFoundError(f"cannot {fault}: it has no process at the moment", kind="chaos.no-process", name=member)
