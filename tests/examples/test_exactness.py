"""The examples, killed with SIGKILL and started again, end with the very bits of a run that was never killed."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
FINISH = Path(__file__).with_name("finish.py")
KILLS = 5
CASES = {
    "ppo": ({"updates": 48, "steps": 64, "save_steps": 1_000}, 8),
    "dqn": ({"steps": 4_000, "capacity": 1_500, "begin": 500, "save_steps": 400}, 25),
}


def start(name, settings, store):
    command = [
        sys.executable,
        str(FINISH),
        str(ROOT / "examples" / f"{name}.py"),
        json.dumps({**settings, "store": str(store)}),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return json.loads(output.splitlines()[-1]), errors


def rows(log):
    return log.read_bytes().count(b"\n") if log.exists() else 0


@pytest.mark.process
@pytest.mark.parametrize("name", CASES)
def test_killed_runs_end_bit_identical(name, tmp_path):
    """A run killed five times ends with the parameters, moments, replay, streams and returns of an unhurt one."""
    settings, rows_between_kills = CASES[name]
    unhurt = start(name, settings, tmp_path / "unhurt")
    log = tmp_path / "hurt" / name / "metrics.jsonl"
    for _ in range(KILLS):
        enough = rows(log) + rows_between_kills
        process = start(name, settings, tmp_path / "hurt")
        wait_until(lambda enough=enough: rows(log) >= enough, 120, process)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
    hurt, errors = finish(start(name, settings, tmp_path / "hurt"))
    expected, _ = finish(unhurt)

    assert expected == hurt
    assert "resumed" in errors
    assert f"generation {KILLS + 1}" in errors
    assert "grade exact" in errors
