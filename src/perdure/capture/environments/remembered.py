"""Facts about live objects that are worked out once, and forgotten with the objects."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

__all__ = ["Remembered"]

Fact = TypeVar("Fact")


class Remembered(Generic[Fact]):
    """
    A fact of live objects, each worked out once: a large transition table takes milliseconds to digest.

    Args:
        find: Works it out.
    """

    def __init__(self, find: Callable[[Any], Fact]) -> None:
        self._find = find
        # By id and not by hash: Gymnasium's spaces compare by value and have no hash.
        self._known: dict[int, tuple[weakref.ref[Any], Fact]] = {}

    def of(self, owner: Any) -> Fact:
        """Return the fact of an object that can be referred to weakly."""
        key = id(owner)
        if key not in self._known or self._known[key][0]() is not owner:
            forget = weakref.ref(owner, lambda _: self._known.pop(key, None))
            self._known[key] = (forget, self._find(owner))
        return self._known[key][1]
