"""Restart budget, backoff, silence and exit codes as tables and properties."""

from __future__ import annotations

import math
import signal
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.core.restarts import (
    DEFAULT_BUDGETS,
    DISK_FULL,
    Done,
    Exit,
    GiveUp,
    History,
    Outcome,
    Phase,
    PhaseBudget,
    Restart,
    RestartPolicy,
    Signs,
    backoff_limit,
    charged_faults,
    decide,
    describe_status,
    is_silent,
    judge_run,
    judge_stop,
    last_sign,
    silent_at,
    with_fault,
    with_progress,
)
from perdure.errors import InvalidInputError

POLICY = RestartPolicy()
FRESH = History()
SPENT = History(faults=(0.0, 1.0, 2.0, 3.0, 4.0))


@pytest.mark.parametrize(
    ("ended", "policy", "expected"),
    [
        (Exit(0), POLICY, Done()),
        (Exit(0, is_silent=True), POLICY, Done()),
        (Exit(-signal.SIGKILL, is_stop_requested=True), POLICY, Done()),
        (Exit(75, is_stop_requested=True), POLICY, Done()),
        (Exit(2, is_stop_requested=True), POLICY, Done()),
        (Exit(75), POLICY, Restart(0.5)),
        (Exit(1), POLICY, Restart(0.5)),
        (Exit(11), POLICY, Restart(0.5)),
        (Exit(-signal.SIGKILL), POLICY, Restart(0.5)),
        (Exit(-signal.SIGKILL, is_silent=True), POLICY, Restart(0.5)),
        (Exit(2), POLICY, GiveUp("config-error", 2)),
        (Exit(12), POLICY, GiveUp("fenced", 12)),
        (Exit(12), RestartPolicy(restarts_fenced=True), Restart(0.5)),
        (Exit(1, last_words=DISK_FULL), POLICY, GiveUp("disk-full", 1)),
        (Exit(1, last_words="store.broken"), POLICY, Restart(0.5)),
        (Exit(1), RestartPolicy(max_restarts=0), GiveUp("restart-budget-exhausted", 20)),
    ],
)
def test_an_exit_is_answered_by_its_kind(ended: Exit, policy: RestartPolicy, expected: object) -> None:
    """Planned ends are done, hopeless ones are given up with a reason, everything else restarts."""
    assert expected == decide(ended, FRESH, policy, now=0.0, jitter=0.5)


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (Exit(1), GiveUp("restart-budget-exhausted", 20)),
        (Exit(-signal.SIGKILL, is_silent=True), GiveUp("silent-too-often", 21)),
        (Exit(0), Done()),
        (Exit(1, is_stop_requested=True), Done()),
    ],
)
def test_a_spent_budget_gives_up_and_says_why(ended: Exit, expected: object) -> None:
    """The exit that finds the budget used up decides the exit code; planned ends need no budget."""
    assert expected == decide(ended, SPENT, POLICY, now=5.0, jitter=0.5)


def test_without_reports_of_progress_an_exit_is_forgiven_after_the_window() -> None:
    """A member that reports no progress is judged by the exits within the last ten minutes."""
    assert charged_faults(SPENT, POLICY, now=601.0) == (2.0, 3.0, 4.0)
    assert isinstance(decide(Exit(1), SPENT, POLICY, now=599.0, jitter=0.0), GiveUp)
    assert Restart(0.0) == decide(Exit(1), SPENT, POLICY, now=600.0, jitter=0.0)


def test_with_reports_of_progress_time_forgives_nothing() -> None:
    """A member that reports progress and makes none stays charged for ever, however slowly it dies."""
    stuck = replace(SPENT, highest_progress=7, progress_mark=7)
    assert GiveUp("restart-budget-exhausted", 20) == decide(Exit(1), stuck, POLICY, now=1e9, jitter=0.5)


@pytest.mark.parametrize(
    ("progress", "refills"),
    [(0, False), (50, False), (100, False), (109, False), (110, True), (10_000, True)],
)
def test_only_progress_beyond_the_highest_value_refills_the_budget(progress: int, *, refills: bool) -> None:
    """After dying at 100, a counter must reach 100 plus min_progress; what is done again does not count."""
    policy = RestartPolicy(min_progress=10)
    history = with_progress(with_progress(FRESH, 0, policy), 100, policy)
    history = with_progress(with_fault(history, policy, now=1.0), 40, policy)
    assert refills == (with_progress(history, progress, policy).faults == ())


