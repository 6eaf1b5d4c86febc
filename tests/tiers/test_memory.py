"""The memory tier: what a killed process leaves there is restored, and nothing else is ever taken for it."""

import json
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import perdure
from perdure import Every, Last
from perdure.cli import main
from perdure.core.manifest import Cut, Grade
from perdure.core.memory import plan_memory
from perdure.errors import FencedError, InvalidInputError, LeaseHeldError, StoreError
from perdure.files import writing
from perdure.files.door import Files
from perdure.inspection.finishing import finish_write
from perdure.replay.component import RingComponent
from perdure.store.store import Store
from perdure.surroundings import Surroundings
from perdure.tiers.memory import MemoryFiles, find_memory_store, make_memory_store

LEARNER = """
import sys
import numpy as np
import perdure
from perdure import Every, Last
from perdure.cli import main

value = np.zeros(300_000)
with perdure.open(sys.argv[1], run="t", quiet=True, save=Every(steps=1000), ram=Every(steps=1), budget=None) as run:
    run.track(value=value)
    count = run.counters(global_step=0)
    run.restore()
    print("from", count.global_step, value[-1], flush=True)
    if len(sys.argv) > 2:
        run.save().wait()
    for _ in run.loop(0, 10**9):
        value += 1
        count.global_step += 1
        run._saver.drain(30)
        print("done", count.global_step, run.statistics().memory_saves, flush=True)
"""

COLLECTOR = """
import sys
import numpy as np
import perdure
from perdure import Every

ring = perdure.RingBuffer(500, {"number": (np.int64, (16,))}, rng=1)
with perdure.open(sys.argv[1], run="t", quiet=True, save=Every(steps=40), ram=Every(steps=1), budget=None) as run:
    run.track(ring=ring)
    count = run.counters(global_step=0)
    run.restore()
    rows, head = ring.columns["number"][:, 0, 0], count.global_step * 7
    held = np.roll(rows, -head % 500)[-len(ring):] if head > 500 else rows[:head]
    assert (held[::-1] == head - 1 - np.arange(len(held))).all(), (head, held)
    print("from", count.global_step, len(ring), flush=True)
    for _ in run.loop(0, 10**9):
        for number in range(7 * count.global_step, 7 * count.global_step + 7):
            ring.add(number=np.full(16, number))
        count.global_step += 1
        if count.global_step % 10:
            run._saver.drain(30)  # or most saves are skipped, so fast are these steps
        print("done", count.global_step, flush=True)
"""


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A memory tier of this test's own."""
    place = tmp_path / "memory"
    place.mkdir()
    monkeypatch.setenv("PERDURE_MEMORY", str(place))
    return place


def opened(tmp_path, **options):
    options = {"save": None, "budget": None, "quiet": True, **options}
    return perdure.open(tmp_path, run="t", **options)


def stores(root):
    return [path for user in root.iterdir() for path in user.iterdir()]


def checkpoints(directory):
    return sorted((directory / "snapshots").iterdir())


def test_a_memory_save_is_a_checkpoint_like_any_other(tmp_path, root):
    """Saves to memory lie there in the run directory's own format, the newest alone, and none is on the disk."""
    value = np.zeros(1000)
    run = opened(tmp_path, ram=Every(steps=1))
    run.track(value=value)
    count = run.counters(global_step=0)
    for _ in run.loop(0, 3):
        if count.global_step == 2:
            run._saver.drain(30)
            (found,) = checkpoints(stores(root)[0])
            manifest = json.loads((found / "manifest.json").read_text())

            assert 2 == manifest["global_step"]
            assert not checkpoints(tmp_path / "t")
        count.global_step += 1
        run._saver.drain(30)
    run.close()

    assert 1 == len(checkpoints(tmp_path / "t"))


def crash(run):
    """End a run as a killed process would: nothing is finished, nothing is given back but the writer's lease."""
    run._saver.drain(30)
    run._stop.restore()
    run._writership.release("")


