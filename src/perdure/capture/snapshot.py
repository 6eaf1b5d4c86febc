"""Captures: all components of a run, taken at one cut, as the files of a checkpoint to be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from perdure.capture.arena import Arena
from perdure.capture.arrays import StoredArray, array_type, convert, on_accelerator, spec_of
from perdure.capture.gate import Beside, Copying, Gate
from perdure.core.component import Component, ContentPart, Part, TreeComponent, hands_over, writes_parts
from perdure.core.manifest import ComponentEntry, FileEntry
from perdure.core.names import component_stem
from perdure.core.tensorfile import file_chunks, header_bytes, parse_header, plan_layout
from perdure.core.tree import encode_structure, flatten, take_apart, unflatten
from perdure.errors import CorruptionError


@dataclass(frozen=True, slots=True)
class Capture:
    """
    A cut of a run, not yet written.

    Attributes:
        parts: Files to write or link; those that lie in an arena are valid until it is used again.
        entries: The components' records for the manifest.
        copied_bytes: What was copied to make it.
        beside: Copies that still go on; settle them before the parts are used.
        is_lent: Whether some of the parts are put together from live memory, and can be asked for their content once.
    """

    parts: tuple[Part, ...]
    entries: tuple[ComponentEntry, ...]
    copied_bytes: int
    beside: Beside
    is_lent: bool
    committed: Callable[[Path, Mapping[str, FileEntry]], None]
    aborted: Callable[[], None]


def content_part(path: str, content: bytes | memoryview, shared: Path | None = None) -> ContentPart:
    """A file whose content is at hand, and which ``shared`` may be already."""
    view = memoryview(content)
    return ContentPart(path, view.nbytes, lambda: (view,), shared)


def take_capture(components: Mapping[str, Component], arena: Arena, gate: Gate) -> Capture:
    """
    Capture components as of now. When this returns the live objects may change again, but for what the gate guards.

    Raises:
        InvalidInputError: Something in a component cannot be stored; nothing has been kept.
    """
    parts: list[Part] = []
    entries: list[ComponentEntry] = []
    committed: list[Callable[[Path, Mapping[str, FileEntry]], None]] = []
    aborted: list[Callable[[], None]] = []

    def abort() -> None:
        for call in aborted:
            call()

    copied = 0
    copying = gate.begin()
    try:
        for name, component in components.items():
            stem = component_stem(name, component.section)
            if writes_parts(component):
                taken = component.capture_parts(stem)
                own, kind, detail = taken.parts, "", taken.detail
                committed.append(taken.on_committed)
                aborted.append(taken.on_aborted)
            else:
                own, kind = _store_tree(component, stem, arena, copying)
                detail = getattr(component, "detail", {})
                copied += sum(part.size_bytes for part in own if isinstance(part, ContentPart))
            parts.extend(own)
            entries.append(
                ComponentEntry(
                    name=name,
                    kind=component.kind,
                    section=component.section,
                    files=tuple(part.path for part in own),
                    grade=component.grade,
                    array_type=kind,
                    detail=detail,
                )
            )
        arena.keep_only(part.path for part in parts)
        beside = copying.finish()
    except BaseException:
        abort()
        raise

    def commit(directory: Path, files: Mapping[str, FileEntry]) -> None:
        for call in committed:
            call(directory, files)

    return Capture(tuple(parts), tuple(entries), copied, beside, bool(aborted), commit, abort)


def _store_tree(component: TreeComponent, stem: str, arena: Arena, copying: Copying) -> tuple[tuple[Part, ...], str]:
    flat = flatten(component.capture(), array_type)
    parts: list[Part] = []
    if flat.arrays:
        path = f"{stem}.safetensors"
        image = arena.image(path, flat.arrays)
        if hands_over(component) and not any(on_accelerator(array) for array in flat.arrays.values()):
            copying.copy_later(partial(image.fill, flat.arrays))
        else:
            copying.copy(image.moves(flat.arrays))
        parts.append(content_part(path, image.content, image.path))
    if not flat.array_type:
        parts.append(content_part(f"{stem}.json", encode_structure(flat.structure)))
    return tuple(parts), flat.array_type


def tree_parts(stem: str, tree: object) -> tuple[ContentPart, ...]:
    """
    The files of a state tree that is written as it is, without a copy: nobody changes its arrays, which are NumPy's.

    Raises:
        InvalidInputError: Something in it cannot be stored.
    """
    flat = take_apart(tree, array_type)
    layout = plan_layout([spec_of(name, array) for name, array in flat.arrays.items()])
    chunks = file_chunks(layout, flat.arrays)
    return (
        content_part(f"{stem}.json", encode_structure(flat.structure)),
        ContentPart(f"{stem}.safetensors", layout.total_bytes, lambda: chunks),
    )


def load_tree(
    entry: ComponentEntry,
    read: Callable[[str], memoryview],
    make: Callable[[StoredArray, str], Any] = convert,
) -> Any:
    """
    Read a tree component's state; every array in it is backed by memory that the caller owns.

    Args:
        entry: The component's record.
        read: Gives a whole verified file by its path.
        make: Makes an array of the type that is named; needs that type's library, unless it is told otherwise.

    Raises:
        CorruptionError: The files do not form a state.
    """
    structure: object = None
    arrays: dict[str, StoredArray] = {}
    for path in entry.files:
        content = read(path)
        if path.endswith(".safetensors"):
            arrays = load_tensors(content, path)
        else:
            structure = load_json(content, path)
    try:
        return unflatten(structure, arrays, make, entry.array_type)
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptionError(
            f"cannot read component {entry.name!r}: {error}",
            kind="component.malformed",
            hint="run `perdure verify`, and restore an older checkpoint",
            path=entry.files[0] if entry.files else entry.name,
        ) from error


def load_tensors(content: memoryview, path: str) -> dict[str, StoredArray]:
    """
    Take a tensor file apart without a copy.

    Raises:
        CorruptionError: It is not a tensor file.
    """
    length = header_bytes(bytes(content[:8]), len(content), path)
    tensors = parse_header(bytes(content[8 : 8 + length]), len(content), path)
    return {
        tensor.spec.name: StoredArray(
            content[tensor.offset_bytes : tensor.offset_bytes + tensor.spec.size_bytes], tensor.spec
        )
        for tensor in tensors
    }


def load_json(content: memoryview, path: str) -> Any:
    """
    Read a verified JSON file.

    Raises:
        CorruptionError: It is not JSON.
    """
    try:
        return msgspec.json.decode(bytes(content))
    except (msgspec.DecodeError, RecursionError) as error:
        raise CorruptionError(f"cannot read {path}: it is not JSON", kind="component.malformed", path=path) from error