def test_a_restored_counter_is_no_progress() -> None:
    """The first report ever sets the mark and refills nothing."""
    history = with_progress(with_fault(FRESH, POLICY, now=0.0), 40_000, POLICY)
    assert history.faults == (0.0,)
    assert with_progress(history, 40_001, POLICY).faults == ()


def test_backoff_doubles_up_to_its_limit_with_full_jitter() -> None:
    """The limit of the wait is 1, 2, 4 … 60 seconds, and the wait is drawn evenly from zero to it."""
    assert [backoff_limit(count, POLICY) for count in range(8)] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert backoff_limit(10**6, POLICY) == 60.0
    two = History(faults=(0.0, 1.0))
    waits = [decide(Exit(1), two, POLICY, now=2.0, jitter=jitter) for jitter in (0.0, 0.25, 1.0)]
    assert [Restart(0.0), Restart(1.0), Restart(4.0)] == waits


FAULTS = st.tuples(st.sampled_from([False, True]), st.floats(0.0, 400.0))
REPORTS = st.integers(0, 30)


@settings(max_examples=60, deadline=None)
@given(life=st.lists(FAULTS, max_size=30), max_restarts=st.integers(0, 4))
def test_without_reports_restarts_within_any_window_never_exceed_the_budget(
    life: list[tuple[bool, float]], max_restarts: int
) -> None:
    """In no ten minutes is a member that reports no progress restarted more than max_restarts times."""
    policy = RestartPolicy(max_restarts=max_restarts)
    history, now = FRESH, 0.0
    restarts: list[float] = []
    for was_silent, passed in life:
        now += passed
        decision = decide(Exit(1, is_silent=was_silent), history, policy, now, jitter=1.0)
        recent = [at for at in restarts if now - at < policy.window_seconds]
        if isinstance(decision, GiveUp):
            assert (21 if was_silent else 20, max_restarts) == (decision.exit_code, len(recent))
            return
        assert isinstance(decision, Restart)
        assert 0.0 <= decision.after_seconds <= policy.backoff_limit_seconds
        assert len(recent) < max_restarts
        history = with_fault(history, policy, now)
        restarts.append(now)


@settings(max_examples=100, deadline=None)
@given(
    life=st.lists(st.one_of(FAULTS, REPORTS), max_size=30),
    max_restarts=st.integers(0, 4),
    min_progress=st.integers(1, 5),
)
def test_with_reports_restarts_between_two_records_never_exceed_the_budget(
    life: list[tuple[bool, float] | int], max_restarts: int, min_progress: int
) -> None:
    """However slowly a member dies, it is restarted max_restarts times between one record of progress and the next."""
    policy = RestartPolicy(max_restarts=max_restarts, min_progress=min_progress)
    history, now = with_progress(FRESH, 0, policy), 0.0
    highest = record = restarts = 0
    for event in life:
        if isinstance(event, int):
            history = with_progress(history, event, policy)
            highest = max(highest, event)
            if highest >= record + min_progress:
                record, restarts = highest, 0
            continue
        now += event[1]
        decision = decide(Exit(1), history, policy, now, jitter=1.0)
        assert isinstance(decision, Restart) == (restarts < max_restarts)
        if isinstance(decision, GiveUp):
            return
        history = with_fault(history, policy, now)
        record, restarts = highest, restarts + 1


@pytest.mark.parametrize(
    ("phase", "seconds"),
    [
        (Phase.STARTING, 120.0),
        (Phase.RESTORING, 600.0),
        (Phase.RUNNING, 30.0),
        (Phase.SAVING, 600.0),
        (Phase.DRAINING, 60.0),
    ],
)
def test_each_phase_has_its_own_patience(phase: Phase, seconds: float) -> None:
    """A process is silent when its phase's budget has passed since its last sign of life, and not before."""
    signs = Signs(phase, last_beat=100.0, last_output=50.0, last_moved=0.0)
    assert not is_silent(signs, DEFAULT_BUDGETS[phase], now=100.0 + seconds - 0.001)
    assert is_silent(signs, DEFAULT_BUDGETS[phase], now=100.0 + seconds)


