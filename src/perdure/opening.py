"""Opening: from the arguments of a program and its environment to the handle of a run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from perdure.core.keeping import keep_text
from perdure.core.leases import Timing
from perdure.core.names import check_segment
from perdure.core.retention import KeepPolicy
from perdure.core.saving import DEFAULT_BUDGET_SHARE, SavePolicy
from perdure.errors import InvalidInputError
from perdure.files.door import Files
from perdure.run import Run
from perdure.settings import DEFAULT_KEEP, DEFAULT_SAVE, Settings
from perdure.store.keyfile import environment_keys
from perdure.store.store import Store
from perdure.surroundings import Surroundings


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
            Takes memory for one more copy of the state, and for what replay buffers took in since the last save to
            the disk.
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
    settings = Settings(
        save=save,
        keep=keep,
        resume=resume or os.environ.get("PERDURE_RESUME") or "auto",
        accept=tuple(accept),
        unpickle=tuple(unpickle),
        budget=budget,
        copy=copy,
        memory_bytes=memory_bytes,
        ram=ram,
        algorithm=algorithm,
        config=dict(config or {}),
        on_failed_save=on_failed_save,
        timing=timing or Timing(),
        quiet=quiet,
    )
    name = check_segment(run or os.environ.get("PERDURE_RUN") or "default", "run name")
    root = Path(where or os.environ.get("PERDURE_STORE") or "runs")
    surroundings = Surroundings()
    files = Files()
    store = Store(root / name, files, surroundings.new_id, environment_keys(files, os.environ))
    store.create(name, surroundings.now(), _keep_text(keep))
    return Run(store, name, settings, surroundings)


def _keep_text(keep: KeepPolicy | None) -> str | None:
    try:
        return None if keep is None else keep_text(keep)
    except InvalidInputError:
        return None  # a policy of the user's own, which has no text form
