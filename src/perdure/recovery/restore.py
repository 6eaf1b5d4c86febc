"""
Restoring a run, step by step, under markers.

Everything is read and verified before anything live is changed; what does not fit is refused then. A checkpoint that is
damaged or fails its sanity check is put aside, loudly, and the one before it is tried. A crash anywhere in here leaves
markers by which the next start begins again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.capture.numbers import GLOBAL_NAME
from perdure.capture.snapshot import load_json, load_tree
from perdure.core.component import Component, Progress, Shortfall, writes_parts
from perdure.core.manifest import ComponentEntry, FileEntry, Grade, lowest_grade
from perdure.core.recovery import (
    STATE_STEPS,
    Step,
    compare_components,
    plan_restore,
    should_pass_over,
)
from perdure.errors import CorruptionError, IncompatibleError
from perdure.recovery.markers import Markers
from perdure.recovery.reading import Reading
from perdure.recovery.report import RestoredComponent, SkippedCheckpoint
from perdure.store.layout import META_FILE
from perdure.store.store import Checkpoint, Store


@dataclass(frozen=True, slots=True)
class Restored:
    """A restore that worked."""

    checkpoint: Checkpoint
    components: tuple[RestoredComponent, ...]
    grade: Grade


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A checkpoint in memory, verified and found to fit; nothing live has been changed."""

    checkpoint: Checkpoint
    meta: dict[str, Any]
    trees: dict[str, Any]
    sources: dict[str, _Source]
    unknown: tuple[str, ...]
    missing: tuple[str, ...]


class _Source:
    """One parts component's view of a committed checkpoint."""

    def __init__(self, store: Store, checkpoint: Checkpoint, entry: ComponentEntry, tell: Progress) -> None:
        self._store = store
        self.tell = tell
        self._checkpoint = checkpoint
        self.directory = checkpoint.directory
        self.entry = entry
        listed = {file.path: file for file in checkpoint.manifest.files}
        self.files: Mapping[str, FileEntry] = {path: listed[path] for path in entry.files}

    def read(self, path: str) -> memoryview:
        return self._store.read(self._checkpoint, path)

    def open(self, path: str) -> int:
        return self._store.open(self._checkpoint, path)


