"""The outbox: bounded, oldest first, every loss counted."""

from __future__ import annotations

from perdure.cluster.outbox import Item, Outbox
from perdure.core.fencing import Announcement

NOW = Announcement(generation=3, lineage=3, resumed_step=100)


def item(lineage: int = 3, learner_step: int = 0, size_bytes: int = 1) -> Item:
    return Item(lineage, learner_step, compose=lambda stamp: None, frames=[memoryview(bytes(size_bytes))])


def drained(outbox: Outbox) -> list[Item]:
    items = []
    while first := outbox.first(NOW):
        items.append(first)
        outbox.pop()
    return items


def test_items_go_oldest_first() -> None:
    """The order of sending is the order of putting."""
    outbox = Outbox(10, 100)
    items = [item() for _ in range(3)]
    for each in items:
        outbox.put(each)
    assert drained(outbox) == items
    assert len(outbox) == 0


def test_too_many_items_push_out_the_oldest() -> None:
    """The newest are kept and each one lost is counted."""
    outbox = Outbox(3, 100)
    items = [item() for _ in range(5)]
    for each in items:
        outbox.put(each)
    assert not outbox.has_room()
    assert (drained(outbox), outbox.overflowed) == (items[2:], 2)
    assert outbox.has_room()


def test_memory_is_bounded_too() -> None:
    """Items give way to newer ones when they take too much memory; one that is too large alone is still held."""
    outbox = Outbox(10, 100)
    small, large, huge = item(size_bytes=60), item(size_bytes=60), item(size_bytes=500)
    outbox.put(small)
    outbox.put(large)
    assert outbox.overflowed == 1
    outbox.put(huge)
    assert (drained(outbox), outbox.overflowed) == ([huge], 2)


def test_what_a_rollback_undid_is_dropped_and_counted() -> None:
    """Items of policies younger than the checkpoint resumed from are not sent; older ones are."""
    outbox = Outbox(10, 100)
    items = [item(2, 101), item(2, 100), item(2, 150), item(3, 150)]
    for each in items:
        outbox.put(each)
    assert drained(outbox) == [items[1], items[3]]
    assert (outbox.undone, outbox.overflowed) == (2, 0)
