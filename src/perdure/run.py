"""
The handle of a run: what it consists of, when it is saved, how it is restored.

The training thread calls everything here. Between two items of `Run.loop` is the only point at which all components
belong together, so that is where signals are polled, saves are taken and failures of earlier saves come to light.
"""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from perdure.audit import UntrackedStateWarning, find_untracked
from perdure.capture.gate import Gate
from perdure.capture.objects import is_optimizer
from perdure.capture.writer import DEFAULT_DEADLINE_SECONDS, SaveHandle
from perdure.committing import Committer
from perdure.complaints import Complaints
from perdure.core.component import Progress
from perdure.core.fencing import DEFAULT_MAX_STALENESS_STEPS
from perdure.core.manifest import Cut
from perdure.core.memory import MemoryPlan
from perdure.core.restarts import Phase
from perdure.core.saving import SavePolicy
from perdure.core.selectors import select
from perdure.errors import (
    CorruptionError,
    FencedError,
    InvalidInputError,
    PerdureError,
    StoppedError,
)
from perdure.extras import require
from perdure.namespaces import Namespace, declare
from perdure.pacing import Pace
from perdure.recovery.report import RestoreReport
from perdure.replay.bar import ProgressBar
from perdure.resuming import Resumption
from perdure.saver import Saver, SaverStatistics, is_torn
from perdure.settings import Settings
from perdure.stopping import StopFlag, grace_of
from perdure.store.sharing import sharing
from perdure.store.store import Checkpoint, Store
from perdure.supervise.beats import Beater
from perdure.surroundings import Surroundings
from perdure.tiers.memory import find_memory_store, make_memory_store
from perdure.tiers.tiered import Tiered
from perdure.tracked import Tracked
from perdure.writership import Writership

if TYPE_CHECKING:
    from perdure.cluster.actor import Actor
    from perdure.cluster.evaluator import Evaluator
    from perdure.cluster.inbox import Evaluation
    from perdure.cluster.learner import Learner


