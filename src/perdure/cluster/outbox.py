"""What a member has made and not yet sent: bounded, oldest first to go, every loss counted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from perdure.cluster.wire import Stamped
from perdure.core.fencing import Announcement, Stamp


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """One message to be stamped at the moment it is sent."""

    lineage: int
    """Lineage of the policy that made it."""
    learner_step: int
    """Learner step of that policy."""
    compose: Callable[[Stamp], Stamped]
    """Makes its header."""
    frames: list[memoryview] = field(default_factory=list)
    """Its arrays; owned by the item."""

    @property
    def size_bytes(self) -> int:
        """Memory that its arrays take."""
        return sum(len(frame) for frame in self.frames)


class Outbox:
    """
    Holds items until they can be sent. Not thread-safe.

    Args:
        capacity_items: Most items held.
        capacity_bytes: Most memory held; a single larger item is still held, alone.
    """

    def __init__(self, capacity_items: int, capacity_bytes: int) -> None:
        self._capacity_items = capacity_items
        self._capacity_bytes = capacity_bytes
        self._items: deque[Item] = deque()
        self._size_bytes = 0
        self.overflowed = 0
        """Items dropped because newer ones needed their place."""
        self.undone = 0
        """Items dropped because the learner rolled back behind the policy that made them."""

    def __len__(self) -> int:
        return len(self._items)

    def has_room(self) -> bool:
        """Say whether another item of no size would push nothing out."""
        return len(self._items) < self._capacity_items and self._size_bytes < self._capacity_bytes

    def put(self, item: Item) -> None:
        """Hold an item, dropping the oldest ones if it is one too many."""
        self._items.append(item)
        self._size_bytes += item.size_bytes
        while len(self._items) > self._capacity_items or (
            self._size_bytes > self._capacity_bytes and len(self._items) > 1
        ):
            self.pop()
            self.overflowed += 1

    def first(self, announcement: Announcement) -> Item | None:
        """Return the oldest item that still belongs to the learner's past, dropping those before it that do not."""
        while self._items:
            item = self._items[0]
            if announcement.keeps(item.lineage, item.learner_step):
                return item
            self.pop()
            self.undone += 1
        return None

    def pop(self) -> None:
        """Let the oldest item go."""
        self._size_bytes -= self._items.popleft().size_bytes
