"""
Arrays of NumPy and PyTorch as stored tensors: their types, their specs, and copies in both directions.

PyTorch is looked at only if the program has already imported it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from perdure.core.tensorfile import TensorSpec
from perdure.core.tree import ArrayType
from perdure.errors import InvalidInputError

_NUMPY_CODES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bool": "BOOL", "complex64": "C64",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
}  # fmt: skip
_NUMPY_TYPES = {code: np.dtype(name) for name, code in _NUMPY_CODES.items()}
_TORCH_CODES = {**_NUMPY_CODES, "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}

PAIRED = "complex128"
"""Stored as pairs of F64 with a last dimension of 2, since the file format has no such type."""


def loaded_torch() -> Any:
    """The torch module if the program has imported it, else None."""
    return sys.modules.get("torch")


def array_type(value: object) -> ArrayType | None:
    """The type under which an array is stored in a structure, or None if ``value`` is no array."""
    if isinstance(value, np.ndarray):
        return f"numpy:{PAIRED}" if value.dtype == np.complex128 else "numpy"
    if isinstance(value, np.generic):
        return f"scalar:{PAIRED}" if value.dtype == np.complex128 else "scalar"
    torch = loaded_torch()
    if torch is not None and isinstance(value, torch.Tensor):
        return f"torch:{PAIRED}" if value.dtype == torch.complex128 else "torch"
    return None


def spec_of(name: str, array: Any) -> TensorSpec:
    """
    Describe an array as a stored tensor.

    Raises:
        InvalidInputError: Kind ``array.unsupported``: its type or layout cannot be stored.
    """
    torch = loaded_torch()
    if torch is not None and isinstance(array, torch.Tensor):
        _check_dense(name, array)
        dtype, codes = str(array.dtype).removeprefix("torch."), _TORCH_CODES
    else:
        dtype, codes = array.dtype.name, _NUMPY_CODES
    if dtype == PAIRED:
        return TensorSpec(name, "F64", (*array.shape, 2))
    if dtype not in codes:
        raise _unsupported(name, f"of type {dtype}")
    return TensorSpec(name, codes[dtype], tuple(array.shape))


def _check_dense(name: str, tensor: Any) -> None:
    torch = loaded_torch()
    if tensor.is_meta:
        raise _unsupported(name, "a meta tensor, which has no values")
    if tensor.layout is not torch.strided or tensor.is_quantized or getattr(tensor, "is_nested", False):
        raise _unsupported(name, f"a {'quantised' if tensor.is_quantized else str(tensor.layout)} or nested tensor")


def _unsupported(name: str, what: str) -> InvalidInputError:
    return InvalidInputError(
        f"cannot save array {name!r}: it is {what}",
        kind="array.unsupported",
        hint="convert it to a dense array of numbers before tracking it",
        field=name,
    )


class Destination:
    """
    Memory for one array's bytes, and how to fill it.

    Args:
        memory: Exactly the array's bytes.
        array: An example of the array: later ones have the same type and shape.
    """

    __slots__ = ("is_torch", "view")

    def __init__(self, memory: memoryview, array: Any) -> None:
        torch = loaded_torch()
        self.is_torch = torch is not None and isinstance(array, torch.Tensor)
        self.view: Any
        if self.is_torch:
            self.view = torch_view(memory, array.dtype, tuple(array.shape))
        else:
            self.view = np.frombuffer(memory, array.dtype).reshape(array.shape)


def torch_view(memory: memoryview, dtype: Any, shape: tuple[int, ...]) -> Any:
    """A torch tensor over ``memory``, which it keeps alive."""
    torch = loaded_torch()
    if not memory:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def copy_arrays(destinations: Sequence[Destination], arrays: Sequence[Any]) -> None:
    """Copy each array into its destination; whole on return."""
    torch = loaded_torch()
    tensors = [(d.view, a) for d, a in zip(destinations, arrays, strict=True) if d.is_torch]
    if tensors:
        with torch.no_grad():
            # One call for all: for the many small tensors of an RL agent the calls cost more than the copies.
            torch._foreach_copy_([view for view, _ in tensors], [tensor for _, tensor in tensors])
    for destination, array in zip(destinations, arrays, strict=True):
        if not destination.is_torch:
            np.copyto(destination.view, array)


class StoredArray:
    """A tensor's bytes as read, not yet an array of any library; the memory is owned by whoever gets the array."""

    __slots__ = ("memory", "spec")

    def __init__(self, memory: memoryview, spec: TensorSpec) -> None:
        self.memory = memory
        self.spec = spec


def convert(stored: StoredArray, kind: ArrayType) -> Any:
    """
    Make an array of the given type over a stored tensor's memory, without a copy.

    Raises:
        ValueError: The type is unknown, or needs a library that is not loaded.
    """
    library, _, special = kind.partition(":")
    shape = stored.spec.shape[:-1] if special == PAIRED else stored.spec.shape
    if library == "torch":
        torch = loaded_torch()
        if torch is None:
            raise ValueError("the checkpoint holds torch tensors and torch is not imported")
        return torch_view(stored.memory, torch.complex128 if special else _torch_types()[stored.spec.dtype], shape)
    if library not in ("numpy", "scalar"):
        raise ValueError(f"unknown array type {kind!r}")
    dtype = np.dtype(np.complex128) if special else _NUMPY_TYPES[stored.spec.dtype]
    array = np.frombuffer(stored.memory, dtype).reshape(shape)
    return array[()] if library == "scalar" else array


@functools.cache
def _torch_types() -> dict[str, Any]:
    torch = loaded_torch()
    return {code: getattr(torch, name) for name, code in _TORCH_CODES.items() if hasattr(torch, name)}
