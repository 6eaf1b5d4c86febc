"""What benchmarks share: rounds in alternating order, medians, facts about the machine, and figures."""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

MB = 1_000_000


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory on the disk of the working directory, not on a memory file system."""
    path = Path(tempfile.mkdtemp(prefix=".bench-", dir=Path.cwd()))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def seconds(action: Callable[[], Any]) -> float:
    """How long one call takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def alternate(contenders: Mapping[str, Callable[[], float]], rounds: int, warm_up: int = 2) -> dict[str, list[float]]:
    """
    Let contenders take turns, in reverse order every other round, so that none is always first.

    Args:
        contenders: By name; each call gives one measurement.
        rounds: Measurements of each.
        warm_up: Rounds before that are not counted, for all alike.
    """
    results: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(-warm_up, rounds):
        order = list(contenders) if number % 2 else list(reversed(contenders))
        for name in order:
            value = contenders[name]()
            if number >= 0:
                results[name].append(value)
    return results


def summary(values: list[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}


def figure(name: str, value: float | None, target: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    """One figure; ``target`` is such as ``<=5``, or empty where there is none."""
    holds = None
    if target and value is not None:
        bound = float(target.lstrip("<>=").split()[0])
        holds = value <= bound if target.startswith("<=") else value >= bound
    return {"id": name, "value": value, "target": target, "holds": holds, "raw": dict(raw)}


def machine(*packages: str) -> dict[str, Any]:
    """Facts without which no figure means anything."""
    versions = {}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "absent"
    return {
        "cpus": os.cpu_count(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
        "packages": versions,
    }


def sync_all(path: Path) -> None:
    """Make a file, or a folder and all in it, durable, names included, as a careful user would."""
    inside = sorted(path.rglob("*"), reverse=True) if path.is_dir() else []
    for target in [*inside, path, path.parent]:
        descriptor = os.open(target, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def evict(path: Path) -> None:
    """Take the pages of a file or folder out of the cache; they are clean."""
    for target in [path, *(path.rglob("*") if path.is_dir() else ())]:
        if target.is_file():
            descriptor = os.open(target, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
