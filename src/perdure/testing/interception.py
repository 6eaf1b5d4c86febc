"""
The seam: a `Files` whose every call passes through one method, `InterceptedFiles.intercept`.

Subclasses override that method and compose by inheritance: in ``class Both(RecordingFiles, FaultyFiles)`` the recorder
sees what the fault made of each call. A method that is added to `Files` is intercepted without further ado.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from perdure.files.door import Files

Method = TypeVar("Method", bound=Callable[..., Any])
Proceed = Callable[[], Any]
"""Carries a call out, and returns what the real method returned."""

READING = frozenset(
    {
        "open_beneath",
        "open_folder_beneath",
        "open_in",
        "size_in",
        "is_cached",
        "start_direct",
        "read_into",
        "names",
        "status",
        "link_content",
        "free_bytes",
        "begin_sync",
    }
)
"""Calls that change nothing."""


@dataclass(frozen=True, slots=True)
class Call:
    """
    One call of the file system.

    Attributes:
        name: Name of the method of `Files`.
        arguments: Its arguments by name, defaults filled in; borrowed for the time of the call.
        depth: 1 for a call from outside, 2 for one that another call made.
    """

    name: str
    arguments: Mapping[str, Any]
    depth: int


class InterceptedFiles(Files):
    """The local file system with one place through which every call passes. Safe to use from several threads."""

    def __init__(self) -> None:
        self._depth = threading.local()

    def intercept(self, call: Call, proceed: Proceed) -> Any:
        """Carry a call out; subclasses do something before, after or instead, and go on with ``super()``."""
        del call
        return proceed()

    def _pass(self, name: str, arguments: Mapping[str, Any], proceed: Proceed) -> Any:
        depth = getattr(self._depth, "value", 0) + 1
        self._depth.value = depth
        try:
            return self.intercept(Call(name, arguments, depth), proceed)
        finally:
            self._depth.value = depth - 1


def _intercepted(name: str, real: Method) -> Method:
    parameters = list(inspect.signature(real).parameters.values())[1:]
    names = [parameter.name for parameter in parameters]
    defaults = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}

    @functools.wraps(real)
    def method(self: InterceptedFiles, *args: Any, **kwargs: Any) -> Any:
        arguments = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        return self._pass(name, arguments, lambda: real(self, *args, **kwargs))

    return method  # type: ignore[return-value] # the wrapper takes what the method takes


for _name, _real in inspect.getmembers(Files, inspect.isfunction):
    if not _name.startswith("_"):
        setattr(InterceptedFiles, _name, _intercepted(_name, _real))
