"""What the undo journal promises while a ring is written and copied at the same time."""

import threading

import numpy as np
import pytest

from perdure.core.ring import Column, Group
from perdure.errors import DeadlineError
from perdure.replay.journal import Journal
from perdure.replay.lock import TimedLock

GROUP = Group("segment", (Column("x", "int64", (2,)),), 4)
SECONDS = 30


class Plain:
    """Twelve rows in three segments, with their journal."""

    def __init__(self):
        self.columns = {"x": np.arange(24).reshape(12, 2)}
        self.journal = Journal((GROUP,), 12)

    def write(self, slot, value):
        """Overwrite one row."""
        with self.journal.lock:
            self.journal.before_write(self.columns, slot, 1)
            self.columns["x"][slot] = value

    def take(self, *segments):
        """Take a snapshot of whole segments."""
        with self.journal.lock:
            return self.journal.take(self.columns, [("segment", n, (4 * n, 4 * n + 4)) for n in segments])

    def copy(self, snapshot, segment):
        """Copy one segment of a snapshot."""
        target = {"x": np.empty((4, 2), np.int64)}
        self.journal.copy(snapshot, ("segment", segment), (4 * segment, 4 * segment + 4), target)
        return target["x"]


def test_a_snapshot_shows_the_rows_of_its_moment():
    """Rows that are overwritten after a snapshot, even twice, are copied as they were."""
    ring = Plain()
    before = ring.columns["x"].copy()
    snapshot = ring.take(0, 1)
    for value in (-1, -2):
        ring.write(1, value)
        ring.write(6, value)
    assert np.array_equal(ring.copy(snapshot, 0), before[:4])
    assert np.array_equal(ring.copy(snapshot, 1), before[4:8])
    assert ring.journal.is_idle


def test_several_snapshots_each_show_their_own_moment():
    """Two pending snapshots of the same segment come out different, whichever is copied first."""
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        ring = Plain()
        moments, snapshots = [], []
        for value in (-1, -2, -3):
            moments.append(ring.columns["x"][:4].copy())
            snapshots.append(ring.take(0))
            ring.write(2, value)
            ring.write(value % 2, value)
        for index in order:
            assert np.array_equal(ring.copy(snapshots[index], 0), moments[index])
        assert ring.journal.is_idle


def test_nothing_is_kept_that_no_snapshot_needs():
    """Without a pending snapshot, outside of its segments, or for a row kept before, a write keeps nothing."""
    ring = Plain()
    ring.write(0, -1)
    snapshot = ring.take(0)
    ring.write(5, -1)
    assert ring.journal.kept_bytes == 0
    for value in range(100):
        ring.write(3, value)
    assert ring.journal.kept_bytes == 16
    ring.journal.release(snapshot)
    assert ring.journal.kept_bytes == 0
    assert ring.journal.is_idle


def test_a_ring_that_goes_on_with_other_arrays_leaves_snapshots_alone():
    """A snapshot holds on to the arrays of its moment and to what was kept for them."""
    ring = Plain()
    before = ring.columns["x"].copy()
    snapshot = ring.take(0)
    ring.write(1, -1)
    with ring.journal.lock:
        ring.columns = {"x": np.zeros((12, 2), np.int64)}
        ring.journal.start_over((GROUP,), 12)
    ring.write(1, -5)
    assert np.array_equal(ring.copy(snapshot, 0), before[:4])


class Stepped(np.ndarray):
    """An array whose copy can be stopped half-way: it lets another thread go on after some rows."""

    half_way = None

    def __getitem__(self, key):
        found = super().__getitem__(key)
        if self.half_way and isinstance(key, slice):
            half_way, self.half_way = self.half_way, None
            half_way()
        return found


@pytest.mark.parametrize("moment", ["before the copy", "after the copy, before it is declared finished"])
def test_a_write_at_the_worst_moment_does_not_show(moment):
    """A row that is overwritten between the start of a copy and its end comes out as it was at the snapshot."""
    ring = Plain()
    before = ring.columns["x"].copy()
    reached, written = threading.Event(), threading.Event()

    def pause():
        reached.set()
        assert written.wait(SECONDS)

    def overwrite():
        assert reached.wait(SECONDS)
        for slot in range(4):
            ring.write(slot, -9)
        written.set()

    if moment == "before the copy":
        stepped = ring.columns["x"].view(Stepped)
        stepped.half_way = pause
        ring.columns = {"x": stepped}
    snapshot = ring.take(0)
    if moment != "before the copy":
        lock = ring.journal.lock

        class Pausing:
            def __enter__(self):
                ring.journal.lock = lock
                pause()
                lock.__enter__()

            def __exit__(self, *error):
                lock.__exit__(*error)

        ring.journal.lock = Pausing()
        thread = threading.Thread(target=overwrite_with, args=(ring, lock, reached, written))
    else:
        thread = threading.Thread(target=overwrite)
    thread.start()
    copied = ring.copy(snapshot, 0)
    thread.join(SECONDS)
    assert np.array_equal(copied, before[:4])
    assert np.all(np.asarray(ring.columns["x"])[:4] == -9)


def overwrite_with(ring, lock, reached, written):
    """Overwrite the first rows under the ring's real lock, once the copy has come so far."""
    assert reached.wait(SECONDS)
    for slot in range(4):
        with lock:
            ring.journal.before_write(ring.columns, slot, 1)
            ring.columns["x"][slot] = -9
    written.set()


def test_copies_beside_a_busy_writer_are_never_torn():
    """While a thread writes as fast as it can, every copy equals what the ring held at its snapshot."""
    rows, width = 256, 512
    group = Group("segment", (Column("x", "int64", (width,)),), 64)
    columns = {"x": np.zeros((rows, width), np.int64)}
    journal = Journal((group,), rows)
    stop, written = threading.Event(), [0]

    def write():
        while not stop.is_set():
            with journal.lock:
                slot = written[0] % rows
                journal.before_write(columns, slot, 1)
                columns["x"][slot] = written[0]
                written[0] += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(40):
            with journal.lock:
                count = written[0]
                expected = columns["x"][:, 0].copy()
                snapshots = [journal.take(columns, [("segment", n, (64 * n, 64 * n + 64)) for n in range(4)])]
                snapshots.append(journal.take(columns, [("segment", 2, (128, 192))]))
            for snapshot in snapshots:
                for _, segment in list(snapshot.pending):
                    target = {"x": np.empty((64, width), np.int64)}
                    journal.copy(snapshot, ("segment", segment), (64 * segment, 64 * segment + 64), target)
                    assert np.array_equal(
                        target["x"], np.repeat(expected[64 * segment : 64 * segment + 64, None], width, 1)
                    )
            assert count <= written[0]
    finally:
        stop.set()
        thread.join(SECONDS)
    assert journal.is_idle


def test_a_lock_that_is_held_for_ever_is_an_error():
    """Waiting for the ring ends with an error that says so, not never."""
    lock = TimedLock("the ring", seconds=0.01)
    with lock, pytest.raises(DeadlineError) as caught, lock:
        pass
    assert caught.value.kind == "replay.lock-held"
    with lock:
        pass
