"""The lease protocol, both sides of it, under a network and a clock that tests control."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

import pytest

from perdure.cluster.grantor import Grantor
from perdure.cluster.membership import Condition, Membership
from perdure.cluster.wire import Answer, FromMember, Register, Want, WeightsHeader
from perdure.core.fencing import Announcement
from perdure.core.leases import Cause, Incarnation, Timing, Verdict
from perdure.core.restarts import Phase

TIMING = Timing(beat_seconds=5, lease_seconds=30, running_seconds=1000)
FIRST = Announcement(generation=1, lineage=1, resumed_step=0)
RUNNING = Condition(Phase.RUNNING, progress=1)


def life(born: int) -> Incarnation:
    return Incarnation("0" * 32, 1, born, "00000000")


def membership(born: int = 1) -> Membership:
    return Membership("run", "a", "actor", life(born), TIMING)


def exchange(member: Membership, grantor: Grantor, now: float, announcement: Announcement = FIRST) -> list[FromMember]:
    """Deliver everything that is due, and the answers, without any delay; return what was said."""
    said = member.due(now, RUNNING)
    for message in said:
        for post in grantor.hear(message, b"peer", announcement, now).posts:
            member.hear(post.answer, now)
    return said


def weights(announcement: Announcement, version: int = 1) -> WeightsHeader:
    return WeightsHeader(run="run", announcement=announcement, version=version, learner_step=0, arrays=[])


def test_a_member_registers_and_then_beats_every_five_seconds() -> None:
    """The first message asks for a lease, the second soon says what the member does, and then each beat follows."""
    member, grantor = membership(), Grantor("run", TIMING, 0.0)
    said = {now: [type(each).__name__ for each in exchange(member, grantor, float(now))] for now in range(12)}
    assert {now: names for now, names in said.items() if names} == {
        0: ["Register"],
        1: ["Beat"],
        6: ["Beat"],
        11: ["Beat"],
    }
    assert member.may_act(10.0)


def test_until_it_is_answered_a_member_asks_more_often() -> None:
    """Registrations are repeated five times a beat."""
    member = membership()
    asked = [now for now in range(6) if any(isinstance(each, Register) for each in member.due(float(now), RUNNING))]
    assert asked == [0, 1, 2, 3, 4, 5]
    assert not member.may_act(5.0)


def test_a_holder_counts_from_the_sending_of_what_was_answered() -> None:
    """The answer's own delay does not lengthen the time for which the holder acts."""
    member, grantor = membership(), Grantor("run", TIMING, 0.0)
    (registration,) = member.due(0.0, RUNNING)
    (post,) = grantor.hear(registration, b"peer", FIRST, 1.0).posts
    member.hear(post.answer, 20.0)
    assert member.may_act(24.9)
    assert not member.may_act(25.0)


def test_data_waits_for_weights_of_the_present_lineage() -> None:
    """After a rollback a member holds back until it has the new version; after a mere loss of a member it does not."""
    member, grantor = membership(), Grantor("run", TIMING, 0.0)
    exchange(member, grantor, 0.0)
    assert not member.may_send(0.0)
    member.hear_weights(weights(FIRST), 0.0)
    assert member.may_send(0.0)
    member.hear(_answer(Announcement(2, 1, 0)), 1.0)
    assert member.may_send(1.0)
    member.hear(_answer(Announcement(3, 3, 7)), 2.0)
    assert not member.may_send(2.0)
    assert member.may_act(2.0)
    member.hear_weights(weights(Announcement(3, 3, 7)), 3.0)
    assert member.may_send(3.0)


def _answer(announcement: Announcement, verdict: Verdict = Verdict.OK, born: int = 1) -> Answer:
    return Answer(run="run", incarnation=str(life(born)), number=0, verdict=verdict, announcement=announcement)


def test_a_superseded_learner_is_not_believed() -> None:
    """Answers and weights of a generation older than one already heard change nothing, not even by a fence."""
    member = membership()
    assert member.hear(_answer(Announcement(5, 5, 50)), 0.0)
    assert not member.hear(_answer(Announcement(4, 4, 0), Verdict.FENCED), 1.0)
    assert not member.hear_weights(weights(Announcement(4, 4, 0)), 1.0)
    assert (member.announcement.generation, member.fenced) == (5, None)


