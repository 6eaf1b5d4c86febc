"""RLlib under perdure: killed algorithms end with the very bits of algorithms that were never killed."""

import json
import random
import signal
import subprocess
import sys

import pytest

pytest.importorskip("ray.rllib", reason="the extra rllib is not installed; it needs an environment of its own")

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
CASES = {
    "ppo": {"algorithm": "ppo", "iterations": 14},
    "ppo, two remote runners": {"algorithm": "ppo", "iterations": 14, "runners": 2},
    "dqn": {"algorithm": "dqn", "iterations": 26},
}


def live(store, **settings):
    command = [sys.executable, "-m", "tests.adapters.rllib_training", json.dumps({"store": str(store), **settings})]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def finish(store, **settings):
    ended = live(store, **settings)
    assert ended.returncode == 0, ended.stderr[-4_000:]
    result = json.loads(ended.stdout.splitlines()[-1])
    return result, result.pop("report")


@pytest.mark.parametrize("case", CASES)
def test_killed_algorithms_end_bit_identical(case, tmp_path):
    """Modules, optimizers, replay, environments, episodes and streams of all processes are those of an unhurt run."""
    settings = CASES[case]
    expected, _ = finish(tmp_path / "unhurt", **settings)
    die_at = random.SystemRandom().randrange(5, 7)
    print(f"killed in iteration {die_at}")
    killed = live(tmp_path / "hurt", **settings, die_at=die_at)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-4_000:]
    ended, report = finish(tmp_path / "hurt", **settings)

    assert expected == ended
    assert report["grade"] == ("exact" if case == "ppo" else "statistical")
    assert report["step"] > 0
    assert report["global_step"] - report["step"] >= 1_000


def test_what_no_runner_gets_shows(tmp_path):
    """The comparison is not blind: if runners are not restored, an algorithm ends elsewhere."""
    settings = CASES["ppo"]
    expected, _ = finish(tmp_path / "unhurt", **settings)
    live(tmp_path / "hurt", **settings, die_at=5)
    ended, _ = finish(tmp_path / "hurt", **settings, forget=["runners"])

    assert expected["modules"] != ended["modules"]
