"""
Certificates: what a probe has found out about an environment, kept on this machine.

A certificate is of an id with its arguments, a wrapper stack, and the versions of all that they come from; under
another version it says nothing. It lies in the cache directory, one small JSON file each. A damaged or missing one is
as if there were none.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from perdure.capture.environments.plain import OpaqueValueError, summarise
from perdure.files.door import Files
from perdure.files.publish import ensure_directory, replace_file
from perdure.files.reading import read_small

__all__ = ["CERTIFICATES", "Certificate", "Certificates", "Subject", "cache_directory", "find", "keep", "subject_of"]

EXACT = frozenset({"E0", "E1"})
_MAXIMUM_BYTES = 64 * 1024
_SIMULATORS = {"gymnasium.envs.mujoco": "mujoco", "gymnasium.envs.box2d": "Box2D"}
"""What Gymnasium's own environments are made of, by the beginning of their modules' names."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What a certificate is of: anything that may change how an environment can be captured."""

    id: str
    arguments: dict[str, str]
    stack: tuple[str, ...]
    """Classes from the outermost wrapper to the environment."""
    versions: dict[str, str]

    @property
    def key(self) -> str:
        """Name of the certificate's file."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Certificate:
    """The outcome of a probe; see `perdure.capture.environments.probe`."""

    subject: Subject
    level: str
    """``E0`` to ``E4``."""
    reason: str
    """Why it is not E0; empty if it is."""
    steps: int
    """Steps that were compared."""

    def to_json(self) -> dict[str, Any]:
        """The certificate as one JSON-able object."""
        return {**asdict(self), "key": self.subject.key}


class Certificates:
    """
    The certificates of this machine, each looked for once in a process.

    Attributes:
        are_consulted: Whether captures ask for them; a probe, which makes them, does not.
    """

    def __init__(self) -> None:
        self.are_consulted = True
        self._found: dict[str, Certificate | None] = {}

    def of(self, env: Any) -> Certificate | None:
        """Return the certificate of a single environment with all its wrappers; None if there is none."""
        if not self.are_consulted:
            return None
        subject = subject_of(env)
        if subject.key not in self._found:
            self._found[subject.key] = find(subject, Files(), cache_directory())
        return self._found[subject.key]

    def doubt_of(self, env: Any) -> str:
        """Say why an environment must not be called captured although it seems to be; '' if nothing speaks against."""
        found = self.of(env)
        if found is None or found.level in EXACT or found.level == "E3":
            return ""
        return f"{found.subject.id or type(env).__qualname__} has failed its probe ({found.level}): {found.reason}"


CERTIFICATES = Certificates()


def subject_of(env: Any) -> Subject:
    """Describe a single environment with all its wrappers."""
    stack = list(_layers(env))
    spec = getattr(env, "spec", None)
    packages = {type(layer).__module__.partition(".")[0] for layer in stack} | {"gymnasium", "numpy"}
    packages |= {
        simulator
        for layer in stack
        for module, simulator in _SIMULATORS.items()
        if type(layer).__module__.startswith(module)
    }
    versions = {name: _version_of(name) for name in sorted(packages - {"builtins", "__main__"})}
    return Subject(
        "" if spec is None else str(spec.id),
        dict(_texts({} if spec is None else spec.kwargs)),
        tuple(f"{type(layer).__module__}.{type(layer).__qualname__}" for layer in stack),
        {**versions, "perdure": _version_of("perdure"), "python": platform.python_version()},
    )


def _layers(env: Any) -> Iterator[Any]:
    seen: set[int] = set()
    while env is not None and id(env) not in seen:
        seen.add(id(env))
        yield env
        env = vars(env).get("env") if hasattr(env, "__dict__") else None


def _texts(arguments: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in sorted(arguments.items()):
        if name != "render_mode":
            try:
                yield name, summarise(value)
            except OpaqueValueError:
                yield name, type(value).__qualname__


def _version_of(package: str) -> str:
    found = getattr(sys.modules.get(package), "__version__", None)
    if found is not None:
        return str(found)
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def cache_directory() -> Path:
    """Where certificates lie: ``PERDURE_CACHE``, or ``perdure`` in the user's cache directory."""
    named = os.environ.get("PERDURE_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perdure"


def keep(certificate: Certificate, files: Files, directory: Path) -> Path:
    """
    Put a certificate into the cache, in the place of an older one of the same subject.

    Raises:
        StoreError: The directory cannot be written.
    """
    folder = directory / "certificates"
    ensure_directory(files, folder)
    path = folder / f"{certificate.subject.key}.json"
    content = json.dumps(certificate.to_json(), indent=1, sort_keys=True).encode() + b"\n"
    replace_file(files, path, content, path.with_name(f".{path.name}.{os.getpid()}"))
    return path


def find(subject: Subject, files: Files, directory: Path) -> Certificate | None:
    """Return the certificate of a subject; None if there is none that can be read."""
    folder = directory / "certificates"
    if not folder.is_dir():
        return None
    content = read_small(files, folder, f"{subject.key}.json", _MAXIMUM_BYTES)
    if content is None:
        return None
    try:
        found = json.loads(content)
        return Certificate(subject, str(found["level"]), str(found["reason"]), int(found["steps"]))
    except (ValueError, KeyError, TypeError):
        return None
