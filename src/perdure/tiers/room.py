"""Room in the host's memory for one save to it: a memory file system may be allowed to grow beyond what there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perdure.core.component import ContentPart, DeferredPart, Part
from perdure.errors import StoreError
from perdure.store.store import SPARE_BYTES, announced_bytes


class HostRoom:
    """
    Refuses what the host has no memory for.

    Args:
        available_bytes: Asks how much the host can still give; None if nobody knows.
    """

    def __init__(self, available_bytes: Callable[[], int | None]) -> None:
        self._available_bytes = available_bytes
        self._unasked_bytes = 0

    def admit(self, parts: Sequence[Part]) -> list[Part]:
        """
        The same files, for which there is room; those that have yet to be put together are asked for when they are.

        Raises:
            StoreError: Kind ``store.full``; so does the making of a file.
        """
        self._take(announced_bytes(parts))
        return [self._asking(part) if isinstance(part, DeferredPart) else part for part in parts]

    def _asking(self, part: DeferredPart) -> DeferredPart:
        def make() -> ContentPart:
            made = part.make()
            self._take(made.size_bytes)
            return made

        return DeferredPart(part.path, make)

    def _take(self, size_bytes: int) -> None:
        self._unasked_bytes += size_bytes
        if self._unasked_bytes <= SPARE_BYTES:
            return  # asking takes longer than most saves to memory have
        needed, self._unasked_bytes = self._unasked_bytes, 0
        available = self._available_bytes()
        if available is not None and needed > available:
            raise _too_large(needed, available)


def _too_large(needed_bytes: int, available_bytes: int) -> StoreError:
    return StoreError(
        f"cannot save to memory: {needed_bytes:,} bytes are needed and {available_bytes:,} are free",
        kind="store.full",
        hint="save to the disk more often: what a replay buffer took in since then is what memory has to hold",
        path="",
        errno_name="ENOSPC",
    )
