"""Other versions of Stable-Baselines3 than that of a checkpoint: refused where their models keep other state."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from perdure.errors import IncompatibleError

FRAMEWORKS = ("stable_baselines3", "sb3_contrib")
"""Packages whose algorithms are proven to go on exactly."""
_SHOWN = 8


def framework_versions() -> dict[str, str]:
    """Versions of what a model's attributes come from, where it is loaded."""
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in FRAMEWORKS}
    return {name: str(version) for name, version in found.items() if version is not None}


def check_version(tree: Mapping[str, Any], attributes: Mapping[str, list[str]]) -> None:
    """
    Compare what a model's parts keep here with what they kept under another version.

    Args:
        tree: What was captured, with the ``versions`` and the names of ``attributes`` by part when training began.
        attributes: The names here, at the same point. Under the same version a difference is the program's own doing.

    Raises:
        IncompatibleError: Kind ``sb3.other-version``: the version differs, and the attributes do.
    """
    here, there = framework_versions(), tree.get("versions", {})  # checkpoints of before have none
    changed = [name for name, version in there.items() if here.get(name, version) != version]
    if not changed or attributes == tree["attributes"]:
        return
    was, is_now = (", ".join(f"{name} {versions[name]}" for name in changed) for versions in (there, here))
    kept, known = _flat(tree["attributes"]), _flat(attributes)
    raise IncompatibleError(
        f"cannot restore the model: it was saved under {was}, and {is_now} keeps other state: only the checkpoint has "
        f"{_listed(kept - known)}, only the program has {_listed(known - kept)}",
        kind="sb3.other-version",
        hint=f"install {was} to go on with this run, or begin another one",
        component="the model",
        expected=is_now,
        actual=was,
    )


def _flat(attributes: Mapping[str, list[str]]) -> set[str]:
    return {f"{part}.{name}" for part, names in attributes.items() for name in names}


def _listed(names: set[str]) -> str:
    shown = sorted(names)[:_SHOWN]
    more = len(names) - len(shown)
    return ", ".join([*shown, *([f"and {more} more"] if more else [])]) or "nothing"
