"""
Small histories of a run directory, of at most three saves each: with everything small tried, little is left for large.

A workload is a function that lets processes act in a `World`. A *family* is a workload with a parameter, the call at
which its first process ends or meets a fault; every value of it is a workload of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from perdure.core.recovery import Step
from perdure.core.retention import Best, Last
from perdure.errors import FencedError, PerdureError
from perdure.recovery.markers import Markers
from perdure.testing.faults import ENOSPC, FAILED_SYNC, STOP, Fault, FaultyRecordingFiles, Stopped
from perdure.testing.recording import Operation, RecordingFiles
from perdure.testing.scenario import DEFAULT_SIZES, Scenario

MANY = {
    **DEFAULT_SIZES,
    "model/value.safetensors": 21,
    "agents/red/model/policy.safetensors": 12,
    "agents/red/optimizer/optimizer.json": 5,
    "rng/global.json": 0,
}
SEGMENTS = {**DEFAULT_SIZES, **{f"buffer/segment-{i:06d}.safetensors": 9 + i for i in range(1, 4)}}


@dataclass
class World:
    """A root directory in which processes act one after the other, and what they did."""

    root: Path
    operations: list[Operation] = field(default_factory=list)
    processes: int = 0
    calls: int = 0
    """Calls of the process to which a fault was to happen, that it could have happened to."""

    def process(self, run: str = "run") -> Scenario:
        """Begin a process on a run; generations rise as they do in recoveries."""
        return self._begin(RecordingFiles(self.root, self.operations), run)

    def hurt(self, act: Callable[[Scenario], object], fault: Fault, at: int) -> None:
        """Let a process act, with a fault at one of its calls; it ends there, or fails and is over."""
        files = FaultyRecordingFiles(self.root, fault, at, operations=self.operations)
        with suppress(Stopped, PerdureError):
            act(self._begin(files, "run"))
        self.calls = files.calls

    def _begin(self, files: RecordingFiles, run: str) -> Scenario:
        self.processes += 1
        seed = f"{run}-{self.processes}"
        return Scenario(self.root / run, files, lambda event: files.mark((run, event)), seed, self.processes)


Workload = Callable[[World], None]


def opened(world: World) -> Scenario:
    """A process that has opened the run."""
    process = world.process()
    process.start()
    return process


def create(world: World) -> None:
    opened(world)


def create_twice(world: World) -> None:
    opened(world)
    opened(world)


def one_save(world: World) -> None:
    opened(world).save(10)


def one_save_of_many_files(world: World) -> None:
    opened(world).save(10, MANY)


def one_save_of_nothing(world: World) -> None:
    opened(world).save(10, {})


def one_save_in_pieces(world: World) -> None:
    opened(world).save(10, {"model/policy.safetensors": 64, "meta.json": 30}, pieces=4)


def two_saves(world: World) -> None:
    process = opened(world)
    process.save(10)
    process.save(20)


def three_saves(world: World) -> None:
    process = opened(world)
    for step in (10, 20, 30):
        process.save(step)


def same_step_twice(world: World) -> None:
    process = opened(world)
    process.save(10)
    process.save(10)


def linked_save(world: World) -> None:
    process = opened(world)
    process.save(20, SEGMENTS, linked=process.save(10, SEGMENTS))


def chain_of_links(world: World) -> None:
    process = opened(world)
    first = process.save(10, SEGMENTS)
    process.save(30, SEGMENTS, linked=process.save(20, SEGMENTS, linked=first))


def link_then_remove_the_source(world: World) -> None:
    process = opened(world)
    first = process.save(10, SEGMENTS)
    process.save(20, SEGMENTS, linked=first)
    process.remove(first)


def grow_by_a_segment(world: World) -> None:
    process = opened(world)
    process.save(20, SEGMENTS, linked=process.save(10))


def keep_the_last(world: World) -> None:
    process = opened(world)
    for step in (10, 20, 30):
        process.save(step)
        process.retain(Last(1))


def keep_the_last_two_linked(world: World) -> None:
    process = opened(world)
    checkpoint = None
    for step in (10, 20, 30):
        checkpoint = process.save(step, SEGMENTS, linked=checkpoint)
        process.retain(Last(2))


def remove_all_but_the_newest_at_once(world: World) -> None:
    process = opened(world)
    for step in (10, 20, 30):
        process.save(step, MANY)
    process.retain(Best("nothing"))


def put_the_newest_aside(world: World) -> None:
    process = opened(world)
    process.save(10)
    process.quarantine(process.save(20))


def put_aside_then_save(world: World) -> None:
    process = opened(world)
    process.save(10)
    process.quarantine(process.save(20))
    process.save(15)


def put_all_aside(world: World) -> None:
    process = opened(world)
    for step in (10, 20):
        process.quarantine(process.save(step), f"step {step}")
    process.save(5)


def pin_it(world: World) -> None:
    process = opened(world)
    process.pin(process.save(10), "good")


def pin_and_unpin(world: World) -> None:
    process = opened(world)
    checkpoint = process.save(10)
    process.pin(checkpoint, "good")
    process.unpin("good")
    process.pin(checkpoint, "better")


def pinned_outlives_retention(world: World) -> None:
    process = opened(world)
    process.pin(process.save(10), "good")
    process.save(20)
    process.save(30)
    process.retain(Last(1))


def unpinned_is_removed(world: World) -> None:
    process = opened(world)
    process.pin(process.save(10), "good")
    process.save(20)
    process.unpin("good")
    process.retain(Last(1))


def mended_and_renewed(world: World) -> None:
    process = opened(world)
    older = process.save(10)
    newer = process.save(20, linked=older)
    process.mend(newer, "buffer/segment-000000.safetensors")
    process.renew(older)
    process.mend(older, "meta.json")


def markers_replaced(world: World) -> None:
    process = opened(world)
    for value in ("models", "replay", "counters"):
        process.note("marker.json", value)


def markers_come_and_go(world: World) -> None:
    process = opened(world)
    process.save(10)
    process.note("restoring.step", "1")
    process.note("marker.json", "models")
    process.note("restored.step", "2")
    process.forget("restoring.step")
    process.forget("marker.json")


def restored_under_markers(world: World) -> None:
    process = opened(world)
    process.save(10)
    markers = Markers(process.store)
    for checkpoint in (process.store.checkpoints()[0], process.save(20)):
        markers.begin(checkpoint)
        markers.progress(checkpoint, Step.VERIFY)
        markers.finish(checkpoint, generation=2)
    markers.begin(checkpoint)
    markers.give_up(checkpoint)


def restart_and_go_on(world: World) -> None:
    opened(world).save(10)
    opened(world).save(20)


def two_restarts(world: World) -> None:
    for step in (10, 20, 15):
        process = opened(world)
        process.save(step, {"meta.json": 7})
        process.retain(Last(2))


def fenced_save(world: World) -> None:
    @contextmanager
    def closed():
        raise FencedError("cannot commit: superseded", kind="run.fenced")
        yield

    process = opened(world)
    process.save(10)
    with suppress(FencedError):
        process.save(20, guard=closed)
    process.save(30)


def logs_between_saves(world: World) -> None:
    process = opened(world)
    for step in (10, 20):
        process.log("before")
        process.save(step, {"meta.json": 7})
        process.log("after")


def two_runs_side_by_side(world: World) -> None:
    one, other = world.process("one"), world.process("other")
    for process in (one, other):
        process.start()
    for step in (10, 20):
        one.save(step, {"meta.json": 7})
        other.save(step + 1, {"meta.json": 8})


def pin_beside_a_save(world: World) -> None:
    trainer = opened(world)
    checkpoint = trainer.save(10)
    person = world.process()

    @contextmanager
    def interrupted():
        person.pin(checkpoint, "good")
        yield

    trainer.save(20, guard=interrupted)


WORKLOADS: dict[str, Workload] = {
    workload.__name__: workload
    for workload in (
        create,
        create_twice,
        one_save,
        one_save_of_many_files,
        one_save_of_nothing,
        one_save_in_pieces,
        two_saves,
        three_saves,
        same_step_twice,
        linked_save,
        chain_of_links,
        link_then_remove_the_source,
        grow_by_a_segment,
        keep_the_last,
        keep_the_last_two_linked,
        remove_all_but_the_newest_at_once,
        put_the_newest_aside,
        put_aside_then_save,
        put_all_aside,
        pin_it,
        pin_and_unpin,
        pinned_outlives_retention,
        unpinned_is_removed,
        mended_and_renewed,
        markers_replaced,
        markers_come_and_go,
        restored_under_markers,
        restart_and_go_on,
        two_restarts,
        fenced_save,
        logs_between_saves,
        two_runs_side_by_side,
        pin_beside_a_save,
    )
}


# Families: a first life that ends or fails at its n-th call, and a second that goes on.


def _first_start(process: Scenario) -> None:
    process.start()
    process.save(10)


def _save_and_retain(process: Scenario) -> None:
    process.start()
    checkpoint = process.save(20, SEGMENTS, linked=process.store.checkpoints()[0])
    process.pin(checkpoint, "good")
    process.retain(Last(1))


def _put_aside(process: Scenario) -> None:
    process.start()
    process.quarantine(process.store.checkpoints()[0])
    process.note("marker.json", "models")
    process.forget("marker.json")
    process.save(5)


def _mend_and_renew(process: Scenario) -> None:
    process.start()
    checkpoint = process.save(20, SEGMENTS, linked=process.store.checkpoints()[0])
    process.mend(checkpoint, "meta.json")
    process.renew(checkpoint)


def _pin_and_remove(process: Scenario) -> None:
    process.start()
    first = process.save(11)
    process.pin(first, "first")
    process.save(12)
    process.unpin("first")
    process.remove(first)


def _fail_and_go_on(process: Scenario) -> None:
    process.start()
    for step in (20, 30):
        with suppress(PerdureError):
            process.save(step, SEGMENTS, linked=next(iter(process.store.checkpoints()), None))


@dataclass(frozen=True)
class Family:
    """A first process on a run that holds a checkpoint or nothing, hurt at a call, and then a second one."""

    act: Callable[[Scenario], None]
    fault: Fault
    begins_empty: bool = False

    def workload(self, at: int) -> Workload:
        """The member whose first process is hurt at its ``at``-th call."""

        def run(world: World) -> None:
            if not self.begins_empty:
                opened(world).save(10, SEGMENTS)
            world.hurt(self.act, self.fault, at)
            process = opened(world)
            process.save(40)
            process.retain(Last(1))
            process.forget("marker.json")

        return run


FAMILIES: dict[str, Family] = {
    "killed in its first start": Family(_first_start, STOP, begins_empty=True),
    "killed in save and retention": Family(_save_and_retain, STOP),
    "killed putting a checkpoint aside": Family(_put_aside, STOP),
    "sync fails in its first start": Family(_first_start, FAILED_SYNC, begins_empty=True),
    "sync fails in save and retention": Family(_save_and_retain, FAILED_SYNC),
    "sync fails and it goes on": Family(_fail_and_go_on, FAILED_SYNC),
    "killed in pinning and removal": Family(_pin_and_remove, STOP),
    "killed in mending": Family(_mend_and_renew, STOP),
    "disk full in save and retention": Family(_save_and_retain, ENOSPC),
    "disk full and it goes on": Family(_fail_and_go_on, ENOSPC),
}
