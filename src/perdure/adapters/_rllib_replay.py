"""
RLlib's replay buffers as components: an episode that has ended is written once.

Such a buffer is a queue of episodes. One that has ended never changes until it is evicted, so ended ones are bundled
into files that later checkpoints link. What is written at each save is what still runs, what has ended since the last
bundle, and the buffer's own tables.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from perdure.adapters._rllib_plain import pack, pack_episode, unpack, unpack_episode
from perdure.capture.objects import does_not_fit
from perdure.capture.snapshot import load_tree, tree_parts
from perdure.core.component import LinkPart, Part, PartsCapture, PartsSource
from perdure.core.manifest import FileEntry, Grade
from perdure.core.names import Section, component_stem
from perdure.errors import CorruptionError

BUNDLE_BYTES = 4 * 1024 * 1024
BUNDLE_STEPS = 8192
"""A bundle is closed when it is as large as that: at most so much is written again at each save."""


@dataclass(frozen=True, slots=True)
class _Shelf:
    """The bundles of the last committed save, or of the checkpoint that was restored."""

    bundle_of: Mapping[str, str]
    """Stem of its bundle by the id of an ended episode."""
    links: Mapping[str, tuple[LinkPart, ...]]
    """Files by bundle."""


class Replay:
    """
    A local replay buffer: its episodes, tables and generator.

    A save packs the steps since the last one and copies the buffer's tables, which have an entry for each step; a
    restore reads everything. A crash leaves nothing behind.

    Args:
        buffer: Borrowed, between two iterations; restored in place.
        mapping: The program's function from agents to modules, which episodes of several agents refer to.
    """

    kind = "rllib.episodes"
    section = Section.BUFFER
    grade = Grade.EXACT

    def __init__(self, buffer: Any, mapping: Callable[..., Any] | None = None) -> None:
        self._buffer = buffer
        self._mapping = mapping
        self._shelf = _Shelf({}, {})
        self._epoch = 0
        self._prepared: tuple[PartsSource, dict[str, Any], dict[str, Any]] | None = None

    def capture_parts(self, stem: str) -> PartsCapture:
        """Link what was bundled before, bundle what has ended since, and write the rest."""
        shelf, epoch = self._shelf, self._epoch
        episodes = list(getattr(self._buffer, "episodes", ()))
        known = {each.id_: shelf.bundle_of[each.id_] for each in episodes if each.id_ in shelf.bundle_of}
        links = {bundle: shelf.links[bundle] for bundle in set(known.values())}
        *full, left = _bundled(each for each in episodes if each.is_done and each.id_ not in known)
        free = (name for number in range(len(links) + len(full)) if (name := f"{stem}/{number:06}") not in links)
        bundles = dict(zip(free, full, strict=False))
        running = [pack_episode(each) for each in episodes if not each.is_done]
        parts = {bundle: tree_parts(bundle, {"episodes": packed}) for bundle, packed in bundles.items()}
        rest = tree_parts(f"{stem}/rest", self._rest([*left, *running], [each.id_ for each in episodes]))
        known |= {packed["id_"]: bundle for bundle, each in bundles.items() for packed in each}

        def committed(directory: Path, files: Mapping[str, FileEntry]) -> None:
            # What was restored meanwhile is of another past.
            if epoch == self._epoch:
                paths = {bundle: [part.path for part in each] for bundle, each in (links | parts).items()}
                self._shelf = _Shelf(known, _linked(paths, directory, files))

        detail = {"transitions": sum(map(len, episodes)), "episodes": len(episodes)}
        files: list[Part] = [*chain.from_iterable(links.values()), *chain.from_iterable(parts.values()), *rest]
        return PartsCapture(tuple(files), detail, committed)

    def _rest(self, episodes: list[Any], order: list[str]) -> dict[str, Any]:
        rng = getattr(self._buffer, "rng", None)
        with _without_episodes(self._buffer):
            own = self._buffer.get_state()
        return {
            "class": type(self._buffer).__name__,
            "own": pack(own),
            "generator": None if rng is None else rng.bit_generator.state,
            "episodes": episodes,
            "order": order,
        }

    def check_parts(self, source: PartsSource) -> None:
        """Bring a checkpoint into memory beside the buffer, or refuse one of another class of buffers."""
        stem = component_stem(source.entry.name, source.entry.section)
        rest = _load(source, f"{stem}/rest")
        here, there = type(self._buffer).__name__, rest["class"]
        if here != there:
            raise does_not_fit("the replay buffer", f"it was a {there} and is a {here} here", here, there)
        bundles = {path.removesuffix(".json") for path in source.entry.files if path.endswith(".json")} - {
            f"{stem}/rest"
        }
        held = {bundle: _load(source, bundle)["episodes"] for bundle in sorted(bundles)}
        found = {each["id_"] for episodes in (rest["episodes"], *held.values()) for each in episodes}
        if lost := set(rest["order"]) - found:
            raise _malformed(source, f"{stem}/rest.json", f"no bundle holds its episode {min(lost)}")
        self._prepared = source, rest, held

    def restore_parts(self, source: PartsSource) -> str:
        """Set episodes, tables and the generator, whatever the buffer holds."""
        if self._prepared is None or self._prepared[0] is not source:
            self.check_parts(source)
        assert self._prepared is not None
        _, rest, bundles = self._prepared
        self._prepared = None
        packed = {each["id_"]: each for episodes in (rest["episodes"], *bundles.values()) for each in episodes}
        own = unpack(rest["own"])
        if hasattr(self._buffer, "episodes"):
            # A buffer that holds some already would keep them.
            self._buffer.episodes = deque()
            own["episodes"] = [unpack_episode(packed[id_], self._mapping) for id_ in rest["order"]]
        self._buffer.set_state(own)
        if rest["generator"] is not None:
            self._buffer.rng.bit_generator.state = rest["generator"]
        held = set(rest["order"])
        bundle_of = {each["id_"]: bundle for bundle, episodes in bundles.items() for each in episodes}
        paths = {bundle: [f"{bundle}.json", f"{bundle}.safetensors"] for bundle in bundles}
        self._epoch += 1
        self._shelf = _Shelf(
            {id_: bundle for id_, bundle in bundle_of.items() if id_ in held},
            _linked(paths, source.directory, source.files),
        )
        return ""

    def check(self) -> None:
        """Nothing: everything was verified when it was read."""


def _bundled(ended: Iterable[Any]) -> list[list[Any]]:
    """Ended episodes, packed, in bundles, in their order; the last bundle is not full, and may be empty."""
    bundles: list[list[Any]] = [[]]
    size = steps = 0
    for episode in ended:
        packed = pack_episode(episode)
        bundles[-1].append(packed)
        size, steps = size + _bytes_of(packed), steps + len(episode)
        if size >= BUNDLE_BYTES or steps >= BUNDLE_STEPS:
            bundles.append([])
            size = steps = 0
    return bundles


def _bytes_of(packed: Any) -> int:
    if isinstance(packed, np.ndarray):
        return packed.nbytes
    if isinstance(packed, dict):
        return sum(map(_bytes_of, packed.values()))
    return sum(map(_bytes_of, packed)) if isinstance(packed, list | tuple) else 0


def _linked(
    paths: Mapping[str, Iterable[str]], directory: Path, files: Mapping[str, FileEntry]
) -> dict[str, tuple[LinkPart, ...]]:
    return {
        bundle: tuple(LinkPart(path, directory / path, files[path]) for path in each) for bundle, each in paths.items()
    }


@contextmanager
def _without_episodes(buffer: Any) -> Iterator[None]:
    """Have a buffer give its state without that of its episodes."""
    episodes = getattr(buffer, "episodes", None)
    if episodes is None:
        yield
        return
    buffer.episodes = deque()
    try:
        yield
    finally:
        buffer.episodes = episodes


def _load(source: PartsSource, stem: str) -> Any:
    paths = (f"{stem}.json", f"{stem}.safetensors")
    if not set(paths) <= set(source.entry.files):
        raise _malformed(source, paths[0], f"the checkpoint does not have its {paths[0]}")
    return load_tree(msgspec.structs.replace(source.entry, files=paths), source.read)


def _malformed(source: PartsSource, path: str, what: str) -> CorruptionError:
    return CorruptionError(
        f"cannot read replay buffer {source.entry.name!r}: {what}",
        kind="component.malformed",
        hint="restore an older checkpoint",
        path=path,
    )
