"""
Migrations: documents of an older schema made into those of the next, one small pure function a version.

A reader knows one form. What is older is taken there step by step, so that a step is written once, when the schema
changes, and never again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from perdure.errors import FormatError

Migration = Callable[[dict[str, Any]], dict[str, Any]]
"""Takes a decoded document of one version, which it may change, and returns that of the next."""

MANIFEST_MIGRATIONS: Mapping[int, Migration] = {}
"""By the version that each one starts from. Version 1 is the first, so nothing has to be migrated yet."""


def migrate(
    document: dict[str, Any], version: int, target: int, migrations: Mapping[int, Migration], path: str
) -> dict[str, Any]:
    """
    Take a document from one schema version to another, step by step.

    Args:
        document: Decoded JSON; owned by the callee.
        version: The document's version.
        target: The version wanted, not lower.
        migrations: The steps.
        path: Named in errors.

    Raises:
        FormatError: Kind ``schema.no-migration``: a step is missing.
    """
    for step in range(version, target):
        if step not in migrations:
            raise FormatError(
                f"cannot read {path}: nothing leads from its schema version {version} to {target}",
                kind="schema.no-migration",
                hint="read it with the perdure that wrote it",
                path=path,
                schema_version=version,
                supported_version=target,
            )
        document = {**migrations[step](document), "schema_version": step + 1}
    return document
