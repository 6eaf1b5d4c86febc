"""
The restore side: from the files of a checkpoint to one plain array a column.

A column is one range of memory. Where the file system allows it, files are mapped to their places in it, page by page,
and nothing is read before it is used; what does not fill a page at the edges of a piece is read. Elsewhere, and on
request, files are read side by side straight into their places, with their digests on the way. Coded files are decoded
into theirs.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import msgspec
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from perdure.core.component import PartsSource
from perdure.core.manifest import FileEntry
from perdure.core.ring import PAGE_BYTES, Column, Group, Piece, RingState, overlap
from perdure.core.tensorfile import Layout, header_bytes, parse_header
from perdure.errors import CorruptionError
from perdure.files.door import Files, explained
from perdure.files.reading import Reader, allocate, look_at, open_checked
from perdure.replay.coding import CodedFile
from perdure.replay.header import Header
from perdure.replay.layout import Place, plan_rows
from perdure.replay.mapping import MappedMemory
from perdure.replay.verification import READERS, Done, Doubt, damaged_segment

_STRIDE_BYTES = 1024 * 1024
"""Large enough for reads past the page cache, each of which waits for the disk."""


class Task(msgspec.Struct, frozen=True):
    """One file to bring into memory."""

    doubt: Doubt
    columns: tuple[Column, ...]
    places: tuple[Place, ...]
    """Where the columns lie in the file; empty if it is coded."""
    is_mappable: bool

    @property
    def piece(self) -> Piece:
        """Which rows."""
        return self.doubt.piece


def list_tasks(source: PartsSource, stem: str, header: Header, window: RingState) -> list[Task]:
    """
    The files that hold rows of ``window``, checked against the manifest.

    Raises:
        CorruptionError: Kind ``replay.malformed``: header and manifest contradict each other.
    """
    groups = {group.prefix: (group.columns, group.is_mappable) for group in header.groups}
    listed, spans = source.files, window.spans
    layouts: dict[tuple[str, int], tuple[Layout, tuple[Place, ...]]] = {}
    tasks = []
    for key, pieces in header.pieces.items():
        columns, is_mappable = groups[key[0]]
        for piece in pieces:
            if not any(overlap(piece.used, span) for span in spans):
                continue
            path = f"{stem}/{piece.file}"
            entry = listed.get(path)
            form = (key[0], piece.held[1] - piece.held[0])
            if form not in layouts:
                layouts[form] = plan_rows(columns, form[1], is_mappable=is_mappable)
            layout, places = layouts[form]
            if entry is None or (entry.bytes != layout.total_bytes and not piece.is_coded):
                raise _contradicted(path, piece, entry, layout.total_bytes)
            doubt = Doubt(key, piece, entry, header.state, header.n_envs)
            if piece.is_coded:
                tasks.append(Task(doubt, columns, (), is_mappable=False))
            else:
                tasks.append(Task(doubt, columns, places, is_mappable))
    return tasks


def _contradicted(path: str, piece: Piece, entry: FileEntry | None, needed_bytes: int) -> CorruptionError:
    return CorruptionError(
        f"cannot use replay segment {path}: the manifest lists it with {entry.bytes if entry else 'no'} bytes and "
        f"{piece.held[1] - piece.held[0]} rows need {needed_bytes}",
        kind="replay.malformed",
        hint="restore an older checkpoint",
        path=path,
        expected=needed_bytes,
        actual=entry.bytes if entry else None,
    )


class Loader:
    """
    Brings files into the columns of a ring.

    Args:
        source: The checkpoint.
        files: The file system.
        capacity: Rows of the columns.
        dtypes: NumPy's types of the columns.
    """

    def __init__(
        self, source: PartsSource, files: Files, capacity: int, groups: Sequence[Group], dtypes: Mapping[str, Any]
    ) -> None:
        self._source = source
        self._files = files
        self._folder: int | None = None
        columns = [column for group in groups for column in group.columns]
        self._memory = {column.name: MappedMemory(capacity * column.row_bytes) for column in columns}
        self.columns: dict[str, NDArray[Any]] = {
            column.name: self._memory[column.name].array(np.dtype(dtypes[column.name]), (capacity, *column.shape))
            for column in columns
        }

    def bring(self, to_read: Sequence[Task], to_map: Sequence[Task], later: Sequence[Task], done: Done) -> None:
        """
        Read files to their places, several at a time and digests compared, and map others while the disk is busy.

        Args:
            to_read: Files to read, or to decode if they are coded.
            to_map: Files whose bytes are not verified.
            later: Files that are only looked at, whether they are there and have their lengths.
            done: Told of each that has been read.

        Raises:
            CorruptionError: Kind ``replay.damaged``: the first file that is not what was committed, or of those not to
                be read is gone or has another length; the columns are not to be used.
            StoreError: The process has too many mappings.
        """
        for column in {column.name for task in to_read for column in task.columns}:
            self._memory[column].expect_all()
        with ThreadPoolExecutor(READERS, "perdure-read") as pool:
            running = {pool.submit(self._read_file, task): task for task in to_read}
            try:
                for task in to_map:
                    self.map(task)
                for task in later:
                    self._look(task)
                for finished in as_completed(running):
                    finished.result()
                    done(running[finished].doubt)
            finally:
                for waiting in running:
                    waiting.cancel()

    def _folder_of(self, task: Task) -> int | None:
        """
        The open folder of a file, in which all of them lie; None if it cannot be opened, and each is asked for by path.

        It is closed when nobody wants anything of this loader any more.
        """
        if self._folder is None:
            try:
                folder = self._files.open_folder_beneath(
                    self._source.directory, task.doubt.entry.path.rpartition("/")[0]
                )
            except OSError:
                return None
            weakref.finalize(self, self._files.close, folder).atexit = False
            self._folder = folder
        return self._folder

    def map(self, task: Task) -> None:
        """
        Map a file to its places; nothing is read but what does not fill a page at its edges.

        Raises:
            CorruptionError: Kind ``replay.damaged``: it is gone or has another length.
            StoreError: The process has too many mappings, or the file cannot be opened.
        """
        descriptor = self._open(task.doubt, self._folder_of(task))
        try:
            for place in task.places:
                self._map_column(descriptor, task.piece, place)
        finally:
            self._files.close(descriptor)

    def _look(self, task: Task) -> None:
        try:
            look_at(self._files, self._source.directory, task.doubt.entry, self._folder_of(task))
        except CorruptionError as error:
            raise self._damaged(task.doubt, error) from error

    def _open(self, doubt: Doubt, folder: int | None = None) -> int:
        try:
            return open_checked(self._files, self._source.directory, doubt.entry, folder)
        except CorruptionError as error:
            raise self._damaged(doubt, error) from error

    def _damaged(self, doubt: Doubt, error: CorruptionError) -> CorruptionError:
        return damaged_segment(doubt.entry.path, doubt.rows, error.message, error.expected or "", error.actual or "")

    def _map_column(self, descriptor: int, piece: Piece, place: Place) -> None:
        row_bytes = place.size_bytes // (piece.held[1] - piece.held[0])
        at = piece.used[0] * row_bytes
        size = (piece.used[1] - piece.used[0]) * row_bytes
        offset = place.offset_bytes + (piece.used[0] - piece.held[0]) * row_bytes
        lead = min(-at % PAGE_BYTES, size)
        whole = (size - lead) // PAGE_BYTES * PAGE_BYTES
        memory = self._memory[place.column.name]
        if whole:
            memory.map_file(descriptor, offset + lead, whole, at + lead)
        if whole < size:
            with explained("read", "a replay segment"):
                edges, reader = memory.bytes().data, Reader(self._files, descriptor, size, in_pages=False)
                reader.fill(edges[at : at + lead], offset)
                reader.fill(edges[at + lead + whole : at + size], offset + lead + whole)

    def _read_file(self, task: Task) -> None:
        doubt, piece = task.doubt, task.piece
        if not task.places:
            self.decode(task)
            return
        if piece.held != piece.used:
            self._read_part(task)
            return
        digest = blake3()
        scratch = allocate(PAGE_BYTES)
        descriptor = self._open(doubt)
        try:
            position = 0
            reader = Reader(self._files, descriptor, doubt.entry.bytes, in_pages=task.is_mappable)
            for place in sorted(task.places, key=lambda place: place.offset_bytes):
                while position < place.offset_bytes:
                    position += self._take(reader, scratch[: place.offset_bytes - position], position, digest)
                at = piece.used[0] * place.column.row_bytes
                target = self._memory[place.column.name].bytes().data[at : at + place.size_bytes]
                for start in range(0, len(target), _STRIDE_BYTES):
                    position += self._take(reader, target[start : start + _STRIDE_BYTES], position, digest)
        finally:
            self._files.close(descriptor)
        actual = f"blake3:{digest.hexdigest()}"
        if actual != doubt.entry.digest:
            raise damaged_segment(
                doubt.entry.path, doubt.rows, "its bytes are not those that were committed", doubt.entry.digest, actual
            )

    def _take(self, reader: Reader, target: memoryview, offset: int, digest: Any) -> int:
        with explained("read", "a replay segment"):
            reader.fill(target, offset)
        digest.update(target)
        return len(target)

    def _content(self, doubt: Doubt) -> memoryview:
        try:
            return self._source.read(doubt.entry.path)
        except CorruptionError as error:
            raise self._damaged(doubt, error) from error

    def _read_part(self, task: Task) -> None:
        """Take some rows of a file that holds more; there are at most two such files a group."""
        piece, content = task.piece, self._content(task.doubt)
        for place in task.places:
            row_bytes = place.column.row_bytes
            start = place.offset_bytes + (piece.used[0] - piece.held[0]) * row_bytes
            rows = content[start : start + (piece.used[1] - piece.used[0]) * row_bytes]
            at = piece.used[0] * row_bytes
            self._memory[place.column.name].bytes()[at : at + len(rows)] = np.frombuffer(rows, np.uint8)

    def decode(self, task: Task) -> None:
        """
        Decode a coded file to its places, its digest compared before.

        Raises:
            CorruptionError: Kind ``replay.damaged``.
            MissingDependencyError: It is packed with something that is not installed.
        """
        doubt, piece = task.doubt, task.piece
        wanted = (piece.used[0] - piece.held[0], piece.used[1] - piece.held[0])
        content = self._content(doubt)
        try:
            coded = CodedFile(content, piece.held[1] - piece.held[0], doubt.entry.path)
            for column in task.columns:
                coded.read(column, wanted, self.columns[column.name][piece.used[0] : piece.used[1]])
        except ValueError as error:
            raise damaged_segment(doubt.entry.path, doubt.rows, f"it cannot be decoded: {error}") from error


def read_mutable(source: PartsSource, path: str, live: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """
    Read the arrays that were copied, verified.

    Args:
        source: The checkpoint.
        path: Of their file.
        live: The ring's arrays of the same names, which say of which types they are.

    Raises:
        CorruptionError: The file is not what was committed, or no tensor file.
    """
    content = source.read(path)
    start = header_bytes(bytes(content[:8]), len(content), path)
    arrays = {}
    for placed in parse_header(bytes(content[8 : 8 + start]), len(content), path):
        raw = np.frombuffer(content, np.uint8)[placed.offset_bytes : placed.offset_bytes + placed.spec.size_bytes]
        arrays[placed.spec.name] = raw.view(live[placed.spec.name].dtype).reshape(placed.spec.shape)
    return arrays
