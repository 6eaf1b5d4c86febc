"""
A real file system whose power can be cut: an image in memory, a loop device, and the shutdown request of the kernel.

`LoopFileSystem.cut` ends the file system as a power cut does: what was not yet on its way to the device never gets
there. The next mount replays the journal. Needs root, a free loop device and the file system's ``mkfs``; Linux only.
Nothing is left behind, whatever happens to the process: the mount lives in a mount namespace of its own, the image is
anonymous memory, and the loop device frees itself.

What this does not show: a device that lies about its own cache, because the image's pages are never lost.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
from enum import IntEnum
from pathlib import Path

from perdure.errors import MissingDependencyError

_SHUTDOWN = 0x8004587D
_LOOP_CTL_GET_FREE, _LOOP_SET_FD, _LOOP_SET_STATUS64 = 0x4C82, 0x4C00, 0x4C04
_LO_FLAGS_AUTOCLEAR = 4
_CLONE_NEWNS = 0x20000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000

_FICLONE = 0x40049409

IMAGE_BYTES = {"ext4": 96 * 2**20, "xfs": 320 * 2**20, "btrfs": 256 * 2**20}
"""Smallest comfortable size of an image, by file system; only what is written costs memory."""


class Cut(IntEnum):
    """What the journal still gets to the device when the power goes."""

    JOURNAL_FLUSHED = 1
    """Names and lengths are there, data that was not synced is not."""
    NOTHING_FLUSHED = 2
    """Nothing that was not synced is there."""


def what_is_missing(kind: str) -> str:
    """Why power cannot be cut here, or '' if it can."""
    if os.geteuid() != 0:
        return "root is needed"
    if not os.access("/dev/loop-control", os.W_OK):
        return "there are no loop devices"
    if shutil.which(f"mkfs.{kind}") is None:
        return f"mkfs.{kind} is not installed"
    return ""


def attach(image: int) -> tuple[str, int]:
    """
    Make a block device of a file.

    Returns:
        The device's path and an open descriptor of it, owned by the caller; the device goes when all are closed.
    """
    control = os.open("/dev/loop-control", os.O_RDWR)
    try:
        # Another process may take the free device first; then the next one is asked for.
        for _ in range(32):
            device = f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}"
            loop = os.open(device, os.O_RDWR)
            try:
                fcntl.ioctl(loop, _LOOP_SET_FD, image)
            except OSError:
                os.close(loop)
                continue
            # struct loop_info64: flags are the 14th 32-bit word.
            info = struct.pack("=14I", *[0] * 13, _LO_FLAGS_AUTOCLEAR).ljust(232, b"\0")
            fcntl.ioctl(loop, _LOOP_SET_STATUS64, info)
            return device, loop
        raise OSError("no loop device can be had")
    finally:
        os.close(control)


class LoopFileSystem:
    """
    A mounted file system in memory; a context manager. The whole process moves to a mount namespace of its own.

    Args:
        kind: ``ext4`` or ``xfs``.
        image_bytes: Size of the image; the smallest comfortable one if not given.

    Raises:
        MissingDependencyError: Kind ``powercut.unavailable``.
    """

    def __init__(self, kind: str, image_bytes: int | None = None) -> None:
        missing = what_is_missing(kind)
        if missing:
            raise MissingDependencyError(
                f"cannot cut the power of an {kind} file system: {missing}",
                kind="powercut.unavailable",
                hint="run as root on a Linux machine with loop devices, e2fsprogs, xfsprogs and btrfs-progs",
            )
        self._kind = kind
        self._image_bytes = image_bytes or IMAGE_BYTES[kind]
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._mounted = False
        self._device = ""
        self._loop = -1
        self.path = Path(tempfile.mkdtemp(prefix=f"perdure-{kind}-"))
        """Where it is mounted."""

    def __enter__(self) -> LoopFileSystem:
        try:
            self._check(self._libc.unshare(_CLONE_NEWNS))
            self._check(self._libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
            self._attach()
            command = [f"mkfs.{self._kind}", "-q", self._device]
            subprocess.run(command, check=True, timeout=60, stdout=subprocess.DEVNULL)  # noqa: S603 - no shell
            self.mount()
        except BaseException:
            self._detach()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._mounted:
            self.unmount()
        self._detach()

    def _attach(self) -> None:
        image = os.memfd_create(f"perdure-{self._kind}")
        os.truncate(image, self._image_bytes)
        try:
            self._device, self._loop = attach(image)
        finally:
            os.close(image)

    def _detach(self) -> None:
        if self._loop >= 0:
            os.close(self._loop)  # the last use of the device, which then frees itself
            self._loop = -1
        self.path.rmdir()

    def mount(self) -> None:
        """Mount the file system, replaying its journal."""
        self._check(self._libc.mount(self._device.encode(), bytes(self.path), self._kind.encode(), 0, None))
        self._mounted = True

    def unmount(self) -> None:
        """Unmount it; no process may have anything open on it."""
        self._check(self._libc.umount2(bytes(self.path), 0))
        self._mounted = False

    def cut(self, how: Cut) -> None:
        """Cut the power: from now on every call on the file system fails, until it is mounted anew."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("=I", how))
        finally:
            os.close(descriptor)

    def restore_power(self) -> None:
        """Unmount and mount."""
        self.unmount()
        self.mount()

    def _check(self, result: int) -> None:
        if result != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(self.path))


class ClonedFileSystem(LoopFileSystem):
    """
    A file system that knows no shutdown request: its image is a file whose state at one moment is kept by a reflink.

    The clone holds what the file system had written to its device by then, and nothing of what it still had in memory.
    Processes must be gone, or do nothing any more, when the power is cut: their calls do not fail afterwards.

    Args:
        kind: Any that ``mkfs`` and the kernel know, such as ``btrfs``.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        # Room for the image, its clone, and what changes meanwhile.
        self._host = LoopFileSystem("xfs", 4 * self._image_bytes)

    def __enter__(self) -> ClonedFileSystem:
        self._host.__enter__()
        try:
            super().__enter__()
        except BaseException:
            self._host.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._host.__exit__()

    @property
    def _image(self) -> Path:
        return self._host.path / "image"

    def _attach(self) -> None:
        image = os.open(self._image, os.O_RDWR | os.O_CREAT, 0o600)
        os.truncate(image, self._image_bytes)
        try:
            self._device, self._loop = attach(image)
        finally:
            os.close(image)

    def cut(self, how: Cut) -> None:
        """Keep the state of this moment."""
        del how
        source = os.open(self._image, os.O_RDONLY)
        clone = os.open(self._image.with_suffix(".clone"), os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            fcntl.ioctl(clone, _FICLONE, source)
        finally:
            os.close(clone)
            os.close(source)

    def restore_power(self) -> None:
        """Mount the state that was kept; as it is, if the power was not cut."""
        clone = self._image.with_suffix(".clone")
        if not clone.exists():
            super().restore_power()
            return
        self.unmount()
        os.close(self._loop)
        self._loop = -1
        clone.replace(self._image)
        self._attach()
        self.mount()
