"""Which checkpoints share a file: hard links of what did not change from one save to the next."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from perdure.store.store import Checkpoint


def sharing(checkpoints: Iterable[Checkpoint], one: Checkpoint, path: str | None) -> list[Checkpoint]:
    """The other checkpoints that have the very file that ``one`` has at a path within it."""
    if path is None:
        return []
    file = one.directory / path
    return [
        other for other in checkpoints if other.directory != one.directory and _is_same(file, other.directory / path)
    ]


def _is_same(one: Path, other: Path) -> bool:
    try:
        return os.path.samestat(one.lstat(), other.lstat())
    except OSError:  # one of them is gone: nothing is shared any more
        return False
