"""
Certificates: what a probe has found out about an environment, kept on this machine.

A certificate is of an id with its arguments, a wrapper stack, the versions of all that they come from, and the source
of what has no proof of ours; under another version it says nothing. It lies in the cache directory, one small JSON file
each. A damaged or missing one is as if there were none.
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
from perdure.capture.environments.proven import is_proven, layers_of
from perdure.capture.environments.remembered import Remembered
from perdure.capture.environments.traits import IDENTITY, Traits, registered
from perdure.files.door import Files
from perdure.files.publish import ensure_directory, replace_file
from perdure.files.reading import read_small

__all__ = [
    "CERTIFICATES",
    "EXACT",
    "Certificate",
    "Certificates",
    "Subject",
    "cache_directory",
    "find",
    "keep",
    "name_of",
    "subject_of",
]

EXACT = frozenset({"E0", "E1"})
_MAXIMUM_BYTES = 64 * 1024
_SIMULATORS = {"gymnasium.envs.mujoco": "mujoco", "gymnasium.envs.box2d": "Box2D"}
"""What Gymnasium's own environments are made of, by the beginning of their modules' names."""
_NOT_DIGESTED = frozenset({"gymnasium", "ale_py", *sys.stdlib_module_names}) - {"__main__"}
_THIS_PROCESS = os.urandom(16)
_digests: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Subject:
    """What a certificate is of: anything that may change how an environment can be captured."""

    id: str
    arguments: dict[str, str]
    stack: tuple[str, ...]
    """Classes from the outermost wrapper to the environment."""
    versions: dict[str, str]
    sources: dict[str, str]
    """Digests of the modules that classes of the stack come from, and what these were registered with; of classes that
    the tests of this package prove, nothing."""

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
        learned: How many were made since this process began.
    """

    def __init__(self) -> None:
        self.are_consulted = True
        self.learned = 0
        self._found: dict[str, Certificate | None] = {}
        self._subjects = Remembered(lambda env: (subject := subject_of(env), subject.key))

    def subject_of(self, env: Any) -> tuple[Subject, str]:
        """Return what an environment with all its wrappers was when it was first asked about, and its key."""
        return self._subjects.of(env)

    def of(self, env: Any) -> Certificate | None:
        """Return the certificate of an environment with all its wrappers; None if there is none."""
        if not self.are_consulted:
            return None
        subject, key = self.subject_of(env)
        if key not in self._found:
            self._found[key] = find(subject, Files(), cache_directory())
        return self._found[key]

    def learn(self, certificate: Certificate) -> None:
        """Take notice of a certificate that was made since."""
        self._found[certificate.subject.key] = certificate
        self.learned += 1

    def doubt_of(self, env: Any) -> str:
        """Say why an environment must not be called captured although it seems to be; '' if nothing speaks against."""
        found = self.of(env)
        if found is None or found.level in EXACT or found.level == "E3":
            return ""
        return f"{name_of(env)} has failed its probe ({found.level}): {found.reason}"


CERTIFICATES = Certificates()


def name_of(env: Any) -> str:
    """Name an environment for people: the class that needs a proof, and the id."""
    layers = layers_of(env)
    cls = next((type(layer) for layer in layers if not is_proven(type(layer))), type(layers[-1]))
    found = subject_of(env).id
    return f"{cls.__qualname__} ({found})" if found else cls.__qualname__


def subject_of(env: Any) -> Subject:
    """Describe an environment with all its wrappers."""
    stack = layers_of(env)
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
        tuple(f"{_module_of(type(layer))}.{type(layer).__qualname__}" for layer in stack),
        {**versions, "perdure": _version_of("perdure"), "python": platform.python_version()},
        dict(_sources(stack)),
    )


def _module_of(cls: type) -> str:
    """Name of a class's module; that of the main program as if it had been imported."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(file).stem if cls.__module__ == "__main__" and file else cls.__module__


def _sources(stack: list[Any]) -> Iterator[tuple[str, str]]:
    classes = {cls for layer in stack if not is_proven(type(layer)) for cls in type(layer).__mro__}
    ours = {cls for cls in classes if cls.__module__.partition(".")[0] not in _NOT_DIGESTED}
    for cls in sorted(ours, key=lambda each: (each.__module__, each.__qualname__)):
        yield _module_of(cls), _digest_of(cls.__module__)
        traits = registered(cls)
        if traits is not None:
            yield f"{_module_of(cls)}.{cls.__qualname__}", _declared(traits)
            for function in (
                () if traits.accessors is None else (traits.accessors.get_state, traits.accessors.set_state)
            ):
                yield function.__module__, _digest_of(function.__module__)


def _declared(traits: Traits) -> str:
    if traits.accessors is not None:
        return "functions"
    return "all attributes" if traits.attributes is None else " ".join(sorted(traits.attributes - IDENTITY))


def _digest_of(module: str) -> str:
    if module not in _digests:
        try:
            content = Path(sys.modules[module].__file__ or "").read_bytes()
        except (KeyError, AttributeError, OSError):
            # Typed in at a prompt: nothing tells one version of it from the next but that this process has it.
            content = _THIS_PROCESS
        _digests[module] = hashlib.blake2b(content, digest_size=8).hexdigest()
    return _digests[module]


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
