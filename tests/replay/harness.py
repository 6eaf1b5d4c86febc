"""A small stand-in for the run directory: turns captures into committed directories with the real file code."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from perdure.core.component import LinkPart
from perdure.core.manifest import ComponentEntry, FileEntry, Grade
from perdure.core.names import Section, component_stem
from perdure.files.door import Files
from perdure.files.publish import make_folders
from perdure.files.reading import open_checked, read_verified
from perdure.files.writing import write_file

STEM = component_stem("replay", Section.BUFFER)


@dataclass
class Source:
    """A committed directory as a component sees it."""

    directory: Path
    entry: ComponentEntry
    files: dict
    opened: list = field(default_factory=list)

    def read(self, path):
        return read_verified(Files(), self.directory, self.files[path])

    def open(self, path):
        self.opened.append(path)
        return open_checked(Files(), self.directory, self.files[path])

    def path(self, name):
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
        return self.commit(component.capture_parts(STEM))


def source_of(directory, entries):
    entry = ComponentEntry("replay", "replay.ring", Section.BUFFER, tuple(entries), Grade.EXACT)
    return Source(directory, entry, dict(entries))


def transition(number, n_envs=1):
    """What every column holds for the transition of this number: nothing else has the same content."""
    seed = hashlib.blake2b(str(number).encode(), digest_size=8).digest()
    return {
        "obs": number,
        "seed": int.from_bytes(seed, "little") % 2**31,
    }
