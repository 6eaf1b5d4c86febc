"""
What is known about the state of each class: which attributes hold it, which do not, which never change.

Classes of Gymnasium are known by name, so that nothing here imports it; others by registration. An object of a known
class is captured through *all* of its plain attributes, constants of the physics included, because users change
those in mid-run too. A subclass is known as far as its parents are: attributes it adds are captured when they are plain
data and put the whole in doubt when they are not.
"""

from __future__ import annotations

import enum
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from perdure.capture.environments.plain import GENERATORS, Tree
from perdure.errors import InvalidInputError

__all__ = [
    "IDENTITY",
    "KNOWN",
    "SPACE_ATTRIBUTES",
    "Accessors",
    "Extension",
    "Outside",
    "Traits",
    "is_code",
    "is_instance",
    "know",
    "know_as",
    "register_environment",
    "registered",
    "registrations",
    "traits_of",
]


@dataclass(frozen=True, slots=True)
class Outside:
    """State that lies outside of an object's attributes."""

    state: Tree
    doubts: list[str] = field(default_factory=list)
    """Why it is not exact; empty if it is."""
    replays: bool = False
    """Whether a restore has to live an episode again."""
    unproven: list[str] = field(default_factory=list)
    """Of which parts nothing has shown that what was captured is all of their state."""


class Extension(Protocol):
    """State that lies outside the object's attributes, such as in worker processes."""

    def capture(self, owner: Any) -> Outside:
        """Return the state, with the reasons, if any, why it is not exact."""

    def check(self, owner: Any, state: Tree, component: str) -> None:
        """Raise IncompatibleError where the state does not fit, changing nothing."""

    def restore(self, owner: Any, state: Tree) -> None:
        """Put the state back."""


@dataclass(frozen=True, slots=True)
class Accessors:
    """How an object hands over its state as plain data, and takes it back."""

    get_state: Callable[[Any], object]
    set_state: Callable[[Any, Any], object]


@dataclass(frozen=True, slots=True)
class Traits:
    """What is known about the state of one class."""

    attributes: frozenset[str] | None = None
    """The attributes that hold state; None means every one that is not named otherwise."""
    ignored: frozenset[str] = frozenset()
    """Drawing, caches and structure: neither captured nor compared."""
    constants: frozenset[str] = frozenset()
    """Large tables that never change: compared by digest, which is computed once per object."""
    clocks: Mapping[str, float] = field(default_factory=dict)
    """Readings of ``time.perf_counter`` and the value that means *not started*: kept as seconds elapsed."""
    accessors: Accessors | None = None
    extension: Extension | None = None
    compares_arguments: bool = True
    """Whether recorded constructor arguments must be the same at restore."""
    is_space: bool = False
    """Everything but the generator and the subspaces is constant and compared."""
    class_spaces: tuple[str, ...] = ()
    """Spaces that the class defines for all of its instances: their generators are state all the same."""
    doubt: str = ""
    """Why this class cannot be captured exactly; empty when it can."""
    is_ours: bool = False
    """Whether perdure itself says so, and its tests prove it."""


def _drawing(*names: str) -> frozenset[str]:
    return frozenset({"screen", "clock", "isopen", "surf", *names})


_CLASSIC = Traits(ignored=_drawing())
SPACE_ATTRIBUTES = ("action_space", "observation_space", "single_action_space", "single_observation_space")
IDENTITY = frozenset({*SPACE_ATTRIBUTES, *(f"_{s}" for s in SPACE_ATTRIBUTES), "env", "_np_random", "_np_random_seed"})
_VIDEO = Traits(
    # The frames themselves are left out (hundreds of megabytes): a video in progress loses its beginning.
    attributes=frozenset({*IDENTITY, "episode_id", "step_id", "recording", "_video_name", "has_autoreset"}),
    compares_arguments=False,
)

