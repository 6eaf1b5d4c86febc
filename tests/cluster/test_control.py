"""Generations and the writer's lease: durable numbers, one writer, and none that acts after its time."""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perdure.cluster.control import Control
from perdure.cluster.identity import boot_id, new_incarnation
from perdure.cluster.ledger import MAXIMUM_GENERATION, BeatStamp
from perdure.core.leases import Incarnation, Timing
from perdure.errors import (
    DeadlineError,
    FencedError,
    InvalidInputError,
    LeaseHeldError,
    StoreError,
)
from tests.waiting import reaped, wait_until

TIMING = Timing(beat_seconds=5, lease_seconds=30)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def control(tmp_path: Path, clock: Clock) -> Control:
    return Control(tmp_path, timing=TIMING, clock=clock, wait_seconds=0.1)


def test_a_new_run_has_no_generation(control: Control) -> None:
    """Nothing was minted, nobody writes."""
    assert control.generation() == 0
    assert control.writer() is None


def test_generations_only_rise(control: Control, tmp_path: Path) -> None:
    """Each is one above the highest of what was minted and of the floor, and another process would see it."""
    assert [control.mint(floor, "a test") for floor in (0, 0, 41, 7)] == [1, 2, 42, 43]
    assert Control(tmp_path).generation() == 43


@pytest.mark.parametrize("floor", [-1, MAXIMUM_GENERATION])
def test_a_floor_out_of_range_mints_nothing(control: Control, floor: int) -> None:
    """A number that does not fit 64 bits, or is none, is refused."""
    with pytest.raises(InvalidInputError) as caught:
        control.mint(floor, "a test")
    assert caught.value.kind == "generation.out-of-range"
    assert control.generation() == 0
    assert control.mint(MAXIMUM_GENERATION - 1, "the last") == MAXIMUM_GENERATION


def test_a_lost_database_is_made_up_for_by_the_floor(control: Control, tmp_path: Path) -> None:
    """With the file gone, generations go on above the highest that anything else remembers."""
    control.mint(9, "a test")
    (tmp_path / "control.db").unlink()
    assert Control(tmp_path).mint(10, "a test") == 11


def test_a_lost_database_does_not_set_a_living_writer_back(control: Control, tmp_path: Path) -> None:
    """The writer's lock file remembers its generation, so its number is not handed out a second time."""
    lease = control.acquire("first", floor=99)
    (tmp_path / "control.db").unlink()
    reopened = Control(tmp_path, timing=TIMING)
    assert reopened.mint(0, "a test") == lease.generation + 1
    with pytest.raises(FencedError):
        lease.renew()
    lease.release()


def test_a_damaged_database_is_set_aside_and_said_so(control: Control, tmp_path: Path) -> None:
    """The next process to open the run gets a working control and the place of the damaged one."""
    control.mint(0, "a test")
    (tmp_path / "control.db").write_bytes(b"\x00damaged" * 1000)
    reopened = Control(tmp_path)
    assert reopened.damaged_path == tmp_path / "control.db.damaged-1"
    assert reopened.mint(1, "a test") == 2


def test_the_guard_lets_only_the_newest_generation_through(control: Control) -> None:
    """A block of an older generation does not run, and the error names both."""
    control.mint(0, "a test")
    with control.guard(1):
        pass
    control.mint(0, "a test")
    with pytest.raises(FencedError) as caught, control.guard(1):
        pytest.fail("ran in an old generation")
    assert (caught.value.generation, caught.value.current_generation, caught.value.exit_code) == (1, 2, 12)


def test_nothing_is_minted_while_a_commit_is_guarded(control: Control, tmp_path: Path) -> None:
    """A mint waits for the block to end, no longer than it was told to, and then names who is inside."""
    lease = control.acquire("the writer")
    with lease.guard():
        with pytest.raises(DeadlineError) as caught:
            control.mint(0, "too early")
        with pytest.raises(DeadlineError):
            Control(tmp_path, wait_seconds=0.05).acquire("another")
        assert control.generation() == lease.generation
    assert caught.value.holder == "the writer"
    assert str(os.getpid()) in caught.value.hint
    assert control.mint(0, "a test") == lease.generation + 1
    lease.release()


def test_a_guarded_block_that_raises_gives_the_guard_back(control: Control) -> None:
    """The exception comes out unchanged and the next commit goes ahead."""
    with control.acquire("me") as lease:
        with pytest.raises(KeyError), lease.guard():
            raise KeyError
        with lease.guard():
            pass


def test_a_second_writer_is_refused_while_the_first_lives(control: Control, tmp_path: Path, clock: Clock) -> None:
    """The refusal names the owner and when its lease would end, and leaves no trace."""
    lease = control.acquire("the first")
    clock.now += 10
    with pytest.raises(LeaseHeldError) as caught:
        Control(tmp_path, timing=TIMING, clock=clock).acquire("the second")
    assert (caught.value.owner, caught.value.expires_in_seconds) == ("the first", 20.0)
    assert caught.value.exit_code == 11
    assert control.generation() == lease.generation
    assert len(list((tmp_path / "leases").iterdir())) == 1
    writer = control.writer()
    assert writer is not None
    assert (writer.owner, writer.generation) == ("the first", 1)
    lease.release()


