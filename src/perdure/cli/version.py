"""``perdure version``."""

from __future__ import annotations

import platform
from argparse import Namespace
from importlib.metadata import PackageNotFoundError, version

from perdure.cli.verb import Context, Verb

_COMPANIONS = ("numpy", "torch", "gymnasium", "stable-baselines3", "torchrl", "tianshou", "ray")
"""Packages whose versions a bug report needs."""


def _execute(_arguments: Namespace, context: Context) -> int:
    own = _version_of("perdure") or "unknown"
    packages = {name: found for name in _COMPANIONS if (found := _version_of(name))}
    output = context.output
    output.document(
        {"perdure": own, "python": platform.python_version(), "platform": platform.platform(), "packages": packages}
    )
    if output.manner.quiet:
        output.line(own)
        return 0
    output.line(f"perdure {own} (python {platform.python_version()}, {platform.platform()})")
    if packages:
        output.line(", ".join(f"{name} {found}" for name, found in packages.items()))
    return 0


def _version_of(name: str) -> str | None:
    """Return a package's version without importing it."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


VERB = Verb(
    description="Print the versions of perdure, of Python and of the frameworks that are installed.",
    arguments=(),
    exits=(),
    execute=_execute,
)
