"""The tiers of the proof, as functions that fill a report: the same code shows perdure right and planted bugs wrong."""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, product
from pathlib import Path

from perdure.core.retention import Last
from perdure.errors import PerdureError
from perdure.files.door import Files
from perdure.store.layout import STAGING, TEMPORARY_PREFIX
from perdure.store.store import Checkpoint, Store
from perdure.testing.crash import CrashState, Materializer, Tree, crash_states, digest_of_tree, read_tree
from perdure.testing.faults import ERRORS, SHORT_WRITE, Fault, FaultyFiles
from perdure.testing.interception import READING
from perdure.testing.promises import Event, Promises, Value, observe
from perdure.testing.recording import Operation
from perdure.testing.scenario import Scenario, numbered_ids
from tests.descriptors import open_beneath
from tests.durability.workloads import FAMILIES, SEGMENTS, WORKLOADS, Workload, World

MARKERS = ("marker.json", "restoring.step", "restored.step")


@dataclass
class Report:
    """
    What a tier tried and what it found wrong.

    Attributes:
        tried: Cases.
        states: Digests of the distinct trees among them.
        checked: What has been checked already, and need not be again.
        violations: Broken promises, for people.
        stops_early: Whether the first violation is enough.
    """

    tried: int = 0
    states: set[bytes] = field(default_factory=set)
    checked: set[tuple[bytes, str]] = field(default_factory=set)
    violations: list[str] = field(default_factory=list)
    stops_early: bool = False

    @property
    def is_done(self) -> bool:
        """Whether nothing more has to be tried."""
        return self.stops_early and bool(self.violations)


@contextmanager
def workspace() -> Iterator[Path]:
    """A directory in memory where there is one, because thousands of small files are made in it."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="perdure-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def look(store: Store) -> dict[str, Value]:
    """What a process sees in a run directory that it has just come to."""
    try:
        return observe(store, MARKERS)
    except (PerdureError, OSError, ValueError) as error:
        return {"looking": repr(error)}


def go_on(directory: Path, promises: Promises, seed: str = "next") -> list[str]:
    """What is wrong when the next process takes the run over: it starts, saves, and leaves nothing lying about."""
    scenario = Scenario(directory, Files(), promises.note, seed, generation=1_000)
    try:
        scenario.start()
        checkpoint = scenario.save(99)
    except PerdureError as error:
        return [f"the next process cannot go on: {error!r}"]
    problems = promises.violations(look(scenario.store))
    if scenario.store.checkpoints()[0].manifest.id != checkpoint.manifest.id:
        problems.append("what was saved last is not the newest")
    left = [path.name for path in (directory / STAGING).iterdir()]
    left += [path.name for path in directory.rglob(f"{TEMPORARY_PREFIX}*")]
    return problems + [f"{name} is left over" for name in left]


# Crash states


def record(workload: Workload) -> World:
    """Run a workload and keep what it did."""
    with workspace() as root:
        world = World(root)
        workload(world)
        return world


def explore_crashes(operations: Sequence[Operation], report: Report, *, begin: int = 0, go_on_every: int = 16) -> None:
    """Check every state that a power cut can leave; in one of ``go_on_every``, also that life goes on."""
    histories = _Histories(operations)
    with workspace() as shown, workspace() as lived:
        materializer = Materializer(shown)
        for state in crash_states(operations, demanding=_is_demanding, begin=begin):
            tree = digest_of_tree(state.tree)
            promised = histories.until(state.after)
            case = (tree, promised.key)
            if case in report.checked:
                continue
            if report.is_done:
                return
            report.tried += 1
            report.states.add(tree)
            report.checked.add(case)
            materializer.show(state.tree)
            for run, promises in promised.by_run.items():
                problems = promises.violations(look(Store(shown / run, Files(), numbered_ids("reader"))))
                if not problems and tree[0] % go_on_every == 0:
                    problems = _go_on_in_a_copy(state.tree, lived / tree.hex(), run, promises)
                report.violations += [f"{problem} after {describe(state, operations)}" for problem in problems]


def describe(state: CrashState, operations: Sequence[Operation]) -> str:
    """Say where a state comes from."""
    lost = f" without [{'; '.join(state.lost)}]" if state.lost else ""
    return f"operation {state.after} ({operations[state.after - 1]}){lost}"


def _go_on_in_a_copy(tree: Tree, root: Path, run: str, promises: Promises) -> list[str]:
    root.mkdir()
    try:
        Materializer(root).show(tree)
        return go_on(root / run, copy.deepcopy(promises))
    finally:
        shutil.rmtree(root)


def _is_demanding(mark: tuple[str, Event]) -> bool:
    return mark[1].acknowledged


class _Histories:
    """Promises of each run as of a point of a recording; points must not fall."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = operations
        self._position = 0
        marks = [operation.mark for operation in operations if operation.name == "mark"]
        self.by_run = {run: Promises() for run, _ in marks}
        self.key = ""

    def until(self, after: int) -> _Histories:
        new = [operation for operation in self._operations[self._position : after] if operation.name == "mark"]
        for run, event in (operation.mark for operation in new):
            self.by_run[run].note(event)
        if new or not self.key:
            self.key = "|".join(promises.key() for promises in self.by_run.values())
        self._position = after
        return self


