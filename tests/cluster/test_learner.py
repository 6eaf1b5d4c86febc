"""A learner with its members over real sockets, all in this process."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import zmq

from perdure.cluster.actor import Actor
from perdure.cluster.evaluator import Evaluator
from perdure.cluster.identity import new_incarnation
from perdure.cluster.learner import Learner
from perdure.cluster.sockets import CONTROL, SAMPLES, connect, endpoint_directory
from perdure.cluster.wire import ArraySpec, Register, SampleHeader, encode
from perdure.core.leases import Timing
from perdure.core.restarts import Phase
from perdure.errors import FencedError, InvalidInputError, StoreError
from tests.waiting import wait_until

PATIENT = Timing(beat_seconds=0.1, lease_seconds=60)
SECONDS = 30.0


class Cluster:
    """Makes learners and members of one run and closes them all at the end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.generations = count(1)
        self.events: list[tuple[str, dict]] = []
        self.evaluations: list = []
        self.exits = ExitStack()

    def learner(self, *, timing: Timing = PATIENT, **options) -> Learner:
        options.setdefault("generation", next(self.generations))
        options.setdefault("mint", lambda reason: next(self.generations))
        options.setdefault("on_event", lambda name, **fields: self.events.append((name, fields)))
        options.setdefault("on_evaluation", self.evaluations.append)
        return self.exits.enter_context(Learner(self.directory, "run", timing=timing, **options))

    def actor(self, name: str = "a", *, timing: Timing = PATIENT, **options) -> Actor:
        return self.exits.enter_context(Actor(self.directory, "run", name, timing=timing, **options))

    def evaluator(self, *, timing: Timing = PATIENT) -> Evaluator:
        return self.exits.enter_context(Evaluator(self.directory, "run", "evaluator", timing=timing))

    def named(self, event: str) -> list[dict]:
        return [fields for name, fields in self.events if name == event]


@pytest.fixture
def cluster(directory: Path):
    made = Cluster(directory)
    with made.exits:
        yield made


def vector(value: float) -> dict[str, np.ndarray]:
    return {"w": np.full(3, value)}


def received(member, newer_than=None):
    weights = member.weights(newer_than, timeout_seconds=SECONDS)
    assert weights is not None
    return weights


def collected(learner: Learner, samples: int = 1) -> list:
    taken = learner.collect(samples=samples, timeout_seconds=SECONDS)
    assert taken
    return taken


def test_weights_go_out_and_samples_come_in(cluster: Cluster) -> None:
    """A sample arrives bit for bit, with its stamp, its rows and its small values."""
    learner, actor = cluster.learner(learner_step=40), cluster.actor()
    assert learner.publish({"w": np.arange(6, dtype=np.float32).reshape(2, 3)}, 41) == 1
    weights = received(actor)
    assert (weights.learner_step, weights.version, weights.lineage) == (41, 1, 1)
    np.testing.assert_array_equal(weights.arrays["w"], np.arange(6, dtype=np.float32).reshape(2, 3))
    actor.send({"x": np.ones((5, 2)), "y": np.zeros(5, np.int8)}, weights, {"return": 2.5, "done": True})
    (sample,) = collected(learner)
    assert (sample.rows, dict(sample.info)) == (5, {"return": 2.5, "done": True})
    assert (sample.stamp.generation, sample.stamp.member, sample.stamp.learner_step) == (1, "a", 41)
    assert sample.arrays["y"].dtype == np.int8
    sample.arrays["x"][:] = 7  # the taker owns it


def test_publishing_copies(cluster: Cluster) -> None:
    """Training on after a publication changes nothing that members get."""
    learner, actor = cluster.learner(), cluster.actor()
    arrays = vector(1)
    learner.publish(arrays, 0)
    arrays["w"] += 5
    np.testing.assert_array_equal(received(actor).arrays["w"], np.ones(3))