def test_answers_to_an_older_life_are_not_mine() -> None:
    """A fence for the predecessor behind the same name does not end its successor."""
    member = membership(born=2)
    assert not member.hear(_answer(FIRST, Verdict.FENCED, born=1), 0.0)
    assert member.fenced is None


def test_a_fenced_member_says_nothing_more() -> None:
    """Once told that it is over, a member sends nothing and the error has the exit code for it."""
    member, grantor = membership(born=1), Grantor("run", TIMING, 0.0)
    exchange(member, grantor, 0.0)
    exchange(membership(born=2), grantor, 1.0)
    exchange(member, grantor, 5.0)
    assert member.fenced is not None
    assert (member.fenced.kind, member.fenced.exit_code) == ("member.fenced", 12)
    assert member.due(100.0, RUNNING) == []
    assert not member.may_act(5.0)


def test_the_superseded_is_told_unasked() -> None:
    """The successor's registration brings a fence to the predecessor's own address."""
    grantor = Grantor("run", TIMING, 0.0)
    grantor.hear(membership(1).due(0.0, RUNNING)[0], b"old", FIRST, 0.0)
    heard = grantor.hear(membership(2).due(0.0, RUNNING)[0], b"new", FIRST, 1.0)
    assert [(post.peer, post.answer.verdict) for post in heard.posts] == [
        (b"new", Verdict.OK),
        (b"old", Verdict.FENCED),
    ]
    assert [loss.cause for loss in heard.losses] == [Cause.SUPERSEDED]
    assert grantor.lost_count == 1


def test_a_new_grantor_gets_its_members_back() -> None:
    """A member that meets a learner that does not know it registers at once and keeps its incarnation."""
    member = membership()
    exchange(member, Grantor("run", TIMING, 0.0), 0.0)
    successor = Grantor("run", TIMING, 100.0)
    second = Announcement(2, 2, 50)
    exchange(member, successor, 100.0, second)
    assert not member.may_act(100.0)
    exchange(member, successor, 100.0, second)
    assert member.may_act(100.0)
    assert successor.holders() == {"a": str(life(1))}
    assert member.announcement == second


def test_a_grantor_that_was_frozen_starts_everybody_afresh() -> None:
    """Silence that the grantor itself slept through ends no lease; silence after it does."""
    grantor = Grantor("run", TIMING, 0.0)
    exchange(membership(), grantor, 0.0)
    assert grantor.look(FIRST, 100.0).losses == ()
    assert grantor.look(FIRST, 114.0).losses == ()
    assert [loss.cause for loss in grantor.look(FIRST, 129.0).losses + grantor.look(FIRST, 130.0).losses] == [
        Cause.SILENT
    ]


def test_weights_are_asked_for_until_they_come() -> None:
    """A request stays with the learner until there is something newer, is repeated rarely, and ends with the answer."""
    member, grantor = membership(), Grantor("run", TIMING, 0.0)
    exchange(member, grantor, 0.0)
    member.want(1, 3)
    assert [type(each) for each in exchange(member, grantor, 0.1)] == [Want]
    assert grantor.take_wants(1, 3) == ()
    assert grantor.take_wants(1, 4) == (b"peer",)
    assert grantor.take_wants(1, 4) == ()
    member.hear_weights(weights(FIRST, 4), 0.2)
    assert not any(isinstance(each, Want) for now in range(1, 30) for each in exchange(member, grantor, float(now)))


def test_requests_of_a_fenced_member_are_not_served() -> None:
    """Weights go to holders of a lease only."""
    member, grantor = membership(1), Grantor("run", TIMING, 0.0)
    exchange(member, grantor, 0.0)
    exchange(membership(2), grantor, 1.0)
    member.want(0, 0)
    exchange(member, grantor, 2.0)
    assert member.fenced is not None
    assert grantor.take_wants(9, 9) == ()


def test_what_members_drop_themselves_is_added_up() -> None:
    """Totals reported by successive beats and successive lives are counted once each."""
    grantor = Grantor("run", TIMING, 0.0)
    for born, totals in ((1, (2, 5, 5)), (2, (1, 3))):
        member = membership(born)
        exchange(member, grantor, 0.0)
        for number, total in enumerate(totals, 1):
            condition = Condition(Phase.RUNNING, number, overflowed=total, undone=1)
            for message in member.due(5.0 * number, condition):
                grantor.hear(message, b"peer", FIRST, 0.0)
    assert dict(grantor.withheld) == {"overflowed": 8, "undone": 2}


