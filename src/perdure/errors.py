"""
What can go wrong, grouped by what the caller should do about it.

    PerdureError
    ├── InvalidInputError      (ValueError)   fix the call or the configuration
    ├── NotFoundError          (LookupError)  name something that exists
    │   └── NothingRestorableError            start fresh on purpose, or repair
    ├── AlreadyExistsError                    choose another name
    ├── ConflictError                         somebody else holds it
    │   ├── LeaseHeldError                    wait, then try again
    │   └── FencedError                       stop: this process was superseded
    ├── StoreError             (OSError)      free space, mend permissions or the disk
    ├── CorruptionError                       use an older checkpoint, repair
    ├── FormatError                           upgrade perdure, or migrate
    ├── IncompatibleError                     make code and checkpoint agree
    ├── MissingDependencyError (ImportError)  install the extra
    ├── DeadlineError          (TimeoutError) look at who is late
    ├── StoppedError           (SystemExit)   run the same command again
    └── InternalError                         report it

Every error has a ``kind`` (a stable code; kinds are only ever added), a message that says what could not be done, to
what and why, and usually a ``hint``: what to run or change next. Every class has an ``exit_code`` for command lines.
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "AlreadyExistsError",
    "ConflictError",
    "CorruptionError",
    "DeadlineError",
    "FencedError",
    "FormatError",
    "IncompatibleError",
    "InternalError",
    "InvalidInputError",
    "LeaseHeldError",
    "MissingDependencyError",
    "NotFoundError",
    "NothingRestorableError",
    "PerdureError",
    "StoppedError",
    "StoreError",
]


def _rebuild(cls: type[PerdureError], args: tuple[object, ...], state: dict[str, object]) -> PerdureError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class PerdureError(Exception):
    """
    Base of every error that perdure raises on purpose.

    Args:
        message: What could not be done, to which object, why. Lower-case start, no trailing period.
        kind: Stable code of this exact situation, such as ``"run.not-found"``.
        hint: What to run or change next; empty when there is nothing to advise.
        fields: Typed facts about the situation; each becomes an attribute and a JSON field.
    """

    exit_code: ClassVar[int] = 1
    """Exit status of a command that ends in this error."""
    retryable: ClassVar[bool] = False
    """Whether doing the same again later can succeed without a change by the caller."""
    field_names: ClassVar[tuple[str, ...]] = ()
    """Facts that instances may carry, as attributes; absent ones are None."""

    def __init__(self, message: str, *, kind: str, hint: str = "", **fields: Any) -> None:
        super().__init__(message)
        unknown = set(fields) - set(self.field_names)
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {min(unknown)!r}")
        self.message = message
        self.kind = kind
        self.hint = hint
        for name in self.field_names:
            setattr(self, name, fields.get(name))

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, dict(self.__dict__))

    def to_json(self) -> dict[str, object]:
        """Describe the error as one JSON-able object, the form in which ``--json`` prints it."""
        known = {name: getattr(self, name) for name in self.field_names}
        return {
            "type": type(self).__name__,
            "kind": self.kind,
            "exit_code": self.exit_code,
            "message": self.message,
            "hint": self.hint,
            **{name: value for name, value in known.items() if value is not None},
        }


class InvalidInputError(PerdureError, ValueError):
    """A name, value or configuration cannot be used; the field says which."""

    exit_code = 2
    field_names = ("field",)
    field: str | None


class NotFoundError(PerdureError, LookupError):
    """A run, checkpoint, component or pin of that name does not exist."""

    exit_code = 10
    field_names = ("name",)
    name: str | None


class NothingRestorableError(NotFoundError):
    """A restore was required and no checkpoint of the run can be used."""

    exit_code = 13


class AlreadyExistsError(PerdureError):
    """Something of that name is already there and will not be replaced."""

    field_names = ("name",)
    name: str | None


class ConflictError(PerdureError):
    """Another process holds what this one asked for."""

    exit_code = 11


class LeaseHeldError(ConflictError):
    """Another live process holds the lease; it can be had when that one ends or falls silent."""

    retryable = True
    field_names = ("owner", "expires_in_seconds")
    owner: str | None
    expires_in_seconds: float | None


class FencedError(ConflictError):
    """This process was superseded by a newer generation. It must stop and must not retry."""

    exit_code = 12
    field_names = ("generation", "current_generation")
    generation: int | None
    current_generation: int | None


class StoreError(PerdureError, OSError):
    """The file system or store refused an operation: full, read-only, forbidden, broken."""

    field_names = ("path", "errno_name")
    path: str | None
    errno_name: str | None


class CorruptionError(PerdureError):
    """Stored bytes are not the bytes that were committed."""

    exit_code = 4
    field_names = ("path", "expected", "actual")
    path: str | None
    expected: str | int | None
    actual: str | int | None


class FormatError(PerdureError):
    """The data is of a form that this version does not read, such as a newer schema."""

    field_names = ("path", "schema_version", "supported_version")
    path: str | None
    schema_version: int | None
    supported_version: int | None


class IncompatibleError(PerdureError):
    """The checkpoint is whole but does not fit the live objects: shapes, keys, components or versions differ."""

    field_names = ("component", "expected", "actual")
    component: str | None
    expected: str | None
    actual: str | None


class MissingDependencyError(PerdureError, ImportError):
    """An optional package that this feature is built on is not installed."""

    field_names = ("package", "extra")
    package: str | None
    extra: str | None


class DeadlineError(PerdureError, TimeoutError):
    """Something was waited for and did not happen in time; the fields name who is late."""

    retryable = True
    field_names = ("waited_seconds", "holder")
    waited_seconds: float | None
    holder: str | None


class StoppedError(PerdureError, SystemExit):
    """
    The run was asked to stop and did so after a commit: the same command continues it.

    Raised out of ``run.loop`` between two items. It is also a ``SystemExit``, so a script that does not catch it ends
    with status 75 and without a traceback.
    """

    exit_code = 75
    field_names = ("signal", "step")
    signal: str | None
    step: int | None

    def __init__(self, message: str, *, kind: str, hint: str = "", **fields: Any) -> None:
        super().__init__(message, kind=kind, hint=hint, **fields)
        self.code = self.exit_code


class InternalError(PerdureError):
    """An invariant of perdure itself does not hold; this is a bug worth reporting."""

    exit_code = 1
