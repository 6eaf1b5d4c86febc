"""Crash states: whatever a power cut leaves, what was acknowledged is there and nothing torn can be seen."""

from __future__ import annotations

import pytest

from tests.durability.effort import current_profile
from tests.durability.tiers import Report, explore_family, explore_workload
from tests.durability.workloads import FAMILIES, WORKLOADS


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_every_crash_state_of_a_workload_keeps_what_was_acknowledged(name):
    """In no state that a power cut can leave of a small history is anything lost that had been acknowledged."""
    report = Report()
    explore_workload(name, report)
    assert report.violations == []
    assert report.states


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_power_cut_after_a_kill_or_a_failed_call_keeps_what_was_acknowledged(name):
    """A process is killed, or meets an error, at each of its calls, a second one goes on, and the power is cut."""
    report = Report()
    explore_family(name, current_profile().stride, report)
    assert report.violations == []
    assert report.states
