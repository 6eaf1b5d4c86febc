"""How a saved ring is brought back: what of it, by which way, and what is checked when."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perdure.core.component import PartsSource, Progress, Shortfall
from perdure.core.names import component_stem
from perdure.core.ring import RingState
from perdure.core.trimming import All, MaxAge, Repacking, Trim, plan_repacking, plan_trim, without
from perdure.errors import CorruptionError, IncompatibleError
from perdure.files.door import Files
from perdure.files.systems import file_system_of
from perdure.replay.header import HEADER_FILE, MUTABLE_FILE, Header, decode_header
from perdure.replay.loading import Loader, Task, list_tasks, read_mutable
from perdure.replay.mapping import MappedMemory, mappings_left
from perdure.replay.progress import ProgressFile
from perdure.replay.rings import Columns, Ring, RingContent
from perdure.replay.rows import column_of
from perdure.replay.verification import Doubt, Errand, find_all_damage, find_damage

UNCOUNTED_MAPPINGS = 1024
"""So many fit into every process: one in sixty of what Linux allows by default."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a user can choose about a restore."""

    trim: Trim
    verify: str
    load: str
    damaged: str
    progress: Progress | None
    progress_file: ProgressFile | None
    may_wait: bool
    """Whether rows may come into memory later: the ring tells before they are read or overwritten."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A ring's content in memory; the ring has not been touched."""

    header: Header
    content: RingContent
    errands: tuple[Errand, ...]
    """What is left to do about files that are in use."""
    is_in_place: bool
    """Whether every row is in the slot, and so in the segment, that it was saved from."""
    note: str


def stem_of(source: PartsSource) -> str:
    """Where the component's files lie in the checkpoint."""
    return component_stem(source.entry.name, source.entry.section)


def read_header(source: PartsSource) -> Header:
    """Read the header, verified."""
    path = f"{stem_of(source)}/{HEADER_FILE}"
    return decode_header(source.read(path), path)


def check_fit(header: Header, ring: Ring, arrays: Columns, name: str) -> None:
    """
    Refuse a saved ring whose rows are not those of the live one, which has these arrays.

    Raises:
        IncompatibleError: Kind ``replay.differs``, naming both sides.
    """
    saved = {n: f"{c.dtype}{list(c.shape)}" for n, c in header.columns.items()}
    columns = {n: column_of(n, array) for n, array in arrays.items()}
    live = {n: f"{c.dtype}{list(c.shape)}" for n, c in columns.items()}
    for column in sorted(saved.keys() | live.keys()):
        if saved.get(column) != live.get(column):
            raise _differs(name, f"column {column!r}", live.get(column), saved.get(column))
    if header.n_envs != ring.n_envs:
        raise _differs(name, "the number of environments", str(ring.n_envs), str(header.n_envs))
    if set(header.mutable) != set(ring.mutable):
        raise _differs(
            name, "the set of mutable arrays", ", ".join(sorted(ring.mutable)), ", ".join(sorted(header.mutable))
        )
    generators = [(state or {}).get("bit_generator") for state in (ring.random_state, header.random_state)]
    if None not in generators and generators[0] != generators[1]:
        raise _differs(name, "the random generator", str(generators[0]), str(generators[1]))


def _differs(name: str, what: str, live: str | None, saved: str | None) -> IncompatibleError:
    here, there = live or "none", saved or "none"
    return IncompatibleError(
        f"cannot restore replay buffer {name!r}: {what} is {here} here and {there} in the checkpoint",
        kind="replay.differs",
        hint="make the buffer as it was when it was saved, or track it under another name to begin afresh",
        component=name,
        expected=here,
        actual=there,
    )