@dataclass
class Simulation:
    """Members and learners over a network that delays, drops and repeats, with processes that freeze and restart."""

    random: random.Random
    now: float = 0.0
    born: int = 0
    generation: int = 1
    members: list[Membership] = field(default_factory=list)
    frozen: set[int] = field(default_factory=set)
    network: list = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        self.grantor = Grantor("run", TIMING, 0.0)
        for name in "abc":
            self.join(name)

    def join(self, name: str) -> None:
        self.born += 1
        self.members.append(Membership("run", name, "actor", life(self.born), TIMING))

    @property
    def announcement(self) -> Announcement:
        return Announcement(self.generation, 1, 0)

    def post(self, deliver, *arguments) -> None:
        if self.random.random() < 0.2:
            return
        for _ in range(1 + (self.random.random() < 0.1)):
            self.count += 1
            delay = self.random.choice([0.0, 0.1, 1.0, 8.0, 40.0])
            heapq.heappush(self.network, (self.now + delay, self.count, deliver, arguments))

    def step(self) -> None:
        self.now += self.random.choice([0.05, 0.5, 2.0])
        chance = self.random.random()
        if chance < 0.02:
            self.join(self.random.choice("abc"))
        elif chance < 0.05:
            self.frozen.symmetric_difference_update({self.random.randrange(len(self.members))})
        elif chance < 0.055:
            self.grantor = Grantor("run", TIMING, self.now)
            self.generation += 1
        while self.network and self.network[0][0] <= self.now:
            _, _, deliver, arguments = heapq.heappop(self.network)
            deliver(*arguments)
        self.generation += len(self.grantor.look(self.announcement, self.now).losses)
        for index, member in enumerate(self.members):
            if index not in self.frozen:
                for message in member.due(self.now, Condition(Phase.RUNNING, self.count)):
                    self.post(self.at_grantor, message, index)

    def at_grantor(self, message: FromMember, index: int) -> None:
        heard = self.grantor.hear(message, bytes([index]), self.announcement, self.now)
        self.generation += len(heard.losses)
        for post in heard.posts:
            self.post(self.at_member, post.peer[0], post.answer)

    def at_member(self, index: int, answer: Answer) -> None:
        if index not in self.frozen:
            self.members[index].hear(answer, self.now)


@pytest.mark.parametrize("seed", range(30))
def test_no_fault_makes_two_members_of_one_name_current(seed: int) -> None:
    """
    Of two lives of one name at most one can get data past the gate, whatever the network and the processes do.

    That is so at every moment, under loss, delay, repetition, freezing, restarts and new learners. No holder
    gives way to an older life under the same learner, and no member's generation goes back.
    """
    simulation = Simulation(random.Random(seed))
    heard: dict[int, int] = {}
    youngest: dict[tuple[int, str], int] = {}
    learners: list[object] = []  # kept, because the number of an object that is gone is given to another one
    for _ in range(300):
        simulation.step()
        learners.append(simulation.grantor)
        holders = simulation.grantor.holders()
        current: dict[str, int] = {}
        for index, member in enumerate(simulation.members):
            generation = member.announcement.generation
            assert generation >= heard.get(index, 0)
            heard[index] = generation
            is_admitted = holders.get(member._member) == member._incarnation
            if is_admitted and generation == simulation.generation and member.may_act(simulation.now):
                current[member._member] = current.get(member._member, 0) + 1
        assert all(count == 1 for count in current.values())
        for name, text in holders.items():
            held = Incarnation.parse(text)
            assert held is not None
            key = (id(simulation.grantor), name)
            assert held.born_nanoseconds >= youngest.get(key, 0)
            youngest[key] = held.born_nanoseconds


@pytest.mark.parametrize("seed", range(30))
def test_a_holder_stops_before_its_lease_ends_whatever_the_network_does(seed: int) -> None:
    """With one learner and one life a name, whoever believes in its lease holds it, through loss and delay."""
    simulation = Simulation(random.Random(seed))
    simulation.join = lambda name: None  # type: ignore[method-assign]
    for _ in range(300):
        before = simulation.grantor
        simulation.step()
        if simulation.grantor is not before:
            return  # a new learner knows nobody yet: the generation, not the lease, keeps its members' data out
        for member in simulation.members:
            if member.may_act(simulation.now):
                assert simulation.grantor.holders().get(member._member) == member._incarnation
