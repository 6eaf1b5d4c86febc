"""
Exact capture of Gymnasium environments: any wrapper stack, synchronous and asynchronous vector environments, spaces.

A captured environment is a plain tree of dicts, lists, numbers, text and arrays; nothing is pickled. Classic control,
toy text and MuJoCo environments, Atari without sticky actions, Gymnasium's wrappers and its vector environments are
captured exactly (level E0). Box2D environments and Atari with sticky actions are captured by where their episode began
and what was done since (E1). What is registered (`register_environment`), has ``get_state()`` and ``set_state(state)``,
or is a wrapper whose attributes are all plain data, is captured as it says, and called exact once a probe has shown it
(see `proofs`). Anything else is level E3: the wrapper stack, the spaces and what is known of the wrappers are captured,
and a restore resets the environment.

What cannot be seen is trusted: functions that transform wrappers are given are taken to be pure.
"""

from __future__ import annotations

import hashlib
import time
import weakref
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Literal

from perdure.capture.environments.atari import Emulator
from perdure.capture.environments.box2d import BeginningsInANewWorld, GeneratorBeginnings
from perdure.capture.environments.certificates import subject_of
from perdure.capture.environments.mujoco import Simulation
from perdure.capture.environments.plain import Tree
from perdure.capture.environments.proofs import certificate_of, untried
from perdure.capture.environments.replaying import LOGGED, Replays
from perdure.capture.environments.snapshot import Level, check, fill, gymnasium_version, take
from perdure.capture.environments.traits import (
    IDENTITY,
    KNOWN,
    SPACE_ATTRIBUTES,
    Traits,
    is_instance,
    register_environment,
)
from perdure.capture.environments.workers import Workers

__all__ = [
    "Level",
    "Restored",
    "capture_environment",
    "capture_space",
    "check",
    "derive_reset_seed",
    "describe",
    "environment_level",
    "is_environment",
    "is_space",
    "level_of",
    "new_beginning",
    "register_environment",
    "restore_environment",
    "restore_space",
    "shortcoming_of",
    "unproven_of",
    "untried",
]

KNOWN["AsyncVectorEnv"] = Traits(attributes=frozenset(SPACE_ATTRIBUTES), extension=Workers())
KNOWN["MujocoEnv"] = Traits(ignored=frozenset({"data", "fullpath", "model", "mujoco_renderer"}), extension=Simulation())
KNOWN["AtariEnv"] = Traits(ignored=frozenset({"ale", "_action_set", *LOGGED}), extension=Emulator())
_BOX2D = {
    "BipedalWalker": BeginningsInANewWorld(),
    "CarRacing": GeneratorBeginnings(),
    "LunarLander": GeneratorBeginnings(),
}
KNOWN.update({name: Traits(attributes=IDENTITY, extension=Replays(begin)) for name, begin in _BOX2D.items()})

