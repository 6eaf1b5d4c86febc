"""
What a run directory must hold, given what was begun and what was acknowledged; and what it does hold.

Every subject (a checkpoint, a pin, ``latest`` …) is a register. While a change of it is under way the old and the new
value are both right; once the change is acknowledged only the new one is. That one rule is durability, atomicity and
monotony together, and it holds after a crash, a power cut, a failed call and in peace alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from perdure.core.manifest import Manifest
from perdure.errors import PerdureError
from perdure.store.layout import QUARANTINE, TEMPORARY_PREFIX
from perdure.store.store import Checkpoint, Store

Value = str | None
"""What a register holds; None if its subject is absent."""


@dataclass(frozen=True, slots=True)
class Event:
    """
    A step in the life of a register.

    Attributes:
        acknowledged: False when the change begins, True when it has been reported as done.
        subject: What changes, such as ``checkpoint:<id>``.
        value: To what.
    """

    acknowledged: bool
    subject: str
    value: Value


class Promises:
    """What may be found."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._allowed: dict[str, list[Value]] = {}
        for event in events:
            self.note(event)

    def note(self, event: Event) -> None:
        """Take a step into account."""
        if event.acknowledged:
            self._allowed[event.subject] = [event.value]
        else:
            self._allowed.setdefault(event.subject, [None]).append(event.value)

    def key(self) -> str:
        """Equal for equal promises."""
        return repr(sorted(self._allowed.items()))

    def violations(self, found: Mapping[str, Value]) -> list[str]:
        """What is found and may not be, or is not found and must be."""
        problems = []
        for subject in sorted(self._allowed.keys() | found.keys()):
            allowed = self._allowed.get(subject, [None])
            if found.get(subject) not in allowed:
                problems.append(f"{subject} is {found.get(subject)!r} and must be one of {allowed!r}")
        return problems

    def settle(self, found: Mapping[str, Value]) -> None:
        """Take what was found for what is there from now on."""
        self._allowed = {subject: [found.get(subject)] for subject in self._allowed.keys() | found.keys()}


def fingerprint(manifest: Manifest, contents: Mapping[str, bytes | memoryview]) -> str:
    """Stand for a checkpoint's identity, place in the order, and every byte of its files."""
    digest = hashlib.blake2b(
        repr((manifest.id, manifest.global_step, manifest.order, manifest.parent)).encode(), digest_size=16
    )
    for path in sorted(contents):
        digest.update(f"|{path}|{len(contents[path])}|".encode())
        digest.update(contents[path])
    return digest.hexdigest()


def observe(store: Store, markers: Iterable[str] = ()) -> dict[str, Value]:
    """
    Look at a run directory as a process does that has just been started.

    Args:
        store: The run directory.
        markers: Names of small JSON files whose ``value`` is looked at.

    Returns:
        Values by subject. Damage is a subject of its own, of which nothing is ever allowed.
    """
    found: dict[str, Value] = {}
    checkpoints, broken = store.scan()
    for damage in broken:
        found[f"damage:{damage.directory.name}"] = damage.error.message
    for checkpoint in checkpoints:
        found[f"checkpoint:{checkpoint.manifest.id}"] = _look_into(store, checkpoint)
    orders = [checkpoint.manifest.order for checkpoint in checkpoints]
    if orders != sorted(set(orders), reverse=True):
        found["order"] = str(orders)
    for name, checkpoint_id in store.pins().items():
        found[f"pin:{name}"] = checkpoint_id
    for name in store.files.names(store.directory / QUARANTINE):
        if not name.endswith(".json") and not name.startswith(TEMPORARY_PREFIX):
            note = store.read_json(f"{QUARANTINE}/{name}.json")
            found[f"quarantine:{name.rpartition('-')[0]}"] = note["reason"] if note else "without a note"
    for name in markers:
        content = store.read_json(name)
        found[f"marker:{name}"] = None if content is None else content.get("value")
    found["latest"] = store.latest()
    return found


def _look_into(store: Store, checkpoint: Checkpoint) -> str:
    try:
        contents = {entry.path: store.read(checkpoint, entry.path) for entry in checkpoint.manifest.files}
    except PerdureError as error:
        return f"unreadable: {error.message}"
    return fingerprint(checkpoint.manifest, contents)
