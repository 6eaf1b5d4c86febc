"""
Pickles, for what nothing else can store: asked for by name when it is saved, and again by name when it is loaded.

Unpickling runs code that the file names, so whoever can write the file can run what he likes. Nothing here is on a
default path: an object has to be wrapped to be pickled, and a name has to be passed to `perdure.open` to be unpickled.
"""

from __future__ import annotations

from typing import Any

from perdure.core.component import ContentPart, PartsCapture, PartsSource
from perdure.core.manifest import Grade
from perdure.core.names import Section
from perdure.errors import IncompatibleError, InvalidInputError


class Pickled:
    """
    An object that is saved as a pickle; a restore replaces it.

    Args:
        value: The object, borrowed. Use `value` of this holder instead of a name of your own.

    Example:
        >>> with perdure.open("runs", run="old", unpickle=["noise"]) as run:  # doctest: +SKIP
        ...     noise = perdure.Pickled(OldNoise())
        ...     run.track(noise=noise)
        ...     for step in run.loop(0, steps):
        ...         action = policy(observation) + noise.value()
    """

    def __init__(self, value: Any) -> None:
        self.value = value


class PickledComponent:
    """
    A `Pickled` as a component.

    Args:
        name: Of the component, named in errors.
        holder: Borrowed.
        may_unpickle: Whether the program has named it.
    """

    kind = "pickled"
    section = Section.LEGACY
    grade = Grade.STATISTICAL
    """That it pickles does not mean that all of it is captured."""

    def __init__(self, name: str, holder: Pickled, *, may_unpickle: bool) -> None:
        self._name = name
        self._holder = holder
        self._may_unpickle = may_unpickle

    def capture_parts(self, stem: str) -> PartsCapture:
        """Pickle the object at once."""
        import pickle

        try:
            content = pickle.dumps(self._holder.value, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise InvalidInputError(
                f"cannot save {self._name!r}: it cannot be pickled ({error})",
                kind="pickle.impossible",
                hint="track its parts instead, or give it state_dict and load_state_dict",
                field=self._name,
            ) from error
        return PartsCapture((ContentPart(f"{stem}.pickle", len(content), lambda: (memoryview(content),)),))

    def check_parts(self, source: PartsSource) -> None:
        """Refuse unless the program has named it."""
        if not self._may_unpickle:
            raise IncompatibleError(
                f"cannot restore {self._name!r} from {source.directory}: it is a pickle, and unpickling runs code "
                "that the file names",
                kind="pickle.not-named",
                hint=f"if you trust whoever could write the run: perdure.open(..., unpickle=[{self._name!r}])",
                component=self._name,
            )

    def restore_parts(self, source: PartsSource) -> str:
        """Unpickle the object into the holder."""
        import pickle

        content = source.read(source.entry.files[0])
        try:
            self._holder.value = pickle.loads(content)  # noqa: S301 - the program has named it, and its digest is right
        except Exception as error:
            raise IncompatibleError(
                f"cannot restore {self._name!r}: its pickle does not load here ({error})",
                kind="pickle.does-not-load",
                hint="use the code and packages that it was saved with",
                component=self._name,
            ) from error
        return "unpickled"

    def check(self) -> None:
        """Nothing comes to light later."""
