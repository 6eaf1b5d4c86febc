"""Finding runs in a store: a directory with a directory for every run."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Callable
from pathlib import Path

from perdure.core.keys import Keyring
from perdure.core.names import check_segment
from perdure.errors import NotFoundError
from perdure.files.door import Files, explained
from perdure.store.layout import EVENTS_FILE
from perdure.store.store import Store


def run_names(files: Files, root: Path) -> list[str]:
    """
    Return the names of the runs in a store, sorted; other directories are none of our business.

    Raises:
        NotFoundError: Kind ``store.not-found``.
        StoreError: It is no directory, or may not be read.
    """
    with explained("read store", root):
        if not root.exists():
            raise NotFoundError(
                f"cannot read store {root}: there is no such directory",
                kind="store.not-found",
                hint="name the directory of your runs with --store or PERDURE_STORE",
                name=str(root),
            )
        if not root.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "it is a file, not a directory of runs")
        return [name for name in files.names(root) if _is_run(files, root / name)]


def open_run(files: Files, root: Path, run: str, new_id: Callable[[], str], keys: Keyring) -> Store:
    """
    Return the store of an existing run.

    Raises:
        NotFoundError: Kind ``store.not-found`` or ``run.not-found``, with what was probably meant.
        FormatError: Kind ``run.newer-schema``.
        InvalidInputError: Kind ``name.invalid``.
        StoreError: The store is no directory, or may not be read.
    """
    names = run_names(files, root)
    if run not in names:
        raise _no_run(root, check_segment(run, "run name"), names)
    store = Store(root / run, files, new_id, keys)
    with explained("read", store.directory):
        store.identity()
    return store


def _is_run(files: Files, directory: Path) -> bool:
    # Not through a link: a run that is reached by two names would be listed, and cleaned up, twice.
    if directory.is_symlink():
        return False
    # A supervised command that died before it opened its run has left a history, and that is what one wants to see.
    return Store(directory, files, str).exists() or files.status(directory / EVENTS_FILE) is not None


def _no_run(root: Path, run: str, names: list[str]) -> NotFoundError:
    near = difflib.get_close_matches(run, names, 1)
    if near:
        hint = f"did you mean {near[0]!r}?"
    elif names:
        hint = f"there is {', '.join(names[:8])}{' and more' if len(names) > 8 else ''} (`perdure runs`)"
    else:
        hint = f"there is no run in {root} yet; --store or PERDURE_STORE names another directory"
    return NotFoundError(f"cannot find run {run!r} in store {root}", kind="run.not-found", hint=hint, name=run)
