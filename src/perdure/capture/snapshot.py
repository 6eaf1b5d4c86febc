"""Captures: all components of a run, taken at one cut, as the files of a checkpoint to be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from perdure.capture.arena import Arena, Image
from perdure.capture.arrays import StoredArray, array_type, convert, spec_of
from perdure.capture.gate import Beside, Gate
from perdure.core.component import Component, ContentPart, LinkPart, Part, TreeComponent, fixed_tree, writes_parts
from perdure.core.manifest import ComponentEntry, FileEntry
from perdure.core.names import component_stem
from perdure.core.tensorfile import file_chunks, header_bytes, parse_header, plan_layout
from perdure.core.tree import encode_structure, flatten, take_apart, unflatten
from perdure.errors import CorruptionError


class Stored(NamedTuple):
    """One component of a capture: its files, and its record for the manifest."""

    parts: tuple[Part, ...]
    entry: ComponentEntry


@dataclass(frozen=True, slots=True)
class Capture:
    """
    A cut of a run, not yet written.

    Attributes:
        beside: Copies that still go on; settle them before anything else is done with it.
        store: Gives the components in order, called once, in the thread that writes; files that lie in an arena are
            valid until it is used again.
        linked: Files of earlier checkpoints that some of its files will be links to.
        is_lent: Whether some of its files are put together from live memory, and can be asked for their content once.
    """

    beside: Beside
    store: Callable[[], tuple[Stored, ...]]
    linked: tuple[Path, ...]
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
    taken: list[Stored | Callable[[], Stored]] = []
    linked: list[Path] = []
    committed: list[Callable[[Path, Mapping[str, FileEntry]], None]] = []
    aborted: list[Callable[[], None]] = []

    def abort() -> None:
        for call in aborted:
            call()

    copying = gate.begin()

    def copy(image: Image, arrays: Mapping[str, Any]) -> None:
        copying.copy(image.moves(arrays))

    try:
        for name, component in components.items():
            stem = component_stem(name, component.section)
            if writes_parts(component):
                files = component.capture_parts(stem)
                committed.append(files.on_committed)
                aborted.append(files.on_aborted)
                linked += [part.source for part in files.parts if isinstance(part, LinkPart)]
                taken.append(Stored(files.parts, _entry(name, component, files.parts, detail=files.detail)))
            elif (fixed := fixed_tree(component)) is not None:
                taken.append(partial(_store_fixed, name, component, stem, fixed, arena))
            else:
                taken.append(_store_tree(name, component, stem, component.capture(), arena, copy))
        beside = copying.finish()
    except BaseException:
        abort()
        raise

    def store() -> tuple[Stored, ...]:
        stored = tuple(each if isinstance(each, Stored) else each() for each in taken)
        taken.clear()  # what was fixed is copied, and need not be held any longer
        arena.keep_only(part.path for each in stored for part in each.parts)
        return stored

    def commit(directory: Path, files: Mapping[str, FileEntry]) -> None:
        for call in committed:
            call(directory, files)

    return Capture(beside, store, tuple(linked), bool(aborted), commit, abort)


def _store_fixed(name: str, component: TreeComponent, stem: str, tree: Callable[[], object], arena: Arena) -> Stored:
    return _store_tree(name, component, stem, tree(), arena, Image.fill)


def _store_tree(
    name: str,
    component: TreeComponent,
    stem: str,
    tree: object,
    arena: Arena,
    fill: Callable[[Image, Mapping[str, Any]], None],
) -> Stored:
    flat = flatten(tree, array_type)
    parts: list[Part] = []
    if flat.arrays:
        path = f"{stem}.safetensors"
        image = arena.image(path, flat.arrays)
        fill(image, flat.arrays)
        parts.append(content_part(path, image.content, image.path))
    if not flat.array_type:
        parts.append(content_part(f"{stem}.json", encode_structure(flat.structure)))
    detail = getattr(component, "detail", {})
    return Stored(tuple(parts), _entry(name, component, parts, array_type=flat.array_type, detail=detail))


def _entry(name: str, component: Component, parts: Iterable[Part], **fields: Any) -> ComponentEntry:
    return ComponentEntry(
        name=name,
        kind=component.kind,
        section=component.section,
        files=tuple(part.path for part in parts),
        grade=component.grade,
        **fields,
    )


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
