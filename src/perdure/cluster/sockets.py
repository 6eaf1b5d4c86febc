"""
The sockets between a learner and its members: unix sockets in a private directory, found from the run directory alone.

A learner does not bind its sockets by name. It listens under a name of its own and renames that over the well-known
one, so that taking over from a dead or frozen learner is atomic, and a superseded learner that closes late cannot
remove its successor's socket, as ZeroMQ otherwise would.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perdure.cluster.wire import MAXIMUM_PAYLOAD_BYTES, Buffer
from perdure.errors import InvalidInputError, MissingDependencyError, StoreError
from perdure.files.door import DIRECTORY_MODE, FILE_MODE, explained

try:
    import zmq
    from zmq.utils.monitor import recv_monitor_message
except ImportError as _error:
    raise MissingDependencyError(
        "cannot talk to other processes: pyzmq is not installed",
        kind="dependency.missing",
        hint="pip install 'perdure[cluster]'",
        package="pyzmq",
        extra="cluster",
    ) from _error

CONTROL = "control"
"""Where members register, beat and ask for weights."""
SAMPLES = "samples"
"""Where samples are pushed."""

HIGH_WATER_MESSAGES = 4
"""Samples under way on each side of a connection: enough to keep it busy, few enough to be dropped without regret."""

_MAXIMUM_PATH_BYTES = 100  # the kernel's limit is 107; the name under which a socket is made is longer by a few
_BACKLOG = 128
_RECONNECT_MILLISECONDS = 50
_RECONNECT_LIMIT_MILLISECONDS = 500


def endpoint_directory(run_directory: Path) -> Path:
    """
    Return the directory of a run's sockets, making it if there is none; only this user can enter it.

    It is a short path under the system's directory for temporary files, because a unix socket's may not be long.

    Raises:
        StoreError: Kind ``endpoint.unsafe``: something is there that others could have made or can enter.
        InvalidInputError: Kind ``endpoint.too-long``.
    """
    user = os.geteuid()
    digest = hashlib.blake2b(os.fsencode(run_directory.resolve()), digest_size=8).hexdigest()
    directory = Path(tempfile.gettempdir()) / f"perdure-{user}-{digest}"
    if len(os.fsencode(directory / CONTROL)) > _MAXIMUM_PATH_BYTES:
        raise InvalidInputError(
            f"cannot make sockets in {directory}: the path is longer than {_MAXIMUM_PATH_BYTES} bytes",
            kind="endpoint.too-long",
            hint="set TMPDIR to a short path, alike for all processes of the run",
            field="TMPDIR",
        )
    with explained("make directory", directory):
        directory.mkdir(DIRECTORY_MODE, exist_ok=True)
        status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != user or status.st_mode & 0o077:
        raise StoreError(
            f"cannot use {directory}: it is not a directory that only this user can enter",
            kind="endpoint.unsafe",
            hint="remove it, or set TMPDIR to a directory of your own, alike for all processes of the run",
            path=str(directory),
        )
    return directory


def listen(context: zmq.Context[Any], kind: int, path: Path) -> zmq.Socket[bytes]:
    """
    Open a ZeroMQ socket that listens at ``path``, in the place of whatever listened there before.

    A crash leaves the name behind, connected to nothing; the next listener takes it over.
    """
    made = path.with_name(f"{path.name[0]}{os.getpid()}")
    with explained("listen at", path), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        made.unlink(missing_ok=True)
        listener.setblocking(False)
        listener.bind(os.fspath(made))
        made.chmod(FILE_MODE)
        listener.listen(_BACKLOG)
        made.rename(path)
        opened = _open(context, kind)
        opened.setsockopt(zmq.USE_FD, listener.detach())
        opened.bind(f"ipc://{path}")
    return opened


def connect(context: zmq.Context[Any], kind: int, path: Path) -> zmq.Socket[bytes]:
    """Open a ZeroMQ socket that connects to ``path``, now or as soon as somebody listens there, again and again."""
    opened = _open(context, kind)
    # Nothing is queued for a learner that is not there: its successor would have to turn it away.
    opened.setsockopt(zmq.IMMEDIATE, 1)
    opened.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MILLISECONDS)
    opened.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_LIMIT_MILLISECONDS)
    opened.connect(f"ipc://{path}")
    return opened


def _open(context: zmq.Context[Any], kind: int) -> zmq.Socket[bytes]:
    opened: zmq.Socket[bytes] = context.socket(kind)
    opened.setsockopt(zmq.LINGER, 0)
    opened.setsockopt(zmq.MAXMSGSIZE, MAXIMUM_PAYLOAD_BYTES)
    if kind in (zmq.PUSH, zmq.PULL):
        opened.setsockopt(zmq.SNDHWM, HIGH_WATER_MESSAGES)
        opened.setsockopt(zmq.RCVHWM, HIGH_WATER_MESSAGES)
    return opened


def receive(opened: zmq.Socket[bytes]) -> list[Buffer] | None:
    """Return the frames of the next message, borrowed from ZeroMQ as long as they are referenced; None if none came."""
    try:
        return [frame.buffer for frame in opened.recv_multipart(zmq.NOBLOCK, copy=False)]
    except zmq.Again:
        return None


def send(opened: zmq.Socket[bytes], frames: Sequence[Buffer]) -> bool:
    """
    Hand a message over to ZeroMQ if it takes it at once; returns whether it did.

    Args:
        opened: The socket.
        frames: Not copied: nobody may change their memory any more.
    """
    try:
        opened.send_multipart(frames, zmq.NOBLOCK, copy=False)
    except zmq.Again:
        return False
    return True


class ConnectionWatch:
    """Tells when the connection of a connecting socket comes and goes."""

    def __init__(self, watched: zmq.Socket[bytes]) -> None:
        self._watched = watched
        self.socket: zmq.Socket[bytes] = watched.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        )

    def changes(self) -> list[bool]:
        """Return what happened since the last call, in order: True for connected, False for disconnected."""
        changes = []
        while self.socket.poll(0):
            event = recv_monitor_message(self.socket)["event"]
            changes.append(event == zmq.EVENT_HANDSHAKE_SUCCEEDED)
        return changes

    def close(self) -> None:
        """Stop watching."""
        self._watched.disable_monitor()
        self.socket.close(0)


class Waker:
    """
    Lets any thread wake one that waits for sockets.

    Its descriptor is closed with the last reference to it and not before: a thread that is about to wake somebody must
    never find that the number means another file by now.
    """

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """Descriptor to wait for."""
        return self._descriptor

    def wake(self) -> None:
        """Wake the waiter, or let its next wait return at once."""
        os.eventfd_write(self._descriptor, 1)

    def clear(self) -> None:
        """Forget all calls of `wake` so far."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)

    def __del__(self) -> None:
        os.close(self._descriptor)
