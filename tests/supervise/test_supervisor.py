"""The supervisor with real members that exit, die, fall silent and come back."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from perdure.core.restarts import DEFAULT_BUDGETS, Phase, PhaseBudget, RestartPolicy
from perdure.errors import InvalidInputError, LeaseHeldError, StoreError
from perdure.files.door import Files
from perdure.supervise.config import Timing
from perdure.supervise.member import MemberState
from perdure.supervise.process import Process

pytestmark = pytest.mark.process

FAST = RestartPolicy(backoff_first_seconds=0.01)


def test_a_run_whose_member_finishes_is_done(role, run_of) -> None:
    """Exit code 0 of the essential member ends the run with 0; its output is forwarded and logged."""
    run = run_of(role('print("hello"); print("you", file=sys.stderr); sys.stdout.write("no newline")'))
    assert run.exit_code() == 0
    assert run.lines == [("main", "hello"), ("main", "you"), ("main", "no newline")]
    assert (run.directory / "logs" / "main.log").read_bytes() == b"hello\nyou\nno newline"
    names = ["member-started", "member-done", "run-stopping", "run-ended"]
    assert names == [event["event"] for event in run.events]


def test_a_member_is_told_who_it_is(role, run_of) -> None:
    """The environment names the supervisor, the role, the member, its life, the run and its times."""
    script = """
for name in "ROLE MEMBER RESTART_COUNT RUN STORE GRACE_SECONDS BEAT_SECONDS".split():
    print(os.environ["PERDURE_" + name])
print(os.environ["MINE"], os.getcwd(), os.getsid(0) == os.getpgid(0) == os.getpid())
"""
    run = run_of(role(script, name="actor", replicas=2, env={"MINE": "x"}))
    assert run.exit_code() == 0
    store, cwd = str(run.config.store), str(run.config.roles[0].cwd)
    for member in ("actor-0", "actor-1"):
        expected = ["actor", member, "0", "r", store, "10.0", "5.0", f"x {cwd} True"]
        assert expected == [line for name, line in run.lines if name == member]


def test_an_unplanned_exit_is_restarted_and_reported(role, run_of) -> None:
    """A failing member is detected at once, waits, and starts again with a higher restart count."""
    run = run_of(role('beat("running", life); sys.exit(0 if life == 1 else 3)'))
    assert run.exit_code() == 0
    (fault,) = run.named("member-fault")
    facts = {"member": "main", "role": "main", "reason": "exit code 3", "exit_code": 3, "signal": None, "note": ""}
    assert facts.items() <= fault.items()
    assert (fault["phase"], fault["progress"], fault["generation"]) == ("running", 0, 7)
    assert 0.0 <= fault["detected_after_seconds"] < 2.0
    first, second = run.named("member-started")
    assert (first["restart_count"], second["restart_count"]) == (0, 1)
    assert first["pid"] != second["pid"]
    assert first["restarted_after_seconds"] is None
    assert fault["detected_after_seconds"] <= second["restarted_after_seconds"] < 5.0
    (running,) = run.named("member-running")
    assert running["recovered_after_seconds"] >= second["restarted_after_seconds"]


def test_a_killed_member_is_restarted(role, run_of) -> None:
    """SIGKILL from outside is a fault like any other."""
    run = run_of(
        role('print("ready"); wait(0.0 if life else 60.0)'),
        on_output=lambda run, _member, _line: None if run.named("member-fault") else os.kill(run.pid("main"), 9),
    )
    assert run.exit_code() == 0
    (fault,) = run.named("member-fault")
    assert (fault["signal"], fault["exit_code"]) == ("SIGKILL", None)


def test_grandchildren_die_with_their_member(role, run_of, watched) -> None:
    """What a member started and left behind is killed with its process group, before the successor starts."""
    script = """
if life == 0:
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"])
    print(child.pid)
    wait()
