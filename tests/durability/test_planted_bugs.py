"""Planted bugs: each is found by the tier that should find it, and the tier finds nothing without it."""

from __future__ import annotations

import pytest

from perdure.testing.powercut import what_is_missing
from tests.durability.effort import skip_or_fail
from tests.durability.planted import BUGS


@pytest.mark.process
@pytest.mark.parametrize("name", list(BUGS))
def test_a_planted_bug_is_found(name):
    """With the bug in place its tier reports broken promises."""
    bug = BUGS[name]
    if bug.tier == "power cuts" and what_is_missing("ext4"):
        skip_or_fail(f"power cannot be cut: {what_is_missing('ext4')}")
    with bug.plant():
        problems = bug.problems()
    assert problems
