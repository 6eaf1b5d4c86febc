"""What the outside gives: time, random ids and facts about the machine. Passed in, so that tests can give their own."""

from __future__ import annotations

import functools
import os
import platform
import socket
import sys
import time
import uuid
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version

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
    "jax",
    "mujoco",
    "ale_py",
)
"""Packages whose versions are worth knowing when a resume differs; only those the program has loaded are named."""


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
        return uuid.uuid4().hex

    def versions(self) -> dict[str, str]:
        """Versions of perdure, Python and the frameworks that are loaded."""
        found = {"perdure": perdure_version(), "python": platform.python_version()}
        for name in _FRAMEWORKS:
            loaded = getattr(sys.modules.get(name), "__version__", None)
            if loaded is not None:
                found[name] = str(loaded)
        return found

    def host(self) -> dict[str, str]:
        """Where this runs; nothing of the environment but these facts."""
        return {
            "name": socket.gethostname(),
            "platform": platform.platform(),
            "machine": platform.machine(),
            "cpus": str(os.cpu_count()),
        }


@functools.cache
def perdure_version() -> str:
    """Version of the installed package."""
    try:
        return version("perdure")
    except PackageNotFoundError:
        return "unknown"