def trained(tmp_path, steps, **options):
    value = np.zeros(1000)
    run = opened(tmp_path, **options)
    run.track(value=value)
    count = run.counters(global_step=0)
    loop = run.loop(0, 100)
    for _ in range(steps):
        next(loop)
        value += 1
        count.global_step += 1
        run._saver.drain(30)
    run._boundary("loop")
    crash(run)


def test_what_only_memory_has_is_restored_and_written_to_the_disk(tmp_path, root):
    """After a crash the newest checkpoint comes from memory, and the next process puts it on the disk."""
    trained(tmp_path, 5, save=Every(steps=3), ram=Every(steps=1))
    (on_disk,) = checkpoints(tmp_path / "t")
    value = np.zeros(1000)
    run = opened(tmp_path)
    run.track(value=value)
    count = run.counters(global_step=0)
    report = run.restore()
    run._saver.drain(30)

    assert "step-000000000003" in on_disk.name
    assert (5, 5) == (report.step, count.global_step)
    assert (value == 5).all()
    assert "step-000000000005" in checkpoints(tmp_path / "t")[-1].name
    run.close()
    assert not stores(root)


def test_a_lost_memory_tier_costs_steps_and_nothing_else(tmp_path, root):
    """After a reboot the disk's newest checkpoint is restored."""
    trained(tmp_path, 5, save=Every(steps=3), ram=Every(steps=1))
    shutil.rmtree(root)
    root.mkdir()
    value = np.zeros(1000)
    with opened(tmp_path) as run:
        run.track(value=value)
        run.counters(global_step=0)

        assert 3 == run.restore().step
    assert (value == 3).all()


def test_damaged_memory_falls_back_to_the_disk(tmp_path, root):
    """A flipped byte in memory puts that copy aside; the disk's is used, and the report says so."""
    trained(tmp_path, 5, save=Every(steps=3), ram=Every(steps=1))
    (path,) = (checkpoints(stores(root)[0])[0] / "state").glob("value*")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    value = np.zeros(1000)
    with opened(tmp_path) as run:
        run.track(value=value)
        run.counters(global_step=0)
        report = run.restore()

    assert 3 == report.step
    assert 1 == len(report.skipped)


def test_a_run_that_was_removed_leaves_no_ghost(tmp_path, root):
    """A new run of the same path never restores what a removed one left in memory."""
    trained(tmp_path, 4, ram=Every(steps=1))
    shutil.rmtree(tmp_path / "t")
    value = np.zeros(1000)
    with opened(tmp_path, ram=Every(steps=1)) as run:
        run.track(value=value)
        run.counters(global_step=0)

        assert run.restore().checkpoint is None
    assert not value.any()


def test_another_users_folder_is_refused(tmp_path, root):
    """A folder in the tier's place that others can write to is not used."""
    surroundings = Surroundings()
    disk = Store(tmp_path / "t", Files(), surroundings.new_id)
    disk.create("t", surroundings.now())
    store = make_memory_store(disk, surroundings.new_id, surroundings.now())
    store.directory.parent.chmod(0o777)
    with pytest.raises(StoreError, match="of this user's alone"):
        find_memory_store(disk, surroundings.new_id)


def test_a_full_memory_tier_costs_no_save_to_the_disk(tmp_path, root):
    """When memory is full, saves to it stop with one warning, and those to the disk go on."""
    value = np.zeros(1000)
    run = opened(tmp_path, save=Every(steps=2), ram=Every(steps=1), keep=None)
    run.track(value=value)
    count = run.counters(global_step=0)
    run.restore()
    run._saver._committer._memory.files = type("Full", (MemoryFiles,), {"free_bytes": lambda *_: 0})()
    with pytest.warns(perdure.SaveFailedWarning, match="bytes are needed") as told:
        for _ in run.loop(0, 6):
            count.global_step += 1
            run._saver.drain(30)
    run.close()

    assert 1 == len(told)
    assert 3 == len(checkpoints(tmp_path / "t"))


