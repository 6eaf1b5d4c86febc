"""Which file systems keep their files on this machine: those on others want other ways of reading."""

from __future__ import annotations

import ctypes
import os
import sys

# Numbers of statfs(2) for file systems whose files are local and do not change under a mapping.
LOCAL_FILE_SYSTEMS = {
    0xEF53: "ext4", 0x58465342: "xfs", 0x9123683E: "btrfs", 0x01021994: "tmpfs", 0xF2F52010: "f2fs",
    0x2FC12FC1: "zfs", 0xCA451A4E: "bcachefs", 0x858458F6: "ramfs", 0x3153464A: "jfs", 0x52654973: "reiserfs",
}  # fmt: skip
OTHER_FILE_SYSTEMS = {
    0x6969: "nfs", 0x65735546: "fuse", 0x794C7630: "overlay", 0xFF534D42: "cifs", 0xFE534D42: "smb", 0x01021997: "9p",
    0x0BD00BD0: "lustre", 0x00C36400: "ceph", 0x47504653: "gpfs", 0x19830326: "beegfs", 0x6A656A63: "virtiofs",
}  # fmt: skip

_C = ctypes.CDLL(None, use_errno=True)
_C.fstatfs.argtypes = (ctypes.c_int, ctypes.c_void_p)
_STATFS_BYTES = 512
"""More than any system's structure has; what is asked for is its first field."""


def file_system_of(descriptor: int) -> tuple[str, bool]:
    """Name of the file system that an open file is on, and whether it is a local one, whose files can be mapped."""
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    if _C.fstatfs(descriptor, buffer) != 0:
        return f"unknown ({os.strerror(ctypes.get_errno())})", False
    number = int.from_bytes(buffer.raw[: ctypes.sizeof(ctypes.c_long)], sys.byteorder) & 0xFFFFFFFF
    if number in LOCAL_FILE_SYSTEMS:
        return LOCAL_FILE_SYSTEMS[number], True
    return OTHER_FILE_SYSTEMS.get(number, f"type {number:#x}"), False
