"""
Making names appear: a directory of finished files becomes visible whole, or a small file is replaced whole.

The order is what makes it safe. A file's bytes are synced before its name is used, a folder's names before the folder
is renamed, and the parent's names before anyone is told. See docs/format/publish.md.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from perdure.files.door import Files, explained
from perdure.files.writing import write_all, write_file


def ensure_directory(files: Files, path: Path) -> None:
    """
    Make a directory and what is missing above it; the name of each is durable when this returns.

    That holds for one that exists as well: whoever made it may have been killed before its name was synced.
    """
    if path.is_dir():
        _sync_name(files, path)
        return
    with explained("make directory", path):
        if files.status(path) is not None:
            raise NotADirectoryError(errno.ENOTDIR, "a file is in the way")
        ensure_directory(files, path.parent)
        files.make_directory(path)
        try:
            files.sync_directory(path.parent)
        except BaseException:
            # A sync that succeeds after one that failed proves nothing, so the next attempt has to make it anew.
            with suppress(OSError):
                files.remove_directory(path)
            raise


def ensure_directories(files: Files, paths: Iterable[Path]) -> None:
    """The same for several directories: what they lie in is synced once for all that exist."""
    parents = {}
    for path in paths:
        if path.is_dir():
            parents[path.parent] = path
        else:
            ensure_directory(files, path)
    for path in parents.values():
        _sync_name(files, path)


def _sync_name(files: Files, path: Path) -> None:
    with explained("sync directory", path.parent):
        try:
            files.sync_directory(path.parent)
        except PermissionError:
            # Only who may read a directory can sync it. One of an administrator's was not made a moment ago by us.
            return


def make_folders(files: Files, root: Path, relative_paths: Iterable[str]) -> list[Path]:
    """
    Make every folder that the given files need below ``root``, which exists.

    Returns:
        The folders made, deepest last. Their names are not yet durable: `publish_directory` syncs them.
    """
    folders = {
        root.joinpath(*segments[:depth])
        for segments in (relative.split("/") for relative in relative_paths)
        for depth in range(1, len(segments))
    }
    ordered = sorted(folders, key=lambda folder: (len(folder.parts), folder))
    for folder in ordered:
        with explained("make directory", folder):
            files.make_directory(folder)
    return ordered


def sync_folders(files: Files, root: Path, folders: list[Path]) -> None:
    """Make the names in ``root`` and its folders durable, from the bottom up."""
    for folder in [*reversed(folders), root]:
        with explained("sync directory", folder):
            files.sync_directory(folder)


def publish_directory(files: Files, staging: Path, target: Path) -> None:
    """
    Give a finished, synced staging directory its final name; durable when this returns, or ``files`` has settled.

    A crash leaves either the staging directory or the target, never a part of it under the target's name.
    """
    with explained("publish", target):
        # COMMIT POINT: from here on readers see the directory.
        files.rename(staging, target)
        # Protects the new name: without it a power cut can bring the old name back.
        files.sync_directory(target.parent)
        if staging.parent != target.parent:
            files.sync_directory(staging.parent)


def replace_file(files: Files, path: Path, content: bytes, temporary: Path, instead_of: Iterable[Path] = ()) -> None:
    """
    Put a small file in the place of another, atomically and durably.

    Args:
        files: The file system.
        path: The name that is to hold ``content``.
        content: All of it.
        temporary: A path on the same file system that nothing reads and nobody else uses.
        instead_of: Names in the same directory that it supersedes, and that a power cut may leave beside it.
    """
    with explained("replace", path), _removed_on_failure(files, temporary):
        write_file(files, temporary, len(content), [memoryview(content)])
        files.rename(temporary, path)
        for name in instead_of:
            files.unlink(name)
        files.sync_directory(path.parent)


def swap_file(files: Files, path: Path, content: bytes, temporary: Path) -> None:
    """
    Put a small file in the place of another, atomically for whoever reads, and survived by no power cut.

    A process that dies leaves the old content or the new; a machine that does, those or none that can be read.
    """
    with explained("replace", path), _removed_on_failure(files, temporary):
        descriptor = files.open_new(temporary)
        try:
            write_all(files, descriptor, memoryview(content))
        finally:
            files.close(descriptor)
        files.rename(temporary, path)


def replace_symlink(files: Files, path: Path, content: str, temporary_name: str) -> None:
    """Point a symbolic link somewhere else, atomically and durably."""
    temporary = path.with_name(temporary_name)
    with explained("replace", path), _removed_on_failure(files, temporary):
        files.symlink(content, temporary)
        files.rename(temporary, path)
        files.sync_directory(path.parent)


@contextmanager
def _removed_on_failure(files: Files, temporary: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        # The space is wanted back, above all on a full disk. If even this fails the next start removes the file; the
        # error that matters is the one being raised.
        with suppress(OSError):
            remove_tree(files, temporary)
        raise


def remove_tree(files: Files, root: Path) -> None:
    """Remove a directory and all in it, or a file, or a link and not what it leads to; one that is gone is no error."""
    with explained("remove", root):
        status = files.status(root)
        if status is None:
            return
        if not stat.S_ISDIR(status.st_mode):
            files.unlink(root)
            return
        for name in files.names(root):
            remove_tree(files, root / name)
        files.remove_directory(root)
