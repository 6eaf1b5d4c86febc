"""Room in the host's memory: whatever a save to memory is made of is counted before it is written."""

import pytest

from perdure.core.component import ContentPart, DeferredPart, ElsewherePart
from perdure.core.manifest import FileEntry
from perdure.errors import StoreError
from perdure.store.store import SPARE_BYTES
from perdure.tiers.room import HostRoom

AVAILABLE = 3 * SPARE_BYTES
LARGE = 2 * SPARE_BYTES


def content(path, size_bytes):
    return ContentPart(path, size_bytes, lambda: ())


def deferred(path, size_bytes):
    return DeferredPart(path, lambda: content(path, size_bytes))


def test_files_of_known_length_are_counted_together():
    """What is announced has to fit as a whole; what lies elsewhere takes nothing."""
    parts = [content("a", LARGE), ElsewherePart("c", FileEntry("c", 10 * AVAILABLE, "blake3:0"))]
    assert parts == HostRoom(lambda: AVAILABLE).admit(parts)

    with pytest.raises(StoreError) as caught:
        HostRoom(lambda: AVAILABLE).admit([content("a", LARGE), content("b", LARGE)])
    assert "store.full" == caught.value.kind


def test_a_coded_segment_is_counted_once_its_length_is_known():
    """A file that has yet to be put together is let in, and refused when it turns out too large."""
    small, large = HostRoom(lambda: AVAILABLE).admit([deferred("a", LARGE), deferred("b", 2 * AVAILABLE)])

    assert LARGE == small.make().size_bytes
    with pytest.raises(StoreError) as caught:
        large.make()
    assert "store.full" == caught.value.kind


def test_many_small_files_are_counted_and_the_host_is_asked_rarely():
    """Files that are too small to ask for add up until they are worth it."""
    asked = []

    def available():
        asked.append(None)
        return AVAILABLE

    parts = HostRoom(available).admit([deferred(str(number), SPARE_BYTES // 4) for number in range(10)])
    for part in parts:
        part.make()

    assert 2 == len(asked)


def test_a_host_that_says_nothing_refuses_nothing():
    """Where nobody knows how much memory is left, the memory file system has the word."""
    (part,) = HostRoom(lambda: None).admit([deferred("a", 100 * AVAILABLE)])
    assert 100 * AVAILABLE == part.make().size_bytes
