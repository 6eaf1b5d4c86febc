"""
Shared files: memory that is a file of a memory file system at the same time, and outlives the process as one.

What is written to the memory is in the file at once. A second name for the file, a hard link, makes a copy of it that
costs nothing and holds for as long as nobody writes to the memory again.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from pathlib import Path

from perdure.errors import StoreError
from perdure.files.door import Files, explained
from perdure.files.publish import remove_tree


class SharedFile:
    """
    A file and the memory that it is made of. The memory is unmapped with its last view.

    Args:
        files: The file system.
        path: Must not exist.
        size_bytes: All of it is taken at once: a file system that is full says so here, not by a signal later.

    Raises:
        StoreError: It cannot be made; nothing is left of it.
    """

    def __init__(self, files: Files, path: Path, size_bytes: int) -> None:
        self._files = files
        self.path = path
        with explained("make", path):
            self.memory = memoryview(files.map_new(path, size_bytes))

    @property
    def is_ours_alone(self) -> bool:
        """Whether the file has the name that it was made with and no other, so that nobody relies on its content."""
        with explained("look at", self.path):
            status = self._files.status(self.path)
        # Gone is our name if the next writer has cleaned up: what other names there are is then unknown.
        return status is not None and status.st_nlink == 1

    def forget(self) -> None:
        """Take our name away. The file goes with its last name and the last view of its memory."""
        with suppress(StoreError):  # what stays is removed by the next start
            remove_tree(self._files, self.path)


class SharedFolder:
    """
    A folder of shared files.

    Args:
        files: The file system.
        path: Made with the first file in it; its parent exists.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self._numbers = count()

    def make(self, size_bytes: int) -> SharedFile:
        """
        A new file.

        Raises:
            StoreError: It cannot be made, such as for want of memory.
        """
        number = next(self._numbers)
        if number == 0:
            with explained("make directory", self._path):
                self._files.make_directory(self._path)
        return SharedFile(self._files, self._path / str(number), size_bytes)
