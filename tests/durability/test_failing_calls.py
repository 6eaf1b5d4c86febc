"""Failing calls: each error at each call of the file system, once and for ever."""

from __future__ import annotations

import pytest

from tests.durability.tiers import ACTS, Report, fail_every_call


@pytest.mark.parametrize("act", sorted(ACTS))
def test_an_error_at_any_call_is_raised_and_costs_nothing_that_was_acknowledged(act):
    """Whichever call of an act fails in whichever way: the error comes out, no descriptor stays open, life goes on."""
    report = Report()
    fail_every_call(act, report)
    assert report.violations == []
    assert report.tried