def test_a_member_gets_the_newest_weights_and_none_twice(cluster: Cluster) -> None:
    """Versions in between are skipped, and without a newer one the wait ends in time with None."""
    learner, actor = cluster.learner(), cluster.actor()
    for step in range(5):
        learner.publish(vector(step), step)
    weights = received(actor)
    assert weights.version == 5
    assert actor.weights(weights, timeout_seconds=0.05) is None
    learner.publish(vector(9), 9)
    assert received(actor, weights).learner_step == 9


def test_a_waiting_member_gets_weights_as_soon_as_they_are_published(cluster: Cluster) -> None:
    """A request made before there is anything is answered by the publication, not by the next beat."""
    learner, actor = cluster.learner(), cluster.actor(timing=Timing(beat_seconds=20, lease_seconds=600))
    assert actor.weights(timeout_seconds=0.0) is None
    wait_until(lambda: learner.members(), SECONDS)
    learner.publish(vector(1), 0)
    assert received(actor).version == 1


def test_many_actors_feed_one_learner(cluster: Cluster) -> None:
    """Everything that four actors send arrives once, in each one's own order."""
    learner = cluster.learner()
    learner.publish(vector(0), 0)
    actors = [cluster.actor(f"a{number}") for number in range(4)]

    def run(actor: Actor) -> None:
        weights = received(actor)
        for number in range(50):
            actor.send({"x": np.full(10, number)}, weights, {"number": number})

    threads = [threading.Thread(target=run, args=(actor,)) for actor in actors]
    for thread in threads:
        thread.start()
    samples = []
    while len(samples) < 200:
        samples += collected(learner)
    for thread in threads:
        thread.join(SECONDS)
    for number in range(4):
        mine = [sample for sample in samples if sample.stamp.member == f"a{number}"]
        assert [sample.info["number"] for sample in mine] == list(range(50))
        assert [sample.stamp.sequence for sample in mine] == list(range(1, 51))
    statistics = learner.statistics()
    assert (statistics.received, statistics.taken, sum(statistics.dropped.values())) == (200, 200, 0)


def test_collecting_counts_rows(cluster: Cluster) -> None:
    """A learner can ask for rows; arrays without a common first axis count as one row."""
    learner, actor = cluster.learner(), cluster.actor()
    learner.publish(vector(0), 0)
    weights = received(actor)
    for arrays in (
        {"x": np.zeros((4, 2)), "y": np.zeros(4)},
        {"x": np.zeros(4), "y": np.zeros(3)},
        {"x": np.zeros(())},
    ):
        actor.send(arrays, weights)
    samples = learner.collect(rows=6, timeout_seconds=SECONDS)
    assert [sample.rows for sample in samples] == [4, 1, 1]
    assert learner.collect(timeout_seconds=0.0) == []


def test_a_slow_learner_makes_its_actors_wait_and_loses_nothing(cluster: Cluster) -> None:
    """With its queue full, an actor's sends wait; all samples arrive in the end."""
    learner, actor = cluster.learner(capacity_samples=2), cluster.actor(capacity_items=2)
    learner.publish(vector(0), 0)
    weights = received(actor)
    total = 60
    sending = threading.Thread(
        target=lambda: [actor.send({"x": np.zeros(50_000)}, weights, {"number": number}) for number in range(total)]
    )
    sending.start()
    wait_until(lambda: learner.statistics().queued == 2, SECONDS)
    numbers = [sample.info["number"] for _ in range(total) for sample in collected(learner)]
    sending.join(SECONDS)
    assert numbers == list(range(total))
    assert actor.statistics().overflowed == 0


def test_without_a_learner_the_newest_samples_are_held(cluster: Cluster) -> None:
    """What does not fit is dropped, oldest first, and counted; the learner hears of the count."""
    learner, actor = cluster.learner(), cluster.actor(capacity_items=3)
    learner.publish(vector(0), 0)
    weights = received(actor)
    learner.close()
    wait_until(lambda: not actor.statistics().is_leased, SECONDS)
    for number in range(8):
        actor.send({"x": np.zeros(2)}, weights, {"number": number}, timeout_seconds=0.0)
    assert (actor.statistics().held, actor.statistics().overflowed) == (3, 5)
    successor = cluster.learner()
    successor.publish(vector(0), 0)
    received(actor, weights)
    assert [sample.info["number"] for sample in collected(successor, 3)] == [5, 6, 7]
    wait_until(lambda: successor.statistics().withheld["overflowed"] == 5, SECONDS)


