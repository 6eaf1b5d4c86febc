"""
Mending: files of committed checkpoints are never written in place, but a damaged one can be replaced by a whole copy.

What takes its place is made in staging and then renamed, so that a crash leaves the one or the other, and what it
leaves in staging is removed at the next start. Only the run's writer, or nobody beside it, may mend.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from perdure.core.keys import Keyring
from perdure.core.manifest import NO_KEYS, FileEntry, open_envelope
from perdure.files.door import Files, explained
from perdure.files.publish import ensure_directory, remove_tree, replace_file
from perdure.files.reading import read_verified
from perdure.files.writing import write_file
from perdure.store.layout import MANIFEST_FILE, STAGING
from perdure.store.store import Checkpoint, Store, checked_manifest, manifest_of


def renew_manifest(store: Store, directory: Path, *, trust_unsigned: bool) -> Checkpoint:
    """
    Write a checkpoint's manifest anew, in the current schema and signed with the current key.

    Args:
        store: The run.
        directory: The checkpoint's, under ``snapshots/``.
        trust_unsigned: Whether one that no known key has signed is accepted, and vouched for from now on.

    Raises:
        CorruptionError: It is no whole manifest, or a forged one.
        FormatError: Kind ``manifest.unsigned``, ``manifest.newer-schema`` or ``schema.no-migration``.
        StoreError: It could not be written; the old one is there still.
    """
    content = store.read_manifest(directory)
    manifest = manifest_of(directory, content, _keys_for(store, content, directory, trust_unsigned=trust_unsigned))
    manifest, renewed = checked_manifest(manifest, directory, store.keys)
    _replace(store, directory / MANIFEST_FILE, renewed)
    return Checkpoint(directory, manifest)


def _keys_for(store: Store, content: bytes, directory: Path, *, trust_unsigned: bool) -> Keyring:
    # Trust is for what no known key says anything about. What names a known key has to be signed with it.
    is_known = store.keys.knows(open_envelope(content, str(directory)).signature)
    return NO_KEYS if trust_unsigned and not is_known else store.keys


def replace_manifest(store: Store, directory: Path, content: bytes) -> Checkpoint:
    """
    Put a copy of a checkpoint's manifest in the place of a damaged one, or of one that is gone.

    Raises:
        CorruptionError: It is none of this directory's, or a forged one; nothing was changed.
        FormatError: As in `Store.scan`.
        StoreError: It could not be written; the old one is there still.
    """
    manifest = manifest_of(directory, content, store.keys)
    _replace(store, directory / MANIFEST_FILE, content)
    return Checkpoint(directory, manifest)


def replace_content(store: Store, checkpoint: Checkpoint, entry: FileEntry, source: Path) -> None:
    """
    Put a copy of a file in the place of a damaged one, or of one that is gone.

    It becomes a hard link where the copy lies in this run, as checkpoints share files, and is written anew otherwise.

    Args:
        store: The run.
        checkpoint: What the file belongs to.
        entry: The file, as committed.
        source: The copy.

    Raises:
        CorruptionError: The copy is not what was committed; nothing was changed.
        StoreError: It could not be written; what was there is there still.
    """
    content = read_verified(store.files, source.parent, FileEntry(source.name, entry.bytes, entry.digest))
    target = checkpoint.directory / entry.path
    if _is_same_file(store.files, source, target):
        return  # a rename onto itself would leave the other name in staging
    temporary = _temporary(store)
    with explained("mend", target):
        if source.is_relative_to(store.directory):
            store.files.link(source, temporary)
        else:
            write_file(store.files, temporary, entry.bytes, [content])
        _make_way(store.files, checkpoint.directory, target)
        store.files.rename(temporary, target)
        store.files.sync_directory(target.parent)


def _is_same_file(files: Files, one: Path, other: Path) -> bool:
    with explained("look at", other):
        status, expected = files.status(other), files.status(one)
    return status is not None and expected is not None and os.path.samestat(status, expected)


def _make_way(files: Files, root: Path, target: Path) -> None:
    """Have real folders from ``root`` to ``target``, and no folder in its place."""
    for folder in reversed(target.relative_to(root).parents[:-1]):
        status = files.status(root / folder)
        if status is not None and not stat.S_ISDIR(status.st_mode):
            files.unlink(root / folder)  # a link: what is put behind it would lie outside
        ensure_directory(files, root / folder)
    status = files.status(target)
    if status is not None and stat.S_ISDIR(status.st_mode):
        remove_tree(files, target)


def _replace(store: Store, path: Path, content: bytes) -> None:
    replace_file(store.files, path, content, _temporary(store))


def _temporary(store: Store) -> Path:
    return store.directory / STAGING / f"mending-{store.new_id()}"