def test_nobody_finishes_the_write_of_a_learner_that_lives(tmp_path, root):
    """While a learner holds the run its memory is its own business, and nothing of it is touched from outside."""
    value = np.zeros(1000)
    run = opened(tmp_path, ram=Every(steps=1))
    run.track(value=value)
    run.restore()
    run._saver.save_to_memory(Cut(1, "loop"), "every-steps", {})
    run._saver.drain(30)
    with pytest.raises(LeaseHeldError):
        finish_write(run._store, lambda: "", by="test")

    assert 1 == len(checkpoints(stores(root)[0]))
    assert not checkpoints(tmp_path / "t")
    crash(run)


def test_status_says_what_only_memory_has(tmp_path, root, capsys):
    """After a crash the status names the save in memory that a restart resumes, and nothing once the disk has it."""
    trained(tmp_path, 3, save=None, ram=Every(steps=1))

    assert 0 == main(["status", str(tmp_path / "t")])
    assert "at step 3" in next(line for line in capsys.readouterr().out.splitlines() if "memory" in line)
    main(["status", str(tmp_path / "t"), "--json"])
    assert 3 == json.loads(capsys.readouterr().out)["in_memory"]["global_step"]

    finish_write(Store(tmp_path / "t", Files(), lambda: "0" * 32), lambda: "", by="test")
    main(["status", str(tmp_path / "t"), "--json"])
    assert json.loads(capsys.readouterr().out)["in_memory"] is None


def test_a_learner_that_was_only_thought_dead_commits_no_more(tmp_path, root):
    """Once somebody else has finished its write, a learner that comes back is fenced in memory as on the disk."""
    value = np.zeros(1000)
    run = opened(tmp_path, ram=Every(steps=1), save=None)
    run.track(value=value)
    run.restore()
    run._saver.save_to_memory(Cut(1, "loop"), "every-steps", {})
    run._saver.drain(30)
    run._writership._lease._lock.close()  # what the kernel does when its process is gone
    finished = finish_write(run._store, lambda: "", by="test")
    value += 1
    run._saver.save_to_memory(Cut(2, "loop"), "every-steps", {})
    with pytest.raises(FencedError):
        run._surface()

    assert 1 == finished.manifest.global_step
    assert ["step-000000000001"] == [path.name[:17] for path in checkpoints(tmp_path / "t")]
    assert finish_write(run._store, lambda: "", by="test") is None
    run._stop.restore()


def tensor_files(directory):
    return sorted(path for path in directory.rglob("*.safetensors"))


def test_a_memory_save_copies_the_state_once(tmp_path, root):
    """A checkpoint in memory is the capture itself under another name; there are never more than three captures."""
    value = np.zeros(100_000)
    run = opened(tmp_path, ram=Every(steps=1))
    run.track(value=value)
    count = run.counters(global_step=0)
    for _ in run.loop(0, 8):
        run._saver.drain(30)
        (store,) = stores(root)
        files = [path.stat() for path in store.rglob("*") if path.is_file() and path.stat().st_size > value.nbytes]
        published = [path.stat() for path in tensor_files(store / "snapshots") if path.stat().st_size > value.nbytes]

        assert len({status.st_ino for status in files}) <= 3
        assert all(2 == status.st_nlink for status in published)
        assert 1 == len(published) or count.global_step == 0
        value += 1
        count.global_step += 1
    run.close()


