"""RLlib's states as plain data: long lists of numbers as arrays, episodes as what they are built of."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer
from ray.rllib.utils.serialization import gym_space_from_dict, gym_space_to_dict

_NUMBERS = "~numbers"
_KINDS = "~kinds"
_SCALAR = "~scalar"
_ROWS = "~rows"
_STACK = "~stack"
_EMPTY = "~empty"
_SPACE = "~space"
_DEFAULT = "~default"
_FACTORIES: dict[str, Any] = {"int": int, "float": float, "dict": dict, "list": list, "buffer": InfiniteLookbackBuffer}
_MAPPING = "agent_to_module_mapping_fn"
_TIMES = "env_t_to_agent_t"
_SET = "~set"
_EPISODE = "~episode"
_FAMILIES: tuple[tuple[type, tuple[Any, ...]], ...] = (
    (np.float64, (float, np.float64, np.float32)),
    (np.int64, (int, np.int64, np.int32)),
)
"""Types that stand beside each other in lists, and what holds all of their values: sums of them round by type."""
_LONG = 32
"""From so many items on a list of plain numbers is kept as an array: RLlib's priorities are lists of 262,144."""


def pack(value: Any) -> Any:
    """A state as plain data."""
    if isinstance(value, SingleAgentEpisode):
        return {_EPISODE: pack(value.get_state())}
    if isinstance(value, InfiniteLookbackBuffer):
        # An episode gives its empty buffers as they are, and then cannot be built from its own state.
        return pack(value.get_state())
    if isinstance(value, Space):
        return {_SPACE: gym_space_to_dict(value)}
    if isinstance(value, defaultdict):
        made_by = [name for name, factory in _FACTORIES.items() if factory is value.default_factory]
        if made_by:
            return {_DEFAULT: [made_by[0], pack(dict(value))]}
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


def pack_episode(episode: Any) -> Any:
    """An episode of one agent or of several as plain data."""
    # Which module an agent has is asked of a function, and that is the program's.
    return pack({**episode.get_state(), _MAPPING: None})


def unpack_episode(packed: Any, mapping: Callable[..., Any] | None) -> Any:
    """The state that an episode is built of again; a program's function says which module an agent has."""
    state = {**unpack(packed), _MAPPING: mapping}
    for agent, times in state.get(_TIMES, {}).items():
        state[_TIMES][agent] = InfiniteLookbackBuffer.from_state(times)
    return state


def _pack_list(value: list[Any]) -> Any:
    # An episode has several lists of an item a step, and a buffer millions of steps: none of this looks at one item
    # at a time but in C.
    kinds = set(map(type, value))
    if len(value) > 1 and kinds == {np.ndarray} and _are_alike(value):
        return {_STACK: np.stack(value)}
    if len(value) > 1 and kinds == {dict} and not any(value):
        return {_EMPTY: len(value)}
    if len(value) >= _LONG or any(issubclass(kind, np.generic) for kind in kinds):
        for holder, family in _FAMILIES:
            if kinds <= set(family):
                return {_NUMBERS: np.array(value, holder), _KINDS: _codes(value, kinds, family)}
    if len(value) >= _LONG and kinds == {tuple} and len(set(map(len, value))) == 1:
        items = list(chain.from_iterable(value))
        if set(map(type, items)) == {int}:
            return {_ROWS: np.array(items, np.int64).reshape(len(value), -1)}
    return [pack(item) for item in value]


def _are_alike(arrays: list[NDArray[Any]]) -> bool:
    first = arrays[0]
    is_whole = first.ndim > 0 and not first.dtype.hasobject
    return is_whole and all(array.shape == first.shape and array.dtype == first.dtype for array in arrays)


def _codes(value: list[Any], kinds: set[type], family: tuple[Any, ...]) -> NDArray[np.uint8]:
    """Which of the family each number is; one for all of them if they are alike."""
    codes = {kind: code for code, kind in enumerate(family)}
    of_each = map(codes.__getitem__, kinds if len(kinds) == 1 else map(type, value))
    return np.fromiter(of_each, np.uint8)


def unpack(value: Any) -> Any:
    """What `pack` made plain, in memory of its own."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if hasattr(value, "clone"):
        return value.clone()
    if isinstance(value, dict):
        if _NUMBERS in value:
            return _unpack_numbers(value[_NUMBERS], value[_KINDS])
        if _STACK in value:
            return list(value[_STACK].copy())
        if _EMPTY in value:
            return [{} for _ in range(value[_EMPTY])]
        if _SCALAR in value:
            return value[_SCALAR][0]
        if _ROWS in value:
            return list(map(tuple, value[_ROWS].tolist()))
        if _SET in value:
            return set(value[_SET])
        if _SPACE in value:
            return gym_space_from_dict(value[_SPACE])
        if _DEFAULT in value:
            made_by, items = value[_DEFAULT]
            return defaultdict(_FACTORIES[made_by], unpack(items))
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
    of_each = np.broadcast_to(kinds, numbers.shape).tolist()
    return [
        number if kind == 0 else family[kind](number) for number, kind in zip(numbers.tolist(), of_each, strict=True)
    ]
