"""State trees and tensor files: what a save takes a restore gives back, and what no reader takes is not saved."""

from collections import deque

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure.capture.arena import Arena
from perdure.capture.gate import Gate
from perdure.capture.snapshot import load_tree, take_capture, tree_parts
from perdure.core.manifest import ComponentEntry, Grade
from perdure.core.names import Section
from perdure.core.tensorfile import MAXIMUM_TENSORS, TensorSpec, plan_layout
from perdure.errors import InvalidInputError
from tests.canonical import canonical

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=5)
KEYS = st.sampled_from(["__metadata__", "__metadata__'", "$int", "$array", "", "a", "a.b", "a'"]) | ANY_TEXT
ARRAYS = st.sampled_from([np.zeros(2, np.float32), np.arange(3), np.ones((2, 0), np.uint8), np.float64("nan")])
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT | st.binary(max_size=4) | ARRAYS
TREES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.lists(inner, max_size=3).map(lambda items: deque(items, 7))
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.dictionaries(st.integers() | st.tuples(st.integers(), KEYS), inner, max_size=2)
    ),
    max_leaves=8,
)


class Holder:
    """A component of one tree."""

    kind, section, grade = "test", Section.STATE, Grade.EXACT

    def __init__(self, tree):
        self._tree = tree

    def capture(self):
        return self._tree


def saved_and_loaded(tree):
    capture = take_capture({"it": Holder(tree)}, Arena(), Gate())
    (stored,) = capture.store()
    files = {part.path: memoryview(b"".join(part.chunks())) for part in stored.parts}
    return load_tree(stored.entry, files.__getitem__)


def is_text(value):
    """Whether all strings of a tree can be written."""
    if isinstance(value, str):
        return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, dict):
        return all(is_text(key) and is_text(item) for key, item in value.items())
    return not isinstance(value, list | tuple | deque) or all(is_text(item) for item in value)


@given(tree=st.dictionaries(KEYS, TREES, max_size=4))
@example(tree={"__metadata__": np.zeros(2), "b": np.ones(3)})
@example(tree={"a": {"b": np.zeros(1)}, "a.b": np.ones(1), "c": {"__metadata__": np.zeros(1)}})
@example(tree={"\ud800": np.zeros(1)})
@example(tree={"a": 10**5000})
def test_a_tree_comes_back_or_is_refused(tree):
    """Whatever a component hands over is loaded again bit by bit, or its save says that it cannot be."""
    if not is_text(tree) or tree == {"a": 10**5000}:
        with pytest.raises(InvalidInputError, match=r"no Unicode text|an integer of"):
            saved_and_loaded(tree)
        return
    found = saved_and_loaded(tree)
    if all(isinstance(value, np.ndarray) for value in tree.values()):
        found = {key: found[key] for key in tree}  # a flat dictionary comes in the order of its file
    assert canonical(found) == canonical(tree)


@pytest.mark.parametrize("tree", [{"a": np.arange(3), "b": np.zeros(2)}, {"a": [np.ones(1), 2]}, [], np.arange(2)])
def test_a_tree_written_as_it_is_comes_back(tree):
    """Files of a tree that no arena holds are loaded as any other, also of a dictionary that has only arrays."""
    files = {part.path: memoryview(b"".join(part.chunks())) for part in tree_parts("it", tree)}
    entry = ComponentEntry("it", "test", Section.STATE, tuple(files))
    assert canonical(load_tree(entry, files.__getitem__)) == canonical(tree)


@pytest.mark.parametrize(
    "specs",
    [
        [TensorSpec(f"{number}", "U8", (1,)) for number in range(MAXIMUM_TENSORS + 2)],
        [TensorSpec(f"{number}".ljust(1_000_000, "x"), "U8", (1,)) for number in range(100)],
        [TensorSpec("__metadata__", "U8", (1,))],
        [TensorSpec("a", "U8", (1,)), TensorSpec("a", "U8", (1,))],
        [TensorSpec("\ud800", "U8", (1,))],
    ],
    ids=["too many", "too long a header", "the name of the metadata", "one name twice", "no Unicode text"],
)
def test_a_tensor_file_that_no_reader_takes_is_not_planned(specs):
    """Every limit of the reader is one of the writer: the state is refused while it is alive, not when it is gone."""
    with pytest.raises(InvalidInputError, match="cannot store these arrays in one file"):
        plan_layout(specs)