def test_a_save_to_both_tiers_digests_the_state_once(tmp_path, root, monkeypatch):
    """What memory has been given is not digested again on its way to the disk, and both manifests say the same."""
    digested = []
    real = writing.blake3

    class Counting:
        def __init__(self, data=b""):
            digested.append(len(data))
            self.hash = real(data)
            self.hexdigest = self.hash.hexdigest

        def update(self, data):
            digested.append(len(data))
            self.hash.update(data)

    run = opened(tmp_path, ram=Every(steps=1000))
    run.track(value=np.arange(1_000_000))
    run.restore()
    monkeypatch.setattr(writing, "blake3", Counting)
    run.save().wait()

    assert 8_000_000 <= sum(digested) <= 9_000_000
    (on_disk,) = run._store.checkpoints()
    assert on_disk.manifest.files == run._memory.checkpoints()[0].manifest.files
    assert not run._store.verify(on_disk, digests=True)
    run.close()


def test_what_a_checkpoint_in_memory_consists_of_is_never_written_to(tmp_path, root):
    """While saves fail and overlap, each byte of the newest checkpoint in memory stays as it was committed."""
    value = np.zeros(100_000)
    run = opened(tmp_path, ram=Every(steps=1))
    run.track(value=value)
    run.restore()
    memory = run._saver._committer._memory

    def save_to_memory(step):
        value[:] = step
        run._saver.save_to_memory(Cut(step, "loop"), "every-steps", {})

    def healthy():
        newest = memory.checkpoints()[0]
        assert [] == memory.verify(newest, digests=True)
        return newest.manifest.global_step

    save_to_memory(1)
    run._saver.drain(30)
    assert 1 == healthy()
    files, memory.files = memory.files, type("Full", (MemoryFiles,), {"free_bytes": lambda *_: 0})()
    for step in range(2, 6):  # each fills an arena and fails
        save_to_memory(step)
        run._saver.drain(30)
        assert 1 == healthy()
    memory.files = files
    for step in range(6, 20):  # these overlap
        save_to_memory(step)
    run._saver.drain(30)
    assert healthy() > 5
    crash(run)


def test_a_removal_that_fails_costs_memory_and_no_byte_of_a_checkpoint(tmp_path, root):
    """If an older checkpoint in memory cannot be removed, its files are left alone and saves go on in other memory."""
    value = np.zeros(100_000)
    run = opened(tmp_path, ram=Every(steps=1))
    run.track(value=value)
    run.restore()
    memory = run._saver._committer._memory
    memory.remove = lambda checkpoint: None
    for step in range(1, 7):
        value[:] = step
        run._saver.save_to_memory(Cut(step, "loop"), "every-steps", {})
        run._saver.drain(30)

    assert 6 == len(memory.checkpoints())
    assert all([] == memory.verify(checkpoint, digests=True) for checkpoint in memory.checkpoints())
    crash(run)


def test_a_memory_tier_that_is_wiped_costs_no_save_to_the_disk(tmp_path, root):
    """If somebody clears shared memory under a run, it warns, trains on, and saves to the disk."""
    value = np.zeros(100_000)
    run = opened(tmp_path, save=Every(steps=2), ram=Every(steps=1), keep=None)
    run.track(value=value)
    count = run.counters(global_step=0)
    with pytest.warns(perdure.SaveFailedWarning):
        for _ in run.loop(0, 8):
            value += 1
            count.global_step += 1
            run._saver.drain(30)
            if count.global_step == 3:
                shutil.rmtree(root)
    run.close()

    assert 4 == len(checkpoints(tmp_path / "t"))
    with opened(tmp_path) as again:
        again.track(value=value)
        again.counters(global_step=0)
        assert 8 == again.restore().step


def test_what_changes_its_shape_takes_new_memory_and_gives_the_old_back(tmp_path, root):
    """A value of another shape at each save is in memory as it is, and no file of an earlier shape is left there."""
    run = opened(tmp_path, ram=Every(steps=1))
    loose = run.locals(value=np.zeros(1))
    run.restore()
    memory = run._saver._committer._memory
    for step in range(1, 9):
        loose.value = np.full((step, 1000), step, (np.int8, np.float64)[step % 2])
        run._saver.save_to_memory(Cut(step, "loop"), "every-steps", {})
        run._saver.drain(30)
        (newest,) = memory.checkpoints()
        captures = [path for path in (memory.directory / "staging").rglob("*") if path.is_file()]

        assert [] == memory.verify(newest, digests=True)
        assert len(captures) <= 3 * len(tensor_files(newest.directory))
    crash(run)
    run = opened(tmp_path)
    loose = run.locals(value=None)
    run.restore()
    run.close()

    assert ((8, 1000), np.int8, 8) == (loose.value.shape, loose.value.dtype, loose.value[0, 0])


