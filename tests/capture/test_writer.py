"""The background writer: it may hang, fail and lag, and training neither waits for it nor goes on in silence."""

import gc
import json
import threading
import time

import numpy as np
import pytest

import perdure
from perdure import Every
from perdure.capture.writer import Writer
from perdure.complaints import SaveStalledWarning
from perdure.errors import DeadlineError, StoreError
from perdure.files.door import Files

MEGABYTE = 1024 * 1024


class HangingFiles(Files):
    """A disk on which every change hangs until it is let go; says which threads have touched it."""

    def __init__(self):
        self.go_on = threading.Event()
        self.threads = set()
        self.is_hanging = threading.Event()

    def _touch(self):
        self.threads.add(threading.current_thread().name)
        self.is_hanging.set()
        assert self.go_on.wait(30)

    def open_new(self, path, *, direct=False):
        self._touch()
        return super().open_new(path, direct=direct)

    def make_directory(self, path):
        self._touch()
        super().make_directory(path)

    def append(self, path, data):
        self._touch()
        super().append(path, data)


def events(tmp_path):
    return [json.loads(line) for line in (tmp_path / "t" / "events.jsonl").read_text().splitlines()]


def hang(run):
    files = HangingFiles()
    run._store.files = run._store.events._files = files
    return files


def test_training_goes_on_loudly_while_the_disk_hangs(tmp_path, monkeypatch):
    """With a disk that hangs, every step is made, no step touches the disk, and a warning names who is waited for."""
    monkeypatch.setattr("perdure.complaints.STALL_SECONDS", 1e-9)
    run = perdure.open(tmp_path, run="t", quiet=True, save=Every(steps=1), budget=None)
    count = run.counters(global_step=0)
    run.restore()
    files = hang(run)
    with pytest.warns(SaveStalledWarning, match="the background writer, 0 s into save .* of step 1") as told:
        for _ in run.loop(0, 100):
            count.global_step += 1
            if count.global_step == 2:
                assert files.is_hanging.wait(30)
            if count.global_step == 100:
                assert 97 == run.statistics().skipped
                assert {"perdure-writer"} == files.threads
                assert run.statistics().busy_seconds > 0
                files.go_on.set()
    run.close()

    assert len(told) < 60  # each time that the wait has doubled, not at each step
    assert len([event for event in events(tmp_path) if event["event"] == "save-skipped"]) in (97, 98)
    assert 100 == events(tmp_path)[-1]["step"]


def test_who_waits_for_a_hung_writer_is_told_what_for(tmp_path):
    """Waiting for a save has an end, and its error names the save that is in the way."""
    run = perdure.open(tmp_path, run="t", quiet=True, save=None, budget=None)
    run.restore()
    files = hang(run)
    first, second = run.save(), run.save()
    with pytest.raises(DeadlineError, match=f"into save {first.checkpoint[:8]} of step 0") as caught:
        second.wait(timeout_seconds=0.05)
    with pytest.raises(DeadlineError, match="2 saves in flight") as also:
        run._saver.drain(0.01)
    files.go_on.set()
    run.close()

    assert caught.value.holder.startswith("the background writer")
    assert also.value.holder.startswith("the background writer")


def test_an_explicit_save_waits_for_a_buffer_and_no_longer_than_its_deadline(tmp_path, monkeypatch):
    """With every buffer taken a save that was asked for waits, then gives up with the reason in its handle."""
    monkeypatch.setattr("perdure.run.DEFAULT_DEADLINE_SECONDS", 0.05)
    run = perdure.open(tmp_path, run="t", quiet=True, save=None, budget=None)
    run.restore()
    files = hang(run)
    run.save(), run.save()
    third = run.save()
    files.go_on.set()
    run._saver.drain(30)
    run.close()

    assert "waits for the background writer" in third.skipped


class FillingFiles(Files):
    """A disk that is full after so many bytes."""

    def __init__(self, room_bytes):
        self.room_bytes = room_bytes

    def write(self, descriptor, data):
        if self.room_bytes < len(data):
            raise OSError(28, "No space left on device")
        self.room_bytes -= len(data)
        return super().write(descriptor, data)


