"""
What an object of a framework keeps in its plain attributes.

Such objects mix state with settings. The difference shows while training: numbers, text and flags that have not changed
since it began are settings and belong to the program, whose new value a resume must not undo. Everything else is state.
Arrays are always state: an observation may happen to be the one that the episode began with.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from perdure.capture.arrays import array_type, spec_of
from perdure.core.tree import Flat, flatten
from perdure.errors import InvalidInputError

_SHOWN_CHARACTERS = 40
_STRIDES = "~strides"


class Attributes:
    """
    The plain attributes of one object.

    Args:
        owner: Borrowed. What is not plain data (nets, environments, functions) is none of this class's business.
        ignored: Names of attributes that are saved elsewhere, or not at all.
    """

    def __init__(self, owner: Any, ignored: frozenset[str] = frozenset()) -> None:
        self._owner = owner
        self._ignored = ignored
        self._initial = {name: _mark(flat) for name, _, flat in self._plain()}

    @property
    def names(self) -> list[str]:
        """Which attributes there were when this was made."""
        return sorted(self._initial)

    def _plain(self) -> Iterator[tuple[str, Any, Flat]]:
        for name, value in vars(self._owner).items():
            flat = None if name in self._ignored else _flatten(value)
            if flat is not None:
                yield name, value, flat

    def capture(self) -> dict[str, Any]:
        """State and settings by name; arrays are borrowed."""
        state: dict[str, Any] = {}
        settings: dict[str, Any] = {}
        for name, value, flat in self._plain():
            mark = _mark(flat)
            is_setting = mark is not None and mark == self._initial.get(name)
            (settings if is_setting else state)[name] = _packed(value)
        return {"state": state, "settings": settings}

    def restore(self, tree: Mapping[str, Any]) -> list[str]:
        """
        Bring the attributes to a captured state; tensors are filled in place, so that aliases of them stay.

        Returns:
            Settings that differ, in words; the program's own are kept.
        """
        for name, value in tree["state"].items():
            setattr(self._owner, name, alike(value, vars(self._owner).get(name)))
        live = {name: (value, _mark(flat)) for name, value, flat in self._plain()}
        return [
            f"{name} {str(value)[:_SHOWN_CHARACTERS]} -> {str(live[name][0])[:_SHOWN_CHARACTERS]}"
            for name, value in tree["settings"].items()
            if name in live and live[name][1] != _mark(flatten({"": value}, array_type))
        ]


def can_store(value: Any) -> bool:
    """Whether a value is plain data that a checkpoint can hold."""
    return _flatten(value) is not None


def alike(value: Any, current: Any) -> Any:
    """
    Give a restored value the form of the one whose place it takes.

    Tensors of equal shape are filled in place, on their own device; named tuples, limited deques and dictionaries with
    a default stay what they are. Arrays are copied into memory like that which they had: products and convolutions may
    differ in their last bit with the strides and the alignment, and what was read from a file lies anywhere.
    """
    if isinstance(value, torch.Tensor):
        if not isinstance(current, torch.Tensor) or (value.shape, value.dtype) != (current.shape, current.dtype):
            return value.to(getattr(current, "device", "cpu"), copy=True)
        current.detach().copy_(value)
        return current
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict) and value.keys() == {_STRIDES, "value"}:
        return _strided(value["value"], value[_STRIDES])
    if isinstance(value, dict):
        return _alike_dict(value, current)
    if isinstance(value, deque):
        return deque((alike(item, None) for item in value), getattr(current, "maxlen", value.maxlen))
    if isinstance(value, list | tuple):
        others = current if isinstance(current, list | tuple) and len(current) == len(value) else [None] * len(value)
        make: Any = getattr(type(current), "_make", type(value))
        return make([alike(item, other) for item, other in zip(value, others, strict=True)])
    return value


def _alike_dict(value: dict[Any, Any], current: Any) -> dict[Any, Any]:
    live: dict[Any, Any] = current if isinstance(current, dict) else {}
    filled = {key: alike(item, live.get(key)) for key, item in value.items()}
    if type(live) is dict:
        return filled
    live.clear()
    live.update(filled)
    return live


def _strided(array: NDArray[Any], strides: list[int]) -> NDArray[Any]:
    extent = sum((length - 1) * stride for length, stride in zip(array.shape, strides, strict=True))
    memory = np.empty(extent + array.itemsize, np.uint8)
    copied: NDArray[Any] = np.ndarray(array.shape, array.dtype, memory.data, strides=strides)
    copied[...] = array
    return copied


def _packed(value: Any) -> Any:
    """A value whose arrays say how they lie in memory, where that is not the usual way; borrowed."""
    if isinstance(value, np.ndarray):
        # Of an axis of length 1 the stride means nothing to NumPy, but torch chooses kernels by it.
        is_usual = value.strides == np.empty(value.shape, value.dtype).strides
        is_dense = value.size > 0 and all(stride > 0 for stride in value.strides)
        return value if is_usual or not is_dense else {_STRIDES: list(value.strides), "value": value}
    if isinstance(value, dict):
        return {key: _packed(item) for key, item in value.items()}
    if isinstance(value, deque):
        return deque(map(_packed, value), value.maxlen)
    if isinstance(value, list | tuple):
        return (tuple if isinstance(value, tuple) else list)(map(_packed, value))
    return value


def _flatten(value: Any) -> Flat | None:
    try:
        flat = flatten({"": value}, array_type)
        for name, array in flat.arrays.items():
            spec_of(name, array)
    except InvalidInputError:
        return None
    return flat


def _mark(flat: Flat) -> Any:
    """What tells one plain value from another; None if it holds arrays, which are never compared."""
    numbers = []
    for array in flat.arrays.values():
        if array.ndim:
            return None
        numbers.append(array.item() if isinstance(array, np.generic | torch.Tensor) else array[()])
    return [flat.structure, numbers]
