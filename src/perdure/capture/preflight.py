"""Preflight: what a capture of some components will take, before the first one is taken."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from perdure.core.component import Component


@runtime_checkable
class Measured(Protocol):
    """A component that knows how large its state will be; those that do not are small."""

    def expected_bytes(self) -> int:
        """Bytes of arrays that a capture copies once training has begun."""
        ...


def expected_bytes(components: Iterable[Component]) -> int:
    """Bytes that a capture of all components copies."""
    return sum(component.expected_bytes() for component in components if isinstance(component, Measured))
