"""
Every state in which a power cut may leave a file system, enumerated from a recording.

The method is that of ALICE (Pillai et al., OSDI 2014), restated for the operations of `Files`. The model promises no
more than POSIX does together with one custom that all journaling file systems share, that a rename is atomic:

- a file's bytes and length survive once the file was synced after they were written;
- a name (made, renamed, linked or removed) survives once every directory that it changes was synced after it;
- until then each operation may be there or not, independently of the others and of their order;
- a write that is not yet synced may be there in part, or as zeros of its full length;
- what a failed sync did not save is not saved by a later one, for the kernel has marked it clean.

Real file systems allow fewer states. What survives all of these survives them.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path, PurePosixPath

from perdure.testing.recording import Mark, Operation

_NEVER = 1 << 60
_ROOT = 0


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link."""

    content: str


Node = bytes | Link | None
"""A file's content, a symbolic link, or None for a directory."""
Tree = Mapping[str, Node]
"""What lies below a root, by relative path."""


def digest_of_tree(tree: Tree) -> bytes:
    """Equal for equal trees, in every process."""
    lines = [f"{path}|{_digest_of_node(node)}" for path, node in tree.items()]
    return hashlib.blake2b("\n".join(sorted(lines)).encode(), digest_size=16).digest()


@functools.lru_cache(maxsize=4096)
def _digest_of_node(node: Node) -> str:
    return hashlib.blake2b(node, digest_size=16).hexdigest() if isinstance(node, bytes) else repr(node)


@dataclass(frozen=True, slots=True)
class CrashState:
    """
    What may be found after a power cut.

    Attributes:
        tree: What is visible.
        after: How many operations had been begun; marks among them had been written.
        lost: The operations that did not survive, or not whole, for people.
    """

    tree: Tree
    after: int
    lost: tuple[str, ...]


@dataclass(slots=True, eq=False)
class _Effect:
    """One change that survives or does not."""

    index: int
    operation: str
    entries: tuple[tuple[int, str, int | None], ...] = ()
    file: int = -1
    data: bytes = b""
    offset: int = 0
    cut: bool = False
    durable_at: int = _NEVER
    waits_for: set[int] = field(default_factory=set)


_Variant = str
_WHOLE, _GONE, _ZEROS = "whole", "gone", "zeros"
_TORN = ("first byte", "half", "all but the last byte", _ZEROS)


@dataclass(slots=True)
class _Image:
    folders: dict[int, dict[str, int]]
    contents: dict[int, bytes]

    def copy(self) -> _Image:
        return _Image({inode: dict(names) for inode, names in self.folders.items()}, dict(self.contents))

    def apply(self, effect: _Effect, variant: _Variant = _WHOLE) -> None:
        if variant == _GONE:
            return
        for folder, name, child in effect.entries:
            names = self.folders.setdefault(folder, {})
            if child is None:
                names.pop(name, None)
            else:
                names[name] = child
        if effect.cut:
            self.contents[effect.file] = self.contents.get(effect.file, b"")[: effect.offset].ljust(
                effect.offset, b"\0"
            )
        elif effect.data:
            data = _torn(effect.data, variant)
            old = self.contents.get(effect.file)
            if old:
                old = old.ljust(effect.offset, b"\0")
                data = old[: effect.offset] + data + old[effect.offset + len(data) :]
            else:
                data = data.rjust(effect.offset + len(data), b"\0")
            self.contents[effect.file] = data

    def tree(self, directories: Collection[int], links: Mapping[int, str]) -> dict[str, Node]:
        found: dict[str, Node] = {}
        waiting = [("", _ROOT)]
        while waiting:
            prefix, folder = waiting.pop()
            for name, child in self.folders.get(folder, {}).items():
                path = f"{prefix}{name}"
                if child in directories:
                    found[path] = None
                    waiting.append((f"{path}/", child))
                else:
                    found[path] = Link(links[child]) if child in links else self.contents.get(child, b"")
        return found


