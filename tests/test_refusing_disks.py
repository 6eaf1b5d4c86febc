"""A run on real file systems that are full or cannot be written."""

import subprocess

import numpy as np
import pytest

import perdure
from perdure.errors import StoreError
from perdure.replay import RingBuffer, RingComponent
from tests.rooted import memory_file_system

MEGABYTE = 1024 * 1024


@pytest.mark.root
def test_a_full_disk_costs_a_save_and_nothing_else(tmp_path):
    """On a full disk a save fails before it writes, older ones stay, and once there is space saving works."""
    with memory_file_system(tmp_path / "disk", "size=64m") as disk:
        value = np.zeros(8 * MEGABYTE, np.uint8)
        run = perdure.open(disk, run="t", quiet=True, save=None, budget=None)
        run.track(value=value)
        run.save().wait()
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(32 * MEGABYTE))
        value[:] = 1
        with pytest.raises(StoreError, match="bytes are needed") as caught:
            run.save().wait()
        with pytest.warns(perdure.SaveFailedWarning):
            run._surface()

        assert "store.full" == caught.value.kind
        assert "perdure gc" in caught.value.hint
        assert 1 == len(list((disk / "t" / "snapshots").iterdir()))
        ballast.unlink()
        run.save().wait()
        run.close()
        value[:] = 0
        with perdure.open(disk, run="t", quiet=True) as again:
            again.track(value=value)
            again.restore()

        assert value.all()


@pytest.mark.root
def test_a_disk_that_fills_while_writing_is_reported(tmp_path):
    """A disk that fills in the middle of a save leaves nothing of it behind, and the error names the disk."""
    with memory_file_system(tmp_path / "disk", "size=64m") as disk:
        value = np.ones(40 * MEGABYTE, np.uint8)
        run = perdure.open(disk, run="t", quiet=True, save=None, budget=None)
        run.track(value=value)
        run.restore()
        free = run._store.files.free_bytes
        run._store.files.free_bytes = lambda path: 10 * free(path)  # as if the space went while we wrote
        (disk / "ballast").write_bytes(bytes(32 * MEGABYTE))
        with pytest.raises(StoreError, match="No space left") as caught:
            run.save().wait()
        with pytest.warns(perdure.SaveFailedWarning):
            run._surface()
        run.close()

        assert "store.full" == caught.value.kind
        assert [] == list((disk / "t" / "staging").iterdir())


@pytest.mark.root
def test_an_unwritable_disk_is_named_at_once(tmp_path):
    """A run on a read-only file system is refused when it is opened, with what to do."""
    with memory_file_system(tmp_path / "disk", "size=8m") as disk:
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with pytest.raises(StoreError, match="Read-only file system") as caught:
            perdure.open(disk, run="t", quiet=True)

    assert "store.read-only" == caught.value.kind
    assert "mount the file system writable" in caught.value.hint


@pytest.mark.root
@pytest.mark.parametrize("is_noise", [False, True])
def test_coded_segments_need_the_room_of_their_codes(tmp_path, is_noise):
    """A coded buffer is saved where its rows would not fit; one that does not shrink is refused, with room to spare."""
    frames = np.random.default_rng(0).integers(0, 256, (48, 1024, 1024), np.uint8)
    with memory_file_system(tmp_path / "disk", "size=40m") as disk:
        buffer = RingBuffer(48, {"obs": (np.uint8, (1024, 1024))})
        with perdure.open(disk, run="t", quiet=True, save=None, budget=None) as run:
            run.track(replay=RingComponent(buffer, codec="auto"))
            run.restore()
            for frame in frames:
                buffer.add(obs=frame if is_noise else frames[0])
            if not is_noise:
                run.save().wait()
                return
            with pytest.raises(StoreError, match="bytes are needed") as caught:
                run.save().wait()
            assert "store.full" == caught.value.kind
            assert [] == list((disk / "t" / "staging").iterdir())
            with pytest.warns(perdure.SaveFailedWarning):
                run._surface()
            buffer.add_batch(obs=np.zeros((48, 1024, 1024), np.uint8))  # so that the last save at the end fits
