"""Kills: SIGKILL at random moments and at each change that an act makes to the file system."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.durability.effort import current_profile

DEADLINE_SECONDS = 1_200.0
"""What a machine with much else to do may take; alone it is minutes."""
pytestmark = [pytest.mark.process, pytest.mark.timeout(DEADLINE_SECONDS + 60)]


@pytest.mark.parametrize(("life", "share"), [("store", 1.0), ("run", 0.5)])
def test_nothing_acknowledged_is_lost_when_processes_are_killed(life, share):
    """Processes that use a store, or train a run, are killed again and again; the next finds all that was promised."""
    rounds = int(current_profile().kills * share)
    command = [sys.executable, "-m", "perdure.testing.rounds", "--life", life, "--rounds", str(rounds)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert ended.stdout, ended.stderr
    outcome = json.loads(ended.stdout)
    assert outcome["violations"] == []
    assert outcome["ends"] == rounds
