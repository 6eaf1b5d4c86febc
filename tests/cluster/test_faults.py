"""Learners and actors as processes that are killed, frozen and thawed."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from perdure.cluster.control import Control
from perdure.cluster.learner import Learner
from perdure.core.leases import Timing
from perdure.errors import FencedError, LeaseHeldError
from tests.waiting import wait_until

pytestmark = pytest.mark.process

BEAT, LEASE = 0.1, 2.0
SECONDS = 60.0


class Leading:
    """A learner in this process, with the writer's lease, and what it saw."""

    def __init__(self, directory: Path, *, learner_step: int = 0, lease_seconds: float = LEASE) -> None:
        timing = Timing(beat_seconds=BEAT, lease_seconds=lease_seconds)
        self.lease = Control(directory, timing=timing).acquire("the test")
        self.lease.start_beating()
        self.events: list[tuple[str, dict]] = []
        self.learner = Learner(
            directory,
            "run",
            generation=self.lease.generation,
            mint=self.lease.mint,
            timing=timing,
            learner_step=learner_step,
            on_event=lambda name, **fields: self.events.append((name, fields)),
        )
        self.learner.publish({"w": np.zeros(4)}, learner_step)
        self.samples: list = []

    def take(self) -> list:
        self.samples += self.learner.collect(timeout_seconds=0.05)
        return self.samples

    def has(self, event: str, **expected: object) -> bool:
        return any(name == event and expected.items() <= fields.items() for name, fields in self.events)

    def close(self) -> None:
        self.learner.close()
        self.lease.release()


@pytest.fixture
def lead(directory: Path):
    leading = []

    def lead_one(**options: float) -> Leading:
        leading.append(Leading(directory, **options))
        return leading[-1]

    yield lead_one
    for each in leading:
        each.close()


def test_a_killed_learner_is_succeeded_and_its_actors_go_on(directory: Path, start, lead) -> None:
    """
    After SIGKILL a successor leads in a higher generation, and the actors that lived through it report to it.

    Nothing of the old generation gets in, and what an actor held meanwhile arrives if the recovery did not undo it.
    """
    first = start("learner", directory, BEAT, 60)
    assert first.hear("leading") == ["1"]
    actors = [start("actor", directory, BEAT, 60, f"actor-{number}") for number in range(2)]
    for actor in actors:
        assert actor.hear("lineage") == ["1"]
    for _ in range(20):
        first.hear("took")
    first.signal(signal.SIGKILL)
    first.wait()
    second = lead(learner_step=120)  # the child publishes from step 100 on, faster than it takes samples
    assert second.lease.generation == 2
    for actor in actors:
        assert actor.hear("lineage") == ["2"]
    wait_until(lambda: {sample.stamp.member for sample in second.take()} == {"actor-0", "actor-1"}, SECONDS)
    assert {sample.stamp.generation for sample in second.samples} == {2}
    assert all(sample.stamp.learner_step <= 120 for sample in second.samples)
    assert second.learner.statistics().members_lost == 0
    second.learner.dismiss()
    for actor in actors:
        actor.hear("stopped")
        assert actor.wait() == 0


def test_a_frozen_learner_is_succeeded_and_fenced(directory: Path, start) -> None:
    """
    A learner stopped past its lease loses the run to a successor, and thawed it can neither commit nor lead.

    Its actors, whose connections it still holds, find the successor by themselves.
    """
    first = start("learner", directory, BEAT, LEASE)
    first.hear("leading")
    actor = start("actor", directory, BEAT, LEASE)
    actor.hear("lineage")
    first.signal(signal.SIGSTOP)
    found: list[Leading] = []

    def succeeds() -> bool:
        try:
            found.append(Leading(directory, learner_step=100_000))
        except LeaseHeldError:
            return False
        return True

    wait_until(succeeds, SECONDS)
    second = found[0]
    assert actor.hear("lineage") == [str(second.lease.generation)]
    wait_until(second.take, SECONDS)
    first.signal(signal.SIGCONT)
    first.hear("error")
    assert first.wait() != 0
    taken = len(second.take())
    wait_until(lambda: len(second.take()) > taken, SECONDS)
    assert len({sample.stamp.incarnation for sample in second.samples}) == 1
    second.close()