"""
    deaths = []

    def kill(run, _member: str, line: str) -> None:
        deaths.append(watched(int(line)))
        os.kill(run.pid("main"), signal.SIGKILL)

    run = run_of(role(script), on_output=kill)
    assert run.exit_code() == 0
    assert [is_dead() for is_dead in deaths] == [True]


def test_a_silent_member_is_killed_and_restarted(role, run_of) -> None:
    """Silence longer than the phase's budget is a fault, measured from the last sign of life."""
    run = run_of(role("life or (beat(), wait())", silence={"running": 0.3}))
    assert run.exit_code() == 0
    (fault,) = run.named("member-fault")
    assert (fault["reason"], fault["phase"], fault["exit_code"], fault["signal"]) == ("silent", "running", None, None)
    assert 0.3 <= fault["detected_after_seconds"] < 5.0


def test_a_frozen_member_is_silent(role, run_of) -> None:
    """A member stopped by SIGSTOP is killed, though it cannot answer any other signal."""

    def freeze(run, _member: str, _line: str) -> None:
        if not run.named("member-fault"):
            os.kill(run.pid("main"), signal.SIGSTOP)

    run = run_of(role('life or (beat(), print("ready"), wait())', silence={"running": 0.3}), on_output=freeze)
    assert run.exit_code() == 0
    assert [fault["reason"] for fault in run.named("member-fault")] == ["silent"]


def test_each_sign_of_life_counts(role, run_of) -> None:
    """Beats alone and output alone, without a newline even, keep a member from being silent."""
    script = """
for number in range(10):
    sys.stdout.write(".") if number < 5 else beat("starting")
    wait(0.15)
"""
    run = run_of(role(script, silence={"starting": 1.0}))
    assert run.exit_code() == 0
    assert run.named("member-fault") == []


def test_beats_of_a_stalled_loop_do_not_count(role, run_of) -> None:
    """Where a stall budget is set, a beating thread cannot hide a loop that stands still."""
    stalled = role("while not life: beat('running', 5); wait(0.05)")
    budgets = {**DEFAULT_BUDGETS, Phase.RUNNING: PhaseBudget(silence_seconds=0.2, stall_seconds=0.2)}
    run = run_of(replace(stalled, budgets=budgets))
    assert run.exit_code() == 0
    (fault,) = run.named("member-fault")
    assert fault["reason"] == "silent"
    assert 0.2 <= fault["detected_after_seconds"] < 5.0


def test_a_member_that_keeps_dying_exhausts_its_budget(role, run_of) -> None:
    """After max_restarts restarts without progress the run ends with 20."""
    run = run_of(role("sys.exit(1)", restart=replace(FAST, max_restarts=2)))
    assert run.exit_code() == 20
    assert len(run.named("member-started")) == 3
    (end,) = run.named("member-gave-up")
    assert (end["reason"], end["exit_code"]) == ("restart-budget-exhausted", 20)
    assert run.events[-1] == {"event": "run-ended", "exit_code": 20}


def test_a_member_that_keeps_falling_silent_has_its_own_exit_code(role, run_of) -> None:
    """When silence uses up the budget the run ends with 21."""
    run = run_of(role("wait()", silence={"starting": 0.1}, restart=replace(FAST, max_restarts=1)))
    assert run.exit_code() == 21
    assert len(run.named("member-fault")) == 2


@pytest.mark.parametrize(("progress", "expected"), [("life", 0), ("0", 20)])
def test_only_progress_refills_the_budget(role, run_of, progress: str, expected: int) -> None:
    """A member that gets further in every life may die for ever; one that does not is given up."""
    script = f"beat('running', 0 if life == 0 else {progress}); sys.exit(0 if life == 4 else 1)"
    run = run_of(role(script, restart=replace(FAST, max_restarts=1)))
    assert run.exit_code() == expected


@pytest.mark.parametrize(("restarts_fenced", "expected"), [(True, 0), (False, 12)])
def test_a_fenced_member_comes_back_only_where_that_is_right(
    role, run_of, expected: int, *, restarts_fenced: bool
) -> None:
    """Exit code 12 restarts an actor as a new incarnation and ends the run of a learner."""
    run = run_of(role("sys.exit(0 if life else 12)", restart=replace(FAST, restarts_fenced=restarts_fenced)))
    assert run.exit_code() == expected


