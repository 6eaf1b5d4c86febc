"""
The audit of a training loop: what is in reach of it, looks like training state, and is not tracked.

The commonest way to lose state is to forget it. So the first time a loop runs, the variables around it are looked at
once, and what would not be saved is named in one warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from perdure.capture.arrays import is_tensor
from perdure.capture.numbers import is_generator
from perdure.capture.objects import is_module, is_optimizer, is_scheduler

LARGE_BYTES = 1024 * 1024


class UntrackedStateWarning(UserWarning):
    """Objects that look like training state will not be saved."""


def find_untracked(variables: Mapping[str, Any], tracked: Iterable[Any]) -> list[str]:
    """
    Name the variables that hold training state which nothing tracks.

    Args:
        variables: The variables of a frame.
        tracked: Every tracked object; modules within a tracked module count as tracked.
    """
    known = {id(value) for value in _with_parts(tracked)}
    found: dict[int, str] = {}
    for name, value in variables.items():
        if not name.startswith("_") and _is_state(value) and not _is_known(value, known):
            found.setdefault(id(value), name)
    return sorted(found.values())


def _is_state(value: object) -> bool:
    if is_module(value) or is_optimizer(value) or is_scheduler(value) or is_generator(value):
        return True
    return (isinstance(value, np.ndarray) or is_tensor(value)) and value.nbytes >= LARGE_BYTES  # type: ignore[attr-defined]


def _with_parts(tracked: Iterable[Any]) -> Iterable[Any]:
    for value in tracked:
        yield value
        if is_module(value):
            yield from value.modules()
            yield from value.parameters()
            yield from value.buffers()


def _is_known(value: Any, known: set[int]) -> bool:
    if id(value) in known:
        return True
    # A wrapper (compiled, data-parallel) around tracked parameters holds no state of its own.
    if is_module(value):
        parts = [*value.parameters(), *value.buffers()]
        return bool(parts) and all(id(part) in known for part in parts)
    # A view of a tracked array shares its memory.
    base = getattr(value, "base", None) if isinstance(value, np.ndarray) else getattr(value, "_base", None)
    return base is not None and id(base) in known