def test_a_run_that_ends_leaves_no_captures_in_memory(tmp_path, root):
    """What only memory has stays when a run is closed, and nothing beside it."""
    value = np.zeros(100_000)
    run = opened(tmp_path, ram=Every(steps=1))
    run.track(value=value)
    run.restore()
    run._saver.save_to_memory(Cut(1, "loop"), "every-steps", {})
    run.close()
    (store,) = stores(root)

    assert [] == list((store / "staging").iterdir())
    assert 1 == len(checkpoints(store))


def test_a_successor_removes_the_captures_of_a_dead_learner(tmp_path, root):
    """The next start gives back the memory of captures that a crash left, and keeps the checkpoint made of one."""
    trained(tmp_path, 4, ram=Every(steps=1))
    (store,) = stores(root)
    assert any(name.name.startswith("arenas-") for name in (store / "staging").iterdir())
    value = np.zeros(1000)
    run = opened(tmp_path, ram=Every(steps=1))
    run.track(value=value)
    run.counters(global_step=0)

    assert 4 == run.restore().step
    assert [] == list((store / "staging").iterdir())
    crash(run)


def test_the_memory_tier_is_part_of_the_preflight(tmp_path, root):
    """What memory keeps is counted as a capture of its own, before training, and refused if there is no room for it."""
    run = opened(tmp_path, ram=Every(steps=1))
    run.track(value=np.zeros(1000))
    plan = run.preflight()
    run.close()

    assert 3 * 8000 == plan.needed_bytes
    with pytest.raises(InvalidInputError, match="as the memory tier keeps one, take 16,000 bytes"):
        plan_memory(8000, 15_999, None, has_memory_tier=True)


ROWS = 400


def make_ring():
    ring = perdure.RingBuffer(ROWS, {"obs": (np.float32, (64,)), "reward": (np.float32, ())}, rng=7)
    return ring, RingComponent(ring, wide_bytes=20 * 256, narrow_bytes=400)


def fill(ring, first, count):
    for number in range(first, first + count):
        ring.add(obs=np.full(64, number, np.float32), reward=number)


def content(ring):
    return ring.columns["obs"].copy(), ring.columns["reward"].copy(), ring.state, ring.sample(5)["reward"].tolist()


def collected(tmp_path, root, steps, *, per_step=30, **options):
    """A run that collects ``per_step`` transitions a step and dies after so many; what its ring held then."""
    ring, component = make_ring()
    run = opened(tmp_path, **{"save": Every(steps=3), "ram": Every(steps=1), "keep": Last(1), **options})
    run.track(replay=component)
    count = run.counters(global_step=0)
    loop = run.loop(0, 1000)
    for _ in range(steps):
        next(loop)
        fill(ring, count.global_step * per_step, per_step)
        count.global_step += 1
        run._saver.drain(30)
    run._boundary("loop")
    run._saver.drain(30)
    held = content(ring)
    crash(run)
    return held


def resumed(tmp_path, **options):
    ring, component = make_ring()
    run = opened(tmp_path, **options)
    run.track(replay=component)
    count = run.counters(global_step=0)
    report = run.restore()
    return run, ring, count, report


def is_same(one, other):
    return all(np.array_equal(mine, theirs) for mine, theirs in zip(one[:2], other[:2], strict=True)) and (
        one[2:] == other[2:]
    )


