"""
JAX pytrees as components: parameters of flax, states of optax, whole train states.

Arrays of JAX never change; a program replaces them. So it is a holder that is tracked, and the tree in it is what is
saved. Its leaves are stored by their paths, such as ``.params['dense']['kernel']``. What holds them together, named
tuples, dataclasses and classes of the program's own, is that of the live tree: nothing of it is in a checkpoint.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from perdure.capture.arrays import array_type, hold
from perdure.capture.objects import check_array, does_not_fit
from perdure.core.manifest import Grade
from perdure.core.names import Section
from perdure.errors import InvalidInputError


class Pytree:
    """
    Holds a JAX pytree that a program replaces as it trains.

    Example:
        >>> state = perdure.jax.Pytree(init(key))  # doctest: +SKIP
        >>> run.track(train=state)  # doctest: +SKIP
        >>> state.value = update(state.value, batch)  # doctest: +SKIP
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class JaxTree:
    """The tree in a `Pytree`; restored with the live tree's structure and placement."""

    kind = "jax.pytree"
    section = Section.MODEL
    grade = Grade.EXACT

    def __init__(self, name: str, holder: Pytree) -> None:
        self._name = name
        self._holder = holder

    def fix_state(self) -> Callable[[], object] | None:
        """The leaves as `capture` gives them, held, if all are plain values or arrays that lie in the host's memory."""
        if not all(_is_plain(leaf) or _is_on_host(leaf) for leaf in _jax().tree_util.tree_leaves(self._holder.value)):
            return None
        tree = self.capture()
        leaves = {path: leaf if _is_plain(leaf) else hold(leaf) for path, leaf in tree["leaves"].items()}
        return lambda: {**tree, "leaves": leaves}

    def capture(self) -> dict[str, dict[str, Any]]:
        """The leaves by path, borrowed; the numbers of random keys, and the algorithms that they belong to."""
        leaves: dict[str, Any] = {}
        keys: dict[str, Any] = {}
        for path, leaf in self._leaves():
            if _is_key(leaf):
                leaves[path] = _jax().random.key_data(leaf)
                keys[path] = str(_jax().random.key_impl(leaf))
            else:
                leaves[path] = self._checked(path, leaf)
        return {"leaves": leaves, "keys": keys}

    def _leaves(self) -> list[tuple[str, Any]]:
        tree = _jax().tree_util
        return [(tree.keystr(path), leaf) for path, leaf in tree.tree_flatten_with_path(self._holder.value)[0]]

    def _checked(self, path: str, leaf: Any) -> Any:
        if array_type(leaf) == "jax" and (leaf.is_deleted() or not leaf.is_fully_addressable):
            what = "was donated to a computation" if leaf.is_deleted() else "lies partly with other processes"
            raise InvalidInputError(
                f"cannot save leaf {path or 'the top'} of {self._name!r}: it {what}",
                kind="pytree.unavailable",
                hint="put the newest tree into the holder before it is saved; gather what is spread over processes",
                field=path,
            )
        return leaf

    def expected_bytes(self) -> int:
        """Bytes of all arrays in the tree."""
        return sum(int(getattr(leaf, "nbytes", 0)) for _, leaf in self._leaves())

    def check(self, tree: object) -> None:
        """Refuse leaves of other paths, shapes, types or algorithms."""
        assert isinstance(tree, dict)
        live, saved, keys = dict(self._leaves()), tree["leaves"], tree["keys"]
        if differing := sorted(set(live) ^ set(saved)):
            raise does_not_fit(
                self._name, f"leaf {differing[0]} is on one side only", sorted(live)[:3], sorted(saved)[:3]
            )
        for path, leaf in live.items():
            if _is_key(leaf) or path in keys:
                here = str(_jax().random.key_impl(leaf)) if _is_key(leaf) else "no random key"
                if here != keys.get(path):
                    raise does_not_fit(self._name, f"{path} is another kind of random key", here, keys.get(path))
            elif array_type(leaf) is not None:
                check_array(self._name, path, leaf, saved[path])

    def restore(self, tree: object) -> str:
        """Put a tree of the live one's structure, with the saved leaves in it, into the holder."""
        assert isinstance(tree, dict)
        jax = _jax()
        leaves = [self._placed(leaf, tree["leaves"][path], tree["keys"].get(path)) for path, leaf in self._leaves()]
        self._holder.value = jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(self._holder.value), leaves)
        return ""

    @staticmethod
    def _placed(live: Any, saved: Any, key: str | None) -> Any:
        jax = _jax()
        if key is not None:
            return jax.device_put(jax.random.wrap_key_data(saved, impl=key), live.sharding)
        return jax.device_put(saved, live.sharding) if array_type(live) == "jax" else saved


def _jax() -> Any:
    return sys.modules["jax"]


def _is_plain(leaf: Any) -> bool:
    return type(leaf) in (bool, int, float, str)


def _is_on_host(leaf: Any) -> bool:
    return isinstance(leaf, _jax().Array) and all(device.platform == "cpu" for device in leaf.sharding.device_set)


def _is_key(leaf: Any) -> bool:
    jax = _jax()
    return isinstance(leaf, jax.Array) and bool(jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key))