class Recovery:
    """
    Restores the newest checkpoint that can be used.

    Args:
        store: The run directory.
        components: What the program tracks, by name.
        restore_meta: Brings counters and the like to the content of ``meta.json``.
        find_failures: The sanity check, given the content of ``meta.json``.
        accept: Names of components that may be missing or unknown; ``*`` for all.
        now: Wall-clock time as text, for notes.
        on_skip: Told of every checkpoint that is passed over, as it happens.
        watch: Gives what is to be told how far the reading of something is, by its name.
    """

    def __init__(
        self,
        store: Store,
        components: Mapping[str, Component],
        *,
        restore_meta: Callable[[Mapping[str, Any]], None],
        find_failures: Callable[[Mapping[str, Any]], list[str]],
        accept: Iterable[str],
        now: Callable[[], str],
        on_skip: Callable[[SkippedCheckpoint], None],
        watch: Callable[[str], Progress],
    ) -> None:
        self._store = store
        self._components = components
        self._restore_meta = restore_meta
        self._find_failures = find_failures
        self._accept = frozenset(accept)
        self._now = now
        self._on_skip = on_skip
        self._watch = watch
        self.markers = Markers(store)
        self.skipped: list[SkippedCheckpoint] = []

    def restore(self, candidates: Sequence[Checkpoint], *, may_fall_back: bool) -> Restored | None:
        """
        Restore the first candidate that works, in place.

        Args:
            candidates: Newest first.
            may_fall_back: Whether a later candidate may stand in for a damaged one.

        One that fails its sanity check is put aside once a later one has passed; if none does, all stay.

        Returns:
            What was restored, or None if no candidate could be.

        Raises:
            IncompatibleError: A whole checkpoint does not fit the program; nothing live was changed.
            CorruptionError: The only candidate allowed is damaged.
        """
        insane: list[tuple[Checkpoint, str]] = []
        for index, checkpoint in enumerate(candidates):
            deaths = self.markers.deaths(checkpoint)
            if may_fall_back and should_pass_over(deaths, has_older=index + 1 < len(candidates)):
                self.markers.give_up(checkpoint)
                self.put_aside(checkpoint.directory, f"restoring it killed the process {deaths} times")
                continue
            self.markers.begin(checkpoint)
            try:
                restored = self._try(checkpoint)
            except CorruptionError as error:
                self.markers.give_up(checkpoint)
                if not may_fall_back:
                    raise
                if error.kind == "checkpoint.insane":
                    insane.append((checkpoint, error.message))
                else:
                    self.put_aside(checkpoint.directory, error.message)
            except BaseException:
                self.markers.give_up(checkpoint)
                raise
            else:
                for earlier, reason in insane:
                    self.put_aside(earlier.directory, reason)
                return restored
        # Where none passes, the fault may as well be the program's. They are whole, and stay where they are.
        self.skipped += [SkippedCheckpoint(checkpoint.directory.name, reason) for checkpoint, reason in insane]
        return None

    def put_aside(self, directory: Path, reason: str) -> None:
        """Quarantine a checkpoint that must not be used, and say so."""
        skip = SkippedCheckpoint(directory.name, reason)
        self._store.quarantine(directory, reason, self._now())
        self.skipped.append(skip)
        self._on_skip(skip)

    def _try(self, checkpoint: Checkpoint) -> Restored:
        self.markers.progress(checkpoint, Step.VERIFY)
        loaded = self._load(checkpoint)
        notes = self._apply(loaded)
        self.markers.progress(checkpoint, Step.SANITY)
        failures = self._find_failures(loaded.meta)
        if failures:
            raise CorruptionError(
                f"cannot use checkpoint {checkpoint.manifest.id[:8]}: {'; '.join(failures[:3])}",
                kind="checkpoint.insane",
                hint="an older checkpoint is used; this one is kept in quarantine/ to be looked at",
                path=str(checkpoint.directory),
            )
        return self._describe(loaded, notes)

    def _load(self, checkpoint: Checkpoint) -> _Loaded:
        manifest = checkpoint.manifest
        entries = {entry.name: entry for entry in manifest.components}
        difference = compare_components(entries, self._components, self._accept)
        if difference.unknown or difference.missing:
            raise _different(checkpoint, difference.unknown, difference.missing)
        trees: dict[str, Any] = {}
        sources: dict[str, _Source] = {}
        known = [name for name in self._components if name in entries]
        whole = [path for name in known if not writes_parts(self._components[name]) for path in entries[name].files]
        with Reading(self._store, checkpoint, whole, self._watch("the state")) as reading:
            for name in known:
                self._load_component(checkpoint, name, entries[name], trees, sources, reading)
        return _Loaded(
            checkpoint,
            self._load_meta(checkpoint),
            trees,
            sources,
            unknown=tuple(sorted(set(entries) - set(self._components))),
            missing=tuple(sorted(set(self._components) - set(entries))),
        )

    def _load_component(
        self,
        checkpoint: Checkpoint,
        name: str,
        entry: ComponentEntry,
        trees: dict[str, Any],
        sources: dict[str, _Source],
        reading: Reading,
    ) -> None:
        component = self._components[name]
        if entry.kind != component.kind:
            raise IncompatibleError(
                f"cannot restore {name!r}: it is a {entry.kind} in the checkpoint and a {component.kind} here",
                kind="component.other-kind",
                hint="track the same kind of object under this name, or rename it and accept the difference",
                component=name,
                expected=component.kind,
                actual=entry.kind,
            )
        if writes_parts(component):
            source = _Source(self._store, checkpoint, entry, self._watch(name))
            component.check_parts(source)
            sources[name] = source
        else:
            tree = load_tree(entry, reading.take)
            component.check(tree)
            trees[name] = tree

    def _load_meta(self, checkpoint: Checkpoint) -> dict[str, Any]:
        if checkpoint.manifest.file(META_FILE) is None:
            raise _no_meta(checkpoint)
        content = load_json(self._store.read(checkpoint, META_FILE), META_FILE)
        if not isinstance(content, dict):
            raise _no_meta(checkpoint)
        return content

    def _apply(self, loaded: _Loaded) -> dict[str, str]:
        present = [*loaded.trees, *loaded.sources]
        steps = plan_restore({name: self._components[name].section for name in present}, GLOBAL_NAME)
        notes: dict[str, str] = {}
        for step in STATE_STEPS:
            self.markers.progress(loaded.checkpoint, step)
            for name in steps[step]:
                component = self._components[name]
                if writes_parts(component):
                    notes[name] = component.restore_parts(loaded.sources[name])
                else:
                    notes[name] = component.restore(loaded.trees.pop(name))
            if step is Step.COUNTERS:
                self._restore_meta(loaded.meta)
        return notes

    def _describe(self, loaded: _Loaded, notes: Mapping[str, str]) -> Restored:
        components = [RestoredComponent(name, "loaded", note) for name, note in notes.items()]
        components += [RestoredComponent(name, "missing", "left as it was built") for name in loaded.missing]
        components += [RestoredComponent(name, "unknown", "nothing tracks it") for name in loaded.unknown]
        grades = [entry.grade for entry in loaded.checkpoint.manifest.components if entry.name in notes]
        if any(isinstance(note, Shortfall) for note in notes.values()):
            grades.append(Grade.STATISTICAL)
        if loaded.missing:
            grades.append(Grade.WARM)
        return Restored(loaded.checkpoint, tuple(components), lowest_grade(grades))


def _no_meta(checkpoint: Checkpoint) -> CorruptionError:
    return CorruptionError(
        f"cannot use checkpoint {checkpoint.manifest.id[:8]}: it has no readable {META_FILE}",
        kind="checkpoint.no-meta",
        hint="restore an older checkpoint",
        path=str(checkpoint.directory / META_FILE),
    )


def _different(checkpoint: Checkpoint, unknown: tuple[str, ...], missing: tuple[str, ...]) -> IncompatibleError:
    parts = []
    if missing:
        parts.append(f"it has no {', '.join(missing)}")
    if unknown:
        parts.append(f"nothing tracks its {', '.join(unknown)}")
    names = ", ".join(repr(name) for name in (*missing, *unknown))
    return IncompatibleError(
        f"cannot restore checkpoint {checkpoint.manifest.id[:8]}: {'; '.join(parts)}",
        kind="components.differ",
        hint=f"track what was saved, or accept the difference: perdure.open(..., accept=[{names}])",
        component=(*missing, *unknown)[0],
        expected=", ".join(missing),
        actual=", ".join(unknown),
    )