def test_a_new_learner_gets_its_actors_and_what_they_held(cluster: Cluster) -> None:
    """After a learner's death actors hold back, register with the next one, wait for its weights and go on."""
    learner, actor = cluster.learner(), cluster.actor()
    learner.publish(vector(0), 100)
    old = received(actor)
    learner.close()
    wait_until(lambda: not actor.statistics().is_leased, SECONDS)
    actor.send({"x": np.zeros(1)}, old, {"number": 1})
    successor = cluster.learner(learner_step=100)
    wait_until(lambda: actor.statistics().is_leased, SECONDS)
    assert successor.collect(timeout_seconds=0.2) == []
    assert actor.statistics().held == 1
    successor.publish(vector(1), 101)
    new = received(actor, old)
    assert (new.lineage, new.learner_step) == (2, 101)
    actor.send({"x": np.zeros(1)}, new, {"number": 2})
    samples = collected(successor, 2)
    assert [(sample.info["number"], sample.stamp.learner_step) for sample in samples] == [(1, 100), (2, 101)]
    assert {sample.stamp.generation for sample in samples} == {2}
    assert sum(successor.statistics().dropped.values()) == 0


def test_what_a_recovery_undid_is_never_sent(cluster: Cluster) -> None:
    """Held samples of policies that the rollback took back are dropped by their actor, however long it held them."""
    learner, actor = cluster.learner(), cluster.actor()
    learner.publish(vector(0), 150)
    undone = received(actor)
    learner.close()
    wait_until(lambda: not actor.statistics().is_leased, SECONDS)
    actor.send({"x": np.zeros(1)}, undone)
    successor = cluster.learner(learner_step=100)
    successor.publish(vector(1), 160)  # far enough for the gate alone to be fooled
    new = received(actor, undone)
    actor.send({"x": np.zeros(1)}, new, {"number": 2})
    (sample,) = collected(successor)
    assert sample.info["number"] == 2
    assert actor.statistics().undone == 1


def test_a_recovery_inside_a_learner_holds_its_actors_back(cluster: Cluster) -> None:
    """After an announcement nothing of the old generation is taken, and actors go on with the new weights."""
    learner, actor = cluster.learner(), cluster.actor()
    learner.publish(vector(0), 100)
    old = received(actor)
    actor.send({"x": np.zeros(1)}, old, {"number": 1})
    wait_until(lambda: learner.statistics().queued == 1, SECONDS)
    learner.announce(next(cluster.generations), 50)
    assert learner.statistics().dropped["wrong-generation"] == 1
    wait_until(lambda: actor.statistics().generation == 2, SECONDS)
    actor.send({"x": np.zeros(1)}, old, {"number": 2})
    assert actor.weights(old, timeout_seconds=0.1) is None
    learner.publish(vector(1), 51)
    new = received(actor, old)
    actor.send({"x": np.zeros(1)}, new, {"number": 3})
    (sample,) = collected(learner)
    assert (sample.info["number"], sample.stamp.generation, sample.stamp.learner_step) == (3, 2, 51)


def test_stale_and_future_samples_are_counted_and_not_taken(cluster: Cluster) -> None:
    """Samples of a policy too many learner steps old are dropped by reason."""
    learner, actor = cluster.learner(max_staleness=10), cluster.actor()
    learner.publish(vector(0), 0)
    weights = received(actor)
    learner.advance(11)
    actor.send({"x": np.zeros(1)}, weights)
    wait_until(lambda: learner.statistics().dropped["stale"] == 1, SECONDS)
    assert learner.collect(timeout_seconds=0.0) == []
    wait_until(lambda: cluster.named("samples-dropped"), SECONDS)
    assert cluster.named("samples-dropped")[-1]["stale"] == 1


