"""Witnesses: evidence of an array's state at one moment, by which it can be proven that nothing wrote to it since."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Container, Iterable, Iterator
from typing import Any

from perdure.capture.arrays import is_tensor, loaded_torch

PROVABLE_BYTES = 128 * 1024
"""A smaller array is copied about as fast as it is proven to be unchanged."""
_SAMPLES = 256
"""Samples of an array are at most so many, and at most one a page: each costs a visit to memory."""
_PAGE_BYTES = 4096

_WORD_BYTES = 8
_MEMORY = memoryview((ctypes.c_uint64 * (sys.maxsize // _WORD_BYTES)).from_address(0))
"""Everything that this process can address, as words. Looking straight at it takes no operation of torch's, which would
let other threads in while training waits."""


class Witness:
    """
    One tensor as it was when this was made.

    The version counter sees every operation of torch but those through ``.data``, NumPy and other back doors. The place
    sees memory that was swapped. Samples, taken all over a tensor of the host, see what back doors do to it as a whole.

    The memory that the tensor had is kept alive, at ``address``: one that is given other memory later does not matter.
    """

    __slots__ = ("_name", "_samples", "_storage", "_tensor", "_version", "address", "size_bytes")

    def __init__(self, name: str, tensor: Any) -> None:
        self._name = name
        self._tensor = tensor
        self._storage = tensor.untyped_storage()
        self._version = tensor._version  # noqa: SLF001 - torch has no other name for it
        self.address: int = tensor.data_ptr()
        self.size_bytes: int = tensor.nbytes
        self._samples = _samples_of(tensor, self.address, self.size_bytes)

    def contradiction(self) -> str:
        """What shows that the tensor was written to, or ''."""
        tensor = self._tensor
        if (tensor.data_ptr(), tensor.nbytes) != (self.address, self.size_bytes):
            return f"the memory of {self._name!r} was replaced"
        if tensor._version != self._version:  # noqa: SLF001 - see above
            return f"{self._name!r} was written to"
        if _samples_of(tensor, self.address, self.size_bytes) != self._samples:
            return f"{self._name!r} was written to behind torch's back"
        return ""


def provable_addresses(arrays: Iterable[Any]) -> Iterator[int]:
    """Where those arrays begin that `witness_of` may know a way to prove."""
    strided = loaded_torch().strided
    for array in arrays:
        if is_tensor(array) and array.layout is strided and array.nbytes >= PROVABLE_BYTES:
            yield array.data_ptr()


def witness_of(name: str, array: Any, guarded: Container[int]) -> Witness | None:
    """
    Take an array's state down, if it begins at a guarded address and writes to it would be noticed.

    That takes a dense tensor, of some size, that only this process has. Asked of every array of every save beside
    training, so these are questions that torch answers at once.
    """
    if not is_tensor(array) or array.nbytes < PROVABLE_BYTES or array.data_ptr() not in guarded:
        return None
    if not array.is_contiguous() or array.is_inference() or (array.is_cpu and array.untyped_storage().is_shared()):
        return None
    return Witness(name, array)


def _samples_of(tensor: Any, address: int, size_bytes: int) -> bytes:
    if not tensor.is_cpu:
        return b""  # the device would have to be waited for
    # Compared as bytes: not-a-number is equal to itself. An odd number of words apart, they are of all columns in turn.
    first, end = -(-address // _WORD_BYTES), (address + size_bytes) // _WORD_BYTES
    distance = max(size_bytes // _SAMPLES, _PAGE_BYTES) // _WORD_BYTES | 1
    return _MEMORY[first:end:distance].tobytes()
