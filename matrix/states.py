"""What trainings end with, as named arrays that can be written, read and compared bit for bit."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Difference:
    """How far one state is from another."""

    bits: int
    """Bits that differ; all bits of what only one of them has, or in another form."""
    of_bits: int
    places: tuple[str, ...]
    """Where, by path."""
    relative_l2: float
    """Distance of the parameters from those expected, over their length."""


def flatten(state: object, path: str = "") -> dict[str, NDArray[Any]]:
    """
    Every leaf of a state by its path, as an array of plain bits.

    Raises:
        TypeError: A leaf is no plain value.
    """
    return dict(_leaves(state, path))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, NDArray[Any]]]:
    if isinstance(value, Mapping):
        yield path, _text(",".join(map(str, value)))
        for key, item in value.items():
            yield from _leaves(item, f"{path}/{key}")
    elif isinstance(value, list | tuple | deque):
        yield path, np.array(len(value))
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}/{index}")
    else:
        yield path, _array(value, path)


def _array(value: Any, path: str) -> NDArray[Any]:
    if hasattr(value, "detach"):
        value = value.detach().cpu().contiguous().numpy()
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        return np.ascontiguousarray(value)
    if isinstance(value, np.ndarray):
        return _text(repr(value.tolist()))
    if isinstance(value, bool | float) or (isinstance(value, int) and value.bit_length() < 64):
        return np.array(value)
    if isinstance(value, int | str | bytes | Enum | None):
        return _text(repr(value))
    raise TypeError(f"{path} is a {type(value).__qualname__}")


def _text(text: str) -> NDArray[Any]:
    return np.frombuffer(text.encode(), np.uint8)


def compare(expected: Arrays, found: Arrays) -> Difference:
    """Count the bits in which two states differ."""
    bits = {path: _differing(expected.get(path), found.get(path)) for path in {**expected, **found}}
    places = tuple(sorted(path for path, count in bits.items() if count))
    return Difference(sum(bits.values()), 8 * sum(a.nbytes for a in expected.values()), places, _drift(expected, found))


def _differing(one: NDArray[Any] | None, other: NDArray[Any] | None) -> int:
    if one is None or other is None or (one.dtype, one.shape) != (other.dtype, other.shape):
        return 8 * max(1 if side is None else max(1, side.nbytes) for side in (one, other))
    sides = (np.frombuffer(side.tobytes(), np.uint8) for side in (one, other))
    return int(np.unpackbits(np.bitwise_xor(*sides)).sum())


def _drift(expected: Arrays, found: Arrays) -> float:
    squares, length = 0.0, 0.0
    for path, array in expected.items():
        other = found.get(path)
        if (
            path.startswith("/parameters")
            and array.dtype.kind == "f"
            and other is not None
            and other.shape == array.shape
        ):
            squares += float(np.square(array.astype(float) - other).sum())
            length += float(np.square(array.astype(float)).sum())
    return float(np.sqrt(squares / length)) if length else 0.0
