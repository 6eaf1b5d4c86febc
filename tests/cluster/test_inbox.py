"""The inbox: judged twice, waited for with a deadline, and its counts add up."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from perdure.cluster.inbox import Evaluation, Inbox, Sample
from perdure.core.fencing import GateState, Reason, Stamp
from perdure.errors import FencedError, InvalidInputError

GATE = GateState("run", 1, 100, holders={"a": "a-1"}, max_staleness=50)


def inbox(capacity: int = 4) -> Inbox:
    return Inbox(GATE, capacity, lambda: None)


def sample(sequence: int, *, generation: int = 1, learner_step: int = 100, rows: int = 1) -> Sample:
    return Sample(Stamp("run", generation, "a", "a-1", sequence, learner_step), rows, {}, {})


def sequences(samples: list[Sample]) -> list[int]:
    return [each.stamp.sequence for each in samples]


def test_samples_come_out_in_order_and_only_as_many_as_needed() -> None:
    """Taking stops at the first sample with which there are enough samples and rows."""
    box = inbox()
    for number in range(1, 5):
        assert box.offer(sample(number, rows=10)) is None
    assert sequences(box.take(1, 15, 0.0)) == [1, 2]
    assert sequences(box.take(1, 0, 0.0)) == [3]
    assert box.take(2, 0, 0.0) == []
    assert sequences(box.take(1, 0, 0.0)) == [4]


def test_waiting_ends_when_there_is_enough() -> None:
    """A taker that waits is woken by the sample that completes what it asked for."""
    box = inbox()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(box.take, 2, 0, 60.0)
        box.offer(sample(1))
        box.offer(sample(2))
        assert sequences(waiting.result(60)) == [1, 2]


def test_there_is_room_for_whatever_somebody_waits_for() -> None:
    """A full queue takes no more, except while a taker asks for more than fits."""
    box = inbox(capacity=2)
    asked = threading.Event()
    box._on_room = asked.set
    box.offer(sample(1))
    box.offer(sample(2))
    assert not box.has_room()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(box.take, 3, 0, 60.0)
        assert asked.wait(60)
        assert box.has_room()
        box.offer(sample(3))
        assert len(waiting.result(60)) == 3


def test_a_recovery_empties_the_queue() -> None:
    """Samples let in before a new generation are not handed out after it, and are counted."""
    box = inbox()
    box.offer(sample(1))
    box.adopt(2)
    assert box.take(1, 0, 0.0) == []
    assert box.counts()["dropped"][Reason.WRONG_GENERATION.value] == 1
    assert box.offer(sample(2)) is Reason.WRONG_GENERATION
    assert box.offer(sample(2, generation=2)) is None


def test_samples_go_stale_in_the_queue() -> None:
    """What was fresh on arrival and is too old when it is asked for is dropped and counted."""
    box = inbox()
    box.offer(sample(1, learner_step=60))
    box.offer(sample(2, learner_step=100))
    box.advance(111)
    assert sequences(box.take(1, 0, 0.0)) == [2]
    assert box.counts()["dropped"][Reason.STALE.value] == 1


def test_a_generation_without_a_rollback_keeps_its_lineage() -> None:
    """Losing a member changes the generation alone; a recovery changes lineage and step too."""
    box = inbox()
    box.adopt(5)
    assert (box.announcement.generation, box.announcement.lineage, box.announcement.resumed_step) == (5, 1, 100)
    box.adopt(3)
    assert box.announcement.generation == 5
    box.resume(6, 40)
    assert (box.announcement.generation, box.announcement.lineage, box.announcement.resumed_step) == (6, 6, 40)


def test_going_back_without_a_recovery_is_refused() -> None:
    """A step below the present one, or a generation that is not new, is the caller's mistake."""
    box = inbox()
    with pytest.raises(InvalidInputError) as caught:
        box.advance(99)
    assert caught.value.kind == "learner-step.backwards"
    with pytest.raises(InvalidInputError) as caught:
        box.resume(1, 100)
    assert caught.value.kind == "generation.not-new"


def test_evaluations_are_judged_without_a_bound_on_age() -> None:
    """A late evaluation passes, one of an older generation does not, and both are counted."""
    box = inbox()
    assert box.judge(Evaluation(Stamp("run", 1, "a", "a-1", 1, 0), {})) is None
    assert box.judge(Evaluation(Stamp("run", 0, "a", "a-1", 2, 0), {})) is Reason.WRONG_GENERATION
    counts = box.counts()
    assert (counts["evaluations"], counts["evaluations_dropped"]["wrong-generation"]) == (1, 1)


def test_a_failure_wakes_whoever_waits() -> None:
    """A superseded learner's waiting thread gets the error at once, and so does everybody after it."""
    box = inbox()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(box.take, 1, 0, 60.0)
        box.fail(FencedError("over", kind="lease.fenced"))
        with pytest.raises(FencedError):
            waiting.result(60)
    for act in (lambda: box.take(1, 0, 0.0), lambda: box.advance(200), lambda: box.resume(9, 1)):
        with pytest.raises(FencedError):
            act()


@settings(max_examples=40, stateful_step_count=30, deadline=None)
class InboxAddsUp(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.box = inbox(capacity=1000)
        self.generation = 1
        self.step = 100
        self.offered = 0
        self.taken: list[Sample] = []

    @rule(number=st.integers(1, 30), older=st.integers(0, 1), behind=st.integers(-5, 60))
    def offers(self, number: int, older: int, behind: int) -> None:
        self.offered += 1
        stamp = Stamp("run", self.generation - older, "a", "a-1", number, self.step - behind)
        self.box.offer(Sample(stamp, 1, {}, {}))

    @rule(steps=st.integers(0, 40))
    def learns(self, steps: int) -> None:
        self.step += steps
        self.box.advance(self.step)

    @rule()
    def loses_a_member(self) -> None:
        self.generation += 1
        self.box.adopt(self.generation)

    @rule(step=st.integers(0, 120))
    def rolls_back(self, step: int) -> None:
        self.generation += 1
        self.step = step
        self.box.resume(self.generation, step)

    @rule(count=st.integers(1, 3))
    def takes(self, count: int) -> None:
        for each in self.box.take(count, 0, 0.0):
            assert each.stamp.generation == self.generation
            assert 0 <= self.step - each.stamp.learner_step <= 50
            assert each.stamp not in [former.stamp for former in self.taken]
            self.taken.append(each)

    @invariant()
    def counts_add_up(self) -> None:
        counts = self.box.counts()
        assert counts["received"] == self.offered
        assert counts["taken"] == len(self.taken)
        assert counts["received"] == counts["taken"] + counts["queued"] + sum(counts["dropped"].values())


TestInboxAddsUp = InboxAddsUp.TestCase
TestInboxAddsUp.__doc__ = (
    "Whatever arrives and happens, what is taken is current, fresh and new, and the counts add up."
)
