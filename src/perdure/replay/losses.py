"""What is lost with a damaged segment, in transitions, for whoever looks at a checkpoint without restoring it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from perdure.core.manifest import ComponentEntry, FileEntry
from perdure.errors import CorruptionError, FormatError, PerdureError, StoreError
from perdure.replay.header import HEADER_FILE, decode_header, encode_header
from perdure.replay.verification import Doubt, damaged_segment


def name_losses(
    components: tuple[ComponentEntry, ...],
    files: Mapping[str, FileEntry],
    read: Callable[[str], memoryview],
    problems: Mapping[str, PerdureError],
) -> dict[str, PerdureError]:
    """
    Say of damaged replay segments which transitions they hold, and how to go on without them.

    Args:
        components: Of the checkpoint.
        files: The checkpoint's files by path.
        read: Gives a whole file, verified.
        problems: What is wrong with files, by path.

    Returns:
        The same, with the errors of segments replaced. Where a buffer's header is damaged nothing can be said.
    """
    named = dict(problems)
    for entry in components:
        hurt = problems.keys() & set(entry.files)
        headers = [path for path in entry.files if path.rpartition("/")[2] == HEADER_FILE]
        if not hurt or not headers:
            continue
        try:
            header = decode_header(read(headers[0]), headers[0])
        except (CorruptionError, FormatError, StoreError):
            continue
        folder = headers[0].rpartition("/")[0]
        for key, pieces in header.pieces.items():
            for piece in pieces:
                path = f"{folder}/{piece.file}"
                if path in hurt:
                    rows = Doubt(key, piece, files[path], header.state, header.n_envs).rows
                    why = problems[path].message
                    named[path] = damaged_segment(path, rows, why.partition(": ")[2] or why)
    return named


def go_without(
    component: ComponentEntry, read: Callable[[str], memoryview], lost: Collection[str]
) -> tuple[str, bytes] | None:
    """
    Write a buffer's header anew, for a checkpoint that goes on without some segments.

    Args:
        component: Of the checkpoint.
        read: Gives a whole file, verified.
        lost: Paths of the component's files that are gone or damaged.

    Returns:
        The header's path and its new content. None if other files than segments are among the lost ones, or if it is
        no buffer: nothing can go on without those.

    Raises:
        CorruptionError: The header itself is damaged.
        StoreError: It cannot be read.
    """
    paths = [path for path in component.files if path.rpartition("/")[2] == HEADER_FILE]
    if not paths:
        return None
    header = decode_header(read(paths[0]), paths[0])
    folder = paths[0].rpartition("/")[0]
    segments = {f"{folder}/{piece.file}": piece.file for held in header.pieces.values() for piece in held}
    if not set(lost) <= segments.keys():
        return None
    return paths[0], encode_header(header.without([segments[path] for path in lost]))