def explore_workload(name: str, report: Report) -> None:
    """All crash states of one workload."""
    explore_crashes(record(WORKLOADS[name]).operations, report)


def explore_family(name: str, stride: int, report: Report) -> None:
    """All crash states of every ``stride``-th member of a family."""
    before: Sequence[Operation] = ()
    for at in count(1, stride):
        world = record(FAMILIES[name].workload(at))
        if world.calls < at or report.is_done:
            return
        # Where a member has done the same as the one before it, its states are the same.
        begin = next((i for i, (a, b) in enumerate(zip(before, world.operations, strict=False)) if a != b), len(before))
        explore_crashes(world.operations, report, begin=max(0, begin - 1))
        before = world.operations


# Failing calls

Act = Callable[[Scenario, Checkpoint, Checkpoint], object]
"""Gets a process and the two checkpoints of its run, the newer one first; the newer one is pinned."""


def _prepare(scenario: Scenario) -> tuple[Checkpoint, Checkpoint]:
    scenario.start()
    older = scenario.save(10, SEGMENTS)
    newer = scenario.save(20, SEGMENTS, linked=older)
    scenario.pin(newer, "good")
    scenario.note("marker.json", "models")
    return newer, older


ACTS: dict[str, Act] = {
    "start": lambda process, newer, older: process.start(),
    "save": lambda process, newer, older: process.save(30),
    "linked save": lambda process, newer, older: process.save(30, SEGMENTS, linked=newer),
    "large save": lambda process, newer, older: process.save(30, {"model/large": 2**20 + 5}, pieces=2),
    "remove": lambda process, newer, older: process.remove(older),
    "retain": lambda process, newer, older: process.retain(Last(1)),
    "quarantine": lambda process, newer, older: process.quarantine(newer),
    "mend": lambda process, newer, older: process.mend(newer, "meta.json"),
    "renew": lambda process, newer, older: process.renew(newer),
    "pin": lambda process, newer, older: process.pin(newer, "better"),
    "unpin": lambda process, newer, older: process.unpin("good"),
    "note": lambda process, newer, older: process.note("marker.json", "replay"),
    "forget": lambda process, newer, older: process.forget("marker.json"),
    "log": lambda process, newer, older: process.log("something"),
    "read": lambda process, newer, older: process.read_all(),
}


TENDS_A_HINT = {"start", "quarantine"}
"""Acts that end in putting ``latest`` right; if that cannot be found out the hint stays, and the act succeeds."""


def _only_read(files: FaultyFiles) -> bool:
    return all(name in READING or name == "close" for name in files.struck)


def fail_every_call(name: str, report: Report, faults: Sequence[Fault] = ERRORS) -> None:
    """Let each fault happen to each call of an act, once and for ever, and look what is left each time."""
    with workspace() as root:
        events: list[Event] = []
        checkpoints = _prepare(Scenario(root / "run", Files(), events.append, "first"))
        prepared = read_tree(root)
        for fault, forever in product(faults, (False, True)):
            for at in count(1):
                shutil.rmtree(root / "run")
                Materializer(root).show(prepared)
                files = FaultyFiles(fault, at, forever=forever)
                problems = _fail_one_call(root / "run", name, files, checkpoints, Promises(events))
                if not files.struck or report.is_done:
                    break
                report.tried += 1
                where = f"{fault.name} {'for ever' if forever else 'once'} at call {at} ({files.struck[0]}) of {name}"
                report.violations += [f"{problem}, {where}" for problem in problems]


def _fail_one_call(
    directory: Path, name: str, files: FaultyFiles, checkpoints: tuple[Checkpoint, Checkpoint], promises: Promises
) -> list[str]:
    descriptors = open_beneath(directory)
    problems = []
    try:
        ACTS[name](Scenario(directory, files, promises.note, "second", generation=2), *checkpoints)
    except PerdureError as error:
        if not files.struck:
            problems.append(f"it fails without a fault: {error!r}")
    except OSError as error:
        problems.append(f"a bare {error!r} comes out")
    else:
        if files.struck and files.fault is not SHORT_WRITE and not (name in TENDS_A_HINT and _only_read(files)):
            problems.append("the error is swallowed")
    if open_beneath(directory) != descriptors:
        problems.append("a descriptor is left open")
    problems += promises.violations(look(Store(directory, Files(), numbered_ids("reader"))))
    return problems + go_on(directory, promises)
