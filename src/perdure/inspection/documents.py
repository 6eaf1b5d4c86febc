"""Values that print themselves: a frozen dataclass whose fields are the keys of one JSON object."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from perdure.errors import PerdureError


@dataclass(frozen=True, slots=True)
class Document:
    """Base of the dataclasses that ``--json`` prints; the field names are the keys, and are only ever added to."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as one JSON-able object."""
        return {each.name: plain(getattr(self, each.name)) for each in fields(self)}


def plain(value: object) -> Any:
    """
    Return ``value`` in the types that JSON has.

    Numbers that JSON does not have (infinity, not a number) become null.
    """
    if isinstance(value, (Document, PerdureError)):
        return value.to_json()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence):
        return [plain(inner) for inner in value]
    if isinstance(value, msgspec.Struct):
        return plain(msgspec.to_builtins(value))
    assert isinstance(value, Path), type(value)
    return str(value)


def rfc3339(wall_seconds: float) -> str:
    """Return a time since the epoch as RFC 3339 in UTC, to the second."""
    return datetime.fromtimestamp(wall_seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def age_seconds(created_at: object, wall_seconds: float) -> float | None:
    """
    Return how long ago an RFC 3339 time was, never less than 0, or None if it is not one.

    The clocks of the writer and of the reader may differ: an age is for people, nothing is decided by it.
    """
    if not isinstance(created_at, str):
        return None
    try:
        # Before Python 3.11 the standard library does not know the Z that everybody writes.
        moment = datetime.fromisoformat(created_at.removesuffix("Z") + "+00:00" * created_at.endswith("Z"))
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    return max(wall_seconds - moment.timestamp(), 0.0)
