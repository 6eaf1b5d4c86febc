"""Runs to look at, made through the store itself."""

import json
from contextlib import nullcontext
from datetime import datetime, timezone

from perdure.core.component import ContentPart, LinkPart
from perdure.core.manifest import ComponentEntry, Cut, Manifest
from perdure.core.names import Section
from perdure.core.sealing import seal, unseal
from perdure.files.door import Files
from perdure.store.store import Store

NOW = 1_800_000_000.0
"""Seconds since the epoch at which tests look."""


def at(seconds_ago=0.0):
    """A time before `NOW`, as manifests carry it."""
    moment = datetime.fromtimestamp(NOW - seconds_ago, timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class MadeRun:
    """A run in the making: commits checkpoints of one model file, one segment that never changes and ``meta.json``."""

    def __init__(self, root, name, files=None):
        self.name = name
        self.ids = []
        self.store = Store(root / name, files or Files(), iter(f"{n:032x}" for n in range(10**6)).__next__)
        self.store.create(name, at(86400))
        self._previous = None

    @property
    def directory(self):
        return self.store.directory

    def commit(self, step, *, model=b"m", segment=b"s" * 4096, generation=1, ago=0.0, metrics=None, **fields):
        """Commit one checkpoint; its segment is a link to the one before, if there is one."""
        number = len(self.ids) + 1
        key = f"{number:x}".rjust(2, "0") * 16
        meta = json.dumps({"counters": {"global_step": step}, "config": {"lr": 0.1}}).encode()
        parts = [part("model/policy.safetensors", model + str(step).encode()), part("meta.json", meta)]
        if self._previous is None:
            parts.append(part("buffer/segment-000000.safetensors", segment))
        else:
            entry = self._previous.manifest.file("buffer/segment-000000.safetensors")
            parts.append(LinkPart(entry.path, self._previous.directory / entry.path, entry))
        draft = Manifest(
            run=self.name,
            id=key,
            global_step=step,
            generation=generation,
            sequence=number,
            parent=self.ids[-1] if self.ids else None,
            cut=Cut(step, "loop"),
            reason="every-steps",
            created_at=at(ago),
            metrics=metrics or {},
            versions={"perdure": "0.1.0", "python": "3.11.7"},
            components=(
                ComponentEntry("policy", "torch.module", Section.MODEL, ("model/policy.safetensors",)),
                ComponentEntry("replay", "replay.ring", Section.BUFFER, ("buffer/segment-000000.safetensors",)),
            ),
            **fields,
        )
        self._previous = self.store.commit(draft, parts, nullcontext)
        self.ids.append(key)
        return self._previous

    def event(self, event, ago=0.0, **fields):
        """Add a line to the run's history."""
        self.store.events.append({"at": at(ago), "event": event, "generation": 1, **fields})

    def record_keep(self, text):
        """Record a keep policy as the run's own."""
        self.store.replace_json("run.json", {**self.store.identity(), "keep": text})


def part(path, content):
    """A file of a checkpoint with the given bytes."""
    return ContentPart(path, len(content), lambda: [memoryview(content)])


def make_run(root, name="ppo", steps=(1000, 2000, 3000)):
    """A run with a checkpoint at each step, a minute apart, the newest a minute old."""
    run = MadeRun(root, name)
    for number, step in enumerate(steps):
        run.commit(step, ago=60.0 * (len(steps) - number))
    return run


def damage(path, offset=0):
    """Flip one byte of a file, whose length stays."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 0xFF
    path.unlink()  # a new file, because the old one may be shared
    path.write_bytes(content)


def rewrite_manifest(directory, **changes):
    """Change fields of a committed manifest, sealed anew."""
    path = directory / "manifest.json"
    document = {**json.loads(unseal(path.read_bytes())), **changes}
    path.write_bytes(seal(json.dumps(document, indent=1).encode() + b"\n"))


def tree(root):
    """Everything below a directory with what a write would change."""
    return {
        str(path.relative_to(root)): (path.lstat().st_mtime_ns, path.lstat().st_size, path.lstat().st_ino)
        for path in [root, *root.rglob("*")]
    }
