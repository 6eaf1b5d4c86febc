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
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from perdure.audit import UntrackedStateWarning, find_untracked
from perdure.capture.gate import Gate
from perdure.capture.objects import is_optimizer
from perdure.capture.writer import DEFAULT_DEADLINE_SECONDS, SaveHandle
from perdure.committing import Committer
from perdure.core.fencing import DEFAULT_MAX_STALENESS_STEPS
from perdure.core.keeping import keep_text
from perdure.core.leases import Timing
from perdure.core.manifest import Cut
from perdure.core.memory import WANTED_ARENAS, MemoryPlan
from perdure.core.names import check_segment
from perdure.core.restarts import Phase
from perdure.core.retention import KeepPolicy, Last
from perdure.core.saving import DEFAULT_BUDGET_SHARE, Budget, Every, SavePolicy
from perdure.core.selectors import select
from perdure.errors import (
    CorruptionError,
    FencedError,
    InvalidInputError,
    PerdureError,
    StoppedError,
)
from perdure.extras import require
from perdure.files.door import Files
from perdure.namespaces import Namespace, declare
from perdure.pacing import Pace
from perdure.recovery.report import RestoreReport
from perdure.resuming import Resumption
from perdure.saver import Saver, SaverStatistics, describe_failure, is_torn
from perdure.stopping import StopFlag, grace_of
from perdure.store.keyfile import environment_keys
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

DEFAULT_SAVE = Every(seconds=600)
DEFAULT_KEEP = Last(3)
STALL_SECONDS = 30.0
"""A save that is longer in the making is worth a warning, and another each time that the wait has doubled."""
COPIES = ("before", "beside")


class SaveFailedWarning(UserWarning):
    """A background save failed; training goes on and the checkpoints before it are safe."""


class SaveBudgetWarning(UserWarning):
    """Saving costs more time than its budget, or more memory than there is, so it happens less often."""


class SaveStalledWarning(SaveFailedWarning):
    """A save has been in the making for long; training goes on, and what it does meanwhile is not saved."""