def test_a_killed_actor_is_lost_in_time_and_the_others_adopt_the_generation(directory: Path, start, lead) -> None:
    """Without a successor the lease ends by itself; a generation is minted and the survivors report in it."""
    leading = lead()
    doomed, survivor = (start("actor", directory, BEAT, LEASE, name) for name in ("doomed", "survivor"))
    wait_until(lambda: {sample.stamp.member for sample in leading.take()} == {"doomed", "survivor"}, SECONDS)
    doomed.signal(signal.SIGKILL)
    wait_until(lambda: leading.has("member-lost", member="doomed", cause="silent"), SECONDS)
    wait_until(lambda: leading.take()[-1].stamp.generation == leading.learner.generation > 1, SECONDS)
    assert leading.samples[-1].stamp.member == "survivor"
    assert leading.lease.generation == leading.learner.generation
    with leading.lease.guard():
        pass
    leading.learner.dismiss()
    survivor.hear("stopped")


def test_a_restarted_actor_need_not_wait_for_the_lease_of_its_predecessor(directory: Path, start, lead) -> None:
    """A new process of the same name replaces a killed one at once, however long the lease."""
    leading = lead(lease_seconds=600)
    first = start("actor", directory, BEAT, 600)
    wait_until(leading.take, SECONDS)
    first.signal(signal.SIGKILL)
    start("actor", directory, BEAT, 600)
    wait_until(lambda: len({sample.stamp.incarnation for sample in leading.take()}) == 2, SECONDS)
    assert leading.has("member-lost", member="actor", cause="superseded")


def test_a_thawed_actor_gets_nothing_in_and_exits(directory: Path, start, lead) -> None:
    """An actor stopped past its lease and thawed has no further sample accepted, and ends with exit code 12."""
    leading = lead()
    actor = start("actor", directory, BEAT, LEASE)
    wait_until(leading.take, SECONDS)
    actor.signal(signal.SIGSTOP)
    wait_until(lambda: leading.has("member-lost", member="actor") and leading.has("generation-minted"), SECONDS)
    leading.take()
    counted = leading.learner.statistics()
    actor.signal(signal.SIGCONT)
    actor.hear("fenced")
    assert actor.wait() == FencedError.exit_code
    assert leading.learner.collect(timeout_seconds=0.3) == []
    after = leading.learner.statistics()
    assert after.taken == counted.taken
    assert after.received - counted.received == sum(after.dropped.values()) - sum(counted.dropped.values())


def test_a_thawed_actor_does_not_push_its_successor_out(directory: Path, start, lead) -> None:
    """The frozen life comes back beside the younger one, is fenced, and the younger one goes on undisturbed."""
    leading = lead()
    old = start("actor", directory, BEAT, LEASE)
    wait_until(leading.take, SECONDS)
    (old_life,) = {sample.stamp.incarnation for sample in leading.samples}
    old.signal(signal.SIGSTOP)
    new = start("actor", directory, BEAT, LEASE)
    new.hear("lineage")
    wait_until(lambda: leading.take()[-1].stamp.incarnation != old_life, SECONDS)
    seen = len(leading.samples)
    old.signal(signal.SIGCONT)
    old.hear("fenced")
    assert old.wait() == FencedError.exit_code
    wait_until(lambda: len(leading.take()) > seen + 5, SECONDS)
    assert old_life not in {sample.stamp.incarnation for sample in leading.samples[seen:]}
    leading.learner.dismiss()
    new.hear("stopped")
    assert new.wait() == 0


def test_an_actor_stopped_for_less_than_its_lease_goes_on(directory: Path, start, lead) -> None:
    """A short freeze costs nothing but its time."""
    leading = lead()
    actor = start("actor", directory, BEAT, 60)
    wait_until(leading.take, SECONDS)
    actor.signal(signal.SIGSTOP)
    taken = len(leading.take())
    actor.signal(signal.SIGCONT)
    wait_until(lambda: len(leading.take()) > taken + 5, SECONDS)
    assert len({sample.stamp.incarnation for sample in leading.samples}) == 1
    leading.learner.dismiss()
    actor.hear("stopped")