def test_a_full_disk_is_not_answered_by_restarts(role, run_of) -> None:
    """A member whose last words say that the disk is full is given up at once."""
    run = run_of(role('beat(note="store.full"); sys.exit(1)'))
    assert run.exit_code() == 1
    assert [event["reason"] for event in run.named("member-gave-up")] == ["disk-full"]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"command": ("no-such-program",)}, "cannot start 'no-such-program'"),
        ({"command": ("/",)}, "cannot start '/'"),
        ({"cwd": Path("/no/such/directory")}, "in /no/such/directory: No such file or directory"),
    ],
)
def test_a_command_that_cannot_be_run_is_a_configuration_error(
    role, run_of, changes: dict[str, object], complaint: str
) -> None:
    """A missing program or directory ends the run with 2, without restarts, and the output says which."""
    run = run_of(replace(role(""), **changes))
    assert run.exit_code() == 2
    assert len(run.named("member-started")) == 1
    assert complaint in run.lines[0][1]


def test_a_system_that_cannot_start_processes_is_a_fault_like_others(role, run_of) -> None:
    """When the system refuses a process now, the supervisor tries again after the backoff."""
    refusals = [BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))]

    def launch(*arguments: object) -> Process:
        if refusals:
            raise refusals.pop()
        return Process(*arguments)

    run = run_of(role(""), options={"launch": launch})
    assert run.exit_code() == 0
    (fault,) = run.named("member-fault")
    assert fault["reason"] == "cannot be started: Resource temporarily unavailable"
    assert fault["pid"] is None


def test_helpers_are_stopped_when_the_essential_members_are_done(role, run_of) -> None:
    """The run is done when its essential members are, and takes the others down with SIGTERM."""
    learner = role('print("ready"); sys.exit(0) if sys.stdin.read() == "" else None', name="learner")
    actor = role("wait()", name="actor", replicas=2, essential=False)
    run = run_of(actor, learner)
    assert run.exit_code() == 0
    assert sorted(event["member"] for event in run.named("member-stopped")) == ["actor-0", "actor-1"]
    assert {"SIGTERM"} == {event["reason"] for event in run.named("member-stopped")}
    assert {MemberState.STOPPED, MemberState.DONE} == {each.state for each in run.supervisor.members()}


def test_a_helper_that_is_given_up_does_not_end_the_run(role, run_of) -> None:
    """The run goes on without a member that is not essential."""
    learner = role('signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); print("ready"); wait()', name="learner")
    helper = role("sys.exit(2)", name="evaluator", essential=False)

    def finish(run, event: dict[str, object]) -> None:
        if event["event"] == "member-gave-up":
            assert event["member"] == "evaluator"
            run.supervisor.stop()

    run = run_of(learner, helper, on_event=finish)
    assert run.exit_code() in (75, 143)
    assert [event["exit_code"] for event in run.named("run-stopping")] == [None]


def test_an_essential_member_that_is_given_up_ends_the_run_with_its_code(role, run_of) -> None:
    """The others are stopped in their own time, and the exit code says why."""
    first = role("sys.exit(2)", name="first")
    other = role('signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); print("ready"); wait()', name="other")
    assert run_of(other, first).exit_code() == 2


def test_the_second_supervisor_of_a_run_is_refused(role, run_of) -> None:
    """A run directory has one supervisor; the second one is told the first one's pid, and may come back later."""
    refusals = []

    def try_again(run, event: dict[str, object]) -> None:
        if event["event"] == "member-started":
            with pytest.raises(LeaseHeldError, match=f"pid {os.getpid()} does so already") as caught:
                run_of(role("")).exit_code()
            refusals.append(caught.value)

    run = run_of(role(""), on_event=try_again)
    assert run.exit_code() == 0
    assert [("supervisor.held", f"pid {os.getpid()}", 11)] == [(e.kind, e.owner, e.exit_code) for e in refusals]
    assert run_of(role("")).exit_code() == 0


def test_a_file_in_place_of_the_run_directory_is_an_error_of_the_store(role, run_of) -> None:
    """Nothing is started in a directory that cannot be one."""
    run = run_of(role(""))
    run.config.store.mkdir()
    run.directory.write_text("a file")
    with pytest.raises(StoreError):
        run.exit_code()
    assert run.events == []


