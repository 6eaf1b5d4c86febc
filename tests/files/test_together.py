"""Syncing together: everything asked for is synced and closed, whatever fails."""

import threading

import pytest

from perdure.errors import StoreError
from perdure.files.door import Files
from perdure.files.together import Together, sync_threads
from perdure.files.writing import write_file
from perdure.testing import RecordingFiles
from tests.descriptors import open_beneath


def together(files):
    return Together(files, sync_threads())


def write(files, folder, count):
    for number in range(count):
        write_file(files, folder / f"file-{number}", 5, [memoryview(b"bytes")])


def test_nothing_is_synced_before_it_is_settled(tmp_path):
    """Files are written at once; they and their folder are synced when that is settled."""
    recording = RecordingFiles(tmp_path)
    with together(recording) as files:
        write(files, tmp_path, 3)
        files.sync_directory(tmp_path)
        assert not [each for each in recording.operations if each.name.startswith("sync")]
        files.settle()
        synced = sorted(each.path for each in recording.operations if each.name.startswith("sync"))

    assert [".", "file-0", "file-1", "file-2"] == synced
    assert b"bytes" == (tmp_path / "file-1").read_bytes()


def test_the_disk_begins_with_each_file_once_it_is_complete(tmp_path):
    """What is written is on its way to the disk before the next file is made, and before anything is synced."""
    calls = []

    class Watched(Files):
        def open_new(self, path, *, direct=False):
            calls.append(path.name)
            return super().open_new(path, direct=direct)

        def begin_sync(self, descriptor):
            calls.append("begin")
            super().begin_sync(descriptor)

        def sync(self, descriptor):
            calls.append("sync")
            super().sync(descriptor)

    with together(Watched()) as files:
        write(files, tmp_path, 2)
        files.settle()

    assert ["file-0", "begin", "file-1", "begin", "sync", "sync"] == calls
    assert b"bytes" == (tmp_path / "file-1").read_bytes()


class Meeting(Files):
    """A file system on which no sync ends before another one has begun."""

    def __init__(self, count):
        self.barrier = threading.Barrier(count)

    def sync(self, descriptor):
        self.barrier.wait(30)
        super().sync(descriptor)


def test_syncs_are_made_side_by_side(tmp_path):
    """Several syncs are under way at once."""
    with together(Meeting(4)) as files:
        write(files, tmp_path, 4)
        files.settle()


class Refusing(Files):
    """A file system on which the n-th sync, and each close if asked for, fails; counts the syncs."""

    def __init__(self, fails_at, *, fails_to_close=False):
        self.fails_at = fails_at
        self.fails_to_close = fails_to_close
        self.count = 0
        self.lock = threading.Lock()

    def sync(self, descriptor):
        with self.lock:
            self.count += 1
            fails = self.count == self.fails_at
        if fails:
            raise OSError(5, "Input/output error")
        super().sync(descriptor)

    def close(self, descriptor):
        super().close(descriptor)
        if self.fails_to_close:
            raise OSError(5, "Input/output error")


@pytest.mark.parametrize("fails_at", [1, 3, 5])
def test_one_failed_sync_fails_all(tmp_path, fails_at):
    """The error of a failed sync comes out, none is repeated, and nothing stays open."""
    refusing = Refusing(fails_at)
    with pytest.raises(StoreError, match="Input/output error"), together(refusing) as files:
        write(files, tmp_path, 5)
        files.settle()

    assert 5 == refusing.count
    assert open_beneath(tmp_path) == 0


def test_a_close_that_fails_leaves_nothing_open(tmp_path):
    """If closing reports an error it comes out, and every other file is closed all the same."""
    with pytest.raises(StoreError, match="cannot close"), together(Refusing(0, fails_to_close=True)) as files:
        write(files, tmp_path, 5)
        files.settle()

    assert open_beneath(tmp_path) == 0


def test_an_error_in_between_closes_and_syncs_nothing(tmp_path):
    """What is left by an error is closed, and not synced."""
    refusing = Refusing(0)
    with pytest.raises(KeyError), together(refusing) as files:
        write(files, tmp_path, 5)
        raise KeyError

    assert 0 == refusing.count
    assert open_beneath(tmp_path) == 0


def test_many_files_do_not_stay_open(tmp_path):
    """A checkpoint of many files never has more than a few dozen of them open."""
    with together(Files()) as files:
        for number in range(10):
            (folder := tmp_path / str(number)).mkdir()
            write(files, folder, 30)
            assert open_beneath(tmp_path) <= 64
        files.settle()

    assert open_beneath(tmp_path) == 0