def test_renewing_keeps_a_lease(control: Control, clock: Clock) -> None:
    """A lease renewed in time is held however long."""
    lease = control.acquire("the first")
    for _ in range(5):
        clock.now += 29
        lease.renew()
    with pytest.raises(LeaseHeldError):
        control.acquire("the second")
    lease.release()


def test_a_silent_writer_is_replaced_and_fenced(control: Control, clock: Clock) -> None:
    """After the length of a lease a successor gets a new generation, and nothing of the first goes through any more."""
    first = control.acquire("the first")
    clock.now += 30
    assert control.writer() is None
    second = control.acquire("the second")
    assert second.generation == first.generation + 1
    for act in (first.renew, first.check, lambda: first.mint("a test"), lambda: first.guard().__enter__()):
        with pytest.raises(FencedError) as caught:
            act()
        assert caught.value.current_generation == second.generation
    first.release()
    with second.guard():
        pass
    second.release()


def test_a_minted_generation_fences_the_writer_at_once(control: Control) -> None:
    """Whoever mints beside the writer ends its tenure, and the run is free for another though the first still beats."""
    first = control.acquire("the first")
    control.mint(0, "fenced on purpose")
    with pytest.raises(FencedError):
        first.renew()
    second = control.acquire("the second")
    assert second.generation == 3
    first.release()
    second.release()


def test_a_writer_mints_without_fencing_itself(control: Control) -> None:
    """The holder's own mint moves its lease to the new generation."""
    with control.acquire("me") as lease:
        assert [lease.mint("a test"), lease.mint("a test", floor=10), lease.generation] == [2, 11, 11]
        lease.renew()
        with lease.guard():
            pass
        with control.guard(11):
            pass


def test_releasing_frees_the_run(control: Control, tmp_path: Path) -> None:
    """After a release nothing is left behind, the next writer need not wait, and the old lease is of no use."""
    lease = control.acquire("the first")
    lease.release()
    lease.release()
    assert list((tmp_path / "leases").iterdir()) == []
    assert control.writer() is None
    with control.acquire("the second") as second:
        assert second.generation == 2
        with pytest.raises(FencedError):
            lease.renew()
        with pytest.raises(FencedError), lease.guard():
            pytest.fail("ran after its release")


def test_a_writer_of_another_boot_is_never_judged_by_our_clock(control: Control, tmp_path: Path, clock: Clock) -> None:
    """A lock held under a clock that cannot be compared is respected, with no promise of when it ends."""
    alien = Control(
        tmp_path,
        timing=TIMING,
        clock=clock,
        identify=lambda: Incarnation("f" * 32, 1, 1, "00000000"),
    )
    lease = alien.acquire("another machine")
    clock.now += 1000
    with pytest.raises(LeaseHeldError) as caught:
        control.acquire("the second")
    assert caught.value.expires_in_seconds is None
    lease.release()


def test_a_forged_row_names_no_file(control: Control, tmp_path: Path) -> None:
    """What is no incarnation in the database is no writer, and is not joined to a path."""
    control.mint(0, "a test")
    with closing(sqlite3.connect(tmp_path / "control.db")) as connection:
        connection.execute("INSERT INTO writer VALUES ('../../etc/passwd', 'x', 1)")
        connection.commit()
    assert control.writer() is None
    control.acquire("me").release()


def test_a_stamp_survives_its_bytes_and_nothing_else_does() -> None:
    """A stamp is read back as it was; half of one, or none, is None."""
    stamp = BeatStamp(123456.789012, 42)
    assert BeatStamp.decode(stamp.encode()) == stamp
    other = BeatStamp(999999.5, 43).encode()
    for content in (b"", b"x", stamp.encode()[:20], stamp.encode()[:15] + other[15:30] + stamp.encode()[30:]):
        assert BeatStamp.decode(content) is None
    assert len(other) == len(stamp.encode())


def test_an_identity_is_of_this_boot_and_never_the_same() -> None:
    """Two lives in one process differ, and the later one is the younger."""
    first, second = new_incarnation(), new_incarnation()
    assert second.is_younger_than(first)
    assert first.boot == second.boot == boot_id()


def test_a_run_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file where the directory should be is a clear error."""
    (tmp_path / "run").write_text("")
    with pytest.raises(StoreError) as caught:
        Control(tmp_path / "run")
    assert caught.value.errno_name == "ENOTDIR"


def test_beating_renews_and_survives_a_busy_or_broken_database(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The beating thread outlives failures, and notices when it is superseded."""
    timing = Timing(beat_seconds=0.02, lease_seconds=5)
    control = Control(tmp_path, timing=timing)
    lease = control.acquire("me")
    fenced: list[FencedError] = []
    path = tmp_path / "control.db"
    path.rename(tmp_path / "elsewhere")
    lease.start_beating(fenced.append)
    wait_until(lambda: "cannot renew the lease" in caplog.text, 10)
    (tmp_path / "elsewhere").rename(path)
    before = _stamp(tmp_path)
    wait_until(lambda: _stamp(tmp_path) > before, 10)
    assert fenced == []
    control.mint(0, "fenced on purpose")
    wait_until(lambda: fenced, 10)
    with pytest.raises(FencedError):
        lease.check()
    lease.release()