_new_beginnings: MutableMapping[Any, tuple[Any, dict[str, Any]]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Restored:
    """How an environment was restored."""

    restored: Literal["continued", "reset"]
    observation: Any = None
    """First observation after a reset, which takes the place of the one that the caller saved; else None."""
    info: dict[str, Any] | None = None
    """Info of that reset; None if there was none."""
    note: str = ""
    """What the user has to know; empty if there is nothing."""
    is_proven: bool = True
    """Whether it is known that the state was all of it."""

    @property
    def grade(self) -> Literal["exact", "statistical"]:
        """The best grade that a resume with this environment can have."""
        return "exact" if self.restored == "continued" and self.is_proven else "statistical"


def is_environment(value: object) -> bool:
    """Tell whether the value is a Gymnasium environment, single or vector, wrapped or not; imports nothing."""
    return is_instance(value, "Env", "vector.VectorEnv")


def is_space(value: object) -> bool:
    """Tell whether the value is a Gymnasium space; imports nothing."""
    return is_instance(value, "Space")


def capture_environment(env: Any, *, clock: Callable[[], float] = time.perf_counter) -> Tree:
    """
    Capture an environment between two of its steps.

    Args:
        env: The environment with all its wrappers; not changed.
        clock: What Gymnasium times episodes by.

    Returns:
        A tree of dicts with text keys, lists, tuples, None, bool, int (of any size), float, str, numpy arrays and
        scalars. Arrays are borrowed: copy them before the next step. If it cannot be captured exactly, the tree says so
        (see `level_of`).

    Raises:
        DeadlineError: A worker of an ``AsyncVectorEnv`` is dead or silent.
        InternalError: A worker of an ``AsyncVectorEnv`` failed.
    """
    return take(env, clock)


def environment_level(env: Any) -> tuple[Level, str]:
    """
    Find out how exactly an environment can be captured now; this captures it and throws the result away.

    Returns:
        The level, and the reason why it is not E0 (empty if it is).
    """
    return level_of(take(env))


def level_of(tree: Tree) -> tuple[Level, str]:
    """Return how exact a captured tree is, and the reason why it is not E0 (empty if it is)."""
    return Level(tree["level"]), tree["reason"]


def unproven_of(tree: Tree) -> str:
    """Return why nothing shows that a captured tree is all of the state; empty if something does."""
    return str(tree.get("unproven", ""))  # trees of before have no such field


def shortcoming_of(tree: Tree) -> str:
    """Return why a resume with a captured tree must not be called exact; empty if it may be."""
    return level_of(tree)[1] or unproven_of(tree)


def describe(env: Any, tree: Tree) -> dict[str, Any]:
    """
    Facts about a captured environment for a manifest.

    Args:
        env: The environment, single or vector; of a vector environment in this process the first one is described.
        tree: What was captured of it.

    Returns:
        ``level``, ``unproven`` (why it is not called exact although it was captured; empty if it is), ``id``, ``stack``
        (classes from the outside in) and ``certificate`` (the level that a probe on this machine has found; None if it
        was not probed). Of environments in other processes only the first two are known.
    """
    level = {"level": tree["level"], "unproven": unproven_of(tree)}
    parts = getattr(env, "envs", None) or getattr(getattr(env, "unwrapped", None), "envs", None)
    single = parts[0] if parts else env
    if not is_instance(single, "Env"):
        return level
    subject, certificate = subject_of(single), certificate_of(single)
    found = None if certificate is None else certificate.level
    return {**level, "id": subject.id, "stack": list(subject.stack), "certificate": found}


def restore_environment(
    env: Any,
    tree: Tree,
    *,
    reset_seed: int,
    component: str = "environment",
    clock: Callable[[], float] = time.perf_counter,
) -> Restored:
    """
    Put a captured state into a live environment, whatever it did before.

    A tree of level E3 restores what it holds (statistics of wrappers, generators of spaces) and resets the environment.
    Random generators are replaced by new ones: one that is also used outside of the environment is no longer shared.

    Args:
        env: An environment built like the captured one; changed in place.
        tree: What `capture_environment` returned, or a copy of it. Every array is copied.
        reset_seed: Seed of the reset, if there is one; see `derive_reset_seed`.
        component: Name that errors give.
        clock: What Gymnasium times episodes by.

    Raises:
        IncompatibleError: Ids, arguments, wrappers, spaces or the number of environments differ; nothing was changed.
        InvalidInputError: An ``AsyncVectorEnv`` is closed or has a call pending; nothing was changed.
        FormatError: The tree is of a newer form; nothing was changed.
        DeadlineError: A worker of an ``AsyncVectorEnv`` is dead or silent; the environment is of no more use.
    """
    check(env, tree, component)
    fill(env, tree, clock)
    _new_beginnings.pop(env, None)
    level, reason = level_of(tree)
    if level is not Level.E3:
        versions = tree["gymnasium"], gymnasium_version()
        note = (
            ""
            if versions[0] == versions[1]
            else f"captured under gymnasium {versions[0]}, restored under {versions[1]}"
        )
        unproven = unproven_of(tree)
        return Restored("continued", note="; ".join(filter(None, [note, unproven])), is_proven=not unproven)
    observation, info = env.reset(seed=reset_seed)
    _new_beginnings[env] = (observation, info)
    note = f"{component} was reset with seed {reset_seed}, its episode is cut and its observation changed: {reason}"
    return Restored("reset", observation, info, note)


def new_beginning(env: Any) -> tuple[Any, dict[str, Any]] | None:
    """
    Return the observation and the info with which a restore began a new episode, as ``env.reset`` gave them.

    Returns:
        None if the last restore went on in the episode that was running, or there was none.

    Example:
        >>> begun = new_beginning(env)  # doctest: +SKIP
        >>> if begun is not None:  # doctest: +SKIP
        ...     now.observation, _ = begun
    """
    return _new_beginnings.get(env)


def derive_reset_seed(run: str, component: str, step: int) -> int:
    """Derive the seed of a reset from where it happens: the same restore of the same run resets in the same way."""
    digest = hashlib.blake2b(f"{run}\0{component}\0{step}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 2  # Vector environments add the index, and some take 31 bits only.


def capture_space(space: Any) -> Tree:
    """Capture the generators of a space and of its parts; a tree like that of `capture_environment`."""
    return take(space)


def restore_space(space: Any, tree: Tree, *, component: str = "space") -> None:
    """
    Put captured generators into a space, in place and copying.

    Raises:
        IncompatibleError: The space has another form; nothing was changed.
        FormatError: The tree is of a newer form; nothing was changed.
    """
    check(space, tree, component)
    fill(space, tree)