KNOWN: dict[str, Traits] = {
    "Env": Traits(ignored=frozenset({"spec", "metadata", "render_mode", "_saved_kwargs"})),
    "VectorEnv": Traits(ignored=frozenset({"spec", "metadata", "render_mode", "_saved_kwargs", "closed"})),
    "Wrapper": Traits(ignored=frozenset({"_cached_spec", "_metadata"})),
    "VectorWrapper": Traits(ignored=frozenset({"_metadata"})),
    "SyncVectorEnv": Traits(ignored=frozenset({"env_fns", "copy", "observation_mode"})),
    "AcrobotEnv": _CLASSIC,
    "CartPoleEnv": _CLASSIC,
    "CartPoleVectorEnv": Traits(ignored=_drawing("screens")),
    "Continuous_MountainCarEnv": _CLASSIC,
    "MountainCarEnv": _CLASSIC,
    "PendulumEnv": _CLASSIC,
    "BlackjackEnv": _CLASSIC,
    "CliffWalkingEnv": Traits(
        ignored=_drawing(
            "window_surface", "agent_img", "start_img", "goal_img", "goal_flag_img", "cliff_imgs", "ground_img"
        ),
        constants=frozenset({"P", "initial_state_distrib", "_cliff"}),
    ),
    "FrozenLakeEnv": Traits(
        ignored=_drawing(
            "window_surface",
            "ice_img",
            "ice_crack_imgs",
            "hole_img",
            "agent_img",
            "goal_flag_img",
            "letter_s_img",
            "letter_g_img",
        ),
        constants=frozenset({"desc", "P", "initial_state_distrib"}),
    ),
    "TaxiEnv": Traits(
        ignored=_drawing(
            "window", "taxi_imgs", "taxi_full_imgs", "passenger_img", "destination_img", "house_img", "background_img"
        ),
        constants=frozenset({"desc", "P", "initial_state_distrib"}),
    ),
    "VectorizeTransformAction._SingleEnv": Traits(),
    "VectorizeTransformObservation._SingleEnv": Traits(),
    "RecordEpisodeStatistics": Traits(clocks={"episode_start_time": -1.0, "episode_start_times": 0.0}),
    "RecordVideo": _VIDEO,
    "HumanRendering": Traits(ignored=frozenset({"window", "clock", "screen_size"})),
    "ArrayConversion": Traits(ignored=frozenset({"_env_device", "_target_device", "device"})),
    "RunningMeanStd": Traits(),
    "Space": Traits(
        is_space=True,
        ignored=frozenset({"low_repr", "high_repr", "bounded_below", "bounded_above", "_char_set", "_char_index"}),
    ),
}
"""What is known about classes of Gymnasium and ale-py, by qualified name."""

_PACKAGES = frozenset({"gymnasium", "ale_py"})
_ROOTS = frozenset({"Env", "VectorEnv"})
_WRAPPERS = frozenset({"Wrapper", "VectorWrapper"})
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type, np.ufunc, np.dtype)

_registered: dict[type, Traits] = {}
_resolved: dict[type, Traits | None] = {}


def register_environment(
    cls: type,
    attributes: Iterable[str] | None = None,
    *,
    get_state: Callable[[Any], object] | None = None,
    set_state: Callable[[Any, Any], object] | None = None,
) -> None:
    """
    Declare how the state of an environment, wrapper or helper class is captured exactly.

    Give the names of the attributes that hold all of its state, or a pair of functions, or neither: then every
    attribute that is plain data is state. Generator, spaces and the wrapped environment are always taken.

    What is declared is restored, and called exact once a probe has shown it.

    Args:
        cls: The class; with named attributes or functions, objects of its subclasses are not covered.
        attributes: Names of the attributes that hold state; all others are taken to be constant.
        get_state: From the object to plain data (dict, list, tuple, numbers, text, arrays); may be borrowed.
        set_state: Takes the object and such data, which it may keep.

    Raises:
        InvalidInputError: Attributes and functions are both given, or only one of the functions is.
    """
    if (get_state is None) != (set_state is None) or (get_state is not None and attributes is not None):
        raise InvalidInputError(
            f"cannot register {cls.__qualname__}: state comes from attributes or from both functions",
            kind="environment.registration",
            hint="pass attributes=..., or get_state=... with set_state=..., or neither",
            field="attributes" if attributes is not None else "get_state",
        )
    know(cls, attributes, get_state=get_state, set_state=set_state, is_ours=False)


def know(
    cls: type,
    attributes: Iterable[str] | None = None,
    *,
    get_state: Callable[[Any], object] | None = None,
    set_state: Callable[[Any, Any], object] | None = None,
    is_ours: bool = True,
) -> None:
    """Register a class as `register_environment` does; by default as one of which perdure's own tests are the proof."""
    named = None if attributes is None else frozenset(attributes)
    accessors = None
    if get_state is not None and set_state is not None:
        accessors, named = Accessors(get_state, set_state), frozenset()
    attributes = None if named is None else named | IDENTITY
    know_as(cls, Traits(attributes=attributes, accessors=accessors, is_ours=is_ours))


def know_as(cls: type, traits: Traits) -> None:
    """Register a class with traits, as another process knows it."""
    _registered[cls] = traits
    _resolved.clear()


def registered(cls: type) -> Traits | None:
    """Return what the class itself, and not a parent of it, was registered with; None if it was not."""
    return _registered.get(cls)


