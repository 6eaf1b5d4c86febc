"""RLlib's states as plain data: long lists of numbers as arrays, episodes as what they are built of."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

_NUMBERS = "~numbers"
_ROWS = "~rows"
_SET = "~set"
_EPISODE = "~episode"
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
    return value


def _pack_list(value: list[Any]) -> Any:
    kinds = {type(item) for item in value} if len(value) >= _LONG else set()
    if kinds == {float}:
        return {_NUMBERS: np.array(value, float)}
    if kinds == {int}:
        return {_NUMBERS: np.array(value, np.int64)}
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
            return value[_NUMBERS].tolist()
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
