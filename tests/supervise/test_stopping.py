"""How a supervised run stops: by request, by real signals, and by the supervisor's own violent death."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perdure.supervise.config import Timing
from perdure.supervise.member import MemberState

pytestmark = pytest.mark.process

OBEYING = 'signal.signal(signal.SIGTERM, lambda *_: sys.exit({code})); print("ready"); wait()'
DEFIANT = 'signal.signal(signal.SIGTERM, lambda *_: print("no", flush=True)); print("ready")\nwhile True: wait()'


def stop_when_ready(members: int, times: int = 1) -> Callable[..., None]:
    """Ask for a stop as soon as so many members have said that they are ready."""

    def hear(run, _member: str, line: str) -> None:
        if line == "ready" and len(run.lines) == members:
            for _ in range(times):
                run.supervisor.stop()

    return hear


@pytest.mark.parametrize(("code", "expected"), [(75, 75), (0, 75), (1, 143), (130, 143)])
def test_a_stop_is_forwarded_and_its_outcome_reported(role, run_of, code: int, expected: int) -> None:
    """Members that answer SIGTERM with 75 or 0 make the run exit with 75; other ends make it 128 plus the signal."""
    run = run_of(role(OBEYING.format(code=code), replicas=2), on_output=stop_when_ready(2))
    assert run.exit_code() == expected
    assert [(event["signal"], event["exit_code"]) for event in run.named("run-stopping")] == [("SIGTERM", None)]
    assert run.named("member-fault") == []


def test_helpers_do_not_spoil_a_clean_stop(role, run_of) -> None:
    """Only essential members have commits to make: an actor that dies of SIGTERM leaves the exit code at 75."""
    learner = role(OBEYING.format(code=75), name="learner")
    actor = role('print("ready"); wait()', name="actor", essential=False)
    assert run_of(learner, actor, on_output=stop_when_ready(2)).exit_code() == 75


def test_a_member_that_ignores_sigterm_is_killed_after_the_grace(role, run_of) -> None:
    """The grace is the longest that a stop can take."""
    run = run_of(role(DEFIANT), on_output=stop_when_ready(1), timing=Timing(grace_seconds=0.3))
    assert run.exit_code() == 143
    assert [event["reason"] for event in run.named("member-stopped")] == ["SIGKILL"]


def test_the_second_request_kills_at_once(role, run_of) -> None:
    """Whoever asks twice does not wait for the grace."""
    begun = time.monotonic()
    run = run_of(role(DEFIANT), on_output=stop_when_ready(1, times=2), timing=Timing(grace_seconds=600.0))
    assert run.exit_code() == 143
    assert time.monotonic() - begun < 10.0


def test_a_member_that_waits_for_its_restart_is_not_started_again(role, run_of) -> None:
    """A stop during the backoff ends the run, and not cleanly, since nobody committed anything."""

    def stop(run, event: dict[str, object]) -> None:
        if event["event"] == "member-waiting":
            run.supervisor.stop(signal.SIGINT)

    run = run_of(role("sys.exit(1)"), on_event=stop, options={"jitter": lambda: 1e6})
    assert run.exit_code() == 130
    assert len(run.named("member-started")) == 1


def test_a_stop_before_the_start_starts_nobody(role, run_of) -> None:
    """A request that comes before the supervisor runs is not lost."""
    run = run_of(role("wait()"))
    run.supervisor.stop()
    assert run.exit_code() == 143
    assert [each.state for each in run.supervisor.members()] == [MemberState.STOPPED]
    assert run.named("member-started") == []


class Outside:
    """A supervisor in a process of its own, with one member that prints its pid and that of its child."""

    def __init__(self, directory: Path, temporary: str, member: str, log: int) -> None:
        # Whatever the tests were started with: under nohup a hang-up is ignored by all that they start.
        script = f"""
