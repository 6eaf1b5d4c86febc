"""
Copies of environments for processes that try them out.

A copy is a pickle that goes through a pipe to a process of this program's own, and nowhere else. It only has to lead
to an environment of the same kind, so one that comes out fresh is as good as one in mid-episode: whether its state can
be captured is what is being tried. Classes of the main program travel with it, since importing that would run it.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from typing import Any

from perdure.capture.environments.proven import layers_of
from perdure.capture.environments.traits import Traits, know_as, registrations
from perdure.errors import InvalidInputError

__all__ = ["MAXIMUM_BYTES", "Copy", "copy_of"]

MAXIMUM_BYTES = 32 * 1024 * 1024


def copy_of(env: Any) -> bytes:
    """
    Pickle an environment, with what is known of the classes in it.

    Raises:
        InvalidInputError: It cannot be pickled, or is larger than `MAXIMUM_BYTES`.
    """
    import cloudpickle  # Gymnasium brings it

    classes = {cls for layer in layers_of(env) for cls in type(layer).__mro__}
    known = {cls: traits for cls, traits in registrations().items() if not traits.is_ours or cls in classes}
    content = _Bounded()
    try:
        cloudpickle.Pickler(content).dump((known, env))
    except Exception as error:  # whatever an environment's attributes raise, it is the copy that cannot be made
        raise InvalidInputError(
            f"cannot copy {type(env).__qualname__}: {type(error).__name__}: {error}", kind="environment.uncopyable"
        ) from error
    return content.getvalue()


class _Bounded(io.BytesIO):
    def write(self, data: Any, /) -> int:
        if self.tell() + memoryview(data).nbytes > MAXIMUM_BYTES:
            raise ValueError(f"its pickle is larger than {MAXIMUM_BYTES:,} bytes")
        return super().write(data)


@dataclass(frozen=True, slots=True)
class Copy:
    """
    Makes an environment in another process, each time a new one.

    Attributes:
        content: What `copy_of` gave.
        stack: Qualified names of the layers that it must come out with.
    """

    content: bytes
    stack: tuple[str, ...]

    def __call__(self) -> Any:
        """
        Make one.

        Raises:
            InvalidInputError: What comes out is another environment.
        """
        known: dict[type, Traits]
        known, env = pickle.loads(self.content)  # noqa: S301 - this program's own, from its own pipe
        for cls, traits in known.items():
            know_as(cls, traits)
        found = tuple(type(layer).__qualname__ for layer in layers_of(env))
        if found != self.stack:
            raise InvalidInputError(
                f"cannot copy the environment: {' > '.join(self.stack)} comes out as {' > '.join(found)}",
                kind="environment.uncopyable",
            )
        return env
