"""
What a supervised run consists of: ``perdure.toml``, read into frozen values.

Example::

    store = "runs"
    run = "ppo-ant"

    [timing]
    grace = "25s"

    [roles.learner]
    command = ["python", "learner.py"]

    [roles.actor]
    command = ["python", "actor.py"]
    replicas = 4
    essential = false
    restart = { max_restarts = 10, restarts_fenced = true }
    phases.running = { silence = "30s", stall = "10m" }

Durations are numbers of seconds or strings such as "500ms", "90s", "15m", "2h". Directories are relative to the file.
Whatever is not understood is an error that names the key: a misspelt budget must not silently be the default one.
"""

from __future__ import annotations

import difflib
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from perdure.core.names import check_segment
from perdure.core.restarts import DEFAULT_BUDGETS, Phase, PhaseBudget, RestartPolicy
from perdure.errors import InvalidInputError, NotFoundError
from perdure.files.door import explained
from perdure.supervise.beats import DEFAULT_BEAT_SECONDS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONFIG_FILE = "perdure.toml"
MAXIMUM_REPLICAS = 1024
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

_SECONDS = "_seconds"

_T = TypeVar("_T")
_Settings = TypeVar("_Settings", bound="Timing | PhaseBudget | RestartPolicy")


@dataclass(frozen=True, slots=True)
class Timing:
    """How long the supervisor waits for what."""

    beat_seconds: float = DEFAULT_BEAT_SECONDS
    """How often members are to send a beat."""
    grace_seconds: float = 25.0
    """Time that members have to stop after SIGTERM before they are killed."""
    reap_seconds: float = 10.0
    """Time that a killed process has to die before the supervisor goes on without it."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not 0 < value < math.inf:
                raise _bad(each.name, f"expected a finite time of more than 0, got {value!r}")


_DEFAULT_TIMING = Timing()
_DEFAULT_RESTARTS = RestartPolicy()


@dataclass(frozen=True, slots=True)
class RoleConfig:
    """One role: a command and how its members are treated."""

    name: str
    """Name of the role; its members are called like it, with a number where there are several."""
    command: tuple[str, ...]
    """Program and arguments, never a shell string."""
    replicas: int = 1
    """Number of members."""
    essential: bool = True
    """Whether the run depends on it: the run is done when all members of all essential roles are done, and ends with
    the reason's exit code as soon as one of them is given up. The members of other roles may finish or be given up
    without an effect on the rest, and are stopped when the run ends."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables beside those of the supervisor."""
    cwd: Path = Path()
    """Working directory; a relative one begins at the supervisor's."""
    restart: RestartPolicy = _DEFAULT_RESTARTS
    """When to restart a member."""
    budgets: Mapping[Phase, PhaseBudget] = field(default_factory=lambda: DEFAULT_BUDGETS)
    """How long a member may be silent, for every phase."""

    def __post_init__(self) -> None:
        check_segment(self.name, "role")
        if not self.command or not self.command[0]:
            raise _bad("command", "expected a program and its arguments, got nothing")
        if any("\0" in word for word in self.command):
            raise _bad("command", "an argument cannot contain a null character")
        if any("=" in name or "\0" in name + value for name, value in self.env.items()):
            raise _bad("env", "a name cannot contain '=', and nothing a null character")
        if not 1 <= self.replicas <= MAXIMUM_REPLICAS:
            raise _bad("replicas", f"expected 1 to {MAXIMUM_REPLICAS}, got {self.replicas}")
        if set(self.budgets) != set(Phase):
            raise _bad("budgets", "expected one for every phase")

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the members."""
        if self.replicas == 1:
            return (self.name,)
        return tuple(f"{self.name}-{number}" for number in range(self.replicas))


@dataclass(frozen=True, slots=True)
class ProjectConfig:
    """A supervised run."""

    store: Path
    """Directory of runs; absolute."""
    run: str
    """Name of the run in it."""
    roles: tuple[RoleConfig, ...]
    """Roles, in the order in which they are started."""
    timing: Timing = _DEFAULT_TIMING
    """Waiting times."""

    def __post_init__(self) -> None:
        check_segment(self.run, "run")
        if not any(role.essential for role in self.roles):
            raise _bad("roles", "at least one must be essential, or the run would have no end")
        names = [name for role in self.roles for name in role.members]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise _bad("roles", f"two members would be called {twice!r}")

    @property
    def directory(self) -> Path:
        """The run's directory."""
        return self.store / self.run


def config_for_command(
    command: Sequence[str],
    *,
    store: Path,
    run: str,
    cwd: Path,
    restart: RestartPolicy = _DEFAULT_RESTARTS,
    timing: Timing = _DEFAULT_TIMING,
) -> ProjectConfig:
    """
    Return the configuration of ``perdure run -- COMMAND…``: one essential role ``main`` with one member.

    Raises:
        InvalidInputError: The command is empty, or a name cannot be used.
    """
    role = RoleConfig(name="main", command=tuple(command), cwd=cwd, restart=restart)
    return ProjectConfig(store=cwd / store, run=run, roles=(role,), timing=timing)


def read_config(path: Path) -> ProjectConfig:
    """
    Read a ``perdure.toml``.

    Raises:
        NotFoundError: Kind ``config.not-found``.
        InvalidInputError: Kind ``config.syntax``, ``config.unknown-key``, ``config.missing-key``,
            ``config.wrong-type``, ``config.bad-value`` or ``name.invalid``; the field is the dotted key.
        StoreError: The file cannot be read.
    """
    if not path.exists():
        raise NotFoundError(
            f"cannot read {path}: there is no such file",
            kind="config.not-found",
            hint="name a file with --config, or say what to run: perdure run -- COMMAND",
            name=str(path),
        )
    with explained("read", path):
        content = path.read_bytes()
    try:
        document = tomllib.loads(content.decode())
    except ValueError as error:  # both of TOML and of UTF-8
        raise InvalidInputError(
            f"cannot read {path}: {error}",
            kind="config.syntax",
            hint="every line is `key = value`, with text in quotes",
        ) from error
    return parse_config(document, path.absolute().parent)


