"""Witnesses: evidence of an array's state at one moment, by which it can be proven that nothing wrote to it since."""

from __future__ import annotations

import ctypes
from typing import Any

from perdure.capture.arrays import is_tensor

PROVABLE_BYTES = 128 * 1024
"""A smaller array is copied about as fast as it is proven to be unchanged."""
_SAMPLES = 256
"""Samples of an array are at most so many, and at most one a page: each costs a visit to memory."""
_PAGE_BYTES = 4096


def is_provable(array: Any) -> bool:
    """Whether writes to an array would be noticed: a dense tensor, of some size, that only this process has."""
    # Asked of every array of every save beside training, so each of these is what torch answers at once.
    return (
        is_tensor(array)
        and array.nbytes >= PROVABLE_BYTES
        and array.is_contiguous()
        and not array.is_inference()
        and not (array.is_cpu and array.untyped_storage().is_shared())
    )


class Witness:
    """
    One tensor as it was when this was made.

    The version counter sees every operation of torch but those through ``.data``, NumPy and other back doors. The place
    sees memory that was swapped. Samples, taken all over a tensor of the host, see what back doors do to it as a whole.
    """

    __slots__ = ("_name", "_place", "_samples", "_tensor", "_version")

    def __init__(self, name: str, tensor: Any) -> None:
        self._name = name
        self._tensor = tensor
        self._place = (tensor.data_ptr(), tensor.nbytes)
        self._version = tensor._version  # noqa: SLF001 - torch has no other name for it
        self._samples = _samples_of(tensor, *self._place)

    def contradiction(self) -> str:
        """What shows that the tensor was written to, or ''."""
        tensor = self._tensor
        place = (tensor.data_ptr(), tensor.nbytes)
        if place != self._place:
            return f"the memory of {self._name!r} was replaced"
        if tensor._version != self._version:  # noqa: SLF001 - see above
            return f"{self._name!r} was written to"
        if _samples_of(tensor, *place) != self._samples:
            return f"{self._name!r} was written to behind torch's back"
        return ""


def _samples_of(tensor: Any, address: int, size_bytes: int) -> bytes:
    if not tensor.is_cpu:
        return b""  # the device would have to be waited for
    # Straight from memory: it takes no operation of torch's, which would let other threads in while training waits.
    # Compared as bytes: not-a-number is equal to itself. An odd stride meets every byte of the elements in turn.
    content = memoryview((ctypes.c_ubyte * size_bytes).from_address(address))
    return content[:: max(size_bytes // _SAMPLES, _PAGE_BYTES) | 1].tobytes()
