"""Writing: from live environments, wrappers and spaces, and what they hold, to one plain tree. Nothing is changed."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any

import numpy as np

from perdure.capture.environments.plain import (
    GENERATORS,
    TAG,
    OpaqueValueError,
    Tree,
    array_to_tree,
    generator_to_tree,
    scalar_to_tree,
    summarise,
)
from perdure.capture.environments.proven import Unit, is_proven, layers_with, role_of
from perdure.capture.environments.remembered import Remembered
from perdure.capture.environments.traits import Traits, is_code, is_instance, traits_of

__all__ = ["Writer", "captured_attributes", "identity"]

_LEAVES = frozenset({type(None), bool, int, float, str})


def captured_attributes(owner: object, traits: Traits) -> dict[str, object]:
    """Return the attributes that hold the owner's state, by name and borrowed."""
    attributes = getattr(owner, "__dict__", {})
    if traits.is_space:
        return {n: v for n, v in attributes.items() if n == "_np_random" or _holds_spaces(v)}
    left_out = traits.ignored | traits.constants
    common = {name: getattr(type(owner), name) for name in traits.class_spaces}
    return {
        name: value
        for name, value in {**common, **attributes}.items()
        if (name in traits.attributes if traits.attributes is not None else name not in left_out) and not is_code(value)
    }


def _holds_spaces(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_is_space, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_is_space, value))
    return _is_space(value)


def _is_space(value: object) -> bool:
    traits = traits_of(value)
    return traits is not None and traits.is_space


def identity(owner: Any) -> dict[str, Any]:
    """
    Say what a live object must agree on with a captured one before the state of one can go into the other.

    Returns:
        Id, arguments, number and constants, as they were when the object was first met; not to be changed.
    """
    return _identities.of(owner) if hasattr(owner, "__dict__") else {}


def _describe(owner: Any) -> dict[str, Any]:
    attributes, traits = vars(owner), traits_of(owner)
    assert traits is not None
    if traits.is_space:
        fixed = {name: value for name, value in attributes.items() if not _holds_spaces(value)}
        return {"constants": _summaries(fixed, traits.ignored | {"_np_random"})}
    described: dict[str, Any] = {}
    spec = attributes.get("spec")
    if spec is not None:
        described["id"] = str(spec.id)
    arguments = {**getattr(spec, "kwargs", {}), **attributes.get("_saved_kwargs", {})}
    if traits.compares_arguments and arguments:
        described["arguments"] = _summaries(arguments, frozenset({"render_mode"}))
    if is_instance(owner, "vector.VectorEnv") and not is_instance(owner, "vector.VectorWrapper"):
        described["num_envs"] = int(owner.num_envs)
        mode = owner.metadata.get("autoreset_mode")
        described["autoreset_mode"] = str(getattr(mode, "value", mode))
    if traits.constants:
        described["constants"] = _summaries({n: v for n, v in attributes.items() if n in traits.constants})
    return described


def _summaries(values: dict[str, Any], left_out: frozenset[str] = frozenset()) -> dict[str, str]:
    summaries = {}
    for name, value in values.items():
        if name in left_out:
            continue
        try:
            summaries[name] = summarise(value)
        except OpaqueValueError:
            continue  # A function or an object has no name that is the same in the next process.
    return summaries


_identities = Remembered(_describe)


def _reference(key: str) -> Tree:
    return {TAG: "shared", "key": key}


