"""
Acts: what processes do to a run directory, with every begin and every acknowledgement told.

Contents are made from names, so that any process can say what must be found without having kept a copy.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from perdure.core.component import ContentPart, LinkPart, Part
from perdure.core.manifest import Cut, Manifest
from perdure.core.names import checkpoint_directory_name
from perdure.core.retention import KeepPolicy, plan_retention
from perdure.files.door import Files
from perdure.store.layout import SNAPSHOTS
from perdure.store.mending import renew_manifest, replace_content, replace_manifest
from perdure.store.store import Checkpoint, Store
from perdure.testing.promises import Event, Value, fingerprint

CREATED_AT = "2026-01-01T00:00:00Z"
DEFAULT_SIZES = {"meta.json": 17, "model/policy.safetensors": 40, "buffer/segment-000000.safetensors": 33}
"""Files of a checkpoint and their lengths: small, in more than one folder, and of different lengths."""


def content_of(origin: str, path: str, size_bytes: int) -> bytes:
    """Bytes that only this file of this checkpoint has."""
    return hashlib.shake_128(f"{origin}/{path}".encode()).digest(size_bytes)


def numbered_ids(seed: str) -> Callable[[], str]:
    """Ids that look random and are the same in every process that counts from the same seed."""
    count = iter(range(1 << 30))
    return lambda: hashlib.blake2b(f"{seed}/{next(count)}".encode(), digest_size=16).hexdigest()


class Scenario:
    """
    The acts of one process on one run directory.

    Args:
        directory: The run's directory.
        files: The file system.
        tell: Gets every event, in order, before the next call of the file system.
        seed: Makes ids; two processes of one run need different ones.
        generation: Of all checkpoints that are saved.
    """

    def __init__(
        self, directory: Path, files: Files, tell: Callable[[Event], object], seed: str, generation: int = 1
    ) -> None:
        self._new_id = numbered_ids(seed)
        self._tell = tell
        self._generation = generation
        self._sequence = 0
        self.store = Store(directory, files, self._new_id)

    def _begin(self, subject: str, value: Value) -> None:
        self._tell(Event(acknowledged=False, subject=subject, value=value))

    def _done(self, subject: str, value: Value) -> None:
        self._tell(Event(acknowledged=True, subject=subject, value=value))

    def start(self) -> None:
        """Open the run as its writer does at every start."""
        self.store.create("scenario", CREATED_AT)
        latest = self._latest_without(None)
        self._begin("latest", latest)
        self.store.remove_leftovers()
        self._done("latest", latest)

    def _latest_without(self, gone: Checkpoint | None) -> Value:
        names = [found.directory.name for found in self.store.checkpoints() if gone is None or found != gone]
        return f"{SNAPSHOTS}/{names[0]}" if names else None

    @contextmanager
    def _gone(self, checkpoint: Checkpoint) -> Iterator[None]:
        """Tell what becomes of ``latest`` when a checkpoint goes: if it named that one, the newest of the rest."""
        named = f"{SNAPSHOTS}/{checkpoint.directory.name}"
        if self.store.latest() != named:
            yield
            return
        latest = self._latest_without(checkpoint)
        self._begin("latest", latest)
        yield
        # It is a hint: where the newest cannot be found out it is left alone.
        if self.store.latest() == latest:
            self._done("latest", latest)

    def save(
        self,
        step: int,
        sizes: Mapping[str, int] = DEFAULT_SIZES,
        *,
        linked: Checkpoint | None = None,
        pieces: int = 1,
        guard: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> Checkpoint:
        """
        Commit a checkpoint.

        Args:
            step: Its step.
            sizes: Lengths of its files by path.
            linked: A checkpoint whose ``buffer/`` files are linked, not written.
            pieces: Writes a file.
            guard: As for `Store.commit`.
        """
        self._sequence += 1
        draft = Manifest(
            run="scenario",
            id=self._new_id(),
            global_step=step,
            generation=self._generation,
            sequence=self._sequence,
            cut=Cut(step, "loop"),
            reason="scenario",
            created_at=CREATED_AT,
        )
        contents = {path: content_of(draft.id, path, size) for path, size in sizes.items()}
        parts: list[Part] = [_content_part(path, content, pieces) for path, content in contents.items()]
        if linked is not None:
            contents.update(self._linked(linked, parts))
        name = checkpoint_directory_name(step, draft.id)
        mark = fingerprint(draft, contents)
        self._begin(f"checkpoint:{draft.id}", mark)
        self._begin("latest", f"{SNAPSHOTS}/{name}")
        checkpoint = self.store.commit(draft, parts, guard)
        self._done(f"checkpoint:{draft.id}", mark)
        self._done("latest", f"{SNAPSHOTS}/{name}")
        return checkpoint

    def _linked(self, source: Checkpoint, parts: list[Part]) -> dict[str, bytes]:
        """Let the buffer's files be links to those of ``source``; returns their contents."""
        contents = {}
        for entry in source.manifest.files:
            if entry.path.startswith("buffer/"):
                parts[:] = [part for part in parts if part.path != entry.path]
                parts.append(LinkPart(entry.path, source.directory / entry.path, entry))
                contents[entry.path] = bytes(self.store.read(source, entry.path))
        return contents

    def retain(self, policy: KeepPolicy) -> list[str]:
        """Remove what a policy and the pins do not keep; returns the ids removed."""
        found = {checkpoint.manifest.id: checkpoint for checkpoint in self.store.checkpoints()}
        pins = {checkpoint_id: name for name, checkpoint_id in self.store.pins().items()}
        plan = plan_retention([checkpoint.manifest for checkpoint in found.values()], policy, pins)
        for manifest in plan.remove:
            self.remove(found[manifest.id])
        return [manifest.id for manifest in plan.remove]

    def remove(self, checkpoint: Checkpoint) -> None:
        """Remove one checkpoint."""
        subject = f"checkpoint:{checkpoint.manifest.id}"
        with self._gone(checkpoint):
            self._begin(subject, None)
            self.store.remove(checkpoint)
            self._done(subject, None)

    def quarantine(self, checkpoint: Checkpoint, reason: str = "asked") -> None:
        """Put a checkpoint aside."""
        subjects = {f"checkpoint:{checkpoint.manifest.id}": None, f"quarantine:{checkpoint.directory.name}": reason}
        with self._gone(checkpoint):
            for subject, value in subjects.items():
                self._begin(subject, value)
            self.store.quarantine(checkpoint.directory, reason, CREATED_AT)
            for subject, value in subjects.items():
                self._done(subject, value)

    def mend(self, checkpoint: Checkpoint, path: str) -> None:
        """Replace a file of a checkpoint, and its manifest, by equal copies from elsewhere: nothing changes."""
        with tempfile.TemporaryDirectory() as elsewhere:
            entry = next(entry for entry in checkpoint.manifest.files if entry.path == path)
            copy = Path(elsewhere) / "copy"
            copy.write_bytes(self.store.read(checkpoint, path))
            replace_content(self.store, checkpoint, entry, copy)
        replace_manifest(self.store, checkpoint.directory, self.store.read_manifest(checkpoint.directory))

    def renew(self, checkpoint: Checkpoint) -> None:
        """Rewrite a checkpoint's manifest: it says the same."""
        renew_manifest(self.store, checkpoint.directory, trust_unsigned=False)

    def pin(self, checkpoint: Checkpoint, name: str) -> None:
        """Pin a checkpoint."""
        self._begin(f"pin:{name}", checkpoint.manifest.id)
        self.store.pin(checkpoint, name)
        self._done(f"pin:{name}", checkpoint.manifest.id)

    def unpin(self, name: str) -> None:
        """Take a pin away."""
        self._begin(f"pin:{name}", None)
        self.store.unpin(name)
        self._done(f"pin:{name}", None)

    def note(self, name: str, value: str) -> None:
        """Replace a marker."""
        self._begin(f"marker:{name}", value)
        self.store.replace_json(name, {"value": value})
        self._done(f"marker:{name}", value)

    def forget(self, name: str) -> None:
        """Remove a marker."""
        self._begin(f"marker:{name}", None)
        self.store.remove_file(name)
        self._done(f"marker:{name}", None)

    def log(self, text: str) -> None:
        """Append to the run's log, of which nothing is promised but that it does not get in the way."""
        self.store.events.append({"event": text})

    def read_all(self) -> None:
        """Read every byte of every checkpoint; what cannot be used is an error."""
        found, broken = self.store.scan()
        for damage in broken:
            raise damage.error
        for checkpoint in found:
            for entry in checkpoint.manifest.files:
                self.store.read(checkpoint, entry.path)


def _content_part(path: str, content: bytes, pieces: int) -> ContentPart:
    def chunks() -> Iterator[memoryview]:
        length = max(1, -(-len(content) // pieces))
        for start in range(0, len(content), length):
            yield memoryview(content)[start : start + length]

    return ContentPart(path, len(content), chunks)