@pytest.mark.parametrize("steps", [1, 4, 5, 8, 20, 41], ids="{} steps".format)
def test_a_replay_buffer_continues_from_memory(tmp_path, root, steps):
    """A ring that was saved to memory comes back whole, however much of it the disk had and wherever its head is."""
    held = collected(tmp_path, root, steps)
    run, ring, count, report = resumed(tmp_path)

    assert (steps, steps) == (report.step, count.global_step)
    assert report.grade is Grade.EXACT
    assert is_same(held, content(ring))
    run.close()


def test_memory_holds_of_a_replay_buffer_what_the_disk_has_not(tmp_path, root):
    """Of a large ring a save to memory has what is new, and the disk comes to link the rest."""
    collected(tmp_path, root, 10, save=Every(steps=9))
    (in_memory,) = checkpoints(stores(root)[0])
    (on_disk,) = checkpoints(tmp_path / "t")
    here, there = (sum(path.stat().st_size for path in root.rglob("segment-*")) for root in (in_memory, on_disk))

    assert 0 < here < there / 2
    run, *_ = resumed(tmp_path)
    new = checkpoints(tmp_path / "t")[-1]
    shared = {path.stat().st_ino for path in on_disk.rglob("*")} & {path.stat().st_ino for path in new.rglob("*")}

    assert len(shared) > 10
    run.close()


def test_what_is_saved_after_a_start_from_memory_links_to_the_disk(tmp_path, root):
    """A ring that came by way of memory is saved on like any other: unchanged segments are links."""
    collected(tmp_path, root, 10, save=Every(steps=9))
    run, ring, count, _ = resumed(tmp_path, keep=None)
    before = checkpoints(tmp_path / "t")[-1]
    fill(ring, 300, 1)
    count.global_step += 1
    run.save().wait()
    after = checkpoints(tmp_path / "t")[-1]
    run.close()
    shared = {path.stat().st_ino for path in before.rglob("seg*")} & {
        path.stat().st_ino for path in after.rglob("seg*")
    }

    assert len(shared) >= len(list(before.rglob("segment-*"))) - 3


def test_a_save_to_the_disk_gives_the_memory_of_a_replay_buffer_back(tmp_path, root):
    """Once the disk has more than memory, what memory has of the ring goes."""
    collected(tmp_path, root, 9, save=Every(steps=9))

    assert [] == checkpoints(stores(root)[0])


def test_a_start_that_dies_on_its_way_from_memory_to_the_disk_is_begun_again(tmp_path, root):
    """Wherever the next process is killed while it takes a ring over from memory, the one after it comes as far."""
    held = collected(tmp_path, root, 5)

    class DyingFiles(Files):
        """A process that ends after so many changes."""

        def __init__(self, left):
            self.left = left

        def _count(self):
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt

        def open_new(self, path, *, direct=False):
            self._count()
            return super().open_new(path, direct=direct)

        def link(self, source, target):
            self._count()
            super().link(source, target)

        def rename(self, source, target):
            self._count()
            super().rename(source, target)

        def unlink(self, path):
            self._count()
            super().unlink(path)

    died, number = True, 0
    while died:
        run = opened(tmp_path)
        run.track(replay=make_ring()[1])
        run.counters(global_step=0)
        run._store.files = DyingFiles(number)
        number += 7
        try:
            run.restore()
            died = False
        except KeyboardInterrupt:
            assert number < 1000
        run._store.files = Files()
        crash(run)
    run, ring, _, report = resumed(tmp_path)

    assert number > 20
    assert 5 == report.step
    assert is_same(held, content(ring))
    run.close()


def test_memory_that_leans_on_what_the_disk_has_lost_is_put_aside_loudly(tmp_path, root):
    """If segments that memory left to the disk are gone there, an older checkpoint is used and the report says so."""
    collected(tmp_path, root, 5, keep=None, save=Every(steps=2))
    newest = checkpoints(tmp_path / "t")[-1]
    shutil.rmtree(newest)
    run, _, count, report = resumed(tmp_path)
    run.close()

    assert 2 == report.step == count.global_step
    assert ["it is neither in memory nor in a checkpoint on the disk" in skip.reason for skip in report.skipped] == [
        True
    ]


