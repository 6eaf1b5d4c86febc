"""
What a component is to the rest of perdure: something that can be captured and restored.

There are two forms. A *tree component* hands over a state tree; everything mutable in it is copied into an arena before
`save` returns. A *parts component* hands over files of its own, which may be written later from memory that it keeps
unchanged by itself; a replay buffer is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from perdure.core.manifest import ComponentEntry, FileEntry, Grade
from perdure.core.names import Section

if TYPE_CHECKING:
    from typing_extensions import TypeIs


@dataclass(frozen=True, slots=True)
class ContentPart:
    """A file of a checkpoint that has to be written."""

    path: str
    """Where it lies in the checkpoint."""
    size_bytes: int
    chunks: Callable[[], Iterable[memoryview]]
    """Called once, in the writer's thread. Each chunk is borrowed until the next one is asked for. Chunks that begin
    at a multiple of 4096 in memory, and are multiples of it but for the last, are written without a copy."""
    shared: Path | None = None
    """A file of the memory file system that holds the same bytes, for as long as the chunks are valid."""
    digest: str | None = None
    """The digest of the bytes, if somebody has come to know it already."""


@dataclass(frozen=True, slots=True)
class LinkPart:
    """A file of a checkpoint that an earlier one already has, byte for byte: it becomes a hard link."""

    path: str
    source: Path
    entry: FileEntry
    """Size and digest, as recorded when it was written."""


@dataclass(frozen=True, slots=True)
class DeferredPart:
    """A file of a checkpoint whose length is known only once it has been put together, as of compressed bytes."""

    path: str
    make: Callable[[], ContentPart]
    """Called once for each tier, in the writer's thread; the file has the same path. Room is asked for then."""


@dataclass(frozen=True, slots=True)
class ElsewherePart:
    """A file of a checkpoint in memory that a checkpoint on the disk has: it is named, and does not lie there."""

    path: str
    entry: FileEntry
    """Size and digest, by which the disk's file is found."""


Part = ContentPart | LinkPart | DeferredPart | ElsewherePart


def _nothing(*_: object) -> None:
    """Do nothing: most components need not know how their save ended."""


@dataclass(frozen=True, slots=True)
class PartsCapture:
    """
    What a parts component hands over at a save.

    Exactly one of ``on_committed`` and ``on_aborted`` is called, in the writer's thread, when the checkpoint is durable
    or has been given up. One that went to the memory tier alone counts as given up: later saves cannot link to it.
    """

    parts: tuple[Part, ...]
    detail: dict[str, Any] = field(default_factory=dict)
    on_committed: Callable[[Path, Mapping[str, FileEntry]], None] = _nothing
    """Gets the checkpoint's directory and its files by path, so that later saves can link to them."""
    on_aborted: Callable[[], None] = _nothing


class Shortfall(str):
    """
    A note of a restore after which a component goes on less exactly than its checkpoint would have let it.

    It is returned in the place of a plain note, and lowers the grade of the restore to `Grade.STATISTICAL`.
    """

    __slots__ = ()


Progress = Callable[[int, int], None]
"""Told of bytes done and bytes in all, in the thread that restores."""


class PartsSource(Protocol):
    """A committed checkpoint as a parts component reads it."""

    @property
    def directory(self) -> Path:
        """The checkpoint's directory; its files are never written again."""
        ...

    @property
    def entry(self) -> ComponentEntry:
        """The component's record in the manifest."""
        ...

    @property
    def files(self) -> Mapping[str, FileEntry]:
        """The component's files by path."""
        ...

    def read(self, path: str) -> memoryview:
        """
        Read a whole file whose size and digest are those of the manifest; the memory is the caller's.

        Raises:
            CorruptionError: The file is gone or its bytes are not the committed ones.
        """
        ...

    def open(self, path: str) -> int:
        """
        Open a file of the right size for reading, without following links; the descriptor is the caller's to close.

        The bytes are not verified: a caller that maps them checks the digest itself, at first touch or behind it.

        Raises:
            CorruptionError: The file is gone or has another size.
        """
        ...

    def tell(self, done_bytes: int, total_bytes: int) -> None:
        """Tell whoever waits for the restore how far reading is; may be called as often as one likes."""
        ...


@runtime_checkable
class TreeComponent(Protocol):
    """A component whose state is a state tree (see `perdure.core.tree`)."""

    @property
    def kind(self) -> str:
        """Stable name of what it is, such as ``torch.module``."""
        ...

    @property
    def section(self) -> Section:
        """The folder it belongs to."""
        ...

    @property
    def grade(self) -> Grade:
        """How exactly a resume continues it."""
        ...

    def capture(self) -> object:
        """Return the state tree; arrays may be borrowed from the live object, the caller copies them at once."""
        ...

    def check(self, tree: object) -> None:
        """
        Refuse a state that does not fit, before anything has been changed.

        Raises:
            IncompatibleError: Names the first difference.
        """
        ...

    def restore(self, tree: object) -> str:
        """
        Bring the live object, in place, to the state; ``tree`` is owned by the callee.

        Returns:
            A note for the report, '' if there is nothing to say; a `Shortfall` if it goes on less exactly than saved.
        """
        ...


@runtime_checkable
class PartsComponent(Protocol):
    """A component that writes and reads files of its own."""

    @property
    def kind(self) -> str:
        """Stable name of what it is, such as ``replay.ring``."""
        ...

    @property
    def section(self) -> Section:
        """The folder it belongs to."""
        ...

    @property
    def grade(self) -> Grade:
        """How exactly a resume continues it."""
        ...

    def capture_parts(self, stem: str) -> PartsCapture:
        """
        Fix the state as of now and return the files that hold it, all at ``stem`` plus ``/...`` or an ending.

        Must not copy what is large nor wait for a disk; the content must stay as it is now until the capture is
        committed or aborted, whatever the owner does to the live object.
        """
        ...

    def check_parts(self, source: PartsSource) -> None:
        """
        Refuse a state that does not fit or is damaged, before anything has been changed.

        Raises:
            IncompatibleError: Names the first difference.
            CorruptionError: A file is not what was committed.
        """
        ...

    def restore_parts(self, source: PartsSource) -> str:
        """Bring the live object to the state, idempotently. Returns a note for the report, or ''."""
        ...

    def check(self) -> None:
        """
        Raise what has come to light behind the last restore; asked at every boundary, so it costs next to nothing.

        Raises:
            CorruptionError: A part of the restored state turned out to be damaged.
        """
        ...


Component = TreeComponent | PartsComponent


def fixed_tree(component: TreeComponent) -> Callable[[], object] | None:
    """
    Have a component fix its state as of now without handing it over, if it can.

    One that can has a method ``fix_state``. What that returns gives the state tree, and is called in the thread that
    writes: nobody changes what is in the tree, so training waits for nothing. It returns None if the state has to be
    captured like that of any other component this time.
    """
    fix: Callable[[], Callable[[], object] | None] | None = getattr(component, "fix_state", None)
    return fix() if fix is not None else None


def writes_parts(component: Component) -> TypeIs[PartsComponent]:
    """Whether a component writes files of its own; asked at every save, where a protocol check would cost too much."""
    return hasattr(component, "capture_parts")