def test_a_member_that_cannot_be_reaped_does_not_hold_up_the_rest(role, run_of) -> None:
    """A process that survives its kill is left behind after a time box, and is reaped whenever it does die."""

    class Stubborn(Process):
        """Stands for a process in uninterruptible sleep."""

        def kill(self) -> None:
            if len(launched) > 1:
                super().kill()

    launched: list[Process] = []

    def launch(*arguments: object) -> Process:
        launched.append(Stubborn(*arguments))
        return launched[-1]

    def let_it_die(run, event: dict[str, object]) -> None:
        if event["event"] == "member-started" and event["restart_count"] == 1:
            old = run.named("member-started")[0]["pid"]
            assert event["pid"] != old
            os.kill(old, signal.SIGKILL)

    run = run_of(
        role("wait(0.2) if life else (beat(), wait())", silence={"running": 0.1}),
        on_event=let_it_die,
        timing=Timing(grace_seconds=10.0, reap_seconds=0.1),
        options={"launch": launch},
    )
    assert run.exit_code() == 0
    assert [run.named("member-started")[0]["pid"]] == [event["pid"] for event in run.named("member-unreaped")]
    assert launched[0].reap() == -signal.SIGKILL


def test_a_supervisor_that_was_stopped_itself_blames_nobody(role, run_of) -> None:
    """Time for which the supervisor was frozen is not counted as silence of its members."""
    jump = [0.0]

    def freeze(_run, _member: str, line: str) -> None:
        jump[0] += 1000.0 if line == "freeze" else 0.0

    run = run_of(
        role('beat(); print("freeze"); wait(0.2)', silence={"running": 5.0}),
        on_output=freeze,
        options={"clock": lambda: time.monotonic() + jump[0]},
    )
    assert run.exit_code() == 0
    assert run.named("member-fault") == []


def test_what_a_callback_raises_ends_the_run_and_all_its_members(role, run_of, watched) -> None:
    """An error of the program around the supervisor is not hidden, and leaves no process behind."""
    deaths: list[Callable[[], bool]] = []

    def fail(_run, event: dict[str, object]) -> None:
        if event["event"] == "member-started":
            deaths.append(watched(event["pid"]))
            if len(deaths) == 2:
                raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        run_of(role("wait()", replicas=2), on_event=fail).exit_code()
    assert [is_dead() for is_dead in deaths] == [True, True]


def test_a_log_that_cannot_be_written_stops_nobody(role, run_of) -> None:
    """A full disk is reported once, and the output is forwarded all the same."""

    class FullDisk(Files):
        """Refuses to append."""

        def append(self, path: Path, data: bytes) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run = run_of(role('print("a", flush=True); beat(); wait(0.05); print("b")'), options={"files": FullDisk()})
    assert run.exit_code() == 0
    assert run.lines == [("main", "a"), ("main", "b")]
    (event,) = run.named("member-unlogged")
    assert "No space left on device" in event["reason"]


def test_beats_of_strangers_and_of_former_lives_are_ignored(role, run_of) -> None:
    """Only a beat of the present incarnation of a known member counts, whatever else arrives."""
    script = """
beat("saving", life=3)
beat("saving", name="nobody")
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
    sender.sendto(b"[" * 4000, os.environ["PERDURE_SUPERVISOR"])
beat("running", 5)
"""
    run = run_of(role(script))
    assert run.exit_code() == 0
    statistics = run.supervisor.statistics()
    assert statistics.ignored_beats_count == 3
    (main,) = statistics.members
    assert (main.phase, main.progress, main.generation, main.pid) == (Phase.RUNNING, 5, 7, None)
    assert (main.name, main.role, main.state, main.restart_count) == ("main", "main", MemberState.DONE, 0)


def test_overlong_and_undecodable_output_is_cut_and_replaced(role, run_of) -> None:
    """Neither a line without an end nor bytes that are no text can hurt the supervisor."""
    run = run_of(role('sys.stdout.buffer.write(b"x" * 300_000 + b"\\n\\xff\\n")'))
    assert run.exit_code() == 0
    assert run.lines[-1] == ("main", "\ufffd")
    assert sum(len(line) for _, line in run.lines[:-1]) == 300_000
    assert max(len(line) for _, line in run.lines) <= 128 * 1024


def test_a_run_needs_an_essential_role(role, run_of) -> None:
    """A run without an end is refused before anything starts."""
    with pytest.raises(InvalidInputError, match="at least one must be essential"):
        run_of(role("", essential=False))
