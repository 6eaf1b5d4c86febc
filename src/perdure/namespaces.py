"""Counters and loose values: named attributes that are saved with a run and put back by a restore."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from perdure.errors import InvalidInputError


class Namespace:
    """
    Values as attributes.

    Only names that were given at the start can be set, so that a misspelt counter is an error and not a second one.
    Values are whatever a state tree can hold; a restore replaces them, it does not fill them in place.

    Example:
        >>> counters = Namespace("counters", {"global_step": 0})
        >>> counters.global_step += 8
        >>> counters.global_step
        8
    """

    __slots__ = ("_kind", "_values")
    _kind: str
    _values: dict[str, Any]

    def __init__(self, kind: str, values: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_kind", kind)
        object.__setattr__(self, "_values", {})
        self._declare(values)

    def _declare(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            if name.startswith("_") or name in self._values:
                raise InvalidInputError(
                    f"cannot declare {self._kind} {name!r}: it exists already or begins with an underscore",
                    kind="namespace.invalid-name",
                    hint="choose another name",
                    field=name,
                )
            self._values[name] = value

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"there is no {self._kind} {name!r}; there are {', '.join(self._values)}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._values:
            raise AttributeError(f"there is no {self._kind} {name!r}; declare it when they are made")
        self._values[name] = value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={value!r}" for name, value in self._values.items())
        return f"{self._kind}({inner})"


def values_of(namespace: Namespace) -> dict[str, Any]:
    """The values by name; the dictionary is the namespace's own."""
    return namespace._values  # noqa: SLF001 - attributes of a namespace are the user's names


def declare(namespace: Namespace, values: Mapping[str, Any]) -> None:
    """Add names to a namespace."""
    namespace._declare(values)  # noqa: SLF001 - attributes of a namespace are the user's names


def refill(namespace: Namespace, saved: Mapping[str, Any], on_difference: Callable[[str], None]) -> None:
    """Put saved values back; names on one side only are reported and left as they are."""
    values = values_of(namespace)
    for name in sorted(set(values) ^ set(saved)):
        on_difference(name)
    values.update({name: saved[name] for name in values if name in saved})
