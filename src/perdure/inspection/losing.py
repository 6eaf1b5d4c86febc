"""
Going on without what is lost: a checkpoint whose replay segments are damaged, less the transitions that they held.

It is committed as a new checkpoint that shares every whole file with the damaged one, so that nothing is changed in
place. One that a start has already put aside is brought back in this way too, if the run has not gone on since.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from perdure.core.component import ContentPart, LinkPart, Part
from perdure.core.manifest import MAXIMUM_MANIFEST_BYTES, FileEntry, Grade, Manifest, decode_manifest
from perdure.core.names import parse_checkpoint_directory_name
from perdure.errors import CorruptionError, FormatError, PerdureError, StoreError
from perdure.files.reading import read_small, read_verified
from perdure.replay.losses import go_without
from perdure.store.layout import MANIFEST_FILE, QUARANTINE
from perdure.store.store import Checkpoint, Store

_REASON = "repair"


def newest_aside(store: Store) -> Checkpoint | None:
    """The newest checkpoint in quarantine, as far as manifests can be read there."""
    found = []
    folder = store.directory / QUARANTINE
    for name in store.names(folder):
        if parse_checkpoint_directory_name(name.rpartition("-")[0]) is None:
            continue
        with contextlib.suppress(CorruptionError, FormatError, StoreError):
            content = read_small(store.files, folder / name, MANIFEST_FILE, MAXIMUM_MANIFEST_BYTES)
            if content is not None:
                found.append(Checkpoint(folder / name, decode_manifest(content, name, store.keys)))
    return max(found, key=lambda checkpoint: checkpoint.manifest.order, default=None)


def can_lose(store: Store, checkpoint: Checkpoint, lost: Collection[str]) -> bool:
    """Whether a checkpoint can go on without these files: all of them are segments of replay buffers."""
    try:
        return bool(lost) and _headers_without(store, checkpoint, lost) is not None
    except PerdureError:
        return False


def _headers_without(store: Store, checkpoint: Checkpoint, lost: Collection[str]) -> Mapping[str, bytes] | None:
    """The headers of the buffers that lose something, by path; None if it is not only segments that are lost."""
    headers: dict[str, bytes] = {}
    left = set(lost)
    for component in checkpoint.manifest.components:
        theirs = left & set(component.files)
        if theirs:
            found = go_without(component, partial(store.read, checkpoint), theirs)
            if found is None:
                return None
            headers[found[0]] = found[1]
            left -= theirs
    return None if left else headers


def commit_without(
    store: Store, checkpoint: Checkpoint, lost: Collection[str], sources: Mapping[str, Path], at: str
) -> Checkpoint:
    """
    Commit a checkpoint anew without some replay segments; the old one is left as it is.

    Args:
        store: The run; nobody else writes to it.
        checkpoint: The damaged one, wherever in the run it lies.
        lost: Paths of the segments.
        sources: Where whole copies of other damaged files lie, by path.
        at: The time.

    Raises:
        CorruptionError: A copy is not whole any more.
        StoreError: It could not be written.
    """
    headers = _headers_without(store, checkpoint, lost)
    assert headers is not None, "planned from the same files"
    parts = [
        _part(store, checkpoint, entry, headers.get(entry.path), sources.get(entry.path))
        for entry in checkpoint.manifest.files
        if entry.path not in lost
    ]
    return store.commit(_draft(checkpoint.manifest, lost, store.new_id(), at), parts, contextlib.nullcontext)


def _draft(manifest: Manifest, lost: Collection[str], new_id: str, at: str) -> Manifest:
    components = tuple(
        msgspec.structs.replace(
            component, files=tuple(path for path in component.files if path not in lost), grade=Grade.STATISTICAL
        )
        if set(component.files) & set(lost)
        else component
        for component in manifest.components
    )
    grade = Grade.STATISTICAL if manifest.grade is Grade.EXACT else manifest.grade
    return msgspec.structs.replace(
        manifest, id=new_id, parent=manifest.id, reason=_REASON, created_at=at, grade=grade, components=components
    )


def _part(store: Store, checkpoint: Checkpoint, entry: FileEntry, header: bytes | None, source: Path | None) -> Part:
    if header is not None:
        return _content(entry.path, memoryview(header))
    if source is not None and not source.is_relative_to(store.directory):
        copy = FileEntry(source.name, entry.bytes, entry.digest)
        return _content(entry.path, read_verified(store.files, source.parent, copy))
    return LinkPart(entry.path, source or checkpoint.directory / entry.path, entry)


def _content(path: str, content: memoryview) -> ContentPart:
    chunks: Sequence[memoryview] = [content]
    return ContentPart(path, len(content), lambda: chunks)
