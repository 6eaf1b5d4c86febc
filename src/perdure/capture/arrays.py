"""
Arrays of NumPy and PyTorch as stored tensors: their types, their specs, and copies in both directions.

To save, PyTorch is looked at only if the program has already imported it: there is no array of it otherwise.
"""

from __future__ import annotations

import functools
import importlib
import mmap
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from perdure.core.tensorfile import TensorSpec
from perdure.core.tree import ArrayType
from perdure.errors import IncompatibleError, InvalidInputError, MissingDependencyError

_NUMPY_CODES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bool": "BOOL", "complex64": "C64",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
}  # fmt: skip
_NUMPY_TYPES = {code: np.dtype(name) for name, code in _NUMPY_CODES.items()}
_SMALL_CODES = {"bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}
"""Types that NumPy has none of by itself; torch and JAX call them by the same names."""
_TORCH_CODES = {**_NUMPY_CODES, **_SMALL_CODES}

PAIRED = "complex128"
"""Stored as pairs of F64 with a last dimension of 2, since the file format has no such type."""


_NUMPY_PAIRED = np.dtype(PAIRED)


def loaded_torch() -> Any:
    """The torch module if the program has imported it, else None."""
    return sys.modules.get("torch")


def array_type(value: object) -> ArrayType | None:
    """The type under which an array is stored in a structure, or None if ``value`` is no array."""
    library = _library_of(type(value))  # type: ignore[arg-type] # every type can be hashed
    if library is None:
        return None
    dtype = value.dtype  # type: ignore[attr-defined] # it is an array of that library
    is_paired = dtype is loaded_torch().complex128 if library == "torch" else dtype == _NUMPY_PAIRED
    return f"{library}:{PAIRED}" if is_paired else library


@functools.lru_cache(maxsize=1024)
def _library_of(kind: type) -> ArrayType | None:
    # Asked of every leaf of every save. A type never changes sides: an instance of a library's array cannot exist
    # before the library has been imported.
    if issubclass(kind, np.ndarray):
        return "jax" if issubclass(kind, HeldArray) else "numpy"
    if issubclass(kind, np.generic):
        return "scalar"
    torch, jax = loaded_torch(), sys.modules.get("jax")
    if torch is not None and issubclass(kind, torch.Tensor):
        return "torch"
    return "jax" if jax is not None and issubclass(kind, jax.Array) else None


class HeldArray(np.ndarray[Any, np.dtype[Any]]):
    """
    The memory of a JAX array of the host, as an array of NumPy; stored as the JAX array that it is.

    JAX changes no array, but gives its memory away if the program donates or deletes it. It does not while this is
    held: a computation that the array is donated to works on other memory then.
    """


def hold(array: Any) -> HeldArray:
    """Hold the memory of a JAX array, once it has been computed; a copy of it where it lies on several devices."""
    return np.asarray(array).view(HeldArray)


def is_tensor(value: object) -> bool:
    """Whether ``value`` is a torch tensor."""
    return _library_of(type(value)) == "torch"  # type: ignore[arg-type] # see above


def stored_bytes(array: Any) -> int:
    """Bytes of an array as it is stored; 0 if it cannot be, which its save will say."""
    if is_tensor(array) and (_is_lazy(array) or array.is_nested or array.layout is not loaded_torch().strided):
        return 0
    return int(array.nbytes)


def _is_lazy(tensor: Any) -> bool:
    return bool(loaded_torch().nn.parameter.is_lazy(tensor))


def spec_of(name: str, array: Any) -> TensorSpec:
    """
    Describe an array as a stored tensor.

    Raises:
        InvalidInputError: Kind ``array.unsupported``: its type or layout cannot be stored.
    """
    if is_tensor(array):
        _check_dense(name, array)
        dtype, codes = str(array.dtype).removeprefix("torch."), _TORCH_CODES
    else:
        dtype, codes = array.dtype.name, _TORCH_CODES
    if dtype == PAIRED:
        return TensorSpec(name, "F64", (*array.shape, 2))
    if dtype not in codes:
        raise _unsupported(name, f"of type {dtype}")
    return TensorSpec(name, codes[dtype], tuple(array.shape))


def _check_dense(name: str, tensor: Any) -> None:
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    torch = loaded_torch()
    if _is_lazy(tensor):
        raise _unsupported(name, "a parameter of a lazy module that has not been called yet, and has no shape")
    if tensor.is_nested:
        raise _unsupported(name, "a nested tensor")
    if tensor.is_quantized:
        raise _unsupported(name, "a quantised tensor")
    if tensor.layout is not torch.strided:
        raise _unsupported(name, f"a sparse tensor ({tensor.layout})")
    if tensor.is_meta:
        raise _unsupported(name, "a meta tensor, which has no values")
    if is_traceable_wrapper_subclass(tensor):
        raise _unsupported(name, f"a {type(tensor).__qualname__}, which wraps tensors of its own")


def _unsupported(name: str, what: str) -> InvalidInputError:
    return InvalidInputError(
        f"cannot save array {name!r}: it is {what}",
        kind="array.unsupported",
        hint="convert it to a dense array of numbers before tracking it",
        field=name,
    )


def signature_of(arrays: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """
    Names, types, shapes and kinds of arrays, to be compared: alike means that one layout serves both.

    Compared at every save, so it is made of what the arrays have at hand. Kinds that cannot be stored are told apart as
    well: a tensor that turned sparse or meta has not the signature of the dense one.
    """
    return [
        (
            name,
            array.dtype,
            None if getattr(array, "is_nested", False) else array.shape,
            getattr(array, "layout", None),
            getattr(array, "device", None),
        )
        for name, array in arrays.items()
    ]


def on_accelerator(array: Any) -> bool:
    """Whether an array lies in the memory of an accelerator of torch's."""
    return is_tensor(array) and not (array.is_cpu or array.is_meta)


def allocate_pinned(size_bytes: int) -> memoryview:
    """Page-aligned host memory that an accelerator copies into by itself; freed with the last view of it."""
    torch = loaded_torch()
    memory = torch.empty(size_bytes + mmap.PAGESIZE, dtype=torch.uint8, pin_memory=True)
    start = -memory.data_ptr() % mmap.PAGESIZE
    return memoryview(memory.numpy())[start : start + size_bytes]


class Destination:
    """
    Memory for one array's bytes, as an array of the same library.

    Args:
        memory: Exactly the array's bytes.
        array: An example of the array: later ones have the same type and shape, and lie on the same device.
    """

    __slots__ = ("device", "is_torch", "view")

    def __init__(self, memory: memoryview, array: Any) -> None:
        self.is_torch = is_tensor(array)
        self.device = array.device if on_accelerator(array) else None
        """The accelerator whose memory the array lies in; None if it lies in the host's."""
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


class StoredArray:
    """A tensor's bytes as read, not yet an array of any library; the memory is owned by whoever gets the array."""

    __slots__ = ("memory", "spec")

    def __init__(self, memory: memoryview, spec: TensorSpec) -> None:
        self.memory = memory
        self.spec = spec


def convert(stored: StoredArray, kind: ArrayType) -> Any:
    """
    Make an array of the given type over a stored tensor's memory, without a copy.

    The array's library is imported if the program has not done so yet.

    Raises:
        ValueError: The type is unknown.
        MissingDependencyError: Kind ``dependency.missing``: its library is not installed.
        IncompatibleError: Kind ``array.wide-types``: JAX is not set up for its type.
    """
    library, _, special = kind.partition(":")
    shape = stored.spec.shape[:-1] if special == PAIRED else stored.spec.shape
    if library == "torch":
        torch = _imported("torch")
        return torch_view(stored.memory, torch.complex128 if special else _torch_types()[stored.spec.dtype], shape)
    if library == "jax":
        return _jax_array(stored, shape, special)
    if library not in ("numpy", "scalar"):
        raise ValueError(f"unknown array type {kind!r}")
    dtype = np.dtype(np.complex128) if special else _NUMPY_TYPES[stored.spec.dtype]
    array = np.frombuffer(stored.memory, dtype).reshape(shape)
    return array[()] if library == "scalar" else array


def _jax_array(stored: StoredArray, shape: tuple[int, ...], special: str) -> Any:
    jax = _imported("jax")
    # JAX knows the small types by name, and its dtype() gives NumPy's form of each.
    name = special or next(name for name, code in _TORCH_CODES.items() if code == stored.spec.dtype)
    dtype = jax.numpy.dtype(name)
    array = jax.numpy.asarray(np.frombuffer(stored.memory, dtype).reshape(shape))
    if array.dtype != dtype:
        raise IncompatibleError(
            f"cannot restore a JAX array of type {dtype}: JAX makes {array.dtype} of it here",
            kind="array.wide-types",
            hint="call jax.config.update('jax_enable_x64', True) before the restore, as the program that saved did",
            expected=str(array.dtype),
            actual=str(dtype),
        )
    return array


def _imported(library: str) -> Any:
    """
    The library of an array that is to be made.

    That it cannot be imported says nothing about the checkpoint, which must not be taken for a damaged one.
    """
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise MissingDependencyError(
            f"cannot restore arrays of {library}: {error}",
            kind="dependency.missing",
            hint=f"pip install 'perdure[{library}]'",
            package=library,
            extra=library,
        ) from error


@functools.cache
def _torch_types() -> dict[str, Any]:
    torch = loaded_torch()
    return {code: getattr(torch, name) for name, code in _TORCH_CODES.items() if hasattr(torch, name)}
