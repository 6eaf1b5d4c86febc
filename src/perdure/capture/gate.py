"""
The gate: lets optimizers step only when what they are about to change has been copied.

Between the moment a capture begins and the next step of an optimizer, nothing is meant to change its parameters and
moments. So their copies may run until then, beside rollouts, forward and backward passes. Whether nothing changed them
is not assumed but proven, by witnesses; a capture without proof is torn, and a torn capture is never written.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from typing import Any

from perdure.capture.arrays import loaded_torch
from perdure.capture.copying import DeviceCopies, Move, WitnessedMove, by_device, copy_now, copy_witnessed
from perdure.capture.witness import Witness, provable_addresses, witness_of
from perdure.errors import DeadlineError, InvalidInputError

GATE_DEADLINE_SECONDS = 60.0
"""All memory of a large machine is copied in less; whoever waits longer waits for a fault."""
TORN = "capture.torn"
"""Kind of the error by which a torn capture is known."""


class _Proof:
    """Comes to one verdict, whoever asks first: afterwards the witnesses may change."""

    def __init__(self, witnesses: Sequence[Witness]) -> None:
        self._lock = threading.Lock()
        self._witnesses = witnesses
        self._verdict: str | None = None

    def settle(self) -> str:
        """What shows that the capture is torn, or ''."""
        with self._lock:
            if self._verdict is None:
                self._verdict = next((what for each in self._witnesses if (what := each.contradiction())), "")
                self._witnesses = ()
            return self._verdict


class _HostLeg:
    """Copies by the copier's thread; proven as soon as they are made."""

    def __init__(self, moves: Sequence[WitnessedMove], copier: ThreadPoolExecutor) -> None:
        self._proof = _Proof([each.witness for each in moves])
        self._moves = moves
        self._copier = copier

    def start(self) -> None:
        self._copied: Future[str] = self._copier.submit(self._run)

    def _run(self) -> str:
        copy_witnessed(self._moves)
        return self._proof.settle()

    def pass_gate(self) -> None:
        self.settle()

    def settle(self) -> str:
        try:
            return self._copied.result(GATE_DEADLINE_SECONDS)
        except LateError as error:
            raise _late() from error


class _DeviceLeg:
    """Copies by an accelerator; proven when the host is about to queue what changes the arrays."""

    def __init__(self, witnesses: Sequence[Witness], copies: DeviceCopies) -> None:
        self._proof = _Proof(witnesses)
        self._copies = copies

    def start(self) -> None:
        """Nothing is left to do: the copies are queued as soon as they are made, which no host thread waits for."""

    def pass_gate(self) -> None:
        self._proof.settle()
        self._copies.hold_back()

    def settle(self) -> str:
        self._copies.complete()
        return self._proof.settle()


class Gate:
    """
    What is copied beside training, and the optimizers that wait for it.

    Belongs to the training thread; only `Beside.settle` is called by others.
    """

    def __init__(self) -> None:
        self._optimizers: list[Any] = []
        self._passing: list[_HostLeg | _DeviceLeg] = []
        self._copier: ThreadPoolExecutor | None = None
        self._streams: dict[Any, Any] = {}

    def watch(self, optimizer: Any) -> None:
        """Take an optimizer's word that it alone changes its parameters and moments, and have it wait at each step."""
        optimizer.register_step_pre_hook(lambda *_: self.pass_all())
        self._optimizers.append(optimizer)

    def distrust(self) -> None:
        """Copy everything before training goes on, from now on: something else writes as well."""
        self._optimizers = []

    def pass_all(self) -> None:
        """
        Return once the arrays of watched optimizers may be changed; called in the thread that is about to do so.

        Raises:
            DeadlineError: The copier has not ended in time.
        """
        while self._passing:
            self._passing[-1].pass_gate()
            self._passing.pop()

    def begin(self) -> Copying:
        """Begin the copies of one capture."""
        return Copying(self, self._guarded())

    def prepare(self, late: Mapping[Any, Sequence[WitnessedMove]]) -> list[_HostLeg | _DeviceLeg]:
        """Make ready what `start` has copied, by the device that it is from."""
        legs: list[_HostLeg | _DeviceLeg] = []
        for device, here in late.items():
            if device is None:
                if self._copier is None:
                    self._copier = ThreadPoolExecutor(1, "perdure-copier")
                legs.append(_HostLeg(here, self._copier))
            else:
                queued = self.queue(device, [each.move for each in here])
                legs.append(_DeviceLeg([each.witness for each in here], queued))
        return legs

    def start(self, legs: Sequence[_HostLeg | _DeviceLeg]) -> None:
        """Start copies that optimizers will wait for."""
        for leg in legs:
            leg.start()
        self._passing += legs

    def _guarded(self) -> set[int]:
        """Addresses of what only watched optimizers change."""
        places: set[int] = set()
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                places.update(provable_addresses(group["params"]))
            for state in optimizer.state.values():
                places.update(provable_addresses(state.values()))
        return places

    def queue(self, device: Any, moves: Sequence[Move]) -> DeviceCopies:
        """Queue copies on the stream that belongs to a device."""
        if device not in self._streams:
            self._streams[device] = loaded_torch().Stream(device=device)
        return DeviceCopies(self._streams[device], moves)

    def close(self) -> None:
        """End the copier's thread."""
        if self._copier is not None:
            self._copier.shutdown(wait=False)


