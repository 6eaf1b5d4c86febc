"""This process's place in a run: whether it is the writer, in which generation, and what its supervisor hears."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from perdure.cluster.control import Control
from perdure.cluster.writer import WriterLease
from perdure.core.leases import Timing
from perdure.core.restarts import Phase
from perdure.errors import FencedError, InternalError
from perdure.store.store import Store
from perdure.supervise.beats import Beater


class Writership:
    """
    The writer's lease of a run, once it is held, and the beats to a supervisor, where there is one.

    Args:
        store: The run directory.
        timing: How long a writer may be silent; alike in all processes of the run.
        beater: Sends beats; does nothing without a supervisor.
    """

    def __init__(self, store: Store, timing: Timing, beater: Beater) -> None:
        self._store = store
        self._timing = timing
        self._lease: WriterLease | None = None
        self._on_fenced: list[Callable[[FencedError], None]] = []
        self.beater = beater

    @property
    def generation(self) -> int:
        """The generation that this process works in; 0 if it is not the writer."""
        return self._lease.generation if self._lease else 0

    def acquire(self) -> int:
        """
        Become the run's only writer, in a new generation that is durable and fences whoever was the writer before.

        Nobody is told of it here: it is announced when the restore has worked.

        Raises:
            LeaseHeldError: Another live process is the writer.
        """
        self.beater.set_phase(Phase.RESTORING)
        owner = f"{socket.gethostname()}:{os.getpid()}"
        known = [checkpoint.manifest.generation for checkpoint in self._store.checkpoints()]
        control = Control(self._store.directory, timing=self._timing)
        self._lease = control.acquire(owner, floor=max(known, default=0), reason="restore")
        self._lease.start_beating(self._tell_fenced)
        return self._lease.generation

    def on_fenced(self, callback: Callable[[FencedError], None]) -> None:
        """Have something called, from a thread of the lease, when this process is superseded."""
        self._on_fenced.append(callback)

    def _tell_fenced(self, error: FencedError) -> None:
        for callback in self._on_fenced:
            callback(error)

    def announce(self) -> None:
        """Say that the restore has worked and training goes on."""
        self.beater.set_generation(self.generation)
        self.beater.set_phase(Phase.RUNNING)

    def mint(self, reason: str) -> int:
        """Start a new generation and go on as its writer."""
        if self._lease is None:
            raise InternalError("a generation was asked for before the run was restored", kind="writership.absent")
        generation = self._lease.mint(reason)
        self.beater.set_generation(generation)
        return generation

    def guard(self) -> AbstractContextManager[object]:
        """A block in which this process is known to be the writer."""
        return self._lease.guard() if self._lease else nullcontext()

    def check(self) -> None:
        """
        Do nothing if, as far as is known, this process is still the writer.

        Raises:
            FencedError: It was superseded.
        """
        if self._lease is not None:
            self._lease.check()

    def release(self, last_words: str = "") -> None:
        """
        Let go of the run.

        Args:
            last_words: Kind of the error that ends this process, by which a supervisor decides what to do next.
        """
        self.beater.stop(last_words)
        if self._lease is not None:
            self._lease.release()