class Writer:
    """
    One walk over a graph of objects.

    Args:
        clock: ``time.perf_counter``, by which running episodes are timed.
        aliased: Ids of containers and arrays that are reached in more than one way; they are written once.
    """

    def __init__(self, clock: Callable[[], float], aliased: frozenset[int] = frozenset()) -> None:
        self.shared: dict[str, Tree] = {}
        self.doubts: list[str] = []
        self.unproven: list[str] = []
        self.replays = False
        self._clock = clock
        self._aliased = aliased
        self._keys: dict[int, str] = {}
        self._sightings: Counter[int] = Counter()
        self._kept: list[object] = []  # An id means something only while its object lives.
        self._open: set[int] = set()
        self._objects: dict[int, tuple[str, dict[str, Tree]]] = {}
        self._layers: list[Any] = []
        self._units: dict[int, Unit] = {}
        self._containers: dict[type, Callable[[Any], Tree]] = {
            np.ndarray: array_to_tree,
            list: lambda value: [self.write(item) for item in value],
            tuple: lambda value: tuple(self.write(item) for item in value),
            dict: self._dict,
            OrderedDict: self._pairs,
            deque: self._deque,
            bytes: lambda value: {TAG: "bytes", "data": np.frombuffer(bytearray(value), np.uint8)},
        }

    @property
    def aliases(self) -> frozenset[int]:
        """Ids of what was reached in more than one way and has to be written once, in another walk."""
        return frozenset(key for key, times in self._sightings.items() if times > 1) - self._aliased

    @property
    def units(self) -> list[Unit]:
        """The environments that were met, and whatever else needs a proof."""
        return list(self._units.values())

    def write(self, value: Any) -> Tree:
        """
        Express any value.

        Raises:
            OpaqueValueError: Nothing is known about values of this type.
        """
        kind = type(value)
        if kind in _LEAVES:
            return value
        if isinstance(value, np.generic):
            return scalar_to_tree(value)
        if kind in GENERATORS:
            return self._once(value, generator_to_tree)
        if kind in self._containers:
            return self._container(value, self._containers[kind])
        traits = traits_of(value)
        if traits is None:
            raise OpaqueValueError(f"is a {kind.__module__}.{kind.__qualname__}")
        return self._object(value, traits)

    def finish(self) -> None:
        """Move objects that were reached in more than one way to the table of what is shared."""
        for key, node in self._objects.values():
            if key in self.shared:
                self.shared[key] = dict(node)
                node.clear()
                node.update(_reference(key))

    def _once(self, value: object, express: Callable[[Any], Tree]) -> Tree:
        if id(value) not in self._keys:
            self._kept.append(value)
            self._keys[id(value)] = key = f"value{len(self._keys)}"
            self.shared[key] = express(value)
        return _reference(self._keys[id(value)])

    def _container(self, value: Any, express: Callable[[Any], Tree]) -> Tree:
        if id(value) in self._open:
            raise OpaqueValueError(f"is a {type(value).__qualname__} that holds itself")
        if isinstance(value, bytes):
            return express(value)
        self._kept.append(value)
        self._sightings[id(value)] += not isinstance(value, tuple)
        self._open.add(id(value))
        try:
            return self._once(value, express) if id(value) in self._aliased else express(value)
        finally:
            self._open.remove(id(value))

    def _dict(self, value: dict[Any, Any]) -> Tree:
        if TAG not in value and all(type(key) is str for key in value):
            return {key: self.write(item) for key, item in value.items()}
        return self._pairs(value)

    def _pairs(self, value: dict[Any, Any]) -> Tree:
        items = [[self.write(key), self.write(item)] for key, item in value.items()]
        return {TAG: "pairs", "ordered": isinstance(value, OrderedDict), "items": items}

    def _deque(self, value: deque[Any]) -> Tree:
        node = {TAG: "deque", "maxlen": value.maxlen}
        # A statistic's last hundred numpy scalars are one array, not a hundred.
        if value and isinstance(value[0], np.number) and len({type(item) for item in value}) == 1:
            return {**node, "scalars": array_to_tree(np.array(value))}
        return {**node, "items": [self.write(item) for item in value]}

    def _object(self, owner: Any, traits: Traits) -> Tree:
        if id(owner) in self._objects:
            key, _ = self._objects[id(owner)]
            self.shared[key] = None  # Reserved until the walk is over: the object itself may still be being written.
            return _reference(key)
        node: dict[str, Tree] = {TAG: "object", "class": type(owner).__qualname__}
        self._kept.append(owner)
        self._objects[id(owner)] = (f"object{len(self._objects)}", node)
        node["identity"] = identity(owner)
        around, self._layers = self._layers, layers_with(self._layers, owner)
        self._note(owner)
        node["attributes"], node["withheld"] = self._attributes(owner, traits)
        self._layers = around
        if traits.doubt:
            self.doubts.append(traits.doubt)
        if traits.accessors is not None:
            self._custom(node, owner, traits.accessors.get_state)
        if traits.extension is not None:
            outside = traits.extension.capture(owner)
            node["extension"] = outside.state
            self.doubts.extend(outside.doubts)
            self.unproven.extend(outside.unproven)
            self.replays = self.replays or outside.replays
        return node

    def _note(self, owner: Any) -> None:
        proven, layers = is_proven(type(owner)), self._layers or [owner]
        if proven and not role_of(owner):
            return
        unit = self._units.setdefault(id(layers[0]), Unit(layers))
        unit.layers = max(unit.layers, layers, key=len)
        if not proven:
            unit.needed = min(unit.needed or len(layers), len(layers))

    def _attributes(self, owner: object, traits: Traits) -> tuple[dict[str, Tree], list[str]]:
        attributes, withheld = {}, []
        for name, value in captured_attributes(owner, traits).items():
            try:
                if name in traits.clocks:
                    attributes[name] = self._elapsed(value, traits.clocks[name])
                else:
                    attributes[name] = self.write(value)
            except OpaqueValueError as error:
                withheld.append(name)
                self.doubts.append(f"{type(owner).__qualname__}.{name} {error}")
        return attributes, withheld

    def _elapsed(self, started: Any, unset: float) -> Tree:
        seconds = np.where(np.asarray(started) == unset, np.nan, self._clock() - started)
        whole = seconds if isinstance(started, np.ndarray) else float(seconds)
        return {TAG: "elapsed", "seconds": whole, "unset": unset}

    def _custom(self, node: dict[str, Tree], owner: object, get_state: Callable[[Any], object]) -> None:
        try:
            node["custom"] = self.write(get_state(owner))
        except OpaqueValueError as error:
            self.doubts.append(f"the state that {type(owner).__qualname__} hands over {error}")