def open(  # noqa: A001 - read as perdure.open
    where: str | os.PathLike[str] | None = None,
    *,
    run: str | None = None,
    save: SavePolicy | None = DEFAULT_SAVE,
    keep: KeepPolicy | None = DEFAULT_KEEP,
    resume: str | None = None,
    accept: Iterable[str] = (),
    unpickle: Iterable[str] = (),
    budget: float | None = DEFAULT_BUDGET_SHARE,
    copy: str = "before",
    memory_bytes: int | None = None,
    ram: SavePolicy | None = None,
    algorithm: str | None = None,
    config: Mapping[str, Any] | None = None,
    on_failed_save: str = "warn",
    timing: Timing | None = None,
    quiet: bool = False,
) -> Run:
    """
    Open a run, new or old. Running the same command again continues it.

    Nothing is read or written but the run's directory is made; the restore happens when the loop begins, or when
    `Run.restore` is called.

    Args:
        where: Directory that holds runs; ``PERDURE_STORE`` or ``runs`` if not given.
        run: The run's name; ``PERDURE_RUN`` or ``default`` if not given.
        save: When to save besides on a stop and at the end; None for never.
        keep: Which checkpoints to keep besides the newest and pinned ones; None for all.
        resume: ``auto`` continues or starts fresh, ``must`` fails if there is nothing to continue, ``never`` starts
            fresh beside what is there; anything else picks a checkpoint (see `perdure.core.selectors`).
            ``PERDURE_RESUME`` or ``auto`` if not given.
        accept: Names of components that may differ between program and checkpoint; ``*`` for all.
        unpickle: Names of components that were saved as `Pickled` and may be unpickled, which runs code that the file
            names: only for runs that nobody else could write.
        budget: Share of time that saving may cost before its intervals stretch; None for no limit.
        copy: ``before`` copies everything before a save returns. ``beside`` copies parameters and moments of tracked
            optimizers while training goes on, until the optimizer's next step; use it if nothing but these steps, and
            nothing through ``.data``, changes a part of a parameter (docs/explanation/pipeline.md).
        memory_bytes: Host memory that captures may take; None for as much as two copies of the state.
        ram: When to save to shared memory, besides: for a restart after a process has died, not after the machine has.
            Takes up to twice the state's size there, and is not for what is written in parts, such as replay buffers.
        algorithm: Named in manifests, for people.
        config: JSON-able settings, stored with every checkpoint; a difference on resume is reported.
        on_failed_save: ``warn`` goes on without the failed save, ``raise`` ends training at the next boundary.
        timing: How often processes of the run beat, and how long they may be silent; alike in all of them.
        quiet: Print nothing on standard error.

    Raises:
        InvalidInputError: A name or word cannot be used.
        StoreError: The directory cannot be made or a file is in the way.
        FormatError: The run was written by a newer perdure.

    Manifests are signed, and must be signed to be believed, if ``PERDURE_KEY_FILE`` names keys.

    Example:
        >>> with perdure.open("runs", run="ppo", save=Every(steps=10_000)) as run:  # doctest: +SKIP
        ...     run.track(policy=policy, optimizer=optimizer)
        ...     for update in run.loop(1, 1001):
        ...         train(policy, optimizer)
    """
    if on_failed_save not in ("warn", "raise"):
        raise InvalidInputError(
            f"cannot use on_failed_save={on_failed_save!r}: it is 'warn' or 'raise'",
            kind="open.invalid",
            field="on_failed_save",
        )
    if copy not in COPIES:
        raise InvalidInputError(
            f"cannot use copy={copy!r}: it is 'before' or 'beside'", kind="open.invalid", field="copy"
        )
    name = check_segment(run or os.environ.get("PERDURE_RUN") or "default", "run name")
    root = Path(where or os.environ.get("PERDURE_STORE") or "runs")
    surroundings = Surroundings()
    files = Files()
    store = Store(root / name, files, surroundings.new_id, environment_keys(files, os.environ))
    store.create(name, surroundings.now(), _keep_text(keep))
    return Run(
        store,
        name,
        save=save,
        keep=keep,
        resume=resume or os.environ.get("PERDURE_RESUME") or "auto",
        accept=accept,
        unpickle=unpickle,
        budget=Budget(budget) if budget is not None else None,
        copy=copy,
        memory_bytes=memory_bytes,
        ram=ram,
        algorithm=algorithm,
        config=dict(config or {}),
        on_failed_save=on_failed_save,
        timing=timing or Timing(),
        quiet=quiet,
        surroundings=surroundings,
    )


def _keep_text(keep: KeepPolicy | None) -> str | None:
    try:
        return None if keep is None else keep_text(keep)
    except InvalidInputError:
        return None  # a policy of the user's own, which has no text form


