"""Reading into memory: the same bytes by whichever way, past the page cache only where that is wise."""

import errno
import os
import random
from pathlib import Path

import numpy as np
import pytest

from perdure.core.manifest import FileEntry
from perdure.files import reading
from perdure.files.door import Files
from perdure.files.reading import Reader, allocate, read_verified
from perdure.files.systems import LOCAL_FILE_SYSTEMS, OTHER_FILE_SYSTEMS, file_system_of
from perdure.files.writing import digest_of

LARGE = 3 * 2**20
ODD = LARGE + 1234


class Direct(Files):
    """Notes how much is read directly; the cache has nothing, or everything."""

    def __init__(self, *, has_cached=False, refuses_at=None):
        self.is_direct = False
        self.direct_bytes = 0
        self._has_cached = has_cached
        self._refuses_at = refuses_at

    def is_cached(self, descriptor, offset_bytes):
        """As the test says."""
        return self._has_cached

    def start_direct(self, descriptor):
        """Promise direct reads, unless they are refused at once."""
        if self._refuses_at == "start":
            raise OSError(errno.EINVAL, "no direct reads here")
        self.is_direct = True

    def stop_direct(self, descriptor):
        """Take the promise back."""
        self.is_direct = False

    def read_into(self, descriptor, buffer, offset_bytes):
        """As a direct read, which wants whole pages and may still be refused."""
        if self.is_direct:
            if self._refuses_at == "read":
                raise OSError(errno.EINVAL, "no direct reads here")
            assert len(buffer) % 4096 == 0
            assert offset_bytes % 4096 == 0
            self.direct_bytes += len(buffer)
        return super().read_into(descriptor, buffer, offset_bytes)


@pytest.fixture
def on(monkeypatch):
    """Have files be on a file system of that name."""

    def choose(name):
        found = (name, name in LOCAL_FILE_SYSTEMS.values())
        monkeypatch.setattr(reading, "file_system_of", lambda descriptor: found)

    choose("ext4")
    return choose


def brought(tmp_path, files, size=ODD):
    """A file's bytes by way of `read_verified`, which also compares the digest."""
    content = random.Random(size).randbytes(size)
    (tmp_path / "x").write_bytes(content)
    entry = FileEntry("x", size, digest_of(content))
    assert bytes(read_verified(files, tmp_path, entry)) == content


def test_a_large_file_is_read_past_the_cache(tmp_path, on):
    """All whole pages come directly, and the rest of the last one by the usual way."""
    files = Direct()
    brought(tmp_path, files)
    assert files.direct_bytes == LARGE
    assert not files.is_direct


@pytest.mark.parametrize("name", sorted(set(OTHER_FILE_SYSTEMS.values())))
def test_a_network_is_not_asked_for_direct_reads(tmp_path, on, name):
    """Other machines' file systems read ahead, which direct reads would do without."""
    on(name)
    files = Direct()
    brought(tmp_path, files)
    assert files.direct_bytes == 0


def test_what_the_cache_has_comes_from_there(tmp_path, on):
    """A file that has just been read or written is not read from the disk again."""
    files = Direct(has_cached=True)
    brought(tmp_path, files)
    assert files.direct_bytes == 0


def test_the_disk_can_be_asked_whatever_the_cache_has(tmp_path, on):
    """A check that is to find out what the disk still has does not believe the cache."""
    (tmp_path / "x").write_bytes(bytes(LARGE))
    files, memory = Direct(has_cached=True), allocate(LARGE)
    descriptor = os.open(tmp_path / "x", os.O_RDONLY)
    Reader(files, descriptor, LARGE, from_disk=True).fill(memory, 0)
    os.close(descriptor)
    assert files.direct_bytes == LARGE


@pytest.mark.parametrize("when", ["start", "read"])
def test_direct_reads_that_are_refused_go_through_the_cache(tmp_path, on, when):
    """File systems without them refuse them at once, or only when one comes; the file is read all the same."""
    files = Direct(refuses_at=when)
    brought(tmp_path, files)
    assert files.direct_bytes == 0
    assert not files.is_direct


@pytest.mark.parametrize("size", [0, 1, 4095, 4097, 262143, 262144, LARGE, ODD])
def test_every_length_is_read_whole(tmp_path, size):
    """Lengths around pages and limits come with every byte, on this machine's real file system."""
    brought(tmp_path, Files(), size)


def test_the_cache_is_asked_without_waiting(tmp_path):
    """A file that has just been written is in the cache; where a file system cannot tell, it counts as if it were."""
    (tmp_path / "x").write_bytes(bytes(LARGE))
    descriptor = os.open(tmp_path / "x", os.O_RDONLY)
    os.fsync(descriptor)
    assert Files().is_cached(descriptor, LARGE // 2)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    if file_system_of(descriptor)[0] == "ext4":
        assert not Files().is_cached(descriptor, LARGE // 2)
    os.close(descriptor)


def test_a_file_that_becomes_shorter_is_an_error(tmp_path):
    """Reading stops with an error instead of waiting for bytes that never come."""
    (tmp_path / "x").write_bytes(bytes(100))
    descriptor = os.open(tmp_path / "x", os.O_RDONLY)
    with pytest.raises(OSError, match="shorter"):
        Reader(Files(), descriptor, 200).fill(allocate(200), 0)
    os.close(descriptor)


@pytest.mark.parametrize("is_wiped", [False, True])
def test_memory_is_this_process_own(is_wiped):
    """A forked child finds a copy, or zeros where it was asked for, and what it writes does not reach its parent."""
    memory = allocate(2 * 2**20, is_wiped_in_children=is_wiped)
    memory[:4] = b"mine"
    child = os.fork()
    if child == 0:
        is_right = memory[:4] == (bytes(4) if is_wiped else b"mine")
        memory[:4] = b"hers"
        os._exit(0 if is_right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert memory[:4] == b"mine"


def test_large_memory_may_come_in_huge_pages():
    """A large piece is asked for in huge pages, and is private: shared memory gets none on most machines."""
    memory = allocate(64 * 2**20)
    begin = np.frombuffer(memory, np.uint8).ctypes.data
    flags: list[str] = []
    is_ours = False
    for line in Path("/proc/self/smaps").read_text(encoding="ascii").splitlines():
        word, _, rest = line.partition(" ")
        if not word.endswith(":"):
            first, last = (int(number, 16) for number in word.split("-"))
            is_ours = first <= begin < last
        elif is_ours and word == "VmFlags:":
            flags = rest.split()
    assert "hg" in flags
    assert "sh" not in flags