@pytest.mark.parametrize("share", [0, 0.0001, 0.2, 0.7, 1])
def test_a_disk_that_fills_midway_costs_one_save(tmp_path, share):
    """Wherever in a save the disk fills up, nothing of the save is left and the next one works."""
    value = np.arange(2 * MEGABYTE, dtype=np.float64)
    run = perdure.open(tmp_path, run="t", quiet=True, save=None, budget=None)
    run.track(value=value)
    run.save().wait()
    files_bytes = sum(entry.bytes for entry in run._store.checkpoints()[0].manifest.files)
    run._store.files = FillingFiles(share * files_bytes)  # with room for all of them, there is none for the manifest
    value += 1
    with pytest.raises(StoreError, match="No space left") as caught:
        run.save().wait()
    assert [] == list((tmp_path / "t" / "staging").iterdir())
    with pytest.warns(perdure.SaveFailedWarning):
        run._surface()
    run._store.files = Files()
    run.save().wait()
    run.close()
    value[:] = 0
    with perdure.open(tmp_path, run="t", quiet=True) as again:
        again.track(value=value)
        again.restore()

    assert "store.full" == caught.value.kind
    assert np.array_equal(np.arange(2 * MEGABYTE) + 1.0, value)


def test_a_slow_disk_stretches_the_interval(tmp_path):
    """Writing 5 GB at 50 MB/s every minute stretches the interval to what the budget allows; an event says so."""
    now = [0.0]
    run = perdure.open(tmp_path, run="t", quiet=True, save=Every(seconds=60))
    run.track(value=np.zeros(10))
    run._surroundings.monotonic = lambda: now[0]

    class SlowFiles(Files):
        def write(self, descriptor, data):
            now[0] += 100.0 / 7  # seven files, 5 GB in all
            return super().write(descriptor, data)

    saved_at = []
    run.restore()
    run._store.files = SlowFiles()
    with pytest.warns(perdure.SaveBudgetWarning):
        for _ in run.loop(0, 400):
            before = run.statistics().saved
            now[0] += 30.0
            run._saver.drain(30)
            run._saver.collect_finished()
            if run.statistics().saved > before:
                saved_at.append(now[0])
    run.close()
    changed = [event for event in events(tmp_path) if event["event"] == "interval-changed"]

    assert changed[-1]["stretch"] > 10
    assert saved_at[-1] - saved_at[-2] >= 900


def test_the_writers_thread_yields_to_training(tmp_path):
    """The background thread runs at a lower priority than training."""
    import os

    seen = []
    writer = Writer()
    arena = writer.take_arena()
    handle = perdure.SaveHandle("0" * 32, 0, "asked")
    writer.submit(handle, arena, lambda: seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))
    handle.wait()
    writer.close()

    assert seen[0] >= min(os.getpriority(os.PRIO_PROCESS, 0) + 1, 19)


def test_a_wait_ends_at_its_deadline():
    """A milestone that is never reached ends the wait with an error, soon after the deadline."""
    handle = perdure.SaveHandle("0" * 32, 0, "asked")
    began = time.monotonic()
    with pytest.raises(DeadlineError):
        handle.wait("captured", timeout_seconds=0.01)

    assert time.monotonic() - began < 10


def test_no_full_garbage_collection_begins_behind_trainings_back(tmp_path, monkeypatch):
    """Over hundreds of saves of a large program, threads of perdure's start no collection of its oldest objects."""
    monkeypatch.setenv("PERDURE_MEMORY", str(tmp_path / "memory"))
    (tmp_path / "memory").mkdir()
    program = [{"item": [number]} for number in range(200_000)]  # what a full collection would have to look at
    run = perdure.open(tmp_path, run="t", quiet=True, save=Every(steps=3), ram=Every(steps=1), budget=None)
    run.track({f"part-{number}": np.zeros(8) for number in range(60)})
    run.restore()
    run._store.files.sync = lambda _: None  # what a disk does is not what is looked at
    gc.collect()
    begun = []

    def note(phase, info):
        if phase == "start":
            begun.append((threading.current_thread().name, info["generation"]))

    gc.callbacks.append(note)
    try:
        for _ in run.loop(0, 300):
            run._saver.drain(30)
    finally:
        gc.callbacks.remove(note)
    run.close()

    assert 200_000 == len(program)
    assert [] == [(name, generation) for name, generation in begun if name.startswith("perdure") and generation == 2]
    assert gc.isenabled()