def test_a_restarted_actor_replaces_the_old_one_in_a_new_generation(cluster: Cluster) -> None:
    """The younger life gets the lease at once, a generation is minted, the others adopt it, the older one is fenced."""
    learner, old, other = cluster.learner(), cluster.actor("a"), cluster.actor("b")
    learner.publish(vector(0), 0)
    old_weights, other_weights = received(old), received(other)
    new = cluster.actor("a")
    weights = received(new)
    wait_until(lambda: learner.generation == 2, SECONDS)
    with pytest.raises(FencedError) as caught:
        wait_until(lambda: old.send({"x": np.zeros(1)}, old_weights), SECONDS)
    assert (caught.value.kind, caught.value.exit_code) == ("member.fenced", 12)
    wait_until(lambda: other.statistics().generation == 2, SECONDS)
    other.send({"x": np.zeros(1)}, other_weights)
    new.send({"x": np.zeros(1)}, weights)
    samples = collected(learner, 2)
    assert {(sample.stamp.member, sample.stamp.generation) for sample in samples} == {("a", 2), ("b", 2)}
    assert [(fields["member"], fields["cause"]) for fields in cluster.named("member-lost")] == [("a", "superseded")]
    assert cluster.named("generation-minted")[0]["generation"] == 2
    assert learner.statistics().members_lost == 1


def test_an_actor_whose_main_loop_hangs_is_lost(cluster: Cluster) -> None:
    """Beats alone do not keep a lease: without progress for longer than the phase allows it ends."""
    timing = Timing(beat_seconds=0.05, lease_seconds=60, running_seconds=0.3)
    learner, actor = cluster.learner(timing=timing), cluster.actor(timing=timing)
    learner.publish(vector(0), 0)
    weights = received(actor)
    wait_until(lambda: cluster.named("member-lost"), SECONDS)
    assert cluster.named("member-lost")[0]["cause"] == "stalled"
    with pytest.raises(FencedError):
        wait_until(lambda: actor.send({"x": np.zeros(1)}, weights), SECONDS)


def test_the_learner_sees_what_a_member_is_busy_with(cluster: Cluster) -> None:
    """Phase and progress of the main loop arrive with the beats, and waiting for weights is progress while it lasts."""
    learner, actor = cluster.learner(), cluster.actor()
    wait_until(lambda: learner.members(), SECONDS)
    assert learner.members()[0].phase is Phase.STARTING
    actor.enter(Phase.SAVING)
    wait_until(lambda: learner.members()[0].phase is Phase.SAVING, SECONDS)
    actor.progress(1000)
    wait_until(lambda: learner.members()[0].progress >= 1000, SECONDS)
    before = learner.members()[0].progress
    waiting = threading.Thread(target=received, args=(actor,))
    waiting.start()
    wait_until(lambda: learner.members()[0].progress > before + 3, SECONDS)
    learner.publish(vector(0), 0)
    waiting.join(SECONDS)


def test_a_mint_that_fails_is_tried_again(cluster: Cluster) -> None:
    """While no generation can be minted the lost member is kept out all the same, and the event says why."""
    failures = [StoreError("cannot mint: disk full", kind="store.full")] * 2

    def mint(reason: str) -> int:
        if failures:
            raise failures.pop()
        return next(cluster.generations)

    learner = cluster.learner(mint=mint)
    cluster.actor("a")
    wait_until(lambda: len(learner.members()) == 1, SECONDS)
    cluster.actor("a")
    wait_until(lambda: learner.generation == 2, SECONDS)
    assert [fields["error"] for fields in cluster.named("mint-failed")] == ["cannot mint: disk full"] * 2