import signal
import sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from pathlib import Path
from perdure.supervise.config import config_for_command
from perdure.supervise.supervisor import Supervisor
config = config_for_command([sys.executable, "-S", "-c", {member!r}], store=Path("runs"), run="r", cwd=Path.cwd())
supervisor = Supervisor(config, config.directory, on_output=lambda member, line: print(line, flush=True))
sys.exit(supervisor.run())
"""
        self.process = subprocess.Popen(
            [sys.executable, "-c", script],
            cwd=directory,
            env={**os.environ, "TMPDIR": temporary},
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )

    def line(self) -> str:
        """Return the next line that the member printed."""
        assert select.select([self.process.stdout], [], [], 20.0)[0], "the supervisor printed nothing"
        return self.process.stdout.readline().decode().strip()


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Callable[[str], Outside]]:
    """Start supervisors in processes of their own; killed at the end if they live."""
    started: list[Outside] = []
    # Not below tmp_path: a socket's address must be short. Removed here, because a killed supervisor cannot do it.
    with (tmp_path / "stderr").open("wb") as log, tempfile.TemporaryDirectory() as temporary:

        def start(member: str) -> Outside:
            started.append(Outside(tmp_path, temporary, member, log.fileno()))
            return started[-1]

        yield start
        for each in started:
            with each.process:
                each.process.kill()


def member_that(on_sigterm: str) -> str:
    """Script of a member that says its pid, and waits on a pipe: a signal just before a pause would never end it."""
    return (
        "import os, signal, sys; end, begin = os.pipe(); os.set_blocking(begin, False); signal.set_wakeup_fd(begin); "
        f"signal.signal(signal.SIGTERM, {on_sigterm}); print(os.getpid()); os.read(end, 1); os.read(end, 1)"
    )


@pytest.mark.parametrize(
    ("sent", "on_sigterm", "expected"),
    [
        (signal.SIGTERM, "lambda *_: sys.exit(75)", 75),
        (signal.SIGINT, "lambda *_: sys.exit(75)", 75),
        (signal.SIGHUP, "lambda *_: sys.exit(75)", 75),
        (signal.SIGTERM, "signal.SIG_DFL", 143),
        (signal.SIGINT, "signal.SIG_DFL", 130),
    ],
)
def test_signals_to_the_supervisor_stop_the_run(
    outside, watched, sent: signal.Signals, on_sigterm: str, expected: int
) -> None:
    """Each stopping signal reaches the members as SIGTERM, and the exit code says how they ended."""
    supervisor = outside(member_that(on_sigterm))
    is_dead = watched(int(supervisor.line()))
    supervisor.process.send_signal(sent)
    assert supervisor.process.wait(20.0) == expected
    assert is_dead()


def test_members_die_with_a_supervisor_that_is_killed(outside, watched) -> None:
    """SIGKILL of the supervisor takes its members along, and frees the run for the next one."""
    supervisor = outside(member_that("signal.SIG_IGN"))
    is_dead = watched(int(supervisor.line()))
    supervisor.process.kill()
    assert is_dead()
    successor = outside(member_that("lambda *_: sys.exit(75)"))
    os.kill(int(successor.line()), signal.SIGTERM)
    assert int(successor.line()) > 0, "the successor restarts its member"


def test_a_program_that_embeds_the_supervisor_gets_its_signals_back(role, run_of) -> None:
    """Handlers are restored after the run, and ignored signals stay ignored during it."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    during = []

    def look(_run, event: dict[str, object]) -> None:
        during.append((event["event"], signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)))

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run_of(role(""), on_event=look).exit_code() == 0
        assert signal.getsignal(signal.SIGTERM) == before[signal.SIGTERM]
        assert signal.getsignal(signal.SIGINT) == before[signal.SIGINT]
        assert {signal.SIG_IGN} == {hangup for _, _, hangup in during}
        assert before[signal.SIGTERM] not in {terminate for _, terminate, _ in during}
    finally:
        signal.signal(signal.SIGHUP, before[signal.SIGHUP])