def _torn(data: bytes, variant: _Variant) -> bytes:
    match variant:
        case "first byte":
            return data[:1]
        case "half":
            return data[: len(data) // 2]
        case "all but the last byte":
            return data[:-1]
        case "zeros":
            return bytes(len(data))
        case _:
            return data


class _Disk:
    """Follows a recording: resolves paths to inodes, and finds out when each effect becomes durable."""

    def __init__(self, initial: Tree) -> None:
        self.now = _Image({_ROOT: {}}, {})
        self.directories = {_ROOT}
        self.links: dict[int, str] = {}
        self.effects: list[_Effect | None] = []
        self._next = _ROOT
        self._open: dict[str, int] = {}
        self._pending: list[_Effect] = []
        for path, node in sorted(initial.items()):
            folder, name = self._place(path)
            self.now.folders[folder][name] = self._new(node)
        self.base = self.now.copy()

    def _new(self, node: Node) -> int:
        self._next += 1
        if node is None:
            self.now.folders[self._next] = {}
            self.directories.add(self._next)
        elif isinstance(node, Link):
            self.links[self._next] = node.content
        else:
            self.now.contents[self._next] = node
        return self._next

    def _inode(self, path: str) -> int:
        inode = _ROOT
        for name in PurePosixPath(path).parts:
            inode = self.now.folders[inode][name]
        return inode

    def _place(self, path: str) -> tuple[int, str]:
        parent, _, name = path.rpartition("/")
        return self._inode(parent), name

    def follow(self, index: int, operation: Operation) -> None:
        """Take the next operation into account."""
        if operation.name in ("sync", "sync_directory"):
            self._sync(index, operation)
            self.effects.append(None)
            return
        effect = None if operation.failed else self._effect(index, operation)
        if effect is not None:
            self.now.apply(effect)
            self._pending.append(effect)
        self.effects.append(effect)

    def _sync(self, index: int, operation: Operation) -> None:
        inode = self._open[operation.path] if operation.name == "sync" else self._inode(operation.path)
        for effect in [effect for effect in self._pending if inode in effect.waits_for]:
            if operation.failed:
                self._pending.remove(effect)  # it stays possible to lose it, for ever
                continue
            effect.waits_for.remove(inode)
            if not effect.waits_for:
                effect.durable_at = index
                self._pending.remove(effect)

    def _effect(self, index: int, operation: Operation) -> _Effect | None:
        name, text = operation.name, str(operation)
        if name in ("write", "truncate"):
            file = self._open[operation.path]
            cut = name == "truncate"
            return _Effect(index, text, (), file, operation.data, operation.offset_bytes, cut, waits_for={file})
        if name == "append":
            return self._append(index, operation, text)
        if name in ("mark", "close"):
            return None
        folder, last = self._place(operation.path)
        entries: tuple[tuple[int, str, int | None], ...]
        match name:
            case "open_new":
                self._open[operation.path] = self._new(b"")
                entries = ((folder, last, self._open[operation.path]),)
            case "make_directory":
                entries = ((folder, last, self._new(None)),)
            case "symlink":
                entries = ((folder, last, self._new(Link(operation.data.decode()))),)
            case "link":
                entries = ((folder, last, self._inode(operation.source)),)
            case "rename":
                old_folder, old_last = self._place(operation.source)
                entries = ((old_folder, old_last, None), (folder, last, self._inode(operation.source)))
            case "unlink" | "remove_directory":
                entries = ((folder, last, None),)
            case _:
                raise ValueError(f"the model does not know the operation {name}")
        return _Effect(index, text, entries, waits_for={folder for folder, _, _ in entries})

    def _append(self, index: int, operation: Operation, text: str) -> _Effect:
        folder, last = self._place(operation.path)
        known = self.now.folders[folder].get(last)
        file = self._new(b"") if known is None else known
        entries = ((folder, last, file),) if known is None else ()
        # Never synced by anybody, so that it may be lost or torn for ever.
        return _Effect(
            index, text, entries, file, operation.data, len(self.now.contents[file]), waits_for={file, folder}
        )


def crash_states(
    operations: Sequence[Operation],
    *,
    initial: Tree | None = None,
    demanding: Callable[[Mark], bool] = lambda _: True,
    begin: int = 0,
    most_lost: int = 2,
) -> Iterator[CrashState]:
    """
    Enumerate the states in which a power cut during or after the operations may leave the disk.

    For each prefix of the operations: all pending ones there; up to ``most_lost`` of them lost, or zeros, in every
    combination; all of them lost; all but one lost; and the last write torn at several points.

    Args:
        operations: A recording.
        initial: What lay below the recorder's root before, all of it durable.
        demanding: Which marks ask for more than before; states are given anew after them, and once otherwise.
        begin: The first operation after which the power is cut; what lies before has been explored already.
        most_lost: How many operations are lost at a time.
    """
    disk = _Disk(initial or {})
    for index, operation in enumerate(operations):
        disk.follow(index, operation)
    walk = _Walk(disk.base, disk.effects)
    seen: set[int] = set()
    for index, operation in list(enumerate(operations))[begin:]:
        effect = disk.effects[index]
        if operation.name == "mark" and demanding(operation.mark):
            seen.clear()
        elif effect is None and index > begin:
            continue
        pending = walk.pending(index)
        for choice in _choices(pending, effect, most_lost):
            tree = walk.build(choice).tree(disk.directories, disk.links)
            key = hash(frozenset(tree.items()))
            if key not in seen:
                seen.add(key)
                lost = tuple(f"{variant}: {effect.operation}" for effect, variant in choice.items())
                yield CrashState(tree, index + 1, lost)


class _Walk:
    """
    Keeps what is certain to survive, and lays what may survive over it.

    Effects on different names and files commute, and of those on the same name the last one that survives counts. So
    what is certain can be applied as soon as it is, and need not be replayed for every state.
    """

    def __init__(self, base: _Image, effects: Sequence[_Effect | None]) -> None:
        self._base = base.copy()
        self._effects = effects
        self._pending: list[_Effect] = []
        self._laid_over: list[tuple[_Effect, _Effect]] = []
        self._certain: dict[tuple[int, str], int] = {}
        self._position = 0

    def pending(self, index: int) -> list[_Effect]:
        """Effects up to ``index`` that may be lost when the power is cut after it; calls must have rising indices."""
        self._pending += [effect for effect in self._effects[self._position : index + 1] if effect is not None]
        self._position = index + 1
        for effect in self._pending:
            if effect.durable_at <= index:
                self._base.apply(self._current(effect))
                self._certain.update({(folder, name): effect.index for folder, name, _ in effect.entries})
        self._pending = [effect for effect in self._pending if effect.durable_at > index]
        self._laid_over = [(effect, self._current(effect)) for effect in self._pending]
        return self._pending

    def _current(self, effect: _Effect) -> _Effect:
        """The effect without the names that a later one, certain to survive, has settled."""
        entries = tuple(entry for entry in effect.entries if self._certain.get((entry[0], entry[1]), -1) < effect.index)
        return effect if len(entries) == len(effect.entries) else replace(effect, entries=entries)

    def build(self, choice: Mapping[_Effect, _Variant]) -> _Image:
        """What is there if the pending effects survive as chosen."""
        image = self._base.copy()
        for effect, current in self._laid_over:
            image.apply(current, choice.get(effect, _WHOLE))
        return image


def _choices(pending: Sequence[_Effect], last: _Effect | None, most_lost: int) -> Iterator[dict[_Effect, _Variant]]:
    # That the last effect is lost is what was enumerated before it.
    others = [effect for effect in pending if effect is not last]
    flawed = [(effect, variant) for effect in others for variant in ((_GONE, _ZEROS) if effect.data else (_GONE,))]
    all_lost = dict.fromkeys(others, _GONE)
    yield {}
    yield all_lost
    for count in range(1, most_lost + 1):
        for chosen in combinations(flawed, count):
            choice = dict(chosen)
            if len(choice) == count:
                yield choice
    for kept in others:
        yield {effect: variant for effect, variant in all_lost.items() if effect is not kept}
    if last is not None and last.data:
        for torn in _TORN:
            yield {last: torn}
            yield {**all_lost, last: torn}
            for other, variant in flawed:
                yield {last: torn, other: variant}


def read_tree(root: Path) -> dict[str, Node]:
    """What lies below a real directory."""
    found: dict[str, Node] = {}
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root).as_posix()
        if path.is_symlink():
            found[relative] = Link(str(path.readlink()))
        else:
            found[relative] = None if path.is_dir() else path.read_bytes()
    return found


class Materializer:
    """
    Shows trees in a real directory, one after the other, changing only what differs.

    Args:
        root: An existing empty directory; on a file system in memory this costs microseconds a file.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._shown: dict[str, Node] = {}

    def show(self, tree: Tree) -> None:
        """Make the directory hold exactly ``tree``. Whoever changes the directory must not show another in it."""
        for path in sorted(self._shown, reverse=True):
            if path not in tree or (tree[path] != self._shown[path]):
                self._remove(path)
        for path in sorted(tree):
            if path not in self._shown:
                self._make(path, tree[path])

    def _remove(self, path: str) -> None:
        if self._shown.pop(path) is None:
            (self._root / path).rmdir()
        else:
            (self._root / path).unlink()

    def _make(self, path: str, node: Node) -> None:
        target = self._root / path
        self._shown[path] = node
        if node is None:
            target.mkdir(0o700)
        elif isinstance(node, Link):
            target.symlink_to(node.content)
        else:
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.write(descriptor, node)
            finally:
                os.close(descriptor)
