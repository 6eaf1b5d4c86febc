"""Whether a checkpoint's components can be read: their files taken apart as a restore does, but for no program."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import PurePosixPath

from perdure.capture.arrays import StoredArray
from perdure.capture.snapshot import load_json, load_tensors, load_tree
from perdure.core.manifest import ComponentEntry
from perdure.core.names import component_stem
from perdure.errors import CorruptionError, FormatError, PerdureError, StoreError
from perdure.replay.component import RingComponent
from perdure.replay.header import HEADER_FILE, decode_header
from perdure.store.layout import META_FILE
from perdure.store.store import Checkpoint, Store


def unreadable(store: Store, checkpoint: Checkpoint) -> dict[str, PerdureError]:
    """
    Take every component of a checkpoint apart, one at a time in memory; nothing is made of what they hold.

    Returns:
        What is wrong, by the path of a file of the component that it is wrong with.
    """
    problems: dict[str, PerdureError] = {}
    if checkpoint.manifest.file(META_FILE) is not None:
        _note(problems, META_FILE, lambda: load_json(store.read(checkpoint, META_FILE), META_FILE))
    for entry in checkpoint.manifest.components:
        if entry.files:
            _note(problems, entry.files[0], partial(_take_apart, store, checkpoint, entry))
    return problems


def _note(problems: dict[str, PerdureError], path: str, look: Callable[[], object]) -> None:
    try:
        look()
    except (CorruptionError, FormatError, StoreError) as error:
        problems[path] = error


def _as_stored(stored: StoredArray, kind: str) -> StoredArray:
    """Leave an array as it is stored: whoever looks from outside need not have its library."""
    del kind
    return stored


def _take_apart(store: Store, checkpoint: Checkpoint, entry: ComponentEntry) -> None:
    stem = component_stem(entry.name, entry.section)
    if entry.kind == RingComponent.kind:
        _take_ring_apart(store, checkpoint, entry, f"{stem}/{HEADER_FILE}")
    elif set(entry.files) <= {f"{stem}.json", f"{stem}.safetensors"}:
        load_tree(entry, lambda path: store.read(checkpoint, path), _as_stored)
    # Other files have a form that only their component knows.


def _take_ring_apart(store: Store, checkpoint: Checkpoint, entry: ComponentEntry, header_path: str) -> None:
    folder = PurePosixPath(header_path).parent
    listed = {header_path}
    if header_path in entry.files:
        header = decode_header(store.read(checkpoint, header_path), header_path)
        listed = {str(folder / piece.file) for pieces in header.pieces.values() for piece in pieces}
    if lost := listed - set(entry.files):
        raise CorruptionError(
            f"cannot read replay buffer {entry.name!r}: the checkpoint does not have its {min(lost)}",
            kind="replay.malformed",
            hint="restore an older checkpoint",
            path=header_path,
        )
    for path in sorted(listed):
        load_tensors(store.read(checkpoint, path), path)