class Copying:
    """The copies of one capture, while it is being taken."""

    def __init__(self, gate: Gate, guarded: set[int]) -> None:
        self._gate = gate
        self._guarded = guarded
        self._late: dict[Any, list[WitnessedMove]] = {}
        self._queued: list[DeviceCopies] = []

    def copy(self, moves: Sequence[Move]) -> None:
        """Copy arrays; on return all may be changed but those of watched optimizers."""
        now = self._leave_for_later(moves) if self._guarded else moves
        for device, here in by_device(now).items():
            if device is None:
                copy_now(here)
            else:
                copies = self._gate.queue(device, here)
                copies.hold_back()
                self._queued.append(copies)

    def _leave_for_later(self, moves: Sequence[Move]) -> list[Move]:
        """Take down what can be copied beside training, and give the others back."""
        now = []
        for move in moves:
            witness = witness_of(move.name, move.array, self._guarded)
            if witness is None:
                now.append(move)
            else:
                self._late.setdefault(move.destination.device, []).append(WitnessedMove(move, witness))
        return now

    def finish(self) -> Beside:
        """Make ready what goes on beside training."""
        return Beside(self._gate, self._queued, self._gate.prepare(self._late))


class Beside:
    """
    Copies that go on beside training once they have been started, and must be settled before they are used.

    They are started last of all that a save does while training waits: another thread that wakes up before asks for the
    interpreter and the processor in the middle of it.
    """

    def __init__(
        self,
        gate: Gate,
        queued: Sequence[DeviceCopies],
        legs: Sequence[_HostLeg | _DeviceLeg],
    ) -> None:
        self._gate = gate
        self._queued = queued
        self._legs = legs

    @property
    def is_open(self) -> bool:
        """Whether anything is copied that training does not wait for."""
        return bool(self._legs)

    def start(self) -> None:
        """Go on beside training; called once, before training does."""
        self._gate.start(self._legs)

    def settle(self) -> None:
        """
        Return once everything is copied and proven whole; called once, by the thread that writes.

        Raises:
            InvalidInputError: Kind ``capture.torn``: something was written to while it was being copied.
            DeadlineError: The copies have not ended in time.
        """
        for copies in self._queued:
            copies.complete()
        found = [what for leg in self._legs if (what := leg.settle())]
        if found:
            raise InvalidInputError(
                f"cannot use this capture: {found[0]} between the save and the next step of its optimizer",
                kind="capture.torn",
                hint="nothing is lost: the next boundary saves again, copying before training goes on; open the run "
                "with copy='before' to do so always",
                field="copy",
            )


def _late() -> DeadlineError:
    return DeadlineError(
        f"cannot go on: the copy beside training has not ended after {GATE_DEADLINE_SECONDS:g} s",
        kind="capture.deadline",
        hint="the machine is out of memory or stuck; open the run with copy='before'",
        waited_seconds=GATE_DEADLINE_SECONDS,
        holder="the copier's thread",
    )
