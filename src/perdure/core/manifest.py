"""
The manifest: the one record that makes a directory a checkpoint.

Everything that a reader needs to trust and to find the files is in it, and it is written last. The JSON form is a
promise (docs/format/); fields are only ever added within a schema version. It is sealed (`perdure.core.sealing`), and
signed if there is a key (`perdure.core.keys`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from perdure.core.keys import Keyring, Signature, Trust, split_signature
from perdure.core.migration import MANIFEST_MIGRATIONS, Migration, migrate
from perdure.core.names import MAXIMUM_NAME_BYTES, Section, check_path, check_segment
from perdure.core.sealing import seal, unseal
from perdure.errors import CorruptionError, FormatError, InvalidInputError

SCHEMA_VERSION = 1
MAXIMUM_MANIFEST_BYTES = 4 * 1024 * 1024
MAXIMUM_FILES = 100_000
MAXIMUM_FILE_BYTES = 2**50
MAXIMUM_COUNT = 2**53
"""Steps, generations and sequences stay below what JSON, SQLite and 64-bit counters all hold exactly."""

_DIGEST = re.compile(r"blake3:[0-9a-f]{64}")
_ID = re.compile(r"[0-9a-f]{32}")


class Grade(str, Enum):
    """How exactly a resume continues the run that was saved."""

    EXACT = "exact"
    """Bit for bit, as if it had never stopped."""
    STATISTICAL = "statistical"
    """Same distributions: some environment was reset or some in-flight data dropped, and counted."""
    WARM = "warm"
    """Weights, optimizer and counters only."""


def lowest_grade(grades: list[Grade]) -> Grade:
    """The grade of a whole is that of its weakest part."""
    order = [Grade.EXACT, Grade.STATISTICAL, Grade.WARM]
    return max(grades, key=order.index, default=Grade.EXACT)


class FileEntry(msgspec.Struct, frozen=True):
    """One file of a checkpoint: where it lies, how long it is and what its bytes are."""

    path: str
    bytes: int
    digest: str
    """``blake3:`` and 64 hex digits."""


class ComponentEntry(msgspec.Struct, frozen=True):
    """One component: its kind, its files, and what is needed to read them."""

    name: str
    kind: str
    section: Section
    files: tuple[str, ...]
    grade: Grade = Grade.EXACT
    array_type: str = ""
    """Type of the arrays of a component that is a flat dictionary of arrays; empty otherwise."""
    detail: dict[str, Any] = {}
    """Facts for people and for the component itself, JSON-able."""


class Cut(msgspec.Struct, frozen=True):
    """The point that all components of one checkpoint belong to."""

    global_step: int
    boundary: str
    """``loop`` (between two items of the loop) or ``call`` (an explicit save)."""


class Origin(msgspec.Struct, frozen=True):
    """The checkpoint of another run that this run began from."""

    run: str
    checkpoint: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is true of one checkpoint. Ordered by ``(generation, sequence)`` within a run."""

    schema_version: int = SCHEMA_VERSION
    run: str
    id: str
    """32 hex digits, random; the first 8 name the checkpoint for people."""
    global_step: int
    generation: int
    sequence: int
    """Counts the commits of one generation."""
    parent: str | None = None
    """Id of the checkpoint that the run continued from or committed before this one."""
    cut: Cut
    reason: str
    created_at: str
    """RFC 3339, UTC; for people, never compared."""
    algorithm: str | None = None
    versions: dict[str, str] = {}
    """Versions of perdure, Python and the frameworks that were loaded."""
    host: dict[str, str] = {}
    grade: Grade = Grade.EXACT
    metrics: dict[str, float] = {}
    origin: Origin | None = None
    components: tuple[ComponentEntry, ...] = ()
    files: tuple[FileEntry, ...] = ()

    @property
    def order(self) -> tuple[int, int]:
        """Sort key: a later generation is newer whatever its step, and commits count up within one."""
        return (self.generation, self.sequence)

    @property
    def total_bytes(self) -> int:
        """Bytes of all files, the manifest itself left out."""
        return sum(entry.bytes for entry in self.files)

    def component(self, name: str) -> ComponentEntry | None:
        """The component of that name, if the checkpoint has it."""
        return next((entry for entry in self.components if entry.name == name), None)

    def file(self, path: str) -> FileEntry | None:
        """The file at that path, if the checkpoint has it."""
        return next((entry for entry in self.files if entry.path == path), None)


NO_KEYS = Keyring()


def encode_manifest(manifest: Manifest, keys: Keyring = NO_KEYS) -> bytes:
    """
    Canonical JSON: sorted keys, indented for people, ending in a newline, behind the lines that seal and sign it.

    Metrics that are not finite are left out: JSON has no form for them, and no policy ranks them.
    """
    finite = {name: value for name, value in manifest.metrics.items() if math.isfinite(value)}
    compact = msgspec.json.encode(msgspec.structs.replace(manifest, metrics=finite), order="sorted")
    return seal(keys.sign(msgspec.json.format(compact, indent=1) + b"\n"))


