"""
State trees: nested Python values taken apart into JSON structure and named arrays, and put together again.

A state tree is what a component hands over: dictionaries, lists, tuples, numbers, strings and arrays, nested. Its
*structure* is a JSON value in which every array is replaced by a reference; the arrays go into a safetensors file. A
flat dictionary from strings to arrays of one kind needs no structure at all: the safetensors file says everything, and
any safetensors reader opens it. JSON cannot hold every Python value as it is, so these forms are used, each an object
with a single key that begins with ``$``:

======================  ==========================================================
``{"$array": [k, t]}``  the array under key ``k`` of the tensor file, of type ``t``
``{"$tuple": [...]}``   a tuple
``{"$map": [[k, v]]}``  a dictionary whose keys are not all plain strings
``{"$int": "..."}``     an integer beyond 53 bits
``{"$float": "..."}``   nan, inf or -inf
``{"$bytes": "..."}``   bytes, base64
``{"$deque": [n, [...]]}``  a deque with maximum length ``n`` (or null)
======================  ==========================================================
"""

from __future__ import annotations

import base64
import binascii
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from perdure.core.tensorfile import METADATA
from perdure.errors import CorruptionError, InvalidInputError

MAXIMUM_TREE_DEPTH = 64
_EXACT_INTEGER = 2**53

ArrayType = str
"""How an array is represented in memory: ``torch``, ``numpy``, ``scalar`` (a NumPy scalar) …"""


@dataclass(frozen=True, slots=True)
class Flat:
    """
    A state tree taken apart.

    Attributes:
        structure: JSON value, or None if the tree is a flat dictionary of ``array_type`` arrays.
        arrays: The arrays by key, borrowed from the tree, in the order in which they were met.
        array_type: The common type of a flat dictionary's arrays; empty if there is a structure.
    """

    structure: Any
    arrays: dict[str, Any]
    array_type: ArrayType


def flatten(tree: object, array_type: Callable[[object], ArrayType | None]) -> Flat:
    """
    Take a state tree apart. Nothing is copied but the structure; the arrays are borrowed.

    Args:
        tree: The state tree.
        array_type: Says of a leaf which type of array it is, or None if it is no array.

    Raises:
        InvalidInputError: Kind ``tree.unsupported``, naming the place and type of what cannot be stored.
    """
    return _flat_dictionary(tree, array_type) or take_apart(tree, array_type)


def take_apart(tree: object, array_type: Callable[[object], ArrayType | None]) -> Flat:
    """As `flatten`, with a structure in any case."""
    encoder = _Encoder(array_type)
    structure = encoder.encode(tree, "", 0)
    return Flat(structure, encoder.arrays, "")


def unflatten(
    structure: object,
    arrays: Mapping[str, Any],
    convert: Callable[[Any, ArrayType], Any],
    array_type: ArrayType = "",
) -> Any:
    """
    Put a state tree together again.

    Args:
        structure: What `flatten` gave, or None for a flat dictionary of ``array_type`` arrays.
        arrays: Stored arrays by key.
        convert: Turns a stored array into the given type.
        array_type: The type of a flat dictionary's arrays.

    Raises:
        CorruptionError: Kind ``tree.malformed``: the structure does not fit the arrays or is not of this form.
    """
    if array_type:
        return {key: convert(array, array_type) for key, array in arrays.items()}
    return _decode(structure, arrays, convert, 0)


def encode_structure(structure: object) -> bytes:
    """
    The bytes of a structure's file.

    Raises:
        InvalidInputError: Kind ``tree.unsupported``: a string in it is no Unicode text.
    """
    try:
        return msgspec.json.encode(structure) + b"\n"
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"cannot save the string {error.object[:80]!r}: it is no Unicode text",
            kind="tree.unsupported",
            hint="keep it as bytes (os.fsencode, if it is a path), or leave it out",
        ) from error


def _flat_dictionary(tree: object, array_type: Callable[[object], ArrayType | None]) -> Flat | None:
    # A dictionary subclass other than the ordered one may carry attributes that would be lost.
    if not isinstance(tree, dict) or not tree or METADATA in tree:
        return None
    types = {array_type(value) if isinstance(key, str) and key else None for key, value in tree.items()}
    if len(types) != 1:
        return None
    (common,) = types
    return Flat(None, dict(tree), common) if common in ("torch", "numpy") else None


