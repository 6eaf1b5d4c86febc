"""Damage: every way in which stored bytes go wrong, done to real checkpoints, and whether each is noticed in time."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from perdure.errors import CorruptionError, PerdureError
from perdure.files.door import Files
from perdure.store.layout import MANIFEST_FILE
from perdure.store.store import Checkpoint, Store
from perdure.testing.promises import fingerprint
from perdure.testing.scenario import Scenario, numbered_ids
from tests.durability.tiers import Report, workspace

SIZES = {"meta.json": 40, "model/policy.safetensors": 150, "model/value.safetensors": 150, "buffer/segment-000000": 90}


@dataclass(frozen=True)
class Kept:
    """A run of two checkpoints, and what each of its files holds when all is well."""

    store: Store
    newer: Checkpoint
    older: Checkpoint
    prints: dict[str, str]

    def files(self) -> Iterator[Path]:
        """Every file of the newer checkpoint, the manifest last."""
        for entry in self.newer.manifest.files:
            yield self.newer.directory / entry.path
        yield self.newer.directory / MANIFEST_FILE


def keep(root: Path) -> Kept:
    """Make such a run."""
    scenario = Scenario(root / "run", Files(), lambda _: None, "damage")
    scenario.start()
    older, newer = scenario.save(10, SIZES), scenario.save(20, SIZES)
    store = Store(root / "run", Files(), numbered_ids("reader"))
    return Kept(store, newer, older, {each.manifest.id: _print_of(store, each) for each in (newer, older)})


def _print_of(store: Store, checkpoint: Checkpoint) -> str:
    contents = {entry.path: store.read(checkpoint, entry.path) for entry in checkpoint.manifest.files}
    return fingerprint(checkpoint.manifest, contents)


def flips(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Every content that differs in one bit."""
    for position in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[position // 8] ^= 1 << position % 8
        yield f"bit {position} flipped", bytes(damaged)


def wrecks(content: bytes, others: dict[str, bytes], chance: random.Random) -> Iterator[tuple[str, bytes]]:
    """Truncated, extended, zeroed, shifted, and somebody else's content."""
    for length in range(len(content)):
        yield f"cut to {length}", content[:length]
    for extra in (b"\0", b" ", b"\n", bytes(100), content):
        yield f"{len(extra)} bytes longer", content + extra
    yield "zeros", bytes(len(content))
    for start in sorted(chance.sample(range(1, len(content)), 8)):
        yield f"zeros from {start}", content[:start].ljust(len(content), b"\0")
        yield f"zeros until {start}", content[start:].rjust(len(content), b"\0")
        yield f"shifted by {start}", content[start:] + content[:start]
    for length in (2, 8, 32):
        start = chance.randrange(len(content) - length)
        yield f"{length} random bytes", content[:start] + chance.randbytes(length) + content[start + length :]
    for name, other in others.items():
        if other != content:
            yield f"that of {name}", other


def explore_damage(report: Report, seed: int = 0) -> None:
    """Damage the newer checkpoint's files one by one; nothing wrong may ever be handed out, and all must be noticed."""
    chance = random.Random(seed)
    with workspace() as root:
        kept = keep(root)
        others = {f"{path.parent.name}/{path.name}": path.read_bytes() for path in kept.files()}
        others |= {
            f"{each} of the older": (kept.older.directory / each).read_bytes() for each in (*SIZES, MANIFEST_FILE)
        }
        for path in kept.files():
            content = path.read_bytes()
            for name, damaged in (*flips(content), *wrecks(content, others, chance)):
                if report.is_done:
                    return
                _replace(path, damaged)
                report.tried += 1
                report.violations += [f"{path.name}, {name}: {problem}" for problem in _misjudged(kept)]
            _replace(path, content)
        _swap_directories(kept, report)
        assert _misjudged(kept) == ["it is not noticed"], "an undamaged run must look undamaged"


def _replace(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)
    os.write(descriptor, content)
    os.close(descriptor)


def _misjudged(kept: Kept) -> list[str]:
    """What is wrong with what a reader makes of the damage."""
    try:
        found, broken = kept.store.scan()
    except PerdureError as error:
        return [f"one damaged checkpoint stops everything: {error!r}"]
    problems = []
    noticed = bool(broken)
    for checkpoint in found:
        try:
            if kept.prints.get(checkpoint.manifest.id) != _print_of(kept.store, checkpoint):
                problems.append("wrong bytes are handed out")
        except CorruptionError:
            noticed = True
    if kept.older.manifest.id not in {checkpoint.manifest.id for checkpoint in found}:
        problems.append("the undamaged checkpoint is gone as well")
    if not noticed:
        problems.append("it is not noticed")
    return problems


def _swap_directories(kept: Kept, report: Report) -> None:
    """Whole directories under each other's names, and one under a name that is nobody's."""
    aside = kept.newer.directory.with_name("aside")
    kept.newer.directory.rename(aside)
    kept.older.directory.rename(kept.newer.directory)
    aside.rename(kept.older.directory)
    found, broken = kept.store.scan()
    report.tried += 2
    if found or len(broken) != 2:
        report.violations.append("checkpoints under each other's names are taken for what they are not")
    kept.older.directory.rename(aside)
    kept.newer.directory.rename(kept.older.directory)
    found, broken = kept.store.scan()
    report.tried += 1
    if [each.manifest.id for each in found] != [kept.older.manifest.id] or len(broken) != 1:
        report.violations.append("a checkpoint under a name that is nobody's is not noticed")
    aside.rename(kept.newer.directory)
