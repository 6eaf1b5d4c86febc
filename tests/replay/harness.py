"""A small stand-in for the run directory: turns captures into committed directories with the real file code."""

import os
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from perdure.core.component import DeferredPart, LinkPart
from perdure.core.manifest import ComponentEntry, FileEntry, Grade
from perdure.core.names import Section, component_stem
from perdure.core.ring import Piece
from perdure.files.door import Files
from perdure.files.publish import make_folders
from perdure.files.reading import open_checked, read_verified
from perdure.files.writing import digest_of, write_file
from perdure.replay.header import HEADER_FILE, encode_head, encode_table
from perdure.replay.layout import plan_rows

STEM = component_stem("replay", Section.BUFFER)


@dataclass
class Source:
    """A committed directory as a component sees it."""

    directory: Path
    entry: ComponentEntry
    files: dict

    def read(self, path):
        """Read a verified file."""
        return read_verified(Files(), self.directory, self.files[path])

    def open(self, path):
        """Open a file of the right length."""
        return open_checked(Files(), self.directory, self.files[path])

    def tell(self, done_bytes, total_bytes):
        """Nobody waits."""

    def path(self, name):
        """Where a file of the buffer lies."""
        return self.directory / STEM / name


class Shop:
    """Commits captures below a directory, one after the other."""

    def __init__(self, root):
        self.root = root
        self.count = 0
        self.written_bytes = 0
        self.written_paths = []

    def write(self, capture):
        """Write a capture's files; neither committed nor aborted yet."""
        self.count += 1
        directory = self.root / f"checkpoint-{self.count}"
        directory.mkdir()
        files = Files()
        make_folders(files, directory, [part.path for part in capture.parts])
        entries = {}
        self.written_bytes = 0
        self.written_paths = []
        for part in capture.parts:
            if isinstance(part, LinkPart):
                files.link(part.source, directory / part.path)
                entries[part.path] = FileEntry(part.path, part.entry.bytes, part.entry.digest)
            else:
                part = part.make() if isinstance(part, DeferredPart) else part
                digest = write_file(files, directory / part.path, part.size_bytes, part.chunks())
                entries[part.path] = FileEntry(part.path, part.size_bytes, digest)
                self.written_bytes += part.size_bytes
                self.written_paths.append(part.path)
        return directory, entries

    def commit(self, capture):
        """Write and commit a capture; returns how a component reads it."""
        directory, entries = self.write(capture)
        capture.on_committed(directory, entries)
        return source_of(directory, entries)

    def save(self, component):
        """Capture, write and commit."""
        return self.commit(component.capture_parts(STEM))


def source_of(directory, entries):
    """Make a component's view of files that are there."""
    entry = ComponentEntry("replay", "replay.ring", Section.BUFFER, tuple(entries), Grade.EXACT)
    return Source(directory, entry, dict(entries))


def sparse_checkpoint(directory, groups, state, n_envs=1):
    """
    Commit a ring full of zeros without writing them: equal segments are one sparse file under many names.

    Returns:
        How a component reads it.
    """
    folder = directory / STEM
    folder.mkdir(parents=True)
    entries, pieces, made = {}, {}, {}
    for group in groups:
        for segment in range(group.segment_count(state.capacity)):
            span = group.span(segment, state.capacity)
            layout, _ = plan_rows(group.columns, span[1] - span[0], is_mappable=group.is_mappable)
            name = group.file_name(segment, 0)
            key = (group.prefix, span[1] - span[0])
            if key not in made:
                with (folder / name).open("wb") as file:
                    file.write(layout.prefix)
                    file.truncate(layout.total_bytes)
                hashed = blake3(layout.prefix)
                zeros = bytes(2**20)
                left = layout.total_bytes - len(layout.prefix)
                while left > 0:
                    hashed.update(zeros[: min(left, len(zeros))])
                    left -= len(zeros)
                made[key] = (folder / name, f"blake3:{hashed.hexdigest()}")
            else:
                os.link(made[key][0], folder / name)
            entries[f"{STEM}/{name}"] = FileEntry(f"{STEM}/{name}", layout.total_bytes, made[key][1])
            pieces[group.prefix, segment] = (Piece(segment, name, span, span),)
    header = encode_head(state, n_envs, groups, (), None) + encode_table(pieces)
    (folder / HEADER_FILE).write_bytes(header)
    path = f"{STEM}/{HEADER_FILE}"
    entries[path] = FileEntry(path, len(header), digest_of(header))
    return source_of(directory, entries)
