"""Key files: where the keys lie that manifests are signed with."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

from perdure.core.keys import Key, Keyring, key_text, parse_keys
from perdure.core.manifest import NO_KEYS
from perdure.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from perdure.files.door import Files, explained
from perdure.files.publish import replace_file
from perdure.files.reading import read_small
from perdure.store.layout import TEMPORARY_PREFIX

KEY_FILE_VARIABLE = "PERDURE_KEY_FILE"
_MAXIMUM_BYTES = 64 * 1024


def environment_keys(files: Files, environ: Mapping[str, str]) -> Keyring:
    """Read the keys that the environment names; none if it names no file."""
    path = environ.get(KEY_FILE_VARIABLE)
    return read_keys(files, Path(path)) if path else NO_KEYS


def read_keys(files: Files, path: Path) -> Keyring:
    """
    Read a key file.

    Raises:
        NotFoundError: Kind ``keys.not-found``.
        InvalidInputError: Kind ``keys.malformed``, or ``keys.exposed``: others than its owner may read it.
        StoreError: It cannot be read.
    """
    content = read_small(files, path.absolute().parent, path.name, _MAXIMUM_BYTES)
    if content is None:
        raise NotFoundError(
            f"cannot read keys from {path}: there is no such file",
            kind="keys.not-found",
            hint=f"`perdure key {path}` makes one; {KEY_FILE_VARIABLE} names it",
            name=str(path),
        )
    with explained("look at", path):
        status = files.status(path)
    if status is not None and stat.S_IMODE(status.st_mode) & 0o077:
        raise InvalidInputError(
            f"cannot use the keys of {path}: others than its owner may read it",
            kind="keys.exposed",
            hint=f"chmod 600 {path}, and if somebody may have read it, make a new key (`perdure key {path}`)",
            field=str(path),
        )
    return parse_keys(content.decode(errors="replace"), str(path))


def add_key(files: Files, path: Path, key: Key, temporary_name: str) -> Keyring:
    """
    Put a new key before those of a file, which is made if it is missing; the new one signs from now on.

    A crash leaves the old file or the new one.

    Raises:
        AlreadyExistsError: Kind ``keys.exists``: the file has a key of that name.
        NotFoundError: Kind ``keys.no-directory``.
        InvalidInputError, StoreError: As for `read_keys`.
    """
    with explained("look at", path):
        known = read_keys(files, path) if files.status(path) is not None else NO_KEYS
    if any(each.id == key.id for each in known.keys):
        raise AlreadyExistsError(
            f"cannot add key {key.id!r} to {path}: it has one of that name",
            kind="keys.exists",
            hint="choose another name (`--id`)",
            name=key.id,
        )
    keyring = Keyring((key, *known.keys))
    text = "".join(map(key_text, keyring.keys))
    parse_keys(text, str(path))
    path = path.absolute()
    if not path.parent.is_dir():
        raise NotFoundError(
            f"cannot make key file {path}: there is no directory {path.parent}",
            kind="keys.no-directory",
            hint="make the directory first, where only you can look",
            name=str(path.parent),
        )
    replace_file(files, path, text.encode(), path.with_name(f"{TEMPORARY_PREFIX}{temporary_name}"))
    return keyring