def _stamp(directory: Path) -> float:
    (path,) = (directory / "leases").glob("*.lock")
    stamp = BeatStamp.decode(path.read_bytes())
    return stamp.boot_seconds if stamp else 0.0


def test_threads_that_mint_renew_and_commit_do_not_fence_each_other(tmp_path: Path) -> None:
    """One process may mint for a lost member while another of its threads commits or renews."""
    from concurrent.futures import ThreadPoolExecutor

    def commit() -> None:
        with lease.guard():
            pass

    with Control(tmp_path, wait_seconds=60).acquire("me") as lease, ThreadPoolExecutor(3) as threads:
        work = [threads.submit(act) for _ in range(8) for act in (lambda: lease.mint("a test"), lease.renew, commit)]
        minted = [done for each in work if (done := each.result(60)) is not None]
        assert sorted(minted) == list(range(2, 10))
        assert lease.generation == 9


@pytest.mark.process
def test_a_forked_child_is_no_writer(control: Control) -> None:
    """In a child forked from the writer every act is refused, and the parent's lease is not disturbed."""
    lease = control.acquire("the parent")
    child = os.fork()
    if child == 0:
        try:
            lease.renew()
        except FencedError:
            lease.release()
            os._exit(12)
        os._exit(1)
    assert reaped(child, 30) == 12
    with pytest.raises(LeaseHeldError):
        control.acquire("another")
    lease.renew()
    lease.release()


@pytest.mark.process
def test_eight_processes_mint_distinct_numbers(tmp_path: Path, start) -> None:
    """Eight processes that mint at once get every number exactly once, each its own in rising order."""
    children = [start("minter", tmp_path, 5, 30) for _ in range(8)]
    for child in children:
        child.hear("ready")
    for child in children:
        child.tell("10")
    rows = [_numbers(child) for child in children]
    assert sorted(number for row in rows for number in row) == list(range(1, 81))
    assert all(row == sorted(row) for row in rows)
    assert Control(tmp_path).generation() == 80


def _numbers(child) -> list[int]:
    return [int(word) for word in child.next_line()]


@pytest.mark.process
def test_a_killed_writer_leaves_the_run_free_at_once(tmp_path: Path, start) -> None:
    """After SIGKILL the next writer gets the run without waiting, in a new generation, and clears the traces away."""
    child = start("writer", tmp_path, 5, 30)
    assert child.hear("acquired") == ["1"]
    control = Control(tmp_path)
    with pytest.raises(LeaseHeldError) as caught:
        control.acquire("me")
    assert caught.value.owner == "the child"
    child.signal(signal.SIGKILL)
    child.wait()
    with control.acquire("me") as lease:
        assert lease.generation == 2
        assert len(list((tmp_path / "leases").iterdir())) == 1


@pytest.mark.process
def test_a_stopped_writer_is_fenced_and_its_later_commit_refused(tmp_path: Path, start) -> None:
    """A writer frozen past its lease and thawed beside its successor commits nothing any more and exits with 12."""
    child = start("writer", tmp_path, 0.1, 0.8)
    child.hear("acquired")
    child.tell("commit")
    child.hear("committed")
    child.signal(signal.SIGSTOP)
    successor = Control(tmp_path, timing=Timing(beat_seconds=0.1, lease_seconds=0.8))
    leases = []

    def acquires() -> bool:
        try:
            leases.append(successor.acquire("the successor"))
        except LeaseHeldError:
            return False
        return True

    wait_until(acquires, 30)
    child.signal(signal.SIGCONT)
    child.tell("commit")
    assert child.hear("fenced") == ["2"]
    assert child.wait() == FencedError.exit_code
    assert (tmp_path / "commits").read_text() == "1\n"
    with leases[0].guard():
        pass
    leases[0].release()


@pytest.mark.process
def test_a_writer_stopped_inside_a_commit_blocks_by_name_and_only_until_it_dies(tmp_path: Path, start) -> None:
    """Nobody can mint past a frozen commit, the error names its process, and killing that one is the cure."""
    child = start("writer", tmp_path, 0.1, 0.8)
    child.hear("acquired")
    child.tell("hold")
    child.hear("inside")
    child.signal(signal.SIGSTOP)
    control = Control(tmp_path, timing=Timing(beat_seconds=0.1, lease_seconds=0.8), wait_seconds=0.2)
    with pytest.raises(DeadlineError) as caught:
        control.acquire("the successor")
    assert caught.value.holder == "the child"
    assert str(child.pid) in caught.value.hint
    child.signal(signal.SIGKILL)
    child.wait()
    with control.acquire("the successor") as lease:
        assert lease.generation == 2