def test_a_superseded_learner_stops_answering(cluster: Cluster) -> None:
    """When its own mint is refused, a learner's methods raise and its members look for the successor."""

    def mint(reason: str) -> int:
        raise FencedError("superseded", kind="lease.fenced", generation=1, current_generation=2)

    learner = cluster.learner(mint=mint)
    learner.publish(vector(0), 0)
    cluster.actor("a")
    wait_until(lambda: len(learner.members()) == 1, SECONDS)
    survivor = cluster.actor("a")
    for act in (
        lambda: learner.collect(timeout_seconds=SECONDS),
        lambda: learner.publish(vector(0), 0),
        lambda: learner.announce(9, 0),
    ):
        with pytest.raises(FencedError):
            act()
    successor = cluster.learner(generation=2)
    successor.publish(vector(0), 0)
    assert received(survivor).lineage == 2


def test_a_learner_can_be_fenced_from_outside(cluster: Cluster) -> None:
    """The writer's lease ends a learner by handing it the error."""
    learner = cluster.learner()
    learner.fence(FencedError("superseded", kind="lease.fenced"))
    with pytest.raises(FencedError):
        learner.collect(timeout_seconds=SECONDS)


def test_dismissed_members_stop(cluster: Cluster) -> None:
    """Members are told at once, also when they wait, and those that come later when they register."""
    learner, actor = cluster.learner(), cluster.actor("a")
    learner.publish(vector(0), 0)
    weights = received(actor)
    assert not actor.should_stop
    learner.dismiss()
    assert actor.weights(weights, timeout_seconds=SECONDS) is None
    wait_until(lambda: actor.should_stop, SECONDS)
    late = cluster.actor("b")
    wait_until(lambda: late.should_stop, SECONDS)


def test_an_actor_that_leaves_is_not_lost(cluster: Cluster) -> None:
    """Closing sends what is held, gives the lease back and mints nothing."""
    learner, actor = cluster.learner(), cluster.actor()
    learner.publish(vector(0), 0)
    weights = received(actor)
    for number in range(3):
        actor.send({"x": np.zeros(1)}, weights, {"number": number})
    actor.close()
    actor.close()
    assert len(collected(learner, 3)) == 3
    wait_until(lambda: cluster.named("member-left"), SECONDS)
    assert (learner.members(), learner.generation, learner.statistics().members_lost) == ((), 1, 0)


def test_a_closed_learner_says_so(cluster: Cluster) -> None:
    """Every method that acts raises after a close, and closing again is harmless."""
    learner = cluster.learner()
    learner.close()
    learner.close()
    with pytest.raises(InvalidInputError) as caught:
        learner.publish(vector(0), 0)
    assert caught.value.kind == "learner.closed"


def test_evaluations_reach_the_learner_beside_the_samples(cluster: Cluster) -> None:
    """A result arrives although the sample queue is full, and one of an undone policy does not."""
    learner, actor, evaluator = cluster.learner(capacity_samples=1), cluster.actor(), cluster.evaluator()
    learner.publish(vector(0), 100)
    weights, evaluated = received(actor), received(evaluator)
    for _ in range(30):
        actor.send({"x": np.zeros(1000)}, weights)
    wait_until(lambda: learner.statistics().queued >= 1, SECONDS)
    learner.advance(5000)
    evaluator.report({"eval/return": np.float32(2.5)}, evaluated)
    wait_until(lambda: cluster.evaluations, SECONDS)
    (result,) = cluster.evaluations
    assert (dict(result.metrics), result.stamp.learner_step) == ({"eval/return": 2.5}, 100)
    learner.announce(next(cluster.generations), 50)
    wait_until(lambda: evaluator.statistics().generation == 2, SECONDS)
    evaluator.report({"eval/return": 9.0}, evaluated)
    learner.publish(vector(0), 50)
    newer = received(evaluator, evaluated)
    evaluator.report({"eval/return": 3.0}, newer)
    wait_until(lambda: len(cluster.evaluations) == 2, SECONDS)
    assert dict(cluster.evaluations[1].metrics) == {"eval/return": 3.0}
    assert evaluator.statistics().undone == 1


