"""
Plain data: arrays, scalars and generators as values that JSON and safetensors can carry, and back.

A tree node that is not plain by itself is a dict whose key ``"~"`` says what it stands for.
"""

from __future__ import annotations

import hashlib
import json
import random
from typing import Any, TypeAlias

import numpy as np

__all__ = [
    "GENERATORS",
    "TAG",
    "OpaqueValueError",
    "Tree",
    "array_from_tree",
    "array_to_tree",
    "generator_from_tree",
    "generator_to_tree",
    "scalar_from_tree",
    "scalar_to_tree",
    "summarise",
]

Tree: TypeAlias = Any
"""dict[str, Tree], list, tuple, None, bool, int of any size, float, str, numpy array or numpy scalar."""

TAG = "~"

GENERATORS = frozenset({np.random.Generator, np.random.RandomState, random.Random})
"""The classes of random number generators that are plain data."""

_NATIVE_KINDS = "biuf"
_NATIVE_BYTES = 8
_SUMMARY_LENGTH = 60
_BIT_GENERATORS = frozenset({"PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"})
_LEGACY_BITS = frozenset({"MT19937"})


class OpaqueValueError(Exception):
    """A value is not plain data, so nothing is known about the state behind it. Never leaves this package."""


def _is_native(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in _NATIVE_KINDS and dtype.itemsize <= _NATIVE_BYTES and dtype.isnative


def array_to_tree(array: np.ndarray[Any, Any]) -> Tree:
    """
    Express an array; numeric ones are returned as they are (borrowed), others as described bytes.

    The order of the axes in memory is kept as well: reductions add in memory order, so a result can depend on it.

    Raises:
        OpaqueValueError: The array holds Python objects or records.
    """
    if array.dtype.hasobject or array.dtype.names is not None:
        raise OpaqueValueError(f"is an array of {array.dtype}")
    order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    if order != list(range(array.ndim)):
        return {TAG: "layout", "order": order, "value": array_to_tree(array.transpose(order))}
    if _is_native(array.dtype):
        return array
    return {
        TAG: "array",
        "dtype": array.dtype.str,
        "shape": list(array.shape),
        "data": np.frombuffer(bytearray(array.tobytes()), np.uint8),
    }


def array_from_tree(node: Tree) -> Any:
    """Build the array that ``array_to_tree`` expressed; always a copy."""
    if isinstance(node, np.ndarray):
        return np.array(node)
    if node[TAG] == "layout":
        return array_from_tree(node["value"]).transpose(np.argsort(node["order"]))
    flat = np.frombuffer(bytearray(node["data"].tobytes()), np.dtype(node["dtype"]))
    return flat.reshape(node["shape"])


def scalar_to_tree(scalar: np.generic) -> Tree:
    """Express a numpy scalar; its exact type survives, because later arithmetic depends on it."""
    if isinstance(scalar, np.str_):
        return {TAG: "text", "value": str(scalar)}
    if _is_native(scalar.dtype):
        return scalar
    return {TAG: "scalar", "value": array_to_tree(np.asarray(scalar))}


def scalar_from_tree(node: Tree) -> Any:
    """Build the scalar that ``scalar_to_tree`` described in a dict."""
    if node[TAG] == "text":
        return np.str_(node["value"])
    return array_from_tree(node["value"])[()]


def generator_to_tree(generator: Any) -> Tree:
    """
    Express a generator: its state and, for NumPy's ``spawn``, the seed sequence behind it.

    Raises:
        OpaqueValueError: It draws from a source of bits that is not NumPy's own.
    """
    if isinstance(generator, random.Random):
        version, words, gauss = generator.getstate()
        state = {"version": version, "words": np.array(words, np.uint32), "gauss": gauss}
        return {TAG: "generator", "kind": "Random", "state": state}
    legacy = isinstance(generator, np.random.RandomState)
    state = generator.get_state(legacy=False) if legacy else generator.bit_generator.state
    if state["bit_generator"] not in (_LEGACY_BITS if legacy else _BIT_GENERATORS):
        raise OpaqueValueError(f"is a generator of kind {state['bit_generator']}")
    if legacy:
        return {TAG: "generator", "kind": "RandomState", "state": state}
    return {TAG: "generator", "kind": "Generator", "state": state, "seed": _seed_to_tree(generator)}


def _seed_to_tree(generator: np.random.Generator) -> Tree:
    seed = generator.bit_generator.seed_seq
    if type(seed) is not np.random.SeedSequence or seed.entropy is None:
        return None
    entropy = seed.entropy
    return {
        "entropy": int(entropy) if isinstance(entropy, int) else [int(word) for word in entropy],
        "spawn_key": [int(word) for word in seed.spawn_key],
        "pool_size": seed.pool_size,
        "children": seed.n_children_spawned,
    }


def generator_from_tree(node: Tree) -> Any:
    """Build a new generator that continues where the expressed one stood."""
    state = node["state"]
    if node["kind"] == "Random":
        python = random.Random()  # noqa: S311 - the program's own stream continues, nothing is kept secret with it
        python.setstate((state["version"], tuple(state["words"].tolist()), state["gauss"]))
        return python
    if node["kind"] == "RandomState":
        legacy = np.random.RandomState()
        legacy.set_state(state)
        return legacy
    if state["bit_generator"] not in _BIT_GENERATORS:
        raise ValueError(f"no bit generator {state['bit_generator']}")
    bit_generator = getattr(np.random, state["bit_generator"])(_seed_from_tree(node["seed"]))
    bit_generator.state = state
    return np.random.Generator(bit_generator)


def _seed_from_tree(node: Tree) -> np.random.SeedSequence:
    if node is None:
        return np.random.SeedSequence(0)
    return np.random.SeedSequence(
        node["entropy"],
        spawn_key=tuple(node["spawn_key"]),
        pool_size=node["pool_size"],
        n_children_spawned=node["children"],
    )


def summarise(value: object) -> str:
    """
    Name a constant in a few characters, the same on every machine: equal texts mean equal values.

    Raises:
        OpaqueValueError: The value is neither plain data nor a type.
    """
    if isinstance(value, (type, np.dtype)):
        return str(np.dtype(value)) if isinstance(value, np.dtype) else value.__qualname__
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return _name(value)
    try:
        text = json.dumps(value, default=_jsonable)
    except (TypeError, ValueError, RecursionError) as error:
        raise OpaqueValueError(f"is a {type(value).__qualname__}") from error
    return text if len(text) <= _SUMMARY_LENGTH else f"#{_digest(text.encode())}"


def _jsonable(value: object) -> object:
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return _name(value)
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(type(value).__qualname__)


def _name(array: np.ndarray[Any, Any]) -> str:
    return f"{array.dtype}{list(array.shape)}#{_digest(array.tobytes())}"


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()
