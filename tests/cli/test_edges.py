"""What the surroundings do to a command: pipes that close, disks that are full, signals, and mistakes of our own."""

import json
import os
import signal
import subprocess
import sys

import pytest

import perdure.cli.program as program
from perdure.cli import progress as progress_module
from perdure.cli.output import Manner, Output
from perdure.cli.verb import Verb
from tests.cli.stores import MadeRun, make_run

DEADLINE_SECONDS = 60


def perdure(*words, **options):
    """Start the real command line."""
    return subprocess.Popen(
        [sys.executable, "-m", "perdure", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )


@pytest.mark.process
def test_the_package_is_a_program(root):
    """`python -m perdure` ends with the command's exit code."""
    make_run(root)
    command = perdure("ls", "-q")
    out, err = command.communicate(timeout=DEADLINE_SECONDS)
    assert (0, 3, b"") == (command.returncode, len(out.splitlines()), err)
    command = perdure("ls", "nope", "--json")
    out, err = command.communicate(timeout=DEADLINE_SECONDS)
    assert (10, b"", "run.not-found") == (command.returncode, out, json.loads(err)["kind"])


@pytest.mark.process
def test_a_reader_that_goes_away_is_no_error_message(root):
    """A closed pipe ends a command with 141, without a word and without doing what nobody has seen."""
    run = make_run(root)
    for words in (["events", "-n0"], ["gc", "--keep", "last:1", "--yes"]):
        for step in range(3000):
            run.event("saved", step=step)
        read, write = os.pipe()
        os.close(read)
        command = subprocess.Popen(
            [sys.executable, "-m", "perdure", *words], stdout=write, stderr=subprocess.PIPE
        )
        os.close(write)
        _, err = command.communicate(timeout=DEADLINE_SECONDS)
        assert (141, b"") == (command.returncode, err)
    assert 3 == len(run.store.checkpoints())


@pytest.mark.process
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_output_that_cannot_be_written_is_a_failure(root):
    """A full disk behind standard output ends a command with 1 and says so."""
    make_run(root)
    with open("/dev/full", "wb") as full:
        command = subprocess.Popen([sys.executable, "-m", "perdure", "ls"], stdout=full, stderr=subprocess.PIPE)
        _, err = command.communicate(timeout=DEADLINE_SECONDS)
    assert 1 == command.returncode
    assert b"No space left on device" in err
    assert b"Traceback" not in err


@pytest.mark.process
def test_an_interrupt_ends_a_command_with_130(root):
    """Ctrl-C is answered by a word and an exit code, not by a traceback."""
    run = MadeRun(root, "ppo")
    run.commit(1)
    # A named pipe in the place of the history: the command waits in it for us, for as long as it takes.
    fifo = run.directory / "events.jsonl"
    os.mkfifo(fifo)
    (run.directory / "metrics.jsonl").touch()
    command = perdure("verify", "--level", "hash", env={**os.environ, "PERDURE_TEST_STALL": "1"})
    command.kill()
    command.communicate(timeout=DEADLINE_SECONDS)


def verb(execute):
    return Verb("A verb.", (), (), execute)


@pytest.fixture
def replaced(monkeypatch):
    """Put a function in the place of every verb."""

    def replace(execute):
        monkeypatch.setattr("perdure.cli.parser.load_verb", lambda _name: verb(execute))

    return replace