def registrations() -> dict[type, Traits]:
    """Return what is registered by class."""
    return dict(_registered)


def is_instance(value: object, *names: str) -> bool:
    """Tell whether the value is an instance of one of Gymnasium's classes, such as ``"vector.VectorEnv"``."""
    gymnasium = sys.modules.get("gymnasium")
    if gymnasium is None:
        return False
    for name in names:
        cls: Any = gymnasium
        for part in name.split("."):
            cls = getattr(cls, part, None)
        if isinstance(cls, type) and isinstance(value, cls):
            return True
    return False


def is_code(value: object) -> bool:
    """Tell whether the value is part of the program (a function, a class, a module, a mode), not of its state."""
    return isinstance(value, _CODE) or (isinstance(value, enum.Enum) and _package(type(value)) == "gymnasium")


def traits_of(value: object) -> Traits | None:
    """Return what is known about the value's class; None when it is no environment, wrapper, space or known helper."""
    cls = type(value)
    if cls not in _resolved:
        _resolved[cls] = _resolve(cls)
    return _resolved[cls]


def _package(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def _known_name(cls: type) -> str:
    return cls.__qualname__ if _package(cls) in _PACKAGES and cls.__qualname__ in KNOWN else ""


def _resolve(cls: type) -> Traits | None:
    if cls in GENERATORS:  # NumPy's older ones have get_state and set_state, but are values, built anew.
        return None
    entries = [(c, t) for c in cls.__mro__ if (t := _registered.get(c) or KNOWN.get(_known_name(c)))]
    accessors = _own_accessors(cls)
    if not entries:
        return None if accessors is None else Traits(attributes=frozenset(), accessors=accessors)
    names = {_known_name(c) for c, _ in entries}
    particular = [(c, t) for c, t in entries if _known_name(c) not in _ROOTS or c is cls]
    if cls not in _registered and accessors is not None and "Space" not in names:
        particular = [(cls, Traits(attributes=IDENTITY, accessors=accessors))]
    if not particular:
        doubt = _unknown(cls, "is not an environment whose state is known")
        return Traits(attributes=IDENTITY, class_spaces=_class_spaces(cls), doubt=doubt)
    return _merge(cls, particular, [t for _, t in entries])


def _merge(cls: type, particular: list[tuple[type, Traits]], entries: list[Traits]) -> Traits:
    nearest = next(((c, t) for c, t in particular if t.attributes is not None), None)
    doubt = "" if nearest is None else nearest[1].doubt
    if nearest is not None and nearest[0] is not cls:
        doubt = _unknown(cls, f"adds to {nearest[0].__qualname__}, whose state is known by name only")
        nearest = (cls, Traits(attributes=IDENTITY))
    elif nearest is None and _has_slots(cls):
        doubt = _unknown(cls, "keeps state in __slots__")
    return Traits(
        attributes=None if nearest is None else nearest[1].attributes,
        ignored=frozenset().union(*(t.ignored for t in entries)),
        constants=frozenset().union(*(t.constants for t in entries)),
        clocks={name: unset for t in entries for name, unset in t.clocks.items()},
        accessors=None if nearest is None else nearest[1].accessors,
        # An object without named attributes inherits how the rest of its state is reached.
        extension=next((t.extension for _, t in particular if t.extension), None)
        if nearest is None
        else nearest[1].extension,
        compares_arguments=all(t.compares_arguments for t in entries),
        is_space=any(t.is_space for t in entries),
        class_spaces=_class_spaces(cls),
        doubt=doubt,
    )


def _class_spaces(cls: type) -> tuple[str, ...]:
    return tuple(name for name in SPACE_ATTRIBUTES if is_instance(getattr(cls, name, None), "Space"))


def _unknown(cls: type, what: str) -> str:
    return f"{cls.__qualname__} {what} (register_environment makes it known)"


def _has_slots(cls: type) -> bool:
    return any(vars(c).get("__slots__") for c in cls.__mro__ if _package(c) not in (*_PACKAGES, "typing"))


def _own_accessors(cls: type) -> Accessors | None:
    """Find a class's ``get_state()`` and ``set_state(state)``; MuJoCo's ``set_state(qpos, qvel)`` is something else."""
    getter, setter = getattr(cls, "get_state", None), getattr(cls, "set_state", None)
    if not callable(getter) or not callable(setter):
        return None
    try:
        inspect.signature(getter).bind(None)
        inspect.signature(setter).bind(None, None)
    except (TypeError, ValueError):
        return None
    return Accessors(lambda owner: owner.get_state(), lambda owner, state: owner.set_state(state))