@pytest.mark.parametrize(
    ("last_beat", "last_output", "last_moved", "stall_seconds", "expected"),
    [
        (100.0, 0.0, 0.0, math.inf, 100.0),
        (0.0, 100.0, 0.0, math.inf, 100.0),
        (100.0, 0.0, 60.0, 50.0, 100.0),
        (100.0, 0.0, 40.0, 50.0, 90.0),
        (100.0, 95.0, 40.0, 50.0, 95.0),
    ],
)
def test_beats_of_a_stalled_loop_do_not_count_but_output_does(
    last_beat: float, last_output: float, last_moved: float, stall_seconds: float, expected: float
) -> None:
    """A beat counts until its progress has stood still for the stall budget; a line of output always counts."""
    signs = Signs(Phase.RUNNING, last_beat, last_output, last_moved)
    budget = PhaseBudget(30.0, stall_seconds)
    assert expected == last_sign(signs, budget)
    assert expected + 30.0 == silent_at(signs, budget)


def test_a_change_of_phase_or_progress_is_a_move() -> None:
    """The stall of a loop is counted from the last change of its phase or progress."""
    signs = Signs.at_start(0.0).with_beat(Phase.RUNNING, 1, 10.0).with_beat(Phase.RUNNING, 1, 20.0)
    assert (signs.last_moved, signs.last_beat) == (10.0, 20.0)
    assert signs.with_beat(Phase.RUNNING, 2, 30.0).last_moved == 30.0
    assert signs.with_beat(Phase.SAVING, 1, 30.0).last_moved == 30.0
    assert (signs.with_output(30.0).last_beat, signs.with_output(30.0).last_output) == (20.0, 30.0)


def test_a_blind_watcher_shifts_signs_but_never_into_the_future() -> None:
    """Time for which the watcher saw nothing is not held against the watched."""
    shifted = Signs(Phase.RUNNING, last_beat=95.0, last_output=10.0, last_moved=0.0).shifted(50.0, now=100.0)
    assert (shifted.last_beat, shifted.last_output, shifted.last_moved) == (100.0, 60.0, 50.0)


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([Outcome()], None),
        ([Outcome(is_done=True), Outcome()], None),
        ([Outcome(is_done=True), Outcome(is_done=True)], 0),
        ([Outcome(), Outcome(gave_up_code=20)], 20),
        ([Outcome(is_done=True), Outcome(gave_up_code=12), Outcome(gave_up_code=20)], 12),
    ],
)
def test_the_essential_members_decide_when_a_run_is_over(outcomes: list[Outcome], expected: int | None) -> None:
    """A run is over when all essential members are done, or when the first of them is given up."""
    assert expected == judge_run(outcomes)


@pytest.mark.parametrize(
    ("statuses", "signal_number", "expected"),
    [
        ([75], signal.SIGTERM, 75),
        ([75, 0], signal.SIGINT, 75),
        ([75, 1], signal.SIGTERM, 143),
        ([-15], signal.SIGTERM, 143),
        ([-9, 75], signal.SIGINT, 130),
        ([None], signal.SIGTERM, 143),
    ],
)
def test_a_stop_is_clean_only_if_every_essential_member_stopped_cleanly(
    statuses: list[int | None], signal_number: int, expected: int
) -> None:
    """75 promises a commit; anything else is reported as the signal that asked."""
    assert expected == judge_stop(statuses, signal_number)


@pytest.mark.parametrize(
    ("status", "expected"),
    [(0, "exit code 0"), (3, "exit code 3"), (-9, "SIGKILL"), (-40, "signal 40")],
)
def test_statuses_are_described_in_words(status: int, expected: str) -> None:
    """Exit codes and signals read alike in logs, events and tables."""
    assert expected == describe_status(status)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: RestartPolicy(max_restarts=-1), "max_restarts"),
        (lambda: RestartPolicy(window_seconds=0.0), "window_seconds"),
        (lambda: RestartPolicy(backoff_first_seconds=-1.0), "backoff_first_seconds"),
        (lambda: RestartPolicy(backoff_limit_seconds=math.nan), "backoff_limit_seconds"),
        (lambda: RestartPolicy(min_progress=0), "min_progress"),
        (lambda: PhaseBudget(0.0), "silence_seconds"),
        (lambda: PhaseBudget(1.0, math.nan), "stall_seconds"),
    ],
)
def test_senseless_policies_are_refused(make: object, field: str) -> None:
    """A policy that cannot be meant names its field in the error."""
    with pytest.raises(InvalidInputError) as caught:
        make()
    assert field == caught.value.field
