"""What the outside gives: time, random ids and facts about the machine. Passed in, so that tests can give their own."""

from __future__ import annotations

import functools
import os
import platform
import socket
import sys
import time
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_FRAMEWORKS = (
    "torch",
    "numpy",
    "gymnasium",
    "stable_baselines3",
    "sb3_contrib",
    "torchrl",
    "tensordict",
    "tianshou",
    "ray",
    "pettingzoo",
    "jax",
    "mujoco",
    "ale_py",
)
"""Packages whose versions are worth knowing when a resume differs; only those the program has loaded are named."""


_GROUP_FILES = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
"""Limit and use of the process's own group as a container sees them, in both versions of the kernel's interface."""


class Surroundings:
    """The real ones."""

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def now(self) -> str:
        """Wall-clock time for people: RFC 3339, UTC. Never compared."""
        return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def new_id(self) -> str:
        """32 random hex digits."""
        return os.urandom(16).hex()

    def versions(self) -> dict[str, str]:
        """Versions of perdure, Python and the frameworks that are loaded."""
        found = {"perdure": perdure_version(), "python": platform.python_version()}
        for name in _FRAMEWORKS:
            loaded = getattr(sys.modules.get(name), "__version__", None)
            if loaded is not None:
                found[name] = str(loaded)
        return found

    def available_memory_bytes(self) -> int | None:
        """Memory that can be had without swapping, as far as the machine and this process's group allow."""
        found = [size for size in (_machine_memory_bytes(), _group_memory_bytes()) if size is not None]
        return min(found, default=None)

    def host(self) -> dict[str, str]:
        """Where this runs; nothing of the environment but these facts."""
        return {
            "name": socket.gethostname(),
            "platform": platform.platform(),
            "machine": platform.machine(),
            "cpus": str(os.cpu_count()),
        }


def _machine_memory_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _group_memory_bytes() -> int | None:
    for folder, limit, used in _GROUP_FILES:
        try:
            allowed = (folder / limit).read_text(encoding="ascii").strip()
            if allowed == "max":
                return None
            counts = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
            # What the group has of the page cache is counted as its own, and given back when memory is wanted.
            cached = int(counts["active_file"]) + int(counts["inactive_file"])
            return max(int(allowed) - int((folder / used).read_text(encoding="ascii")) + cached, 0)
        except (OSError, ValueError, KeyError):
            continue
    return None


@functools.cache
def perdure_version() -> str:
    """Version of the installed package."""
    try:
        return version("perdure")
    except PackageNotFoundError:
        return "unknown"
