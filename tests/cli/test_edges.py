"""What the surroundings do to a command: pipes that close, disks that are full, signals, and mistakes of our own."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perdure import errors
from perdure.cli import main
from perdure.cli.exits import Exit
from perdure.cli.output import Manner, Output
from perdure.cli.progress import progress
from perdure.cli.verb import Verb
from tests.cli.stores import make_run
from tests.cli.terminal import Terminal

DEADLINE_SECONDS = 60
FULL = Path("/dev/full")


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
        command = subprocess.Popen([sys.executable, "-m", "perdure", *words], stdout=write, stderr=subprocess.PIPE)
        os.close(write)
        _, err = command.communicate(timeout=DEADLINE_SECONDS)
        assert (141, b"") == (command.returncode, err)
    assert 3 == len(run.store.checkpoints())


@pytest.mark.process
@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
def test_output_that_cannot_be_written_is_a_failure(root):
    """A full disk behind standard output ends a command with 1 and says so."""
    make_run(root)
    with FULL.open("wb") as full:
        command = subprocess.Popen([sys.executable, "-m", "perdure", "ls"], stdout=full, stderr=subprocess.PIPE)
        _, err = command.communicate(timeout=DEADLINE_SECONDS)
    assert 1 == command.returncode
    assert b"No space left on device" in err
    assert b"Traceback" not in err


@pytest.mark.process
def test_an_interrupt_ends_a_command_with_130(root):
    """Ctrl-C is answered by a word and an exit code, not by a traceback, and nothing is done after it."""
    run = make_run(root)
    terminal = Terminal("gc", "--keep", "last:1")
    terminal.read_until("[y/N]")
    terminal.process.send_signal(signal.SIGINT)

    assert 130 == terminal.end()
    assert "perdure: interrupted" in terminal.text
    assert "Traceback" not in terminal.text
    assert 3 == len(run.store.checkpoints())


@pytest.mark.process
@pytest.mark.parametrize(
    ("environ", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_a_terminal_gets_colours_unless_they_are_refused(root, environ, is_coloured):
    """States are coloured at a terminal, and words carry the meaning without the colour."""
    make_run(root)
    terminal = Terminal("status", env={**os.environ, "TERM": "xterm", **environ})
    assert 0 == terminal.end()
    assert is_coloured == ("\x1b[2mstopped\x1b[0m" in terminal.text)
    assert "stopped" in terminal.text


@pytest.mark.process
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody who may not read")
def test_a_store_that_may_not_be_read_is_a_failure(root):
    """Somebody without the right to read it is told so, with what to do."""
    make_run(root)
    root.chmod(0o700)
    # Loaded before the rights are dropped: the program's own files need not be readable by nobody in particular.
    drop = (
        "import os, sys; from perdure.cli import main; import perdure.cli.ls; os.chdir('/'); os.setgid(65534); "
        f"os.setuid(65534); sys.exit(main(['ls', '--store', {str(root)!r}]))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", drop], capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )
    assert (1, "") == (ended.returncode, ended.stdout)
    assert "Permission denied" in ended.stderr
    assert "hint: give this user" in ended.stderr


def fails_with(error):
    """Every verb is one that fails so."""

    def execute(_arguments, _context):
        raise error

    return lambda _name: Verb("A verb.", (), (), execute)


def test_a_mistake_of_our_own_is_a_sentence(capsys):
    """A bug ends a command with 1 and asks for a report; the traceback comes only when asked for."""
    load = fails_with(ZeroDivisionError("by zero"))

    assert 1 == main(["ls"], load)
    assert (
        "perdure: cannot finish: ZeroDivisionError: by zero\n"
        "hint: this is a bug in perdure; report it with the output of the same command and --verbose\n"
    ) == capsys.readouterr().err
    assert 1 == main(["ls", "-v"], load)
    assert "Traceback" in capsys.readouterr().err
    assert 1 == main(["ls", "--json"], load)
    assert "internal" == json.loads(capsys.readouterr().err)["kind"]


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name != "PerdureError"])
def test_every_error_ends_with_its_code(capsys, name):
    """Whatever class of error a verb raises, the exit code is that of the class, in text and in JSON."""
    cls = getattr(errors, name)
    load = fails_with(cls("cannot do it", kind="test.kind", hint="do this"))

    assert cls.exit_code == main(["ls"], load)
    assert "perdure: cannot do it\nhint: do this\n" == capsys.readouterr().err
    assert cls.exit_code == main(["ls", "--json"], load)
    assert {
        "schema": 1,
        "type": name,
        "kind": "test.kind",
        "exit_code": cls.exit_code,
        "message": "cannot do it",
        "hint": "do this",
    } == json.loads(capsys.readouterr().err)
    assert cls.exit_code in set(Exit)


def test_an_interrupt_within_is_130(capsys):
    """Without a terminal as well."""
    assert 130 == main(["ls"], fails_with(KeyboardInterrupt()))
    assert "perdure: interrupted\n" == capsys.readouterr().err


def test_a_log_gets_a_line_of_progress_now_and_then():
    """Where nobody watches there is a line each half minute, and none from a short command."""
    err = io.StringIO()
    output = Output(io.StringIO(), err, Manner(), {})
    clock = iter([0.0, 10.0, 31.0, 31.0, 50.0, 62.0, 62.0]).__next__

    with progress(output, "verifying", clock) as on_progress:
        for done in (1, 2, 3, 4):
            on_progress(done * 2**20, 4 * 2**20)

    assert (
        "perdure: verifying: 2.0 MiB of 4.0 MiB (50%)\nperdure: verifying: 4.0 MiB of 4.0 MiB (100%)\n"
    ) == err.getvalue()


@pytest.mark.process
def test_a_terminal_gets_a_bar_that_goes_away(root):
    """Progress is drawn while a check runs, and the result is what remains."""
    make_run(root)
    terminal = Terminal("verify", env={**os.environ, "TERM": "xterm"})
    assert 0 == terminal.end()
    assert "verifying" in terminal.text
    assert "all whole" in terminal.text.splitlines()[-1]
