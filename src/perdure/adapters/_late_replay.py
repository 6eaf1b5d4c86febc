"""
Replay buffers whose arrays are made by the first write to them.

Such a buffer has no columns at first, so a fresh program has nothing that a checkpoint could be compared with. What the
columns do not tell of the data's form is written beside the segments: a restore makes the arrays itself.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from perdure.core.component import ContentPart, PartsCapture, PartsSource
from perdure.core.manifest import Grade
from perdure.core.names import Section
from perdure.errors import CorruptionError
from perdure.replay import Ring, RingComponent
from perdure.replay.header import HEADER_FILE, Header, decode_header

_FORM_FILE = "form.json"


class LateRing(Ring, Protocol):
    """A ring that may have no arrays yet."""

    @property
    def is_filled(self) -> bool:
        """Whether the arrays have been made."""
        ...

    def describe(self) -> dict[str, Any]:
        """What of the data's form does not follow from the columns, JSON-able."""
        ...

    def expect(self, header: Header, form: dict[str, Any]) -> None:
        """Take the form of a checkpoint: `columns` and `state` are of its shapes until `adopt` brings the arrays."""
        ...

    def notice_changes(self) -> None:
        """Find changes that nobody announced, before a save."""
        ...


def expected_columns(header: Header) -> dict[str, NDArray[Any]]:
    """Columns of a checkpoint's shapes that take no memory."""
    rows = header.state.capacity
    return {
        name: np.broadcast_to(np.zeros((), column.dtype), (rows, *column.shape))
        for name, column in header.columns.items()
    }


class LateReplay:
    """
    A ring whose arrays are made by its first write, as a component.

    Args:
        ring: Borrowed.
        options: As for `perdure.replay.RingComponent`.
    """

    kind = "replay.ring"
    section = Section.BUFFER
    grade = Grade.EXACT

    def __init__(self, ring: LateRing, **options: Any) -> None:
        self._ring = ring
        self._options = options
        self._component: RingComponent | None = None

    def capture_parts(self, stem: str) -> PartsCapture:
        """Fix the content as of now; of a buffer that was never written to there is nothing to write."""
        if self._component is None:
            if not self._ring.is_filled:
                return PartsCapture(())
            self._component = RingComponent(self._ring, **self._options)
        self._ring.notice_changes()
        taken = self._component.capture_parts(stem)
        form = memoryview(json.dumps(self._ring.describe()).encode() + b"\n")
        part = ContentPart(f"{stem}/{_FORM_FILE}", form.nbytes, lambda: (form,))
        return PartsCapture((*taken.parts, part), taken.detail, taken.on_committed, taken.on_aborted)

    def check_parts(self, source: PartsSource) -> None:
        """Bring a checkpoint into memory beside the buffer, or refuse it."""
        if not source.entry.files:
            return
        self._made(source).check_parts(source)

    def restore_parts(self, source: PartsSource) -> str:
        """Bring the buffer to the checkpoint: it gets other arrays."""
        if not source.entry.files:
            return ""
        return self._made(source).restore_parts(source)

    def _made(self, source: PartsSource) -> RingComponent:
        if self._component is not None and self._ring.is_filled:
            return self._component
        form = _read_form(source)
        path = next(path for path in source.entry.files if path.endswith(f"/{HEADER_FILE}"))
        self._ring.expect(decode_header(source.read(path), path), form)
        self._component = RingComponent(self._ring, **self._options)
        return self._component

    def check(self) -> None:
        """Raise damage that was found behind a restore."""
        if self._component is not None:
            self._component.check()


def _read_form(source: PartsSource) -> dict[str, Any]:
    path = next((path for path in source.entry.files if path.endswith(f"/{_FORM_FILE}")), "")
    try:
        form = json.loads(bytes(source.read(path))) if path else None
    except ValueError:
        form = None
    if not isinstance(form, dict):
        raise CorruptionError(
            f"cannot read replay buffer {source.entry.name!r}: the form of its data is missing or no JSON",
            kind="replay.malformed",
            hint="run `perdure verify`; an older checkpoint is used meanwhile",
            path=path or source.entry.name,
        )
    return form
