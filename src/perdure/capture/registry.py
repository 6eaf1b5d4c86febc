"""Which component stands for which object: the one place that knows all kinds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from perdure.capture import environments
from perdure.capture.arrays import array_type, is_tensor
from perdure.capture.numbers import HeldGenerator, is_generator
from perdure.capture.objects import (
    Array,
    Container,
    Environment,
    Module,
    Optimizer,
    Space,
    Stateful,
    is_module,
    is_optimizer,
    is_scheduler,
    is_stateful,
)
from perdure.capture.pickles import Pickled, PickledComponent
from perdure.capture.pytrees import JaxTree, Pytree
from perdure.core.component import Component, PartsComponent, TreeComponent
from perdure.core.names import Section, check_path
from perdure.errors import InvalidInputError
from perdure.replay import component_for


def expand(objects: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """
    Name every trackable object in nested dictionaries: ``{"agents": {"red": net}}`` gives ``agents/red``.

    A dictionary of plain values is an object of its own and is not taken apart.
    """
    for key, value in objects.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and any(_is_object(item) for item in value.values()):
            yield from expand({str(inner): item for inner, item in value.items()}, f"{name}/")
        else:
            yield check_path(name, "component name"), value


def _is_object(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(_is_object(item) for item in value.values())
    return not isinstance(value, str | int | float | bool | list | tuple | np.ndarray | None) and not is_tensor(value)


def make_component(name: str, value: Any, *, may_unpickle: bool = False) -> Component:
    """
    Find the component for an object.

    Args:
        name: Of the component.
        value: The object, borrowed.
        may_unpickle: Whether a `Pickled` of this name may be unpickled.

    Raises:
        InvalidInputError: Kind ``component.unsupported``: nothing is known about objects of this type.
    """
    if isinstance(value, TreeComponent | PartsComponent):
        return value
    if isinstance(value, Pickled):
        return PickledComponent(name, value, may_unpickle=may_unpickle)
    found = _make(name, value)
    if found is None:
        raise InvalidInputError(
            f"cannot track {name!r}: nothing is known about saving a "
            f"{type(value).__module__}.{type(value).__qualname__}",
            kind="component.unsupported",
            hint="use run.counters(...) or run.locals(...) for numbers and loose values; "
            "give other objects state_dict/load_state_dict",
            field=name,
        )
    return found


def _make(name: str, value: Any) -> Component | None:
    if is_module(value):
        return Module(name, value)
    if is_optimizer(value):
        return Optimizer(name, value)
    if is_scheduler(value):
        return Stateful(value, f"torch.scheduler.{type(value).__name__}", Section.SCHEDULER)
    if is_generator(value):
        return HeldGenerator(value)
    if environments.is_environment(value):
        return Environment(name, value)
    if environments.is_space(value):
        return Space(name, value)
    if (ring := component_for(value)) is not None:
        return ring
    if isinstance(value, Pytree):
        return JaxTree(name, value)
    if is_stateful(value):
        return Stateful(value, "stateful", Section.STATE)
    if isinstance(value, np.ndarray) or array_type(value) in ("torch", "torch:complex128"):
        return Array(name, value)
    if isinstance(value, dict | list | deque):
        return Container(name, value)
    return None
