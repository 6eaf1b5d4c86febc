"""What a run consists of: tracked objects, counters, loose values, positions of loops and newest metrics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec
import numpy as np

from perdure.capture.arrays import array_type, convert
from perdure.capture.numbers import GLOBAL_NAME, GlobalGenerators
from perdure.capture.objects import is_module, is_optimizer
from perdure.capture.probes import PROBES_NAME, Probes, generator_versions, learning_rates, next_draws
from perdure.capture.registry import expand, make_component
from perdure.core.component import Component, writes_parts
from perdure.core.manifest import Grade
from perdure.core.names import Section
from perdure.core.tree import encode_structure, take_apart, unflatten
from perdure.errors import InvalidInputError
from perdure.namespaces import Namespace, declare, refill, values_of
from perdure.recovery.sanity import failures

LOCALS_NAME = "locals"
RESERVED_NAMES = frozenset({GLOBAL_NAME, PROBES_NAME, LOCALS_NAME})
STEP_COUNTER = "global_step"


class Tracked:
    """
    The state of one run, by name. Objects are borrowed; counters and loose values are owned.

    Attributes:
        components: What is captured and restored, by name.
        objects: The tracked objects themselves, by name.
        positions: The next item of each loop that has begun, by the loop's name, outermost first.
        metrics: The newest value of each metric.
        notes: What the last restore found to differ, for people.
    """

    def __init__(self, config: Mapping[str, Any], unpickle: Collection[str] = ()) -> None:
        self._config = _as_json(config)
        self._unpickle = frozenset(unpickle)
        self._probes = Probes()
        self._generators = GlobalGenerators()
        self.components: dict[str, Component] = {GLOBAL_NAME: self._generators, PROBES_NAME: self._probes}
        self.objects: dict[str, Any] = {}
        self.counters = Namespace("counter", {})
        self.locals: Namespace | None = None
        self.positions: dict[str, int] = {}
        self.metrics: dict[str, float] = {}
        self.notes: list[str] = []

    def add(self, objects: Mapping[str, object]) -> list[object]:
        """
        Track objects.

        Returns:
            Those that were added, nested ones one by one.

        Raises:
            InvalidInputError: A name or object is tracked already, or nothing is known about the object.
        """
        added = []
        for name, value in expand(objects):
            self._check_new(name, value)
            self.components[name] = make_component(name, value, may_unpickle=name in self._unpickle)
            self.objects[name] = value
            if is_module(value):
                self._probes.watch(name, value)
            added.append(value)
        return added

    def _check_new(self, name: str, value: object) -> None:
        if name in RESERVED_NAMES:
            raise InvalidInputError(
                f"cannot track {name!r}: that name is taken by a component of perdure's own",
                kind="component.reserved",
                hint="choose another name",
                field=name,
            )
        other = next((known for known, tracked in self.objects.items() if tracked is value), None)
        if name in self.objects or other is not None:
            raise InvalidInputError(
                f"cannot track {name!r}: "
                + (f"the same object is tracked as {other!r}" if other else "the name is tracked already"),
                kind="track.twice",
                hint="track each object once, under one name",
                field=name,
            )

    def declare_locals(self, initial: Mapping[str, Any]) -> Namespace:
        """Add loose values."""
        if self.locals is None:
            self.locals = Namespace("local", {})
            self.components[LOCALS_NAME] = _Locals(self.locals)
        declare(self.locals, initial)
        return self.locals

    @property
    def global_step(self) -> int:
        """Environment steps done: the counter ``global_step``, or the position of the outermost loop without one."""
        if STEP_COUNTER in self.counters:
            return int(values_of(self.counters)[STEP_COUNTER])
        return next(iter(self.positions.values()), 0)

    def check(self) -> None:
        """Raise damage that components have found behind the restore."""
        for component in self.components.values():
            if writes_parts(component):
                component.check()

    def values(self) -> list[Any]:
        """Every tracked object and loose value."""
        return [*self.objects.values(), *(values_of(self.locals).values() if self.locals else ())]

    def meta(self) -> Callable[[], bytes]:
        """
        Fix the content of ``meta.json`` as of now, right after a capture.

        Returns:
            What makes the file's bytes; may be called later and in another thread, whatever has changed by then.

        Raises:
            InvalidInputError: Kind ``tree.unsupported`` or ``counters.array``: a counter holds what cannot be stored.
        """
        now = encode_structure(
            {
                "counters": _structure_of(values_of(self.counters)),
                "loops": self.positions,
                "config": self._config,
                "evaluation": {"metrics": _structure_of(self.metrics), "step": self.global_step},
            }
        )
        rates = learning_rates(self._kind(is_optimizer))
        generators = self._generators.last_fixed

        def finish() -> bytes:
            drawn = {"next_draws": next_draws(generators()), "drawn_with": generator_versions()}
            sanity = {"learning_rates": rates, **drawn}
            content = {**msgspec.json.decode(now), "sanity": sanity}
            return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"

        return finish

    def restore_meta(self, meta: Mapping[str, Any]) -> None:
        """Bring counters, loops and metrics to the content of ``meta.json``."""
        differences: list[str] = []
        refill(self.counters, unflatten(meta.get("counters", {}), {}, convert), differences.append)
        self.positions = dict(meta.get("loops", {}))
        metrics = unflatten(meta.get("evaluation", {}).get("metrics", {}), {}, convert)
        # Early versions saved a metric that is not finite as null.
        self.metrics = {name: float("nan") if value is None else value for name, value in metrics.items()}
        saved = meta.get("config", {})
        self.notes = [f"counter {name} is on one side only" for name in differences]
        self.notes += [
            f"config {key}: {saved.get(key)!r} -> {self._config.get(key)!r}"
            for key in sorted(set(saved) | set(self._config))
            if saved.get(key) != self._config.get(key)
        ]

    def find_failures(self, meta: Mapping[str, Any]) -> list[str]:
        """The sanity check of what has just been restored; empty if all is well."""
        modules, optimizers = self._kind(is_module), self._kind(is_optimizer)
        recorded = meta.get("sanity", {})
        return failures(modules, optimizers, self._probes.examples, recorded, self.notes.append)

    def _kind(self, matches: Callable[[object], bool]) -> dict[str, Any]:
        return {name: value for name, value in self.objects.items() if matches(value)}


def _structure_of(values: Mapping[str, Any]) -> Any:
    """Plain values as a structure without arrays: JSON has no form for what is not finite, nor for NumPy's numbers."""
    flat = take_apart(
        {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}, array_type
    )
    for name in flat.arrays:
        raise InvalidInputError(
            f"cannot save counter {name!r}: it is an array, and counters hold numbers and text",
            kind="counters.array",
            hint="take the number out of it (.item()), or keep it in run.locals(...)",
            field=name,
        )
    return flat.structure


def _as_json(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as a reader of the checkpoint will find them: what JSON has no form for, as text."""

    def as_text(value: object) -> object:
        return value.item() if isinstance(value, np.generic) else str(value)

    try:
        return dict(msgspec.json.decode(msgspec.json.encode(dict(config), enc_hook=as_text)))
    except (TypeError, UnicodeEncodeError) as error:
        raise InvalidInputError(
            f"cannot keep the settings of this run: {error}",
            kind="config.unsupported",
            hint="config= takes names and plain values, as JSON does",
            field="config",
        ) from error


class _Locals:
    """The loose values of a run as a component."""

    kind = "locals"
    section = Section.STATE
    grade = Grade.EXACT

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    def capture(self) -> object:
        return dict(values_of(self._namespace))

    def check(self, tree: object) -> None:
        """Nothing to check: the values are replaced."""

    def restore(self, tree: object) -> str:
        assert isinstance(tree, dict)
        differences: list[str] = []
        refill(self._namespace, tree, differences.append)
        return f"only on one side: {', '.join(differences)}" if differences else ""
