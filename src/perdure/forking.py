"""Forking: a new run that begins where another one stood. The old run is not touched."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import msgspec

from perdure.core.component import ContentPart, LinkPart, Part
from perdure.core.manifest import FileEntry, Origin
from perdure.core.names import check_segment
from perdure.core.selectors import select
from perdure.errors import AlreadyExistsError, NotFoundError
from perdure.files.door import Files
from perdure.store.keyfile import environment_keys
from perdure.store.store import Checkpoint, Store
from perdure.surroundings import Surroundings


def fork(where: str | os.PathLike[str], *, run: str, to: str, at: str = "latest") -> Path:
    """
    Make a new run whose first checkpoint is one of another run's.

    Files are shared with the old run by hard links where the file system allows it; neither run ever writes them
    again. Opening the new run continues from there, under a name and a history of its own.

    Args:
        where: Directory that holds runs.
        run: The run to fork.
        to: Name of the new run.
        at: Which checkpoint, as a selector.

    Returns:
        The new run's directory.

    Raises:
        NotFoundError: There is no such run or checkpoint.
        AlreadyExistsError: The new name is taken.
        CorruptionError: The checkpoint is damaged; nothing was made of it.
    """
    root = Path(where)
    surroundings = Surroundings()
    files = Files()
    keys = environment_keys(files, os.environ)
    source = Store(root / check_segment(run, "run name"), files, surroundings.new_id, keys)
    target = Store(root / check_segment(to, "run name"), files, surroundings.new_id, keys)
    if not source.exists():
        raise NotFoundError(
            f"cannot fork run {run!r}: there is none of that name in {root}",
            kind="run.not-found",
            hint="`perdure runs` lists them",
            name=run,
        )
    if target.exists():
        raise AlreadyExistsError(
            f"cannot fork to {to!r}: there is a run of that name in {root}",
            kind="run.exists",
            hint="choose another name",
            name=to,
        )
    found = source.checkpoints()
    chosen = select(at, [checkpoint.manifest for checkpoint in found], source.pins())
    checkpoint = next(checkpoint for checkpoint in found if checkpoint.manifest is chosen)
    for problem in source.verify(checkpoint, digests=True):
        raise problem
    target.create(to, surroundings.now())
    draft = msgspec.structs.replace(
        chosen,
        run=to,
        id=surroundings.new_id(),
        generation=0,
        sequence=1,
        parent=None,
        reason="fork",
        created_at=surroundings.now(),
        origin=Origin(run, chosen.id),
        files=(),
    )
    linked = _same_file_system(source.directory, target.directory)
    parts = [_part(source, checkpoint, entry, linked=linked) for entry in chosen.files]
    target.commit(draft, parts, nullcontext)
    return target.directory


def _same_file_system(one: Path, other: Path) -> bool:
    return one.stat().st_dev == other.stat().st_dev


def _part(source: Store, checkpoint: Checkpoint, entry: FileEntry, *, linked: bool) -> Part:
    if linked:
        return LinkPart(entry.path, checkpoint.directory / entry.path, entry)
    return ContentPart(entry.path, entry.bytes, lambda: (source.read(checkpoint, entry.path),))
