"""Order: what is synced before what, in every workload and in the system calls of a real process."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.testing import check_order, read_strace
from perdure.testing.order import STRACE_CALLS
from tests.durability.effort import skip_or_fail
from tests.durability.tiers import record
from tests.durability.workloads import WORKLOADS

SAVE = """
import sys
from pathlib import Path
from perdure.core.retention import Last
from perdure.files.door import Files
from perdure.testing.scenario import Scenario

scenario = Scenario(Path(sys.argv[1]), Files(), lambda event: None, "traced")
scenario.start()
first = scenario.save(10, {"model/policy.safetensors": 3 * 2**20 + 5, "meta.json": 10, "buffer/segment-0": 40})
scenario.pin(scenario.save(20, linked=first), "good")
scenario.retain(Last(1))
scenario.note("marker.json", "models")
scenario.forget("marker.json")
"""


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_every_workload_obeys_the_rules_of_order(name):
    """Bytes are synced before names, names before anybody is told, and a manifest is a checkpoint's last file."""
    assert check_order(record(WORKLOADS[name]).operations, lambda mark: mark[1].acknowledged) == []


@pytest.mark.process
def test_the_system_calls_of_a_real_save_obey_the_rules_of_order(tmp_path):
    """A traced process that saves, pins and cleans up makes its system calls in the order that the rules ask for."""
    if shutil.which("strace") is None:
        skip_or_fail("strace is not installed")
    trace = tmp_path / "trace"
    run = tmp_path.resolve() / "runs" / "traced"
    command = ["strace", "-f", "-y", "-s", "300", "-e", f"trace={STRACE_CALLS}", "-o", str(trace)]
    subprocess.run([*command, sys.executable, "-c", SAVE, str(run)], check=True, timeout=120)
    operations = read_strace(trace.read_text(), tmp_path.resolve())
    assert [operation.name for operation in operations].count("rename") == 8
    assert check_order(operations) == []


def test_a_trace_of_a_careless_save_breaks_the_rules(tmp_path):
    """A trace in which a file is renamed before it is synced, and its folder never, is told apart."""
    root = Path("/runs")
    trace = """
    7 openat(AT_FDCWD</>, "/runs/a.tmp", O_WRONLY|O_CREAT|O_EXCL, 0600) = 3</runs/a.tmp>
    7 write(3</runs/a.tmp>, "x"..., 10 <unfinished ...>
    8 fsync(4</elsewhere>) = 0
    7 <... write resumed>) = 10
    7 close(3</runs/a.tmp>) = 0
    7 rename("/runs/a.tmp", "/runs/a") = 0
    """
    problems = check_order(read_strace("\n".join(line.strip() for line in trace.splitlines()), root))
    assert any("before a.tmp is synced" in problem for problem in problems)
    assert any("is not synced before the end" in problem for problem in problems)
