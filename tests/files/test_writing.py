"""Writing whole files: every byte arrives, digested and synced, whichever way the file system lets it go."""

import errno
import random
from itertools import pairwise
from pathlib import Path

import pytest

from perdure.errors import InternalError, StoreError
from perdure.files.door import Files
from perdure.files.reading import allocate
from perdure.files.writing import BLOCK_BYTES, DIRECT_THRESHOLD_BYTES, STRIDE_BYTES, digest_of, write_file

SIZE = DIRECT_THRESHOLD_BYTES + STRIDE_BYTES + 12_345


class Watched(Files):
    """A file system that notes what it is asked for, and refuses direct access when it is told to."""

    def __init__(self, *, refuses_open: bool = False, refuses_write: int | None = None) -> None:
        self.refuses_open = refuses_open
        self.refuses_write = refuses_write
        self.calls: list[str] = []
        self.is_direct = False

    def open_new(self, path: Path, *, direct: bool = False) -> int:
        if direct and self.refuses_open:
            raise OSError(errno.EINVAL, "no direct access here")
        self.is_direct = direct
        self.calls.append("open direct" if direct else "open")
        return super().open_new(path, direct=direct)

    def stop_direct(self, descriptor: int) -> None:
        self.is_direct = False
        self.calls.append("stop direct")
        super().stop_direct(descriptor)

    def write(self, descriptor: int, data: memoryview) -> int:
        if self.is_direct and self.calls.count("write") == self.refuses_write:
            raise OSError(errno.EINVAL, "no direct write of this")
        self.calls.append("write")
        return super().write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        self.calls.append("sync")
        super().sync(descriptor)


def content_of(size: int) -> memoryview:
    """Page-aligned bytes, as captures are."""
    memory = allocate(size)
    memory[:] = random.Random(size).randbytes(size)
    return memory


def write(files: Files, path: Path, *chunks: memoryview) -> str:
    return write_file(files, path, sum(map(len, chunks)), chunks)


@pytest.mark.parametrize(
    "files",
    [Watched(), Watched(refuses_open=True), Watched(refuses_write=0), Watched(refuses_write=1)],
    ids=["direct", "refused at open", "refused at the first write", "refused in the middle"],
)
def test_a_large_file_arrives_whole_whatever_is_refused(tmp_path, files):
    """A file system without direct access, or that refuses it late, gets the same bytes, and the sync comes last."""
    content = content_of(SIZE)
    assert write(files, tmp_path / "file", content) == digest_of(content)
    assert (tmp_path / "file").read_bytes() == content
    assert files.calls[-1] == "sync"


def test_the_rest_behind_whole_blocks_goes_through_the_cache(tmp_path):
    """Whole blocks of a large file are written directly, and only what is left over is not."""
    files = Watched()
    write(files, tmp_path / "file", content_of(SIZE))
    assert files.calls == ["open direct", "write", "write", "write", "stop direct", "write", "sync"]


def test_pieces_that_are_no_whole_blocks_are_written_in_their_order(tmp_path):
    """Chunks of any length and place in memory make one file."""
    whole = content_of(DIRECT_THRESHOLD_BYTES + 3 * BLOCK_BYTES)
    cuts = [0, BLOCK_BYTES, BLOCK_BYTES + 7, DIRECT_THRESHOLD_BYTES, len(whole)]
    chunks = [whole[start:stop] for start, stop in pairwise(cuts)]
    assert write(Watched(), tmp_path / "file", *chunks) == digest_of(whole)
    assert (tmp_path / "file").read_bytes() == whole


def test_a_small_file_does_not_wait_for_the_disk_at_each_write(tmp_path):
    """Short files go through the cache."""
    files = Watched()
    write(files, tmp_path / "file", content_of(DIRECT_THRESHOLD_BYTES - 1))
    assert files.calls[0] == "open"


def test_a_file_of_another_length_than_announced_is_an_error(tmp_path):
    """What was announced is what is written, or nobody is told that it is there."""
    with pytest.raises(InternalError) as caught:
        write_file(Files(), tmp_path / "file", 5, [memoryview(b"four")])
    assert caught.value.kind == "write.size-mismatch"


def test_what_exists_is_never_written_to(tmp_path):
    """A file that is there already is refused and stays as it is."""
    (tmp_path / "file").write_bytes(b"older")
    with pytest.raises(StoreError) as caught:
        write(Files(), tmp_path / "file", memoryview(b"newer"))
    assert caught.value.kind == "store.exists"
    assert (tmp_path / "file").read_bytes() == b"older"
