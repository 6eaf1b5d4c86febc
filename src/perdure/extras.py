"""Optional packages: found where they are used, or asked for by the name of the extra that brings them."""

from __future__ import annotations

from importlib.util import find_spec

from perdure.errors import MissingDependencyError


def require(package: str, *, extra: str) -> None:
    """
    Check that an optional package is installed; nothing is imported.

    Raises:
        MissingDependencyError: Kind ``dependency.missing``, with what to install.
    """
    if find_spec(package) is None:
        raise MissingDependencyError(
            f"cannot do this without the package {package!r}, which is not installed",
            kind="dependency.missing",
            hint=f"pip install 'perdure[{extra}]'",
            package=package,
            extra=extra,
        )
