"""What is lost with a damaged segment, in transitions, for whoever looks at a checkpoint without restoring it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from perdure.core.manifest import ComponentEntry, FileEntry
from perdure.errors import CorruptionError, FormatError, PerdureError, StoreError
from perdure.replay.header import HEADER_FILE, decode_header
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
                    named[path] = damaged_segment(path, rows, problems[path].message)
    return named