def restore_ring(source: PartsSource, ring: Ring, arrays: Columns, options: Options, files: Files) -> Outcome:
    """
    Bring a saved ring into memory.

    Args:
        source: The checkpoint.
        ring: Asked for its form; not changed.
        arrays: Its columns. Their rows are not read, and need not be there yet.
        options: What to restore, and how.
        files: The file system.

    Raises:
        CorruptionError: A file is not what was committed, and is not to be dropped.
        IncompatibleError: It does not fit the ring.
    """
    header = read_header(source)
    check_fit(header, ring, arrays, source.entry.name)
    dtypes = {name: array.dtype for name, array in arrays.items()}
    return _Restore(source, ring, dtypes, options, files, header).run()


class _Restore:
    """One restore, step by step; holds what the steps share."""

    def __init__(
        self,
        source: PartsSource,
        ring: Ring,
        dtypes: Mapping[str, np.dtype[Any]],
        options: Options,
        files: Files,
        header: Header,
    ) -> None:
        self._source = source
        self._ring = ring
        self._dtypes = dtypes
        self._options = options
        self._files = files
        self._header = header
        self._known = options.progress_file.read() if options.progress_file else frozenset()
        self._verified = set(self._known)
        self._done_bytes = 0
        self._total_bytes = 0
        self._notes: list[str] = []

    def run(self) -> Outcome:
        header, ring = self._header, self._ring
        window = header.state.keeping(self._rows_to_load())
        tasks = list_tasks(self._source, stem_of(self._source), header, window)
        lost = self._drop_damaged(tasks) if self._options.damaged == "drop" else []
        paths = {task.doubt.entry.path for task in lost}
        gone = [*header.lost, *(task.piece.used for task in lost)]
        tasks = [task for task in tasks if task.doubt.entry.path not in paths]
        must_move = bool(gone) or header.state.capacity != ring.state.capacity
        loader, errands = self._load(tasks, must_verify=must_move)
        columns: Mapping[str, NDArray[Any]] = loader.columns
        state = window.keeping(self._rows_to_keep(columns, window))
        must_move = must_move or (ring.begins_at_zero and 0 < state.size < state.capacity and state.tail_position != 0)
        must_move = must_move or (ring.begins_at_zero and state.size == 0)
        mutable = self._mutable()
        content = RingContent(columns, mutable, state, header.random_state)
        if must_move:
            content = self._move(content, gone)
        self._describe(content.state, window)
        note = "; ".join(self._notes)
        held, kept = header.state, content.state
        is_whole = not gone and (kept.size, kept.capacity) == (held.size, held.capacity)
        return Outcome(header, content, tuple(errands), not must_move, note if is_whole else Shortfall(note))

    @property
    def _stamps(self) -> str | None:
        """The column by whose values rows are trimmed, if they are."""
        trim = self._options.trim
        return trim.column if isinstance(trim, MaxAge) else None

    def _rows_to_load(self) -> int:
        if self._stamps is not None:
            return self._header.state.size
        return plan_trim(self._options.trim, self._header.state, self._header.n_envs)

    def _rows_to_keep(self, columns: Mapping[str, NDArray[Any]], window: RingState) -> int:
        column = self._stamps
        if column is None:
            return window.size
        if column not in columns:
            raise _differs(self._source.entry.name, f"column {column!r}, by which rows are trimmed,", column, None)
        stamps = columns[column]
        rows = [stamps[start:stop].reshape(stop - start, -1).max(axis=1) for start, stop in window.spans]
        return plan_trim(
            self._options.trim, window, self._header.n_envs, [int(stamp) for part in rows for stamp in part]
        )

    def _drop_damaged(self, tasks: Sequence[Task]) -> list[Task]:
        self._total_bytes = _bytes(tasks)
        damage = find_all_damage(self._source, self._files, [task.doubt for task in tasks], self._done)
        lost = [task for task in tasks if task.doubt in damage]
        self._notes += [f"went on without {task.doubt.rows}, lost with {task.doubt.entry.path}" for task in lost]
        return lost

    def _load(self, tasks: Sequence[Task], *, must_verify: bool) -> tuple[Loader, list[Errand]]:
        loader = Loader(self._source, self._files, self._header.state.capacity, self._header.groups, self._dtypes)
        wide = [task for task in tasks if task.is_mappable]
        file_system, is_local = self._file_system()
        refusal = _refuse_mapping(wide, file_system, is_wise=is_local)
        is_read = bool(refusal) or self._options.load == "read"
        is_eager = is_read or must_verify or self._options.verify == "eager"
        # What an interrupted attempt has found whole is mapped if it can be; the rest is done now.
        known = frozenset() if refusal or must_verify else self._known
        found = [task for task in wide if task.doubt.entry.digest in known]
        rest = [task for task in wide if task.doubt.entry.digest not in known]
        coded = [task for task in tasks if not task.places]
        # The one that the ring goes on in is decoded now: neither the first row added nor what is missing waits for it.
        can_wait = self._options.may_wait and not is_eager and self._stamps is None
        later = self._from_the_head(coded)[1:] if can_wait else []
        plain = [task for task in tasks if task.places and not task.is_mappable]
        now = plain + (rest if is_read else []) + [task for task in coded if task not in later]
        verified = rest if is_eager and not is_read and self._options.damaged != "drop" else []
        mapped = found if is_read else wide
        self._total_bytes = self._done_bytes + _bytes(now) + _bytes(verified)
        # A file is mapped when the first row of it is asked for: of a large ring the first batch needs a few dozen.
        mapped_later = mapped if can_wait else []
        loader.bring(now, [] if can_wait else mapped, [*mapped_later, *later], self._done)
        doubts = [task.doubt for task in verified]
        for error in find_all_damage(self._source, self._files, doubts, self._done).values():
            raise error
        doubtful = found if is_eager else wide
        self._notes.append(_say_how(now, mapped, doubtful, later, refusal, self._options.verify))
        if self._options.progress_file is not None:
            self._options.progress_file.remove()
        errands = [self._bringing(loader.map, task) for task in mapped_later]
        errands += [self._bringing(loader.decode, task) for task in later]
        return loader, errands + [self._comparison(task.doubt) for task in doubtful]

    def _from_the_head(self, tasks: Sequence[Task]) -> list[Task]:
        """In the order in which the ring will overwrite their rows."""
        state = self._header.state
        return sorted(tasks, key=lambda task: (task.piece.used[1] - 1 - state.head_position) % state.capacity)

    def _bringing(self, bring: Callable[[Task], None], task: Task) -> Errand:
        def run(_: memoryview) -> CorruptionError | None:
            try:
                bring(task)
            except CorruptionError as error:
                return error
            return None

        return Errand(task.doubt, run, brings_rows=True)

    def _comparison(self, doubt: Doubt) -> Errand:
        compare = partial(find_damage, self._source, self._files, doubt)
        return Errand(doubt, compare, brings_rows=False)

    def _file_system(self) -> tuple[str, bool]:
        """Which file system the checkpoint is on, and whether it is a local one."""
        descriptor = self._source.open(f"{stem_of(self._source)}/{HEADER_FILE}")
        try:
            return file_system_of(descriptor)
        finally:
            self._files.close(descriptor)

    def _done(self, doubt: Doubt) -> None:
        self._verified.add(doubt.entry.digest)
        self._done_bytes += doubt.entry.bytes
        tell = self._options.progress or self._source.tell
        tell(self._done_bytes, self._total_bytes)
        if self._options.progress_file is not None:
            self._options.progress_file.note(self._verified, self._done_bytes)

    def _mutable(self) -> dict[str, NDArray[Any]]:
        if not self._header.mutable:
            return {}
        arrays = read_mutable(self._source, f"{stem_of(self._source)}/{MUTABLE_FILE}", self._ring.mutable)
        saved_rows, live_rows = self._header.state.capacity, self._ring.state.capacity
        for name, live in self._ring.mutable.items():
            found = arrays.get(name)
            # An array of one value a row has as many as its ring has rows; nothing else may differ.
            wanted = (saved_rows, *live.shape[1:]) if live.shape[:1] == (live_rows,) else live.shape
            if found is None or found.shape != wanted:
                shape = None if found is None else str(list(found.shape))
                raise _differs(self._source.entry.name, f"mutable array {name!r}", str(list(live.shape)), shape)
        return arrays

    def _move(self, content: RingContent, lost: Sequence[tuple[int, int]]) -> RingContent:
        if self._ring.refuses_to_move:
            raise _differs(
                self._source.entry.name,
                f"{self._ring.refuses_to_move}, so its rows cannot be given other slots; the capacity",
                str(self._ring.state.capacity),
                str(content.state.capacity),
            )
        repacking = plan_repacking(content.state, self._ring.state.capacity, lost)
        capacity = content.state.capacity
        columns = {name: _moved(array, repacking) for name, array in content.columns.items()}
        mutable = {
            name: _moved(array, repacking) if array.shape[:1] == (capacity,) else array
            for name, array in content.mutable.items()
        }
        return replace(content, columns=columns, mutable=mutable, state=repacking.state, breaks=repacking.breaks)

    def _describe(self, state: RingState, window: RingState) -> None:
        header = self._header
        if header.lost:
            held = sum(stop - start for span in window.spans for start, stop in without(span, header.lost))
            gone = (window.size - held) * header.n_envs
            self._notes.insert(0, f"without {gone:,} transitions that a repair has given up")
        if not isinstance(self._options.trim, All):
            held = header.state.size * header.n_envs
            self._notes.insert(
                0, f"kept {state.size * header.n_envs:,} of {held:,} transitions, as asked with {self._options.trim}"
            )
        if state.capacity != header.state.capacity:
            self._notes.insert(0, f"capacity changed from {header.state.capacity:,} to {state.capacity:,} rows")


