"""
Copying arrays into an arena: on the host, outside the interpreter's lock, and by an accelerator itself.

On an accelerator the copies are queued on a stream of their own, behind what the program has queued so far. The host
waits for nothing: what the program queues later is made to wait for them by an event. The host memory is pinned, and
no memory of the device is used beside the arrays themselves, if they are contiguous.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perdure.capture.arrays import Destination, loaded_torch, on_accelerator


@dataclass(frozen=True, slots=True)
class Move:
    """One array to be copied into its place."""

    name: str
    destination: Destination
    array: Any


def copy_now(moves: Sequence[Move]) -> None:
    """Copy arrays of the host; whole on return."""
    tensors = [move for move in moves if move.destination.is_torch]
    if tensors:
        torch = loaded_torch()
        with torch.no_grad():
            # One call for all: for the many small tensors of an RL agent the calls cost more than the copies.
            torch._foreach_copy_([move.destination.view for move in tensors], [move.array for move in tensors])
    for move in moves:
        if not move.destination.is_torch:
            np.copyto(move.destination.view, move.array)


class HostCopies:
    """
    Copies of contiguous tensors of the host that can be made in any thread.

    The memory is fixed, and kept alive, here and now: a tensor that is given other memory later does not matter.
    """

    def __init__(self, moves: Sequence[Move]) -> None:
        self._storages = [move.array.untyped_storage() for move in moves]
        self._places = [(m.destination.view.data_ptr(), m.array.data_ptr(), m.array.nbytes) for m in moves]

    def run(self) -> None:
        """Copy; the interpreter's lock is free meanwhile, and no thread of torch's is used."""
        for target, source, size_bytes in self._places:
            ctypes.memmove(target, source, size_bytes)


class DeviceCopies:
    """Copies from one accelerator that have been queued on a stream of their own."""

    def __init__(self, stream: Any, moves: Sequence[Move]) -> None:
        torch = loaded_torch()
        self._device = moves[0].array.device
        self._moves = moves  # keeps the arrays' memory from being given to others while it is read
        stream.wait_stream(torch.accelerator.current_stream(self._device))
        with torch.no_grad(), stream:
            for move in moves:
                move.destination.view.copy_(move.array, non_blocking=True)
            self._copied = stream.record_event()

    def hold_back(self) -> None:
        """Have whatever is queued on the device's current stream from now on wait for these copies."""
        loaded_torch().accelerator.current_stream(self._device).wait_event(self._copied)

    def complete(self) -> None:
        """Return once everything is in host memory."""
        self._copied.synchronize()
        self._moves = ()


def split_by_device(moves: Sequence[Move]) -> tuple[list[Move], dict[Any, list[Move]]]:
    """Moves from the host, and those from accelerators by device."""
    host: list[Move] = []
    devices: dict[Any, list[Move]] = {}
    for move in moves:
        if on_accelerator(move.array):
            devices.setdefault(move.array.device, []).append(move)
        else:
            host.append(move)
    return host, devices
