"""
Tools for those who write stores and adapters, and for perdure's own proof: a file system that can be recorded and hurt.

- `RecordingFiles`, `FaultyFiles`, `DelayingFiles` and `TearingFiles` are file systems to hand to a `Store`;
- `crash_states` gives every state in which a power cut may leave a recording;
- `check_order` judges a recording, or a trace of system calls, by the rules of durable saves;
- `Promises` and `observe` say what must be found and what is found; `Scenario` acts and tells what it does;
- ``python -m perdure.testing.rounds`` cuts the power of a real file system, or kills real processes, again and again.
"""

from perdure.testing.crash import CrashState, Link, Materializer, crash_states, digest_of_tree, read_tree
from perdure.testing.faults import (
    EINTR,
    EIO,
    EIO_AFTER,
    ENOSPC,
    ERRORS,
    FAILED_SYNC,
    KILL,
    SHORT_WRITE,
    STOP,
    TEAR,
    DelayingFiles,
    Fault,
    FaultError,
    FaultyFiles,
    FaultyRecordingFiles,
    Stopped,
    TearingFiles,
    after,
    before,
    error,
)
from perdure.testing.interception import Call, InterceptedFiles
from perdure.testing.order import check_order, read_strace
from perdure.testing.promises import Event, Promises, observe
from perdure.testing.recording import Operation, RecordingFiles
from perdure.testing.scenario import Scenario

__all__ = [
    "EINTR",
    "EIO",
    "EIO_AFTER",
    "ENOSPC",
    "ERRORS",
    "FAILED_SYNC",
    "KILL",
    "SHORT_WRITE",
    "STOP",
    "TEAR",
    "Call",
    "CrashState",
    "DelayingFiles",
    "Event",
    "Fault",
    "FaultError",
    "FaultyFiles",
    "FaultyRecordingFiles",
    "InterceptedFiles",
    "Link",
    "Materializer",
    "Operation",
    "Promises",
    "RecordingFiles",
    "Scenario",
    "Stopped",
    "TearingFiles",
    "after",
    "before",
    "check_order",
    "crash_states",
    "digest_of_tree",
    "error",
    "observe",
    "read_strace",
    "read_tree",
]