class Run:
    """
    One run, opened by `perdure.open`. A context manager; leaving it finishes what is being written.

    Not thread-safe: all methods belong to the training thread.
    """

    def __init__(self, store: Store, name: str, settings: Settings, surroundings: Surroundings) -> None:
        self.name = name
        self._store = store
        self._settings = settings
        self._surroundings = surroundings
        self._tracked = Tracked(dict(settings.config), settings.unpickle)
        self._loop_names: list[str] = []
        self._moved = False
        self._report: RestoreReport | None = None
        self._restored: Checkpoint | None = None
        self._stop = StopFlag(surroundings.monotonic, grace_of(os.environ))
        self._audited = False
        self._complaints = Complaints()
        self._gate = Gate()
        beater = Beater.of_member(surroundings.monotonic)
        beater.start()
        self._writership = Writership(store, settings.timing, beater)
        self._memory = self._open_memory(settings.ram)
        committer = Committer(
            store,
            self._memory,
            name,
            keep=settings.keep,
            algorithm=settings.algorithm,
            writership=self._writership,
            surroundings=surroundings,
        )
        self._saver = Saver(
            self._tracked.components,
            self._tracked.meta,
            committer,
            pace=self._pace(settings.save),
            memory_pace=None if settings.ram is None else self._pace(settings.ram),
            memory_bytes=settings.memory_bytes,
            gate=self._gate,
            surroundings=surroundings,
        )

    def _pace(self, policy: SavePolicy | None) -> Pace:
        return Pace(policy, self._settings.make_budget(), self._surroundings.monotonic())

    def _open_memory(self, ram: SavePolicy | None) -> Store | None:
        """The memory tier: what an earlier process left is used even by one that does not save there itself."""
        if ram is None:
            return find_memory_store(self._store, self._surroundings.new_id)
        return make_memory_store(self._store, self._surroundings.new_id, self._surroundings.now())

    def _both_tiers(self) -> Tiered:
        return Tiered(self._store, self._memory, self._surroundings.new_id)

    # What the run consists of

    def track(self, objects: Mapping[str, object] | None = None, /, **named: object) -> None:
        """
        Say what belongs to the run, by name.

        Modules, optimizers, schedulers, arrays, generators, environments, spaces, replay rings, containers of plain
        values and anything with ``state_dict``/``load_state_dict`` can be tracked. They are borrowed: captured at
        saves and restored in place. Nested dictionaries and names with slashes make groups (``agents/red/policy``).

        Raises:
            InvalidInputError: A name or object is tracked already, cannot be used, or comes after the restore.
        """
        if self._report is not None:
            raise InvalidInputError(
                "cannot track anything now: the run has been restored already",
                kind="track.too-late",
                hint="call run.track(...) before run.loop(...) or run.restore()",
                field=next(iter({**(objects or {}), **named}), None),
            )
        for value in self._tracked.add({**(objects or {}), **named}):
            if self._settings.copy == "beside" and is_optimizer(value):
                self._gate.watch(value)

    def counters(self, **initial: Any) -> Namespace:
        """
        Declare counters: JSON-able values that a restore puts back, such as ``global_step=0``.

        The one called ``global_step`` counts environment steps and is the step of every checkpoint.
        """
        declare(self._tracked.counters, initial)
        return self._tracked.counters

    def locals(self, **initial: Any) -> Namespace:
        """Declare loose values, such as the last observation: anything that a state tree can hold."""
        return self._tracked.declare_locals(initial)

    def metric(self, name: str, value: float, *, step: int | None = None) -> None:
        """Record a metric, such as ``eval/return``: for `Best`, for `OnImprovement` and for the curve of the run."""
        self._tracked.metrics[name] = float(value)
        self._store.metrics.append(
            {
                "at": self._surroundings.now(),
                "generation": self.generation,
                "step": self.global_step if step is None else step,
                "name": name,
                "value": float(value) if math.isfinite(value) else None,
            }
        )

    # Where the run stands

    @property
    def directory(self) -> Path:
        """The run's directory."""
        return self._store.directory

    @property
    def generation(self) -> int:
        """The generation that this process is; 0 before the restore."""
        return self._writership.generation

    @property
    def global_step(self) -> int:
        """Environment steps done: the counter ``global_step``, or the position of the outermost loop without one."""
        return self._tracked.global_step

    @property
    def report(self) -> RestoreReport:
        """What the restore did; restores if that has not happened."""
        return self._report if self._report is not None else self.restore()

    @property
    def should_stop(self) -> bool:
        """Whether the run has been asked to stop; for long inner loops, the boundary does the rest."""
        return self._stop.is_set()

    def preflight(self) -> MemoryPlan:
        """
        Say how much host memory saving will take, before anything is saved.

        Counts arrays of what is tracked, not what environments and loose values hold. For an optimizer that has not
        stepped yet, two arrays are counted for each parameter.

        Raises:
            InvalidInputError: Kind ``memory.too-small``: there is no room for a single capture.
        """
        return self._saver.plan_memory()

    def statistics(self) -> SaverStatistics:
        """Counts and costs of saving so far."""
        return self._saver.statistics()

    # Roles of a cluster

    def learner(
        self,
        *,
        learner_step: int = 0,
        max_staleness: int = DEFAULT_MAX_STALENESS_STEPS,
        on_evaluation: Callable[[Evaluation], None] | None = None,
    ) -> Learner:
        """
        Lead the run's actors and evaluators from this process; restores first.

        Members are told of the new generation by this and not before: whoever still works for an earlier one holds
        back what it has, or is fenced.

        Args:
            learner_step: Updates made so far; a restored counter knows.
            max_staleness: Updates by which the policy behind a sample may be behind.
            on_evaluation: Called with each evaluation that is let in, from a thread of its own; by default its metrics
                are recorded as if by `metric`.

        Raises:
            MissingDependencyError: The ``cluster`` extra is not installed.
            LeaseHeldError: Another live process leads the run.
        """
        if self._report is None:
            self.restore()
        require("zmq", extra="cluster")
        from perdure.cluster.learner import Learner

        learner = Learner(
            self.directory,
            self.name,
            generation=self.generation,
            mint=self._writership.mint,
            learner_step=learner_step,
            timing=self._settings.timing,
            max_staleness=max_staleness,
            on_event=self._record_event,
            on_evaluation=on_evaluation or self._record_evaluation,
        )
        self._writership.on_fenced(learner.fence)
        return learner

    def actor(self, name: str) -> Actor:
        """
        Collect samples for the run's learner from this process, under a name that is unique in the run.

        Raises:
            MissingDependencyError: The ``cluster`` extra is not installed.
        """
        require("zmq", extra="cluster")
        from perdure.cluster.actor import Actor

        self._writership.beater.set_phase(Phase.RUNNING)
        return Actor(self.directory, self.name, name, timing=self._settings.timing)

    def evaluator(self, name: str = "evaluator") -> Evaluator:
        """
        Evaluate the learner's weights from this process, under a name that is unique in the run.

        Raises:
            MissingDependencyError: The ``cluster`` extra is not installed.
        """
        require("zmq", extra="cluster")
        from perdure.cluster.evaluator import Evaluator

        self._writership.beater.set_phase(Phase.RUNNING)
        return Evaluator(self.directory, self.name, name, timing=self._settings.timing)

    def progress(self, count: int) -> None:
        """
        Tell the supervisor how far the main loop has come, in a process that does not use `loop`.

        Args:
            count: A number that grows over restarts too, such as the version of the weights that an actor works with.
        """
        self._writership.beater.set_progress(count)

    def _record_event(self, event: str, **fields: object) -> None:
        self._store.events.append(
            {"at": self._surroundings.now(), "event": event, "generation": self.generation, **fields}
        )

    def _record_evaluation(self, evaluation: Evaluation) -> None:
        for name, value in evaluation.metrics.items():
            self.metric(name, value)

    # The loop

    def loop(self, start: int, stop: int, step: int = 1, *, name: str = "loop") -> Iterator[int]:
        """
        Iterate as ``range`` does, over what is left to do.

        Restores before the first item; between items polls signals, saves when one is due and raises what went wrong
        with earlier saves. After the last item of the outermost loop everything is saved and committed.

        Raises:
            StoppedError: The run was asked to stop; everything is committed and the same command continues.
            FencedError: A newer generation has taken over.
        """
        if step < 1:
            raise InvalidInputError(
                f"cannot loop by steps of {step}: use at least 1", kind="loop.invalid", field="step"
            )
        if name in self._loop_names:
            raise InvalidInputError(
                f"cannot begin a second loop called {name!r}: both would share one position",
                kind="loop.invalid",
                hint="give every loop of a run a name of its own: run.loop(..., name='inner')",
                field="name",
            )
        if self._report is None:
            self.restore()
        frame = sys._getframe(1)  # noqa: SLF001 - the documented way to the caller's variables
        self._stop.install()
        positions = self._tracked.positions
        position = positions.setdefault(name, start)
        self._loop_names.append(name)
        try:
            while position < stop:
                yield position
                position += step
                positions[name] = position
                self._moved = True
                self.audit(frame.f_locals)
                self._boundary("loop")
        except GeneratorExit:
            self._loop_names.remove(name)
            raise
        if self._loop_names[0] != name:
            # An inner loop begins anew with the next item of the outer one.
            self._loop_names.remove(name)
            del positions[name]
        else:
            self.finish()

    def boundary(self, *, moved: bool = True) -> None:
        """
        Do what `loop` does between two items, for a training loop that belongs to a framework.

        Call it where all components belong together, also once before the first step: signals are taken over then.
        Restores if that has not happened; polls signals, saves when one is due and raises what went wrong with
        earlier saves. A crash in here leaves the checkpoints that were committed before.

        Args:
            moved: Whether training has gone on since the last call.

        Raises:
            StoppedError: The run was asked to stop; everything is committed and the same command continues.
            FencedError: A newer generation has taken over.
            StoreError: The disk refused a save, and the run was opened with ``on_failed_save="raise"``.
        """
        if self._report is None:
            self.restore()
        self._stop.install()
        self._moved = self._moved or moved
        self._boundary("loop")

    def stop_if_asked(self) -> None:
        """
        Stop here, in the middle of an item, if the run has been asked to stop.

        For items that wait for something, such as samples: call it where the item has not changed anything yet. What
        the items before it did is saved, and the same command begins this item anew.

        Raises:
            StoppedError: As out of `loop`.
        """
        if self._stop.is_set():
            self._boundary("loop")

    def audit(self, variables: Mapping[str, Any]) -> None:
        """
        Warn once of training state among ``variables`` that nothing tracks; `loop` looks around itself.

        Args:
            variables: Objects by the name that the warning gives them.
        """
        if self._audited:
            return
        self._audited = True
        forgotten = find_untracked(variables, self._tracked.values())
        if forgotten:
            warnings.warn(
                f"not saved: {', '.join(forgotten)}; track them with run.track(...) if training depends on them",
                UntrackedStateWarning,
                stacklevel=3,
            )

    def _boundary(self, boundary: str) -> None:
        self._surface()
        self._writership.beater.set_progress(self.global_step, self.global_step)
        stop = self._stop.is_set()
        due = self._saver.decide(
            self.global_step,
            self._tracked.metrics,
            moved=self._moved,
            stop=stop,
            remaining_seconds=self._stop.remaining_seconds,
        )
        if due is not None:
            self._save(boundary, due.reason, wait_seconds=DEFAULT_DEADLINE_SECONDS if stop else 0.0)
        elif (due := self._saver.decide_memory(self.global_step, self._tracked.metrics)) is not None:
            self._saver.save_to_memory(Cut(self.global_step, boundary), due.reason, self._tracked.metrics)
        if stop:
            self._stop_here()

    def _stop_here(self) -> None:
        committed = "all is committed"
        if self._moved:
            left, expected = self._stop.remaining_seconds, self._saver.expected_seconds
            self._record_event(
                "stopped-unsaved", step=self.global_step, remaining_seconds=left, expected_seconds=expected
            )
            committed = (
                f"what came after the last save is not saved: {left:.1f} s were left and a save takes {expected:.1f} s"
            )
        self._drain()
        raise StoppedError(
            f"run {self.name} stopped on {self._stop.signal_name} at step {self.global_step:,}; {committed}",
            kind="run.stopped",
            hint="run the same command again to continue",
            signal=self._stop.signal_name,
            step=self.global_step,
        )

    def finish(self) -> None:
        """
        Save what has not been saved yet and return once it is committed; `loop` does so after its last item.

        Raises:
            FencedError: A newer generation has taken over.
            PerdureError: The save failed, or did not end in time.
        """
        self._surface()
        due = self._saver.decide(self.global_step, self._tracked.metrics, moved=self._moved, final=True)
        if due is not None:
            self._save("loop", due.reason, wait_seconds=DEFAULT_DEADLINE_SECONDS)
        self._drain()

    def _drain(self) -> None:
        """Wait for what is being written, and raise if the last of it did not become a checkpoint."""
        self._saver.drain(DEFAULT_DEADLINE_SECONDS)
        ended, _ = self._saver.collect_finished()
        if ended and ended[-1].error is not None:
            raise ended[-1].error

    # Saving

    def save(self, reason: str = "asked") -> SaveHandle:
        """
        Save now. Call it where all components belong together, such as between two updates.

        Returns:
            A handle, once everything is captured: training may go on. Nothing is durable until ``handle.committed``.

        Raises:
            FencedError: A newer generation has taken over.
            InvalidInputError: Something tracked cannot be stored.
        """
        if self._report is None:
            self.restore()
        self._surface()
        return self._save("call", reason, wait_seconds=DEFAULT_DEADLINE_SECONDS)

    def _save(self, boundary: str, reason: str, *, wait_seconds: float) -> SaveHandle:
        handle = self._saver.save(
            Cut(self.global_step, boundary), reason, self._tracked.metrics, wait_for_arena_seconds=wait_seconds
        )
        if not handle.skipped:
            self._moved = False
        return handle

    def _surface(self) -> None:
        """Bring what happened in the background to the training thread."""
        self._writership.check()
        try:
            self._tracked.check()
        except CorruptionError as error:
            self._distrust(error)
            raise
        ended, stretch = self._saver.collect_finished()
        for handle in ended:
            if handle.error is None:
                continue
            self._moved = True
            if isinstance(handle.error, FencedError) or (
                self._settings.on_failed_save == "raise" and not is_torn(handle)
            ):
                raise handle.error
            self._complaints.of_failure(handle)
        self._complaints.of_stretch(stretch)
        self._complaints.of_stall(self._saver.busy_seconds, self._saver.holder)

    def _distrust(self, error: CorruptionError) -> None:
        """
        Put the checkpoint aside that this run was restored from, and those that share the damaged file with it.

        The next start must not meet the same damage, which would be found only when it trains again.
        """
        restored = self._restored
        if restored is not None and restored.directory.is_dir():
            tiers = self._both_tiers()
            for checkpoint in [restored, *sharing(tiers.scan()[0], restored, error.path)]:
                tiers.quarantine(checkpoint.directory, error.message, self._surroundings.now())
                self._record_event("quarantined", checkpoint=checkpoint.directory.name, reason=error.message)
        self._restored = None

    # Restoring

    def restore(self) -> RestoreReport:
        """
        Bring everything tracked to the newest checkpoint that can be used, or start fresh.

        Becomes the run's only writer and mints a new generation. Called by `loop` and `save` if need be.

        Raises:
            NothingRestorableError: Checkpoints were required or had existed, and none can be used.
            IncompatibleError: The checkpoint does not fit the program; nothing was changed.
            LeaseHeldError: Another live process is training this run.
        """
        if self._report is not None:
            raise InvalidInputError(
                "cannot restore twice: the run is live", kind="restore.twice", hint="open the run again", field=None
            )
        tiers = self._both_tiers()
        resumption = Resumption(
            tiers,
            self._tracked,
            self._writership,
            word=self._settings.resume,
            accept=self._settings.accept,
            say=self._say,
            watch=self._watch,
            surroundings=self._surroundings,
        )
        self._report, checkpoint = resumption.resume()
        self._restored = checkpoint
        self._complaints.of_memory(self._saver.begin(self._report.step, checkpoint))
        if checkpoint is not None and not tiers.is_durable(checkpoint):
            self._saver.finish_write(checkpoint)
        self._writership.announce()
        return self._report

    def _say(self, line: str) -> None:
        if not self._settings.quiet:
            sys.stderr.write(f"perdure: {self.name}: {line}\n")
            sys.stderr.flush()

    def _watch(self, name: str) -> Progress:
        if self._settings.quiet:
            return lambda *_: None
        what = f"perdure: {self.name}: restoring {name}"
        return ProgressBar(what, patience_seconds=2.0)

    # Ending

    def pin(self, name: str, selector: str = "latest") -> None:
        """
        Protect a checkpoint from every clean-up, under a name.

        Raises:
            NotFoundError: There is no such checkpoint.
            AlreadyExistsError: The name pins another one.
        """
        found = self._store.checkpoints()
        chosen = select(selector, [checkpoint.manifest for checkpoint in found], self._store.pins())
        self._store.pin(next(checkpoint for checkpoint in found if checkpoint.manifest is chosen), name)

    def close(self) -> None:
        """
        Finish what is being written and let go of the run.

        Raises:
            PerdureError: The last save failed, or did not end in time.
        """
        self._close("")

    def _close(self, last_words: str) -> None:
        self._writership.beater.set_phase(Phase.DRAINING)
        try:
            self._saver.close(DEFAULT_DEADLINE_SECONDS)
            ended, _ = self._saver.collect_finished()
        finally:
            self._stop.restore()
            self._writership.release(last_words)
        if ended and ended[-1].error is not None:
            raise ended[-1].error

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        if isinstance(error, CorruptionError):
            self._distrust(error)
        try:
            self._close(error.kind if isinstance(error, PerdureError) else type(error).__name__)
        except PerdureError as second:
            # The program's own error is the one that matters; this one must not hide it.
            self._say(f"while closing: {second}")