class Run:
    """
    One run, opened by `perdure.open`. A context manager; leaving it finishes what is being written.

    Not thread-safe: all methods belong to the training thread.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        save: SavePolicy | None,
        keep: KeepPolicy | None,
        resume: str,
        accept: Iterable[str],
        unpickle: Iterable[str],
        budget: Budget | None,
        copy: str,
        memory_bytes: int | None,
        ram: SavePolicy | None,
        algorithm: str | None,
        config: dict[str, Any],
        on_failed_save: str,
        timing: Timing,
        quiet: bool,
        surroundings: Surroundings,
    ) -> None:
        self.name = name
        self._store = store
        self._resume = resume
        self._accept = tuple(accept)
        self._on_failed_save = on_failed_save
        self._quiet = quiet
        self._surroundings = surroundings
        self._timing = timing
        self._tracked = Tracked(config, tuple(unpickle))
        self._loop_names: list[str] = []
        self._moved = False
        self._report: RestoreReport | None = None
        self._restored: Checkpoint | None = None
        self._stop = StopFlag(surroundings.monotonic, grace_of(os.environ))
        self._audited = False
        self._told_stretch = 1.0
        self._told_stall_seconds = STALL_SECONDS / 2
        self._gate = Gate()
        self._copies_beside = copy == "beside"
        beater = Beater.of_member(surroundings.monotonic)
        beater.start()
        self._writership = Writership(store, timing, beater)
        self._memory = memory = self._open_memory(ram)
        committer = Committer(
            store,
            memory,
            name,
            keep=keep,
            algorithm=algorithm,
            writership=self._writership,
            surroundings=surroundings,
        )
        self._saver = Saver(
            self._tracked.components,
            self._tracked.meta,
            committer,
            pace=Pace(save, budget, surroundings.monotonic()),
            memory_pace=None if ram is None else Pace(ram, budget, surroundings.monotonic()),
            memory_bytes=memory_bytes,
            gate=self._gate,
            surroundings=surroundings,
        )

    def _open_memory(self, ram: SavePolicy | None) -> Store | None:
        """The memory tier: what an earlier process left is used even by one that does not save there itself."""
        if ram is None:
            return find_memory_store(self._store, self._store.files, self._surroundings.new_id)
        return make_memory_store(self._store, self._store.files, self._surroundings.new_id, self._surroundings.now())

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
            if self._copies_beside and is_optimizer(value):
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
            timing=self._timing,
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
        return Actor(self.directory, self.name, name, timing=self._timing)

    def evaluator(self, name: str = "evaluator") -> Evaluator:
        """
        Evaluate the learner's weights from this process, under a name that is unique in the run.

        Raises:
            MissingDependencyError: The ``cluster`` extra is not installed.
        """
        require("zmq", extra="cluster")
        from perdure.cluster.evaluator import Evaluator

        self._writership.beater.set_phase(Phase.RUNNING)
        return Evaluator(self.directory, self.name, name, timing=self._timing)

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
            if isinstance(handle.error, FencedError) or (self._on_failed_save == "raise" and not is_torn(handle)):
                raise handle.error
            warnings.warn(f"{describe_failure(handle)}; training goes on", SaveFailedWarning, stacklevel=4)
        if stretch == 1.0:
            self._told_stretch = 1.0
        elif stretch > self._told_stretch:
            # Once more only when it has doubled: the first warning says it all.
            self._told_stretch = 2 * stretch
            self._warn_of_budget(stretch)

        self._warn_of_stall()

    def _warn_of_stall(self) -> None:
        seconds = self._saver.busy_seconds
        if seconds < STALL_SECONDS:
            self._told_stall_seconds = STALL_SECONDS / 2
        elif seconds >= 2 * self._told_stall_seconds:
            self._told_stall_seconds = seconds
            warnings.warn(
                f"nothing is being saved: all waits for {self._saver.holder}; training goes on, look at the disk",
                SaveStalledWarning,
                stacklevel=5,
            )

    def _distrust(self, error: CorruptionError) -> None:
        """Put the checkpoint aside that this run was restored from: the next start must not meet the same damage."""
        restored = self._restored
        if restored is not None and restored.directory.is_dir():
            self._both_tiers().quarantine(restored.directory, error.message, self._surroundings.now())
            self._record_event("quarantined", checkpoint=restored.directory.name, reason=error.message)
        self._restored = None

    def _warn_of_budget(self, stretch: float) -> None:
        warnings.warn(
            f"saving costs more than its share of the time; the interval is now {stretch:.1f} times as long",
            SaveBudgetWarning,
            stacklevel=5,
        )

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
            word=self._resume,
            accept=self._accept,
            say=self._say,
            surroundings=self._surroundings,
        )
        self._report, checkpoint = resumption.resume()
        self._restored = checkpoint
        self._warn_of_memory(self._saver.begin(self._report.step, checkpoint))
        if checkpoint is not None and not tiers.is_durable(checkpoint):
            self._saver.finish_write(checkpoint)
        self._writership.announce()
        return self._report

    def _warn_of_memory(self, plan: MemoryPlan) -> None:
        if plan.arenas < WANTED_ARENAS:
            room = plan.available_bytes if plan.limit_bytes is None else plan.limit_bytes
            warnings.warn(
                f"there is memory for one capture of {plan.state_bytes:,} bytes, not for {WANTED_ARENAS} ({room:,} "
                "bytes are free): a save that comes due while another is being written is skipped",
                SaveBudgetWarning,
                stacklevel=4,
            )

    def _say(self, line: str) -> None:
        if not self._quiet:
            sys.stderr.write(f"perdure: {self.name}: {line}\n")
            sys.stderr.flush()

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
