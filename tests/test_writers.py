"""Two processes that want to train one run: real processes, real signals."""

import signal
import subprocess
import sys
import time

import pytest

import perdure
from perdure.core.leases import Timing
from perdure.errors import LeaseHeldError
from tests.waiting import wait_until

SHORT = {"beat_seconds": 0.1, "lease_seconds": 0.8}
WRITER = f"""
import sys
import numpy as np
import perdure
from perdure.core.leases import Timing
from perdure.errors import FencedError

value = np.zeros(4)
try:
    with perdure.open(sys.argv[1], run="t", quiet=True, budget=None, timing=Timing(**{SHORT})) as run:
        run.track(value=value)
        run.restore()
        for line in sys.stdin:
            value += 1
            run.save().wait()
            print("saved", flush=True)
except FencedError as error:
    print("fenced", error.kind, flush=True)
    sys.exit(error.exit_code)
"""


@pytest.fixture
def writer(tmp_path):
    """A process that saves once for each line it is sent, and has saved once."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    save(process)
    yield process
    process.kill()
    process.communicate(timeout=30)


def save(process):
    process.stdin.write("save\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def takes_over(where):
    try:
        run = perdure.open(where, run="t", quiet=True, accept="*", timing=Timing(**SHORT))
        run.restore()
    except LeaseHeldError:
        run.close()
        return None
    return run


@pytest.mark.process
def test_a_live_writer_is_not_disturbed(tmp_path, writer):
    """While a writer lives, a second one is refused with its process id and the time its lease has left."""
    with (
        perdure.open(tmp_path, run="t", quiet=True, accept="*", timing=Timing(**SHORT)) as run,
        pytest.raises(LeaseHeldError, match=str(writer.pid)) as caught,
    ):
        run.restore()

    assert 0 < caught.value.expires_in_seconds <= SHORT["lease_seconds"]
    assert "saved" == save(writer)


@pytest.mark.process
def test_a_killed_writer_is_replaced_at_once(tmp_path, writer):
    """A writer that was killed holds nothing: the next one starts without waiting for a lease to end."""
    writer.kill()
    writer.wait(30)
    with perdure.open(tmp_path, run="t", quiet=True, accept="*") as run:  # thirty seconds of lease by default
        began = time.monotonic()
        report = run.restore()

    assert 2 == report.generation
    assert time.monotonic() - began < 25


@pytest.mark.process
def test_a_frozen_writer_is_fenced(tmp_path, writer):
    """A writer frozen past its lease is replaced; when it wakes it can commit nothing and ends with status 12."""
    writer.send_signal(signal.SIGSTOP)
    taken = []
    wait_until(lambda: taken or taken.append(takes_over(tmp_path)) or any(taken) or taken.clear(), 30)
    before = sorted(path.name for path in (tmp_path / "t" / "snapshots").iterdir())
    writer.send_signal(signal.SIGCONT)

    assert save(writer).startswith("fenced lease.fenced")
    assert 12 == writer.wait(30)
    assert before == sorted(path.name for path in (tmp_path / "t" / "snapshots").iterdir())
    assert 2 == taken[0].generation
    taken[0].close()