def test_a_replay_buffer_that_memory_cannot_hold_costs_no_save_to_the_disk(tmp_path, root, monkeypatch):
    """When the host has no memory for what a ring took in, saves to memory end with a warning, and no others."""
    ring, component = make_ring()
    run = opened(tmp_path, save=Every(steps=2), ram=Every(steps=1), keep=None)
    run.track(replay=component)
    count = run.counters(global_step=0)
    run.restore()
    monkeypatch.setattr("perdure.tiers.room.SPARE_BYTES", 0)
    run._surroundings.available_memory_bytes = lambda: 1000
    with pytest.warns(perdure.SaveFailedWarning, match="cannot save to memory") as told:
        for _ in run.loop(0, 6):
            fill(ring, 30 * count.global_step, 30)
            count.global_step += 1
            run._saver.drain(30)
    run.close()

    assert 1 == len(told)
    assert 3 == len(checkpoints(tmp_path / "t"))


def test_training_continues_bit_for_bit_from_memory(tmp_path, root):
    """A network and its optimizer that are restored from memory train on exactly as they would have."""

    def make():
        torch.manual_seed(0)
        net = nn.Linear(32, 32)
        return net, torch.optim.Adam(net.parameters())

    def train(where, steps, stop):
        net, optimizer = make()
        run = opened(where, ram=Every(steps=1))
        run.track(net=net, optimizer=optimizer)
        for step in run.loop(0, steps):
            if step == stop:
                crash(run)
                return None
            optimizer.zero_grad()
            net(torch.randn(4, 32)).square().mean().backward()
            optimizer.step()
            run._saver.drain(30)
        run.close()
        return net.weight.detach().clone()

    whole = train(tmp_path / "a", 8, None)
    train(tmp_path / "b", 8, 5)

    assert torch.equal(whole, train(tmp_path / "b", 8, None))


@pytest.mark.process
@pytest.mark.parametrize("saves_to_disk", [False, True])
def test_a_killed_learner_loses_at_most_the_step_it_was_in(tmp_path, root, saves_to_disk):
    """A learner that is killed at any moment continues from the step that it had saved to memory last."""
    arguments = [sys.executable, "-c", LEARNER, str(tmp_path), *(["disk"] if saves_to_disk else [])]
    came_to = 0
    for _ in range(3):
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        began = process.stdout.readline().split()
        assert began, process.stderr.read()
        assert came_to - 1 <= int(began[1])
        assert float(began[2]) == int(began[1])
        lines = [process.stdout.readline() for _ in range(10)]
        process.send_signal(signal.SIGKILL)
        out, _ = process.communicate(timeout=30)
        done = [line.split() for line in [*lines, *out.splitlines()] if line.startswith("done")]
        came_to = max(int(words[1]) for words in done if len(words) == 3)


@pytest.mark.process
def test_a_killed_collector_continues_with_the_transitions_of_its_step(tmp_path, root):
    """A replay buffer of a process that is killed at any moment is that of the step which the next one begins with."""
    arguments = [sys.executable, "-c", COLLECTOR, str(tmp_path)]
    came_to = 0
    for steps in (3, 45, 38, 90, 1, 7):  # before and after saves to the disk, and several times around the ring
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        began = process.stdout.readline().split()
        assert began, process.stderr.read()
        assert came_to - 4 <= int(began[1])
        assert min(500, 7 * int(began[1])) == int(began[2])
        lines = [process.stdout.readline() for _ in range(steps)]
        process.send_signal(signal.SIGKILL)
        out, _ = process.communicate(timeout=30)
        done = [line.split() for line in [*lines, *out.splitlines()] if line.startswith("done")]
        came_to = max(int(words[1]) for words in done if len(words) == 2)
