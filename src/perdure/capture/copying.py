"""
Copying arrays into an arena: on the host, outside the interpreter's lock, and by an accelerator itself.

On an accelerator the copies are queued on a stream of their own, behind what the program has queued so far. The host
waits for nothing: what the program queues later is made to wait for them by an event. The host memory is pinned, and
no memory of the device is used beside the arrays themselves, if they are contiguous.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from perdure.capture.arrays import Destination, loaded_torch
from perdure.capture.witness import Witness


class Move(NamedTuple):
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


class WitnessedMove(NamedTuple):
    """One tensor to be copied into its place while training goes on, and what can prove that it stayed as it was."""

    move: Move
    witness: Witness


def copy_witnessed(moves: Iterable[WitnessedMove]) -> None:
    """Copy tensors of the host in any thread; it needs neither the interpreter's lock nor a thread of torch's."""
    for (_, destination, _), witness in moves:
        ctypes.memmove(destination.view.data_ptr(), witness.address, witness.size_bytes)


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


def by_device(moves: Iterable[Move]) -> dict[Any, list[Move]]:
    """Moves by the accelerator that they are from; those from the host under None."""
    found: dict[Any, list[Move]] = {}
    for move in moves:
        found.setdefault(move.destination.device, []).append(move)
    return found
