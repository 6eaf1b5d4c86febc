"""Reading: a plain tree back into live objects. `check` finds every misfit first; only then `fill` changes anything."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np

from perdure.capture.environments.plain import (
    TAG,
    Tree,
    array_from_tree,
    generator_from_tree,
    scalar_from_tree,
)
from perdure.capture.environments.traits import traits_of
from perdure.capture.environments.writer import captured_attributes, identity
from perdure.errors import IncompatibleError

__all__ = ["Reader", "misfit"]


def misfit(component: str, place: str, expected: object, actual: object) -> IncompatibleError:
    """Build the error that says what a live object lacks to take a captured state."""
    return IncompatibleError(
        f"cannot restore {component}: {place} is {expected} in the checkpoint and {actual} here",
        kind="environment.incompatible",
        hint="build the environment as it was when the checkpoint was written, or leave it out of the restore",
        component=component,
        expected=str(expected),
        actual=str(actual),
    )


def _kind(node: Tree) -> str | None:
    return node.get(TAG) if isinstance(node, dict) else None


def _is_object(value: object) -> bool:
    return traits_of(value) is not None


class Reader:
    """
    One walk over a tree and the live objects that it goes into.

    Args:
        shared: What several places of the tree refer to, by key.
        clock: ``time.perf_counter``, by which running episodes are timed.
        component: Name that errors give.
        prunes: Whether attributes that the captured objects did not have are removed. Only right under the same version
            of Gymnasium; under another they may be new.
    """

    def __init__(self, shared: dict[str, Tree], clock: Callable[[], float], component: str, *, prunes: bool) -> None:
        self._shared = shared
        self._clock = clock
        self._component = component
        self._prunes = prunes
        self._built: dict[str, Any] = {}
        self._checked: set[tuple[str, int]] = set()
        self._claims: dict[int, int] = {}
        self._builders: dict[str, Callable[[Any, Any], Any]] = {
            "object": self._object,
            "shared": self._once,
            "pairs": self._pairs,
            "deque": self._deque,
            "elapsed": self._started,
            "array": lambda node, _: array_from_tree(node),
            "layout": lambda node, _: array_from_tree(node),
            "text": lambda node, _: scalar_from_tree(node),
            "scalar": lambda node, _: scalar_from_tree(node),
            "bytes": lambda node, _: node["data"].tobytes(),
            "generator": lambda node, _: generator_from_tree(node),
        }

    def check(self, node: Tree, current: Any, place: str) -> None:
        """
        Compare a tree with the object it is to go into; nothing is changed.

        Raises:
            IncompatibleError: Classes, ids, arguments, spaces, numbers or constants differ.
        """
        kind = _kind(node)
        if kind == "shared":
            if (node["key"], id(current)) not in self._checked:
                self._checked.add((node["key"], id(current)))
                self.check(self._shared[node["key"]], current, place)
        elif kind == "object":
            self._check_object(node, current, place)
        elif _is_object(current):
            raise misfit(self._component, place, "absent", type(current).__qualname__)
        else:
            for key, child in _children(node):
                self.check(child, _item(current, key), f"{place}[{key}]")

    def _check_object(self, node: Tree, current: Any, place: str) -> None:
        traits = traits_of(current)
        if traits is None or type(current).__qualname__ != node["class"]:
            raise misfit(self._component, place, node["class"], type(current).__qualname__)
        if self._claims.setdefault(id(current), id(node)) != id(node):
            raise misfit(self._component, place, "an object of its own", "one with another place")
        self._compare(node["identity"], identity(current), place)
        attributes, values = node["attributes"], captured_attributes(current, traits)
        for name in [*attributes, *(name for name in values if name not in attributes)]:
            if name not in node["withheld"]:
                self.check(attributes.get(name), values.get(name), f"{place}.{name}")
        if traits.extension is not None:
            traits.extension.check(current, node["extension"], self._component)

    def _compare(self, expected: dict[str, Any], actual: dict[str, Any], place: str) -> None:
        for key in [*expected, *(key for key in actual if key not in expected)]:
            ours, theirs = actual.get(key), expected.get(key)
            if isinstance(ours, dict) or isinstance(theirs, dict):
                self._compare(theirs or {}, ours or {}, place)
            elif ours != theirs:
                raise misfit(self._component, f"{place}.{key}", theirs, ours)

    def fill(self, node: Tree, current: Any = None) -> Any:
        """
        Build what a tree describes, copying every array. Objects are not built but changed in place.

        Args:
            node: The tree.
            current: What is in this place now; objects in it are reused.
        """
        if isinstance(node, np.ndarray):
            return np.array(node)
        if isinstance(node, list | tuple):
            return self._sequence(node, current)
        if not isinstance(node, dict):
            return node
        if TAG in node:
            return self._builders[node[TAG]](node, current)
        return _renewed(current, {key: self.fill(item, _item(current, key)) for key, item in node.items()})

    def _sequence(self, node: list[Tree] | tuple[Tree, ...], current: Any) -> Any:
        filled = [self.fill(item, _item(current, index)) for index, item in enumerate(node)]
        return _renewed(current, filled if isinstance(node, list) else tuple(filled))

    def _once(self, node: Tree, current: Any) -> Any:
        key, target = node["key"], self._shared[node["key"]]
        if key not in self._built:
            if _kind(target) == "object":
                self._built[key] = current  # Its parts may refer to it.
            self._built[key] = self.fill(target, current)
        return self._built[key]

    def _pairs(self, node: Tree, current: Any) -> Any:
        keys = [self.fill(key) for key, _ in node["items"]]
        pairs = [
            (key, self.fill(item, _item(current, key))) for key, (_, item) in zip(keys, node["items"], strict=True)
        ]
        return _renewed(current, OrderedDict(pairs) if node["ordered"] else dict(pairs))

    def _deque(self, node: Tree, current: Any) -> Any:
        if "scalars" in node:
            return deque(array_from_tree(node["scalars"]), node["maxlen"])
        items = [self.fill(item, _item(current, index)) for index, item in enumerate(node["items"])]
        return _renewed(current, deque(items, node["maxlen"]))

    def _started(self, node: Tree, _: Any) -> Any:
        started = np.where(np.isnan(node["seconds"]), node["unset"], self._clock() - node["seconds"])
        return started if isinstance(node["seconds"], np.ndarray) else float(started)

    def _object(self, node: Tree, current: Any) -> Any:
        traits = traits_of(current)
        assert traits is not None, "checked before"
        live = vars(current) if hasattr(current, "__dict__") else {}
        attributes, values = node["attributes"], captured_attributes(current, traits)
        if self._prunes:
            for name in values.keys() - attributes.keys() - set(node["withheld"]):
                del live[name]
        for name, child in attributes.items():
            filled = self.fill(child, values.get(name))
            if name not in values or filled is not values[name]:
                live[name] = filled
        if traits.accessors is not None and "custom" in node:
            traits.accessors.set_state(current, self.fill(node["custom"]))
        if traits.extension is not None:
            traits.extension.restore(current, node["extension"])
        return current


def _children(node: Tree) -> Iterator[tuple[Any, Tree]]:
    kind = _kind(node)
    if kind == "pairs":
        yield from node["items"]
    elif kind == "deque":
        yield from enumerate(node.get("items", []))
    elif isinstance(node, list | tuple):
        yield from enumerate(node)
    elif isinstance(node, dict) and kind is None:
        yield from node.items()


def _item(container: Any, key: Any) -> Any:
    if isinstance(container, dict):
        return container.get(key) if isinstance(key, Hashable) else None
    if isinstance(container, list | tuple | deque) and isinstance(key, int) and key < len(container):
        return container[key]
    return None


def _renewed(current: Any, filled: Any) -> Any:
    """Refill the container that is there if it holds objects, so that whoever else has it keeps seeing them."""
    values = filled.values() if isinstance(filled, dict) else filled
    if type(current) is not type(filled) or not any(_is_object(value) for value in values):
        return filled
    if isinstance(filled, dict):
        for key in current.keys() - filled.keys():
            del current[key]
        current.update(filled)
    elif isinstance(filled, list):
        current[:] = filled
    elif isinstance(filled, deque):
        current.clear()
        current.extend(filled)
    else:
        return filled
    return current
