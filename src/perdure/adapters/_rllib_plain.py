"""RLlib's states as plain data: long lists of numbers as arrays, episodes as what they are built of."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

_NUMBERS = "~numbers"
_KINDS = "~kinds"
_SCALAR = "~scalar"
_ROWS = "~rows"
_SET = "~set"
_EPISODE = "~episode"
_FAMILIES: tuple[tuple[type, tuple[Any, ...]], ...] = (
    (np.float64, (float, np.float64, np.float32)),
    (np.int64, (int, np.int64, np.int32)),
)
"""Types that stand beside each other in lists, and what holds all of their values: sums of them round by type."""
_LONG = 32
"""From so many items on a list of numbers is kept as an array: RLlib's priorities are lists of 262,144."""


def pack(value: Any) -> Any:
    """A state as plain data."""
    if isinstance(value, SingleAgentEpisode):
        return {_EPISODE: pack(value.get_state())}
    if isinstance(value, InfiniteLookbackBuffer):
        # An episode gives its empty buffers as they are, and then cannot be built from its own state.
        return pack(value.get_state())
    if isinstance(value, Mapping):
        return {key: pack(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return {_SET: sorted(value)}
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return [pack(item) for item in value]
    if isinstance(value, deque):
        return deque((pack(item) for item in value), value.maxlen)
    if isinstance(value, list):
        return _pack_list(value)
    if isinstance(value, tuple):
        return tuple(pack(item) for item in value)
    if isinstance(value, np.generic):
        return {_SCALAR: np.array([value])}
    return value


def _pack_list(value: list[Any]) -> Any:
    kinds = {type(item) for item in value} if len(value) >= _LONG else set()
    for holder, family in _FAMILIES:
        if kinds and kinds <= set(family):
            codes = {kind: code for code, kind in enumerate(family)}
            of_each = [codes[type(item)] for item in value] if len(kinds) > 1 else [codes[kinds.pop()]] * len(value)
            return {_NUMBERS: np.array(value, holder), _KINDS: np.array(of_each, np.uint8)}
    if kinds == {tuple} and _are_rows(value):
        return {_ROWS: np.array(value, np.int64)}
    return [pack(item) for item in value]


def _are_rows(value: list[tuple[Any, ...]]) -> bool:
    return len({len(row) for row in value}) == 1 and all(type(item) is int for row in value for item in row)


def unpack(value: Any) -> Any:
    """What `pack` made plain, in memory of its own."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if hasattr(value, "clone"):
        return value.clone()
    if isinstance(value, dict):
        if _NUMBERS in value:
            return _unpack_numbers(value[_NUMBERS], value[_KINDS])
        if _SCALAR in value:
            return value[_SCALAR][0]
        if _ROWS in value:
            return list(map(tuple, value[_ROWS].tolist()))
        if _SET in value:
            return set(value[_SET])
        if _EPISODE in value:
            return SingleAgentEpisode.from_state(unpack(value[_EPISODE]))
        return {key: unpack(item) for key, item in value.items()}
    if isinstance(value, deque):
        return deque((unpack(item) for item in value), value.maxlen)
    if isinstance(value, list):
        return [unpack(item) for item in value]
    if isinstance(value, tuple):
        return tuple(unpack(item) for item in value)
    return value


def _unpack_numbers(numbers: NDArray[Any], kinds: NDArray[np.uint8]) -> list[Any]:
    if not kinds.any():
        return list(numbers.tolist())
    family = next(family for holder, family in _FAMILIES if numbers.dtype == holder)
    return [
        number if kind == 0 else family[kind](number)
        for number, kind in zip(numbers.tolist(), kinds.tolist(), strict=True)
    ]
