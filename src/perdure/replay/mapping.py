"""
Memory in which files lie side by side: one address range, each file's bytes mapped to their place in it.

Python's own mmap cannot place a mapping, so the C library is called. The mappings are private: what is written to them
goes to pages of this process, never to the file, and a file that is unlinked meanwhile stays readable.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perdure.core.ring import PAGE_BYTES
from perdure.errors import StoreError

_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_HUGE_PAGES = 14
_FAILED = ctypes.c_void_p(-1).value
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_ANYWHERE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
_IN_PLACE = mmap.MAP_PRIVATE | _MAP_FIXED | _MAP_NORESERVE


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    )  # fmt: skip
    library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return library


_C = _library()


class MappedMemory:
    """
    A range of addresses, zeroed, that files can be mapped into. Given back when the last array of it is gone.

    Args:
        size_bytes: Length; physical memory is taken page by page as it is written.

    Raises:
        StoreError: Kind ``replay.no-address-space``.
    """

    def __init__(self, size_bytes: int) -> None:
        length = -(-max(size_bytes, 1) // PAGE_BYTES) * PAGE_BYTES
        self.address = _map(None, length, _READ_WRITE, _ANYWHERE, -1, 0)
        self.size_bytes = size_bytes
        # Kept for NumPy, whose arrays keep this object in turn.
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (size_bytes,),
            "data": (self.address, False),
        }
        # Not at the interpreter's exit: threads may still read then, and the kernel takes everything back anyway.
        weakref.finalize(self, _C.munmap, self.address, length).atexit = False

    def bytes(self) -> NDArray[np.uint8]:
        """All of it as bytes; the array keeps the memory."""
        return np.asarray(self)

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """All of it as an array of this type and shape, which keeps the memory."""
        return np.asarray(self).view(dtype).reshape(shape)

    def expect_all(self) -> None:
        """Tell the kernel that all of it will be written soon: large pages take it fewer faults. Only advice."""
        _C.madvise(self.address, -(-self.size_bytes // PAGE_BYTES) * PAGE_BYTES, _HUGE_PAGES)

    def map_file(self, descriptor: int, file_offset_bytes: int, size_bytes: int, at_bytes: int) -> None:
        """
        Put a file's bytes at a place; all four numbers are multiples of the page, but that the file may end before.

        The descriptor may be closed afterwards. The caller has made sure that the file is that long: touching a page
        beyond its end kills the process.

        Raises:
            StoreError: Kind ``replay.no-address-space``: there are too many mappings.
        """
        _map(self.address + at_bytes, size_bytes, _READ_WRITE, _IN_PLACE, descriptor, file_offset_bytes)


def _map(address: int | None, length: int, protection: int, flags: int, descriptor: int, offset: int) -> int:
    found = _C.mmap(address, length, protection, flags, descriptor, offset)
    if found == _FAILED or found is None:
        number = ctypes.get_errno()
        raise StoreError(
            f"cannot map {length:,} bytes of a replay buffer: {os.strerror(number)}",
            kind="replay.no-address-space",
            hint="restore with load='read', or raise vm.max_map_count",
            errno_name=errno.errorcode.get(number, ""),
        )
    return int(found)


def fetch_ahead(array: NDArray[Any], slots: NDArray[np.intp]) -> None:
    """
    Have the kernel begin to read some rows of a mapped array, all at once instead of one fault after the other.

    Only advice: an error, such as for memory that is no mapping of a file, changes nothing.
    """
    row_bytes = array.strides[0]
    begin = array.ctypes.data
    # Not np.unique: its first call imports numpy.ma, which takes longer than the restore.
    for slot in sorted(set(slots.tolist())):
        first = (begin + slot * row_bytes) // PAGE_BYTES * PAGE_BYTES
        _C.madvise(first, begin + (slot + 1) * row_bytes - first, mmap.MADV_WILLNEED)


def mappings_left() -> int:
    """How many more mappings this process may have; half of them are left to others."""
    try:
        limit = int(Path("/proc/sys/vm/max_map_count").read_text(encoding="ascii"))
        taken = Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return 0
    return (limit - taken) // 2
