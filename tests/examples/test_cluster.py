"""The cluster example under its supervisor: its learner and an actor are killed, and it finishes all the same."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
UPDATES = 50


class Cluster:
    """The supervisor of a cluster, and what its run directory says."""

    def __init__(self, store):
        self.directory = store / "cluster"
        environment = {
            **os.environ,
            "PERDURE_STORE": str(store),
            "UPDATES": str(UPDATES),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "perdure", "run", "--config", str(EXAMPLES / "cluster.toml")],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def events(self, name):
        log = self.directory / "events.jsonl"
        lines = log.read_text().splitlines(keepends=True) if log.exists() else []
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in events if event["event"] == name]

    def updates(self):
        log = self.directory / "metrics.jsonl"
        return log.read_bytes().count(b"\n") if log.exists() else 0

    def pid(self, member):
        return [event["pid"] for event in self.events("member-started") if event["member"] == member][-1]

    def joins(self, member):
        return [event["member"] for event in self.events("member-joined")].count(member)

    def wait(self, condition, seconds=90):
        wait_until(condition, seconds, self.process)


@pytest.fixture
def cluster(tmp_path):
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.process.terminate()
    cluster.process.communicate(timeout=60)


@pytest.mark.process
def test_a_cluster_survives_its_learner_and_an_actor(cluster):
    """Killed members come back, the learner from its checkpoint, and the run gets all its updates."""
    cluster.wait(lambda: cluster.updates() >= 8 and cluster.events("saved"))
    os.kill(cluster.pid("learner"), signal.SIGKILL)
    cluster.wait(lambda: cluster.joins("actor-1") == 2)
    os.kill(cluster.pid("actor-1"), signal.SIGKILL)
    cluster.wait(lambda: cluster.joins("actor-1") == 3)
    output, _ = cluster.process.communicate(timeout=120)

    assert 0 == cluster.process.returncode, output
    assert f"done after {UPDATES} updates" in output
    (restored,) = cluster.events("restored")
    assert 2 == restored["generation"]
    lost = {event["member"] for event in cluster.events("member-lost")}
    assert {"actor-1"} == lost
    faults = {event["member"]: event["reason"] for event in cluster.events("member-fault")}
    assert {"learner": "SIGKILL", "actor-1": "SIGKILL"} == faults


@pytest.mark.process
def test_a_stopped_cluster_goes_on(cluster, tmp_path):
    """A supervisor that is asked to stop saves and ends with status 75, and the same command finishes the run."""
    cluster.wait(lambda: cluster.updates() >= 5)
    cluster.process.send_signal(signal.SIGTERM)
    cluster.process.communicate(timeout=60)

    assert 75 == cluster.process.returncode
    again = Cluster(tmp_path)
    output, _ = again.process.communicate(timeout=120)
    assert 0 == again.process.returncode, output
    assert 0 == again.events("restored")[-1]["steps_lost"]
