"""The demo as a project: a ``perdure.toml`` with its roles, as anyone would write it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from perdure.demo.settings import Settings, write_settings

RUNS = "runs"
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_GRACE_SECONDS = 10.0
_FIRST_BACKOFF_SECONDS = 0.1


def write_project(name: str, settings: Settings, directory: Path) -> Path:
    """
    Write the files that a run of the demo is started from.

    Returns:
        The ``<name>.toml``, ready for `perdure run --config`.
    """
    settings_path = settings_file(name, directory)
    write_settings(settings, settings_path)
    path = directory / f"{name}.toml"
    path.write_text(project_text(name, settings, settings_path.absolute()), encoding="utf-8")
    return path


def settings_file(name: str, directory: Path) -> Path:
    """Return the file that the processes of a run read their settings from."""
    return directory / f"{name}.json"


def project_text(name: str, settings: Settings, settings_path: Path, python: str = sys.executable) -> str:
    """Return a project file: a learner that must end well, and actors and an evaluator that serve it."""
    restart = f"backoff_first = {_FIRST_BACKOFF_SECONDS}"
    return "\n".join(
        [
            f"store = {_quoted(RUNS)}",
            f"run = {_quoted(name)}",
            "",
            "[timing]",
            f"beat = {settings.beat_seconds}",
            f"grace = {_GRACE_SECONDS}",
            *_role("learner", settings_path, python, [f"restart = {{ {restart} }}"]),
            *_role(
                "actor",
                settings_path,
                python,
                [
                    f"replicas = {settings.actors}",
                    "essential = false",
                    f"restart = {{ max_restarts = 10, restarts_fenced = true, {restart} }}",
                ],
            ),
            *_role("evaluator", settings_path, python, ["essential = false", f"restart = {{ {restart} }}"]),
            "",
        ]
    )


def _role(name: str, settings_path: Path, python: str, lines: list[str]) -> list[str]:
    command = ", ".join(_quoted(word) for word in (python, "-m", f"perdure.demo.{name}", str(settings_path)))
    variables = ", ".join(f"{variable} = {_quoted(value)}" for variable, value in _ONE_THREAD.items())
    return ["", f"[roles.{name}]", f"command = [{command}]", f"env = {{ {variables} }}", *lines]


def _quoted(text: str) -> str:
    # A JSON string is a TOML basic string as well, but for the escapes of characters beyond the basic plane.
    return json.dumps(text, ensure_ascii=False)