def test_a_callback_that_raises_is_counted_and_does_no_harm(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """The user's mistake is logged; members are answered as before."""

    def fails(*_: object, **__: object) -> None:
        raise ValueError("the user's mistake")

    learner, actor = cluster.learner(on_event=fails), cluster.actor()
    learner.publish(vector(0), 0)
    received(actor)
    wait_until(lambda: learner.statistics().callback_errors == 1, SECONDS)
    assert "the user's mistake" in caplog.text


def test_malformed_messages_are_counted_and_do_no_harm(cluster: Cluster, directory: Path) -> None:
    """Whatever a stranger pushes into either socket, members go on and each message is counted by its kind."""
    learner, actor = cluster.learner(), cluster.actor()
    learner.publish(vector(0), 0)
    weights = received(actor)
    life = str(new_incarnation())
    header = SampleHeader(
        run="run",
        generation=1,
        member="a",
        incarnation=life,
        sequence=1,
        learner_step=0,
        rows=1,
        info={},
        arrays=[ArraySpec("x", "float32", (2**40,))],
    )
    register = Register(run="other", member="a", incarnation=life, role="actor")
    context = zmq.Context()
    pushing = connect(context, zmq.PUSH, endpoint_directory(directory) / SAMPLES)
    dealing = connect(context, zmq.DEALER, endpoint_directory(directory) / CONTROL)
    for frames in ([b"\x80\x04K*."], [b""], [encode(header), b"1234"], [encode(register)], [b"x"] * 100):
        assert pushing.poll(1000 * SECONDS, zmq.POLLOUT)
        pushing.send_multipart(frames)
    for frames in ([b"junk"], [encode(register)], [encode(register), b"more"], [b"\xff" * 2_000_000]):
        assert dealing.poll(1000 * SECONDS, zmq.POLLOUT)
        dealing.send_multipart(frames)
    expected = {"header": 3 + 3, "arrays": 1, "misplaced": 1 + 1, "identity": 0}
    wait_until(lambda: dict(learner.statistics().malformed) == expected, SECONDS)
    pushing.close(0)
    dealing.close(0)
    context.term()
    actor.send({"x": np.zeros(1)}, weights)
    assert collected(learner)
    assert [member.name for member in learner.members()] == ["a"]


def test_a_forger_without_a_lease_gets_nothing_in(cluster: Cluster, directory: Path) -> None:
    """Well-formed samples of somebody who holds no lease are turned away, and raise no watermark."""
    learner, actor = cluster.learner(), cluster.actor()
    learner.publish(vector(0), 0)
    weights = received(actor)
    forged = SampleHeader(
        run="run",
        generation=1,
        member="a",
        incarnation=str(new_incarnation()),
        sequence=1000,
        learner_step=0,
        rows=1,
        info={},
        arrays=[],
    )
    context = zmq.Context()
    pushing = connect(context, zmq.PUSH, endpoint_directory(directory) / SAMPLES)
    assert pushing.poll(1000 * SECONDS, zmq.POLLOUT)
    pushing.send_multipart([encode(forged)])
    wait_until(lambda: learner.statistics().dropped["fenced-member"] == 1, SECONDS)
    pushing.close(0)
    context.term()
    actor.send({"x": np.zeros(1)}, weights)
    assert collected(learner)[0].stamp.sequence == 1


@pytest.mark.parametrize("name", ["", "../x", "a/b", "-x"])
def test_names_that_are_no_file_names_are_refused(directory: Path, name: str) -> None:
    """A member's name is one safe path segment."""
    with pytest.raises(InvalidInputError) as caught:
        Actor(directory, "run", name)
    assert caught.value.kind == "name.invalid"


def test_what_cannot_be_sent_is_refused_where_it_is_handed_over(cluster: Cluster) -> None:
    """The caller hears of a value that does not travel, and the actor goes on with the next sample."""
    learner, actor = cluster.learner(), cluster.actor()
    learner.publish(vector(0), 0)
    weights = received(actor)
    for arrays, info in (({"x": np.array(["text"])}, None), ({"x": np.zeros(1)}, {"nested": {"x": 1}})):
        with pytest.raises(InvalidInputError):
            actor.send(arrays, weights, info)
    actor.send({"x": np.zeros(1)}, weights)
    assert collected(learner)[0].stamp.sequence == 1
