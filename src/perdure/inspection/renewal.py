"""Bringing the manifests of a run to the current schema and under the current key: the plan, and carrying it out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from perdure.core.keys import Trust
from perdure.core.manifest import SCHEMA_VERSION, open_envelope
from perdure.errors import CorruptionError, FormatError, PerdureError
from perdure.inspection.documents import Document
from perdure.store.mending import renew_manifest
from perdure.store.store import Store


class Renewal(str, Enum):
    """What is to become of one manifest."""

    NOTHING = "nothing"
    """It is as it would be written today."""
    RENEW = "renew"
    REFUSE = "refuse"
    """It cannot be, and stays as it is."""


@dataclass(frozen=True, slots=True)
class RenewalRow(Document):
    """One directory under ``snapshots/``."""

    directory: str
    schema_version: int | None
    """None if it has no whole manifest."""
    key: str | None
    """Name of the key that its manifest says it was signed with."""
    action: Renewal
    why: str


@dataclass(frozen=True, slots=True)
class RenewalPlan(Document):
    """What a migration would do."""

    run: str
    schema_version: int
    """That of this perdure."""
    key: str | None
    """Name of the key that signs."""
    trusts_unsigned: bool
    rows: tuple[RenewalRow, ...]

    @property
    def renewed(self) -> tuple[RenewalRow, ...]:
        """The rows that are to change."""
        return tuple(row for row in self.rows if row.action is Renewal.RENEW)

    @property
    def refused(self) -> tuple[RenewalRow, ...]:
        """The rows that cannot be brought there."""
        return tuple(row for row in self.rows if row.action is Renewal.REFUSE)


def plan_renewal(store: Store, run: str, *, trust_unsigned: bool) -> RenewalPlan:
    """
    Plan a migration; reads only.

    Args:
        store: The run.
        run: Its name.
        trust_unsigned: Whether manifests that no known key has signed are to be signed.

    Raises:
        StoreError: The run may not be read.
    """
    key = store.keys.keys[0].id if store.keys else None
    names = store.names(store.snapshots)
    rows = tuple(_row(store, store.snapshots / name, key, trust_unsigned=trust_unsigned) for name in names)
    return RenewalPlan(run, SCHEMA_VERSION, key, trust_unsigned, rows)


def _row(store: Store, directory: Path, key: str | None, *, trust_unsigned: bool) -> RenewalRow:
    try:
        envelope = open_envelope(store.read_manifest(directory), str(directory))
    except CorruptionError as error:
        return RenewalRow(directory.name, None, None, Renewal.REFUSE, f"{error.message} (`perdure repair`)")
    signed = envelope.signature.key_id if envelope.signature else None
    trust = store.keys.judge(envelope.signature, envelope.document)
    action, why = _decide(envelope.schema_version, trust, is_current=signed == key, trust_unsigned=trust_unsigned)
    return RenewalRow(directory.name, envelope.schema_version, signed, action, why)


def _decide(version: int, trust: Trust, *, is_current: bool, trust_unsigned: bool) -> tuple[Renewal, str]:
    if version > SCHEMA_VERSION:
        return Renewal.REFUSE, "its schema is newer than this perdure"
    if trust is Trust.FORGED:
        return Renewal.REFUSE, trust.value
    if trust in (Trust.UNSIGNED, Trust.UNKNOWN_KEY):
        if trust_unsigned:
            return Renewal.RENEW, f"{trust.value}: you vouch for it"
        return Renewal.REFUSE, f"{trust.value} (--sign)"
    if version < SCHEMA_VERSION:
        # What a key that is not set here has signed would lose its signature.
        if trust is Trust.UNCHECKED and not is_current:
            return Renewal.REFUSE, "it is signed, and its key is not set"
        return Renewal.RENEW, "its schema is older"
    if trust is Trust.SIGNED and not is_current:
        return Renewal.RENEW, "it is signed with an older key"
    return Renewal.NOTHING, ""


def execute_renewal(store: Store, plan: RenewalPlan) -> dict[str, PerdureError]:
    """
    Carry out a plan, one manifest after the other; a crash leaves each as it was or renewed.

    Returns:
        Why a manifest could not be renewed after all, by its directory's name.

    Raises:
        StoreError: The disk refuses; what was renewed before stays so.
    """
    failed: dict[str, PerdureError] = {}
    for row in plan.renewed:
        try:
            renew_manifest(store, store.snapshots / row.directory, trust_unsigned=plan.trusts_unsigned)
        except (CorruptionError, FormatError) as error:
            failed[row.directory] = error
    return failed
