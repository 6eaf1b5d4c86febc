"""What the sum tree promises."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.replay.priorities import SumTree


@settings(max_examples=100, deadline=None)
@given(
    count=st.integers(1, 40),
    updates=st.lists(st.tuples(st.integers(0, 39), st.floats(0, 10)), max_size=30),
    draws=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=10),
)
def test_points_are_found_where_the_running_sum_passes_them(count, updates, draws):
    """A point between 0 and the total lies in the leaf whose stretch of the running sum holds it."""
    tree, plain = SumTree(count), np.zeros(count)
    for index, value in [(0, 1.0), *updates]:
        tree.set(np.array([index % count]), np.array([value]))
        plain[index % count] = value
    assert np.array_equal(tree.leaves, plain)
    if plain.sum() == 0:
        return
    points = np.array(draws) * tree.total
    found = tree.find(points)
    ends = np.cumsum(plain)
    assert np.all(plain[found] > 0)
    assert np.all(points <= ends[found] + 1e-9)
    assert np.all(points >= ends[found] - plain[found] - 1e-9)


def test_a_tree_rebuilt_from_its_leaves_is_bit_equal():
    """Filling a tree with the leaves of another gives the same sums, to the last bit, as the updates one by one."""
    rng = np.random.default_rng(5)
    one, other = SumTree(1000), SumTree(1000)
    for _ in range(50):
        one.set(rng.integers(0, 1000, 32), rng.random(32))
    other.fill(one.leaves)
    assert one.total == other.total
    points = rng.random(500) * one.total
    assert np.array_equal(one.find(points), other.find(points))