class _Encoder:
    """Encodes one tree. Runs while training waits, so plain values are told apart where they lie, without a call."""

    __slots__ = ("_array_type", "arrays")

    def __init__(self, array_type: Callable[[object], ArrayType | None]) -> None:
        self._array_type = array_type
        self.arrays: dict[str, Any] = {}

    def encode(self, value: object, path: str, depth: int) -> Any:
        if depth > MAXIMUM_TREE_DEPTH:
            raise _unsupported(path, "nested deeper than 64 levels, or part of itself")
        if value is None or value is True or value is False or type(value) is str:
            return value
        if type(value) is int:
            return value if -_EXACT_INTEGER < value < _EXACT_INTEGER else {"$int": _digits(value, path)}
        if type(value) is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        kind = self._array_type(value)
        if kind is not None:
            return {"$array": [self._store(path or "value", value), kind]}
        if isinstance(value, dict):
            return self._encode_dictionary(value, path, depth)
        if isinstance(value, tuple):
            return {"$tuple": self._encode_items(value, path, depth)}
        if isinstance(value, deque):
            return {"$deque": [value.maxlen, self._encode_items(value, path, depth)]}
        if isinstance(value, list):
            return self._encode_items(value, path, depth)
        if isinstance(value, bytes):
            return {"$bytes": base64.b64encode(value).decode("ascii")}
        raise _unsupported(path, f"a {type(value).__module__}.{type(value).__qualname__}")

    def _store(self, key: str, array: object) -> str:
        while key in self.arrays or key == METADATA:  # "a.b" as one key beside a nested "b" in "a"
            key += "'"
        self.arrays[key] = array
        return key

    def _encode_dictionary(self, value: dict[Any, Any], path: str, depth: int) -> Any:
        prefix = f"{path}." if path else ""
        for key in value:
            if type(key) is not str or key.startswith("$"):
                return {"$map": self._encode_pairs(value, prefix, depth)}
        encoded: dict[str, Any] = {}
        for key, item in value.items():
            plain = item is None or item is True or item is False or type(item) is str
            encoded[key] = item if plain else self.encode(item, prefix + key, depth + 1)
        return encoded

    def _encode_pairs(self, value: dict[Any, Any], prefix: str, depth: int) -> list[list[Any]]:
        return [
            [self.encode(key, f"{prefix}key{index}", depth + 1), self.encode(item, f"{prefix}{key}", depth + 1)]
            for index, (key, item) in enumerate(value.items())
        ]

    def _encode_items(self, items: Iterable[object], path: str, depth: int) -> list[Any]:
        prefix = f"{path}." if path else ""
        return [self.encode(item, f"{prefix}{index}", depth + 1) for index, item in enumerate(items)]


def _digits(value: int, path: str) -> str:
    try:
        return str(value)
    except ValueError as error:  # Python reads and writes no longer ones
        raise _unsupported(path, f"an integer of {value.bit_length():,} bits") from error


def _unsupported(path: str, what: str) -> InvalidInputError:
    return InvalidInputError(
        f"cannot save the value at {path or 'the top'!r}: it is {what}, and only arrays, numbers, strings, None and "
        "dictionaries, lists and tuples of them can be saved",
        kind="tree.unsupported",
        hint="give the object state_dict/load_state_dict, or leave this value out",
        field=path,
    )


def _malformed(what: str) -> CorruptionError:
    return CorruptionError(
        f"cannot read a component's structure: {what}",
        kind="tree.malformed",
        hint="run `perdure verify`, and restore an older checkpoint",
    )


def _decode(node: Any, arrays: Mapping[str, Any], convert: Callable[[Any, ArrayType], Any], depth: int) -> Any:
    if depth > MAXIMUM_TREE_DEPTH + 1:
        raise _malformed("it is nested deeper than 64 levels")

    def decode(item: Any) -> Any:
        return _decode(item, arrays, convert, depth + 1)

    if isinstance(node, list):
        return [decode(item) for item in node]
    if not isinstance(node, dict):
        return node
    if len(node) == 1:
        ((tag, body),) = node.items()
        if tag.startswith("$"):
            try:
                return _decode_tagged(tag, body, arrays, convert, decode)
            except (KeyError, TypeError, ValueError, OverflowError, binascii.Error) as error:
                raise _malformed(f"{tag} holds {str(body)[:60]!r}") from error
    return {key: decode(item) for key, item in node.items()}


def _decode_tagged(
    tag: str,
    body: Any,
    arrays: Mapping[str, Any],
    convert: Callable[[Any, ArrayType], Any],
    decode: Callable[[Any], Any],
) -> Any:
    match tag:
        case "$array":
            key, kind = body
            return convert(arrays[key], kind)
        case "$tuple":
            return tuple(decode(item) for item in body)
        case "$map":
            return {decode(key): decode(item) for key, item in body}
        case "$int":
            return int(body)
        case "$float":
            return float(body)
        case "$bytes":
            return base64.b64decode(body, validate=True)
        case "$deque":
            maximum, items = body
            return deque((decode(item) for item in items), maxlen=maximum)
        case _:
            raise ValueError(tag)
