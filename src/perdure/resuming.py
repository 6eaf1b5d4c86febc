"""
Resuming: from what lies in the run directory to a live run under a new generation.

The order is that of a recovery: become the only writer, which mints a generation and fences whoever came before; put
aside what is damaged; restore the newest checkpoint that can be used; check that it works; and only then tell anyone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from perdure.core.component import Progress
from perdure.core.history import Rollback, is_superseded
from perdure.core.manifest import Grade
from perdure.core.selectors import select
from perdure.errors import CorruptionError, NothingRestorableError
from perdure.recovery.report import RestoreReport, SkippedCheckpoint
from perdure.recovery.restore import Recovery, Restored
from perdure.store.store import Checkpoint
from perdure.surroundings import Surroundings
from perdure.tiers.tiered import Tiered
from perdure.tracked import Tracked
from perdure.writership import Writership


class Resumption:
    """
    One start of a run.

    Args:
        store: The run directory and its memory tier.
        tracked: What is to be restored, in place.
        writership: Becomes this process's claim on the run.
        word: ``auto``, ``must``, ``never`` or a selector.
        accept: Components that may differ.
        say: Tells the user a line.
        watch: Gives what shows the user how far the reading of something is, by its name.
        surroundings: Time and versions.
    """

    def __init__(
        self,
        store: Tiered,
        tracked: Tracked,
        writership: Writership,
        *,
        word: str,
        accept: Iterable[str],
        say: Callable[[str], None],
        watch: Callable[[str], Progress],
        surroundings: Surroundings,
    ) -> None:
        self._store = store
        self._tracked = tracked
        self._writership = writership
        self._word = word
        self._say = say
        self._surroundings = surroundings
        self._recovery = Recovery(
            store,
            tracked.components,
            restore_meta=tracked.restore_meta,
            find_failures=tracked.find_failures,
            accept=accept,
            now=surroundings.now,
            on_skip=self._tell_skip,
            watch=watch,
        )

    def resume(self) -> tuple[RestoreReport, Checkpoint | None]:
        """
        Bring the run to life; on an error nobody has been told of a new generation.

        Returns:
            The report, and the checkpoint that the run continues from.
        """
        began = self._surroundings.monotonic()
        generation = self._writership.acquire()
        self._store.remove_leftovers()
        self._settle_memory()
        restored = self._recover()
        event = "restored" if restored else "started"
        if restored is not None:
            self._recovery.markers.finish(restored.checkpoint, generation)
        report = self._report(restored, generation, self._surroundings.monotonic() - began)
        self._store.events.append({"at": self._surroundings.now(), "event": event, **report.to_json()})
        for line in report.lines():
            self._say(line)
        return report, restored.checkpoint if restored else None

    def _settle_memory(self) -> None:
        checkpoint = self._store.newest_only_in_memory()
        try:
            settled = self._store.settle(self._writership.guard)
        except CorruptionError as error:
            assert checkpoint is not None
            self._recovery.put_aside(checkpoint.directory, error.message)
            return
        if settled is not None:
            manifest = settled.manifest
            event = {"event": "write-finished", "checkpoint": manifest.id, "step": manifest.global_step}
            self._store.events.append({"at": self._surroundings.now(), **event})

    def _recover(self) -> Restored | None:
        found, damaged = self._store.scan()
        for damage in damaged:
            self._recovery.put_aside(damage.directory, damage.error.message)
        if self._word == "never":
            return None
        automatic = self._word in ("auto", "must")
        candidates = found if automatic else [self._pick(found)]
        restored = self._recovery.restore(candidates, may_fall_back=automatic)
        # Where there were checkpoints, beginning anew would end a training that may be saved: it has to be asked for.
        if restored is None and (self._word == "must" or self._recovery.skipped or self._store.quarantined()):
            raise self._nothing()
        return restored

    def _pick(self, found: list[Checkpoint]) -> Checkpoint:
        chosen = select(self._word, [checkpoint.manifest for checkpoint in found], self._store.pins())
        return next(checkpoint for checkpoint in found if checkpoint.manifest is chosen)

    def _nothing(self) -> NothingRestorableError:
        skipped = self._recovery.skipped
        aside = self._store.quarantined()
        if skipped:
            why = f"none of {len(skipped)} can be used ({skipped[0].reason})"
        elif aside:
            why = f"every checkpoint is in quarantine ({aside[-1].get('reason', 'without a reason')})"
        else:
            why = "there are no checkpoints"
        return NothingRestorableError(
            f"cannot restore run {self._store.directory.name}: {why}",
            kind="run.nothing-restorable",
            hint="`perdure repair` shows what can be brought back, `perdure repair --without-lost` also what can be "
            "without some transitions; resume='never' starts fresh",
            name=self._store.directory.name,
        )

    def _report(self, restored: Restored | None, generation: int, seconds: float) -> RestoreReport:
        skipped = tuple(self._recovery.skipped)
        if restored is None:
            step = self._tracked.global_step
            return RestoreReport(None, step, generation, Grade.EXACT, skipped=skipped, seconds=seconds)
        manifest = restored.checkpoint.manifest
        here = self._surroundings.versions()
        versions = [
            f"{name} was {version}, is {here[name]}"
            for name, version in manifest.versions.items()
            if here.get(name, version) != version
        ]
        return RestoreReport(
            manifest.id,
            manifest.global_step,
            generation,
            restored.grade,
            components=restored.components,
            skipped=skipped,
            steps_lost=max(0, self._furthest_step() - manifest.global_step),
            seconds=seconds,
            notes=(*versions, *self._tracked.notes),
        )

    def _furthest_step(self) -> int:
        """The furthest step that the run's logs know of, rows of abandoned futures left out."""
        events = list(self._store.events.read())
        rollbacks = [
            Rollback(int(event["generation"]), int(event["step"]))
            for event in events
            if event.get("event") == "restored"
        ]
        rows = [*self._store.metrics.read(), *(event for event in events if event.get("event") == "saved")]
        return max(
            (
                int(row["step"])
                for row in rows
                if not is_superseded(int(row.get("generation", 0)), int(row["step"]), rollbacks)
            ),
            default=0,
        )

    def _tell_skip(self, skip: SkippedCheckpoint) -> None:
        self._say(f"skipping {skip.name}: {skip.reason}")
        self._store.events.append(
            {"at": self._surroundings.now(), "event": "quarantined", "checkpoint": skip.name, "reason": skip.reason}
        )
