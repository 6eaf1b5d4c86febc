"""``perdure run``: real processes, started, restarted and reported; and ``perdure demo`` as far as its door."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.supervise.claims import exclusive
from tests.waiting import wait_until

DEADLINE_SECONDS = 60

TRAINING = """
import os, perdure
with perdure.open(save=None, budget=None, quiet=True) as run:
    count = run.counters(global_step=0)
    for i in run.loop(0, 5):
        if i == 3 and os.environ["PERDURE_RESTART_COUNT"] == "0":
            run.save().wait()
            os._exit(7)
        count.global_step += 1
print("trained", count.global_step)
"""


def start(*words, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "perdure", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def ended(*words):
    process = start(*words)
    out, err = process.communicate(timeout=DEADLINE_SECONDS)
    return process.returncode, out, err


@pytest.mark.process
def test_a_training_that_dies_goes_on(cli, root):
    """It is restarted, continues from its last save, and the run's history tells of the fault."""
    code, out, err = ended("run", "--run", "t", "--", sys.executable, "-c", TRAINING)

    assert (0, "trained 5\n") == (code, out)
    assert "perdure: main failed: exit code 7, noticed after " in err
    assert "perdure: main restarted (pid " in err
    events = [each["event"] for each in cli("events", "t", "-n0", "--json").document["events"]]
    for wanted in ("run-supervised", "member-started", "member-fault", "restored", "saved", "member-done", "run-ended"):
        assert wanted in events
    assert 5 == cli("show", "t", "--json").document["checkpoint"]["global_step"]
    assert "stopped\n" == cli("status", "t", "-q").out


@pytest.mark.process
def test_a_command_that_cannot_work_ends_with_its_code(cli, root):
    """A usage error of the command is not tried again, and the status says so although there never was a checkpoint."""
    code, out, err = ended("run", "--", sys.executable, "-c", "raise SystemExit(2)")
    assert (2, "") == (code, out)
    assert "perdure: run default ended with status 2: " in err
    status = cli("status")
    assert 3 == status.code
    assert ["default  empty", "  problem     the supervised run ended with status 2"] == status.lines[:2]


@pytest.mark.process
def test_json_is_a_line_for_each_event_and_a_summary(root):
    """What members write goes to standard error, so that standard output is JSON alone."""
    code, out, err = ended("run", "--json", "--", sys.executable, "-c", "print('hello')")

    *items, summary = [json.loads(line) for line in out.splitlines()]
    assert (0, "hello\n") == (code, err)
    assert {"schema": 1, "type": "summary", "exit_code": 0} == summary
    assert ["member-started", "member-done", "run-stopping", "run-ended"] == [item["event"] for item in items]
    assert {("item", 1)} == {(item["type"], item["schema"]) for item in items}


@pytest.mark.process
def test_the_roles_of_a_file_are_run(root):
    """Lines of several members carry their names; store and run are those of the file, or those that are given."""
    Path("perdure.toml").write_text(
        'store = "stored"\nrun = "filed"\n'
        f'[roles.learner]\ncommand = ["{sys.executable}", "-c", "print(1)"]\n'
        f'[roles.actor]\nreplicas = 2\ncommand = ["{sys.executable}", "-c", "print(2)"]\n'
    )

    code, out, _ = ended("run")
    assert (0, ["actor-0  2", "actor-1  2", "learner  1"]) == (code, sorted(out.splitlines()))
    assert Path("stored/filed/events.jsonl").exists()
    assert 0 == ended("run", "--run", "other", "--store", "elsewhere")[0]
    assert Path("elsewhere/other/events.jsonl").exists()


DYING = """
import os, perdure
from perdure import Every
with perdure.open(save=None, ram=Every(steps=1), budget=None, quiet=True) as run:
    count = run.counters(global_step=0)
    for i in run.loop(0, 9):
        run._saver.drain(30)  # or saves are skipped, so fast are these steps
        if i == 4:
            os._exit(2)  # a code that is not tried again
        count.global_step += 1
"""


@pytest.mark.process
def test_what_a_dead_learner_left_in_memory_is_on_the_disk_when_its_supervisor_ends(cli, root, monkeypatch):
    """A learner that is not started again has its write finished, under a generation of its own, and memory is free."""
    memory = root.parent / "memory"
    memory.mkdir()
    monkeypatch.setenv("PERDURE_MEMORY", str(memory))
    code, _, err = ended("run", "--run", "t", "--", sys.executable, "-c", DYING)

    assert 2 == code
    assert "perdure: step 4, which only memory had, is on the disk" in err
    assert 4 == cli("show", "t", "--json").document["checkpoint"]["global_step"]
    finished = [each for each in cli("events", "t", "-n0", "--json").document["events"] if "write-" in each["event"]]
    assert [(4, "supervisor", 2)] == [(each["step"], each["by"], each["generation"]) for each in finished]
    assert not [path for user in memory.iterdir() for path in user.iterdir()]


def test_a_file_that_is_not_there_is_not_found(cli):
    """Without a command there has to be one."""
    ended = cli("run")
    assert 10 == ended.code
    assert "perdure.toml" in ended.err
    assert "perdure run -- COMMAND" in ended.err


def test_a_second_supervisor_is_refused(cli, root):
    """The run is held by another process: 11, and its history is not touched."""
    (root / "default").mkdir()
    with exclusive(root / "default"):
        ended = cli("run", "--", sys.executable, "-c", "pass")
    assert 11 == ended.code
    assert f"pid {os.getpid()}" in ended.err
    assert not (root / "default" / "events.jsonl").exists()


WAITING = "import time; print('ready', flush=True); time.sleep(60)"


@pytest.mark.process
def test_a_signal_stops_the_run(root):
    """The members are stopped and the exit code names the signal, because none of them saved."""
    process = start("run", "--", sys.executable, "-c", WAITING)
    assert "ready\n" == process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert 143 == process.returncode
    assert "perdure: stopping all members on SIGTERM" in err


ENDLESS = """
import os, sys, time
print("ready", flush=True)
while not os.path.exists("stop"):
    print("x" * 1000, flush=True)
    time.sleep(0.001)
"""


@pytest.mark.process
def test_a_reader_that_goes_away_does_not_end_a_training(root):
    """The training goes on without its reader, and its output is in the log all the same."""
    process = start("run", "--", sys.executable, "-c", ENDLESS)
    log = root / "default" / "logs" / "main.log"
    try:
        assert "ready\n" == process.stdout.readline()
        process.stdout.close()
        seen = log.stat().st_size
        wait_until(lambda: log.stat().st_size > seen + 100_000, DEADLINE_SECONDS)
        assert process.poll() is None
    finally:
        Path("stop").touch()
        code = process.wait(DEADLINE_SECONDS)
        process.stderr.close()
    assert 0 == code


def test_the_demo_writes_over_nothing_of_anybody_else(cli, root):
    """A directory with something else in it is refused before anything starts."""
    (root / "mine.txt").touch()
    ended = cli("demo", "--out", str(root), "--json")
    assert (2, "", "demo.directory-in-use") == (ended.code, ended.out, ended.error["kind"])