def parse_config(document: Mapping[str, Any], directory: Path) -> ProjectConfig:
    """
    Turn a parsed ``perdure.toml`` into a configuration; see `read_config` for the errors.

    Args:
        document: What TOML made of the file.
        directory: Where relative directories begin; absolute.
    """
    top = _Table("", document)
    roles = top.table("roles")
    return top.build(
        ProjectConfig,
        store=directory / top.take("store", _text, "runs"),
        run=top.take("run", _text),
        timing=_settings(top.table("timing"), _DEFAULT_TIMING),
        roles=tuple(_role(roles.table(name), name, directory) for name in roles.keys),
    )


def parse_duration(value: object, where: str) -> float:
    """
    Return the seconds of a number of seconds or a string such as ``"90s"``.

    Args:
        value: What the user wrote.
        where: What it is for, as an error is to name it.

    Raises:
        InvalidInputError: Kind ``config.wrong-type``.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise _wrong_type(where, 'a number of seconds or text such as "90s" or "15m"', value)
    return float(match[1]) * _UNIT_SECONDS[match[2]]


def _role(table: _Table, name: str, directory: Path) -> RoleConfig:
    env, phases = table.table("env"), table.table("phases")
    budgets = {phase: _settings(phases.table(phase.value), default) for phase, default in DEFAULT_BUDGETS.items()}
    phases.refuse_the_rest()
    return table.build(
        RoleConfig,
        name=name,
        command=table.take("command", _words),
        replicas=table.take("replicas", _count, 1),
        essential=table.take("essential", _flag, True),
        env={variable: env.take(variable, _text) for variable in env.keys},
        cwd=directory / table.take("cwd", _text, "."),
        restart=_settings(table.table("restart"), _DEFAULT_RESTARTS),
        budgets=budgets,
    )


def _settings(table: _Table, default: _Settings) -> _Settings:
    """Return ``default`` with the fields that the table sets; a field ``x_seconds`` is the duration ``x`` there."""
    values: dict[str, object] = {}
    for each in fields(default):
        value = getattr(default, each.name)
        if each.name.endswith(_SECONDS):
            values[each.name] = table.take(each.name.removesuffix(_SECONDS), parse_duration, value)
        else:
            values[each.name] = table.take(each.name, _READERS[type(value)], value)
    return table.build(type(default), **values)


class _Table:
    """A TOML table that is taken apart key by key; what nobody asked for is an error."""

    def __init__(self, where: str, values: object) -> None:
        if not isinstance(values, Mapping):
            raise _wrong_type(where, "a table", values)
        self._where = where
        self._values = values
        self._known: list[str] = []

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self._values)

    def take(self, key: str, read: Callable[[object, str], _T], default: _T | None = None) -> _T:
        self._known.append(key)
        if key in self._values:
            return read(self._values[key], self._path(key))
        if default is None:
            raise InvalidInputError(
                f"cannot do without {self._path(key)}: it has no default",
                kind="config.missing-key",
                hint=f"add `{key} = …` to {self._title()}",
                field=self._path(key),
            )
        return default

    def table(self, key: str) -> _Table:
        self._known.append(key)
        return _Table(self._path(key), self._values.get(key, {}))

    def refuse_the_rest(self) -> None:
        for key in self._values:
            if key not in self._known:
                near = difflib.get_close_matches(key, self._known, n=1)
                raise InvalidInputError(
                    f"cannot use {self._path(key)}: {self._title()} has no such key",
                    kind="config.unknown-key",
                    hint=f"did you mean {near[0]!r}?" if near else f"it has {', '.join(self._known)}",
                    field=self._path(key),
                )

    def build(self, make: Callable[..., _T], **values: object) -> _T:
        """Refuse what is left over, and make a value whose own refusals name this table."""
        self.refuse_the_rest()
        try:
            return make(**values)
        except InvalidInputError as error:
            raise InvalidInputError(
                f"cannot use {self._title()}: {error.message}",
                kind=error.kind,
                hint=error.hint,
                field=self._path((error.field or "").removesuffix(_SECONDS)),
            ) from error

    def _path(self, key: str) -> str:
        return f"{self._where}.{key}" if self._where else key

    def _title(self) -> str:
        return f"[{self._where}]" if self._where else "the top level"


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong_type(where, "text", value)
    return value


def _words(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise _wrong_type(where, 'a list of words such as ["python", "train.py"]; there is no shell', value)
    return tuple(value)


def _count(value: object, where: str) -> int:
    if type(value) is not int:  # a boolean is an instance of int
        raise _wrong_type(where, "a whole number", value)
    return value


def _flag(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong_type(where, "true or false", value)
    return value


_READERS: Mapping[type, Callable[[object, str], object]] = MappingProxyType({bool: _flag, int: _count})


def _wrong_type(where: str, expected: str, value: object) -> InvalidInputError:
    return InvalidInputError(
        f"cannot use {value!r:.80} as {where}: expected {expected}",
        kind="config.wrong-type",
        field=where,
    )


def _bad(name: str, reason: str) -> InvalidInputError:
    return InvalidInputError(f"cannot use {name}: {reason}", kind="config.bad-value", field=name)