def _moved(array: NDArray[Any], repacking: Repacking) -> NDArray[Any]:
    capacity = repacking.state.capacity
    shape = (capacity, *array.shape[1:])
    memory = MappedMemory(capacity * int(np.prod(array.shape[1:])) * array.dtype.itemsize)
    moved = memory.array(array.dtype, shape)
    for move in repacking.moves:
        moved[move.target : move.target + move.count] = array[move.source : move.source + move.count]
    return moved


def _refuse_mapping(wide: Sequence[Task], file_system: str, *, is_wise: bool) -> str:
    """Why files cannot be mapped; '' if they can."""
    if not wide:
        return ""
    if not is_wise:
        return f"files on {file_system} are not mapped"
    needed = sum(len(task.places) for task in wide)
    # Counting what a process has mapped takes as long as mapping a few thousand files.
    left = mappings_left() if needed > UNCOUNTED_MAPPINGS else needed
    return f"{needed:,} mappings are needed and {left:,} may be used" if needed > left else ""


def _say_how(
    read: Sequence[Task],
    mapped: Sequence[Task],
    doubtful: Sequence[Task],
    later: Sequence[Task],
    refusal: str,
    verify: str,
) -> str:
    when = "at first touch" if verify == "first-touch" else "in the background"
    parts = []
    if mapped:
        parts.append(f"mapped {_mib(mapped)} in {len(mapped):,} files")
    if read:
        parts.append(f"read and verified {_mib(read)} in {len(read):,} files")
    if refusal:
        parts.append(refusal)
    if doubtful:
        parts.append(f"verified {when}")
    elif mapped:
        parts.append("verified before use")
    if later:
        parts.append(f"{_mib(later)} in {len(later):,} coded files verified and decoded {when}")
    return ", ".join(parts) or "nothing to load"


def _bytes(tasks: Sequence[Task]) -> int:
    return sum(task.doubt.entry.bytes for task in tasks)


def _mib(tasks: Sequence[Task]) -> str:
    return f"{_bytes(tasks) / 2**20:,.1f} MiB"
