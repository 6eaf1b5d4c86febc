"""Power cuts: real file systems lose their power, again and again; and others who write checkpoints lose theirs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.testing.powercut import what_is_missing
from tests.durability.effort import current_profile, skip_or_fail

DEADLINE_SECONDS = 1_200.0
"""What a machine with much else to do may take; alone it is minutes."""
pytestmark = [pytest.mark.process, pytest.mark.root, pytest.mark.timeout(DEADLINE_SECONDS + 60)]
ROOT = Path(__file__).parents[2]


def _run(arguments: list[str], file_system: str) -> dict:
    missing = what_is_missing(file_system)
    if missing:
        skip_or_fail(f"power cannot be cut on {file_system}: {missing}")
    ended = subprocess.run(
        [sys.executable, *arguments, "--on", file_system],
        check=False,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        cwd=ROOT,
    )
    assert ended.stdout, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.parametrize("file_system", ["ext4", "xfs"])
def test_nothing_acknowledged_is_lost_when_the_power_is_cut(file_system):
    """A store is used in every way while the power is cut at random and at each change in turn; all promises hold."""
    rounds = current_profile().cuts
    outcome = _run(["-m", "perdure.testing.rounds", "--rounds", str(rounds)], file_system)
    assert outcome["violations"] == []
    assert outcome["ends"] == rounds
    assert outcome["acknowledged"] > rounds


@pytest.mark.parametrize("file_system", ["ext4", "xfs"])
def test_a_run_goes_on_from_what_it_acknowledged_when_the_power_is_cut(file_system):
    """A run is trained and restored while the power is cut; its state is that of an acknowledged step, or later."""
    rounds = current_profile().cuts // 10
    outcome = _run(["-m", "perdure.testing.rounds", "--life", "run", "--rounds", str(rounds)], file_system)
    assert outcome["violations"] == []
    assert outcome["ends"] == rounds


def test_nothing_acknowledged_is_lost_when_what_btrfs_held_in_memory_is():
    """The same on a file system without a request to shut down, by clones of its image at the moment of the cut."""
    rounds = current_profile().cuts // 5
    outcome = _run(["-m", "perdure.testing.rounds", "--rounds", str(rounds)], "btrfs")
    assert outcome["violations"] == []
    assert outcome["ends"] == rounds


@pytest.mark.parametrize("file_system", ["ext4", "xfs"])
def test_the_harness_catches_every_other_writer_losing_an_acknowledged_save(file_system):
    """torch.save, safetensors, torch DCP and the others that are installed lose a save that they reported as done."""
    outcome = _run(["-m", "tests.durability.controls"], file_system)
    assert outcome["caught"] == outcome["tried"], outcome["found"]
    assert {"torch.save", "safetensors", "torch DCP"} <= set(outcome["tried"])
