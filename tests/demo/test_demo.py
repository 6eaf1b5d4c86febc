"""The demo as a whole, with real processes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from perdure.demo.main import run_demo
from tests.waiting import wait_until

LONGEST_SECONDS = 600
START = """
import sys
from types import SimpleNamespace
from perdure.demo.main import run_demo
sys.exit(run_demo(SimpleNamespace(
    seed=0, seconds=None, quick=True, out=sys.argv[1], keep=False, json=False, quiet=False, color=None)))
"""


def processes_of(directory):
    """Ids of the processes whose command line names a directory."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:  # it has just ended
            continue
        if os.fsencode(directory) in command and b"-m\0perdure.demo." in command:
            found.append(int(entry.name))
    return found


@pytest.fixture
def demo(tmp_path):
    """A demo in a process group of its own, which is training."""
    process = subprocess.Popen(
        [sys.executable, "-c", START, str(tmp_path / "report")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    log = tmp_path / "report" / "runs" / "disturbed" / "logs" / "learner.log"
    wait_until(lambda: log.exists() and b'"event": "update"' in log.read_bytes(), 120)
    assert len(processes_of(tmp_path)) == 6
    yield process
    process.kill()
    process.wait(10)
    process.stderr.close()


@pytest.mark.process
@pytest.mark.timeout(LONGEST_SECONDS)
def test_a_short_demo_recovers_from_all_four_faults(tmp_path, capsys):
    """Four real faults are noticed and recovered, and the document that is printed says how."""
    options = SimpleNamespace(
        seed=1, seconds=None, quick=True, out=str(tmp_path / "report"), keep=True, json=True, quiet=True, color=None
    )
    code = run_demo(options)
    document = json.loads(capsys.readouterr().out)
    assert document["failures"] == []
    assert code == 0
    assert document["schema"] == 1
    check_faults(document["faults"])
    for name in ("disturbed", "undisturbed"):
        run = document[name]
        assert run["exit_code"] == 0
        assert run["updates"] >= document["settings"]["updates"]
        assert run["final_return"] > 0
        assert {path.name for path in (tmp_path / "report" / "logs" / name).iterdir()} >= {"learner.log"}
    assert document["undisturbed"]["generation"] == 1
    assert document["disturbed"]["generation"] >= 5
    assert document["figures"][0]["id"] == "F13@demo"
    report = tmp_path / "report"
    assert json.loads((report / "report.json").read_text(encoding="utf-8")) == document
    assert (report / "learning-curve.png").stat().st_size > 10_000
    assert (report / "runs" / "disturbed" / "snapshots").is_dir()
    assert processes_of(tmp_path) == []


def check_faults(faults):
    """Each fault was noticed soon, was recovered from, and left the evidence of its kind."""
    killed, actor, frozen, deleted = faults
    assert all(fault["recovered"] for fault in faults)
    assert all(fault["back_after_seconds"] > fault["detected_after_seconds"] for fault in faults)
    assert killed["steps_lost"] > 0
    assert killed["resumed_from"] is not None
    assert actor["steps_lost"] == 0
    assert frozen["exit_code"] == 12
    assert frozen["detected_by"] == "lease"
    deletion = deleted["injections"][1]
    assert deleted["resumed_from"] == deletion["fallback"] != deletion["checkpoint"]
    assert deleted["generation"] > frozen["generation"] > actor["generation"] > killed["generation"] > 1


@pytest.mark.process
def test_an_interrupted_demo_leaves_no_process(demo, tmp_path):
    """Ctrl-C ends the demo with 130, and every one of its processes before it."""
    demo.send_signal(signal.SIGINT)
    assert demo.wait(60) == 130
    assert processes_of(tmp_path) == []
    assert "no process is left" in demo.stderr.read()


@pytest.mark.process
def test_a_killed_demo_leaves_no_process(demo, tmp_path):
    """Even a demo that is killed with SIGKILL takes its processes with it."""
    demo.kill()
    wait_until(lambda: processes_of(tmp_path) == [], 30)