def decode_manifest(
    content: bytes,
    path: str,
    keys: Keyring = NO_KEYS,
    migrations: Mapping[int, Migration] = MANIFEST_MIGRATIONS,
) -> Manifest:
    """
    Read a manifest that nobody has vouched for.

    Args:
        content: The file's bytes, at most `MAXIMUM_MANIFEST_BYTES`.
        path: Named in errors.
        keys: If there are any, one of them must have signed it.
        migrations: The steps that bring older schemas to this one.

    Raises:
        FormatError: Kind ``manifest.newer-schema``: written by a newer perdure; ``schema.no-migration``: too old;
            ``manifest.unsigned``: it lacks a signature by one of the keys.
        CorruptionError: Kind ``manifest.malformed``: not a manifest, or one that lies about its files;
            ``manifest.forged``: signed with something else than the key that it names.
    """
    envelope = open_envelope(content, path)
    _check_trust(keys.judge(envelope.signature, envelope.document), path)
    if envelope.schema_version > SCHEMA_VERSION:
        raise _newer(envelope.schema_version, path)
    try:
        document = msgspec.json.decode(envelope.document, type=dict)
        current = migrate(document, envelope.schema_version, SCHEMA_VERSION, migrations, path)
        manifest = msgspec.convert(current, Manifest)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _malformed(path, str(error)) from error
    _check(manifest, path)
    return manifest


@dataclass(frozen=True, slots=True)
class Envelope:
    """A manifest of any schema version whose seal is whole, and nothing else known of it."""

    schema_version: int
    signature: Signature | None
    document: bytes
    """What was signed."""


def open_envelope(content: bytes, path: str) -> Envelope:
    """
    Break the seal of a manifest.

    Raises:
        CorruptionError: Kind ``manifest.malformed``.
    """
    if len(content) > MAXIMUM_MANIFEST_BYTES:
        raise _malformed(path, f"it has more than {MAXIMUM_MANIFEST_BYTES} bytes")
    # Before the version is believed: a single damaged bit in it would otherwise look like the work of a newer perdure.
    sealed = unseal(content)
    if sealed is None:
        raise _malformed(path, "its bytes are not those that were sealed")
    signature, document = split_signature(sealed)
    try:
        return Envelope(msgspec.json.decode(document, type=_SchemaOnly).schema_version, signature, document)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _malformed(path, str(error)) from error


def _newer(version: int, path: str) -> FormatError:
    return FormatError(
        f"cannot read {path}: its schema is version {version} and this perdure reads up to {SCHEMA_VERSION}",
        kind="manifest.newer-schema",
        hint="upgrade perdure, or restore with the version that wrote it",
        path=path,
        schema_version=version,
        supported_version=SCHEMA_VERSION,
    )


def _check_trust(trust: Trust, path: str) -> None:
    if trust is Trust.FORGED:
        raise CorruptionError(
            f"cannot use manifest {path}: {trust.value}",
            kind="manifest.forged",
            hint="find out who can write to the run; an older checkpoint is used meanwhile",
            path=path,
        )
    # Not for an older checkpoint to stand in: whoever sets a key on a run that has none would lose all it has.
    if trust in (Trust.UNSIGNED, Trust.UNKNOWN_KEY):
        raise FormatError(
            f"cannot use manifest {path}: {trust.value}",
            kind="manifest.unsigned",
            hint="set the key it was signed with, or, if you know who wrote the run, `perdure migrate RUN --sign`",
            path=path,
        )


class _SchemaOnly(msgspec.Struct):
    schema_version: int


def _check(manifest: Manifest, path: str) -> None:
    if len(manifest.files) > MAXIMUM_FILES or len(manifest.components) > MAXIMUM_FILES:
        raise _malformed(path, f"it lists more than {MAXIMUM_FILES} files or components")
    if not _ID.fullmatch(manifest.id):
        raise _malformed(path, "its id is not 32 hex digits")
    if not all(0 <= n < MAXIMUM_COUNT for n in (manifest.global_step, manifest.generation, manifest.sequence)):
        raise _malformed(path, "a step, generation or sequence is negative or impossibly large")
    try:
        check_segment(manifest.run, "run name")
        for entry in manifest.files:
            check_path(entry.path, "file path")
        for component in manifest.components:
            check_path(component.name, "component name")
    except InvalidInputError as error:
        raise _malformed(path, error.message) from error
    for entry in manifest.files:
        if not 0 <= entry.bytes <= MAXIMUM_FILE_BYTES or not _DIGEST.fullmatch(entry.digest):
            raise _malformed(path, f"the size or digest of {entry.path!r} is impossible")
    _check_unique([entry.path for entry in manifest.files], path)
    _check_unique([entry.name for entry in manifest.components], path)
    known = {entry.path for entry in manifest.files}
    missing = {file for component in manifest.components for file in component.files} - known
    if missing:
        raise _malformed(path, f"a component names the unlisted file {min(missing)!r}")


def _check_unique(names: list[str], path: str) -> None:
    if len(set(names)) != len(names):
        raise _malformed(path, "it lists a name twice")


def _malformed(path: str, what: str) -> CorruptionError:
    return CorruptionError(
        f"cannot read manifest {path}: {what[: 4 * MAXIMUM_NAME_BYTES]}",
        kind="manifest.malformed",
        hint="run `perdure verify`; an older checkpoint is used meanwhile",
        path=path,
    )


def short_id(manifest_or_id: Manifest | str) -> str:
    """The 8 hex digits by which people name a checkpoint."""
    full = manifest_or_id if isinstance(manifest_or_id, str) else manifest_or_id.id
    return full[:8]


def describe_versions(found: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """Differences between the versions a checkpoint was written with and those in use, for people."""
    return [
        f"{name} {wanted[name]} -> {found[name]}"
        for name in sorted(set(found) & set(wanted))
        if found[name] != wanted[name]
    ]
