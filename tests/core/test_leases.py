"""The lease table: who holds a lease, who lost one, who can never have one again."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from perdure.core.leases import Cause, Incarnation, LeaseTable, Loss, Timing, Verdict, may_act
from perdure.core.restarts import Phase
from perdure.errors import InvalidInputError

BOOT = "0123456789abcdef" * 2
TIMING = Timing(beat_seconds=5, lease_seconds=30, running_seconds=40, starting_seconds=100)


def life(born: int, nonce: str = "00000000", boot: str = BOOT) -> Incarnation:
    return Incarnation(boot, 1, born, nonce)


def registered(*lives: int, now: float = 0.0) -> LeaseTable:
    table = LeaseTable(TIMING)
    for born in lives:
        table = table.register(f"m{born}", "actor", life(born), now).table
    return table


def test_the_true_defaults_are_five_and_thirty_seconds() -> None:
    """Members beat every 5 s, are lost after 30 s, and stop acting on a lease after 25 s."""
    timing = Timing()
    assert (timing.beat_seconds, timing.lease_seconds, timing.holder_seconds) == (5.0, 30.0, 25.0)
    assert timing.silence_seconds(Phase.RUNNING) == 30.0
    assert all(timing.silence_seconds(phase) >= 30.0 for phase in Phase)


@pytest.mark.parametrize("changes", [{"beat_seconds": 0}, {"lease_seconds": 6.0}, {"running_seconds": math.nan}])
def test_a_timing_that_cannot_work_is_refused(changes: dict) -> None:
    """Times that are not positive, or a lease too short to be renewed, name the field."""
    with pytest.raises(InvalidInputError) as caught:
        Timing(**changes)
    assert caught.value.field == next(iter(changes))


def test_an_incarnation_survives_its_text() -> None:
    """The text form of an incarnation is read back as the same incarnation."""
    assert Incarnation.parse(str(life(123, "deadbeef"))) == life(123, "deadbeef")


@pytest.mark.parametrize(
    "text", ["", "x", f"{BOOT}.1.2", f"{BOOT}.1.2.zzzzzzzz", f"../{BOOT}.1.2.00000000", "a" * 9999]
)
def test_a_text_that_is_no_incarnation_is_none(text: str) -> None:
    """Anything else than the exact form is refused, so the text can name a file."""
    assert Incarnation.parse(text) is None


def test_registering_again_changes_nothing() -> None:
    """A member whose answer was lost can ask again and is not fenced by it."""
    table = registered(1)
    again = table.register("m1", "actor", life(1), 10.0)
    assert (again.verdict, again.losses) == (Verdict.OK, ())
    assert again.table.holders() == table.holders()
    assert again.table.expire(39.9)[1] == ()


@pytest.mark.parametrize(("at", "verdict"), [(29.9, Verdict.OK), (30.0, Verdict.FENCED)])
def test_a_lease_ends_exactly_after_its_length(at: float, verdict: Verdict) -> None:
    """A beat before the end renews; one at the end is too late, and the loss is reported."""
    outcome = registered(1).beat("m1", life(1), Phase.RUNNING, 1, at)
    assert outcome.verdict is verdict
    assert [loss.cause for loss in outcome.losses] == ([] if verdict is Verdict.OK else [Cause.SILENT])


def test_an_expired_lease_is_never_revived() -> None:
    """Neither beats nor registrations of an incarnation whose lease has ended are ever answered with OK again."""
    table, losses = registered(1).expire(30.0)
    assert [(loss.lease.member, loss.cause) for loss in losses] == [("m1", Cause.SILENT)]
    assert table.beat("m1", life(1), Phase.RUNNING, 1, 31.0).verdict is Verdict.FENCED
    assert table.register("m1", "actor", life(1), 31.0).verdict is Verdict.FENCED
    assert table.register("m1", "actor", life(2), 31.0).verdict is Verdict.OK


def test_a_younger_incarnation_replaces_an_older_one_at_once() -> None:
    """The successor gets the lease, the loss is reported, and the older one is fenced from then on."""
    outcome = registered(1).register("m1", "actor", life(5), 1.0)
    assert outcome.verdict is Verdict.OK
    assert [(loss.lease.incarnation, loss.cause) for loss in outcome.losses] == [(life(1), Cause.SUPERSEDED)]
    assert outcome.table.beat("m1", life(1), Phase.RUNNING, 1, 1.0).verdict is Verdict.FENCED


def test_an_older_incarnation_does_not_replace_a_younger_one() -> None:
    """A frozen process that wakes up before a new grantor cannot take its successor's place."""
    table = LeaseTable(TIMING).register("m", "actor", life(5), 0.0).table
    assert table.register("m", "actor", life(1), 1.0).verdict is Verdict.FENCED
    assert table.register("m", "actor", life(5, "11111111"), 1.0).verdict is Verdict.FENCED
    assert table.holders() == {"m": str(life(5))}


def test_after_a_reboot_the_clock_starts_again() -> None:
    """An incarnation of another boot is the younger one, however small its birth time."""
    table = LeaseTable(TIMING).register("m", "actor", life(5), 0.0).table
    assert table.register("m", "actor", life(1, boot="f" * 32), 1.0).verdict is Verdict.OK


def test_a_new_grantor_knows_nobody() -> None:
    """A beat for a lease that was never granted here is answered with UNKNOWN, not with FENCED."""
    outcome = LeaseTable(TIMING).beat("m", life(1), Phase.RUNNING, 1, 0.0)
    assert (outcome.verdict, outcome.table.holders()) == (Verdict.UNKNOWN, {})


def test_beats_without_progress_count_for_as_long_as_the_phase_allows() -> None:
    """A loop that hangs loses the lease although its beats go on; a change of phase starts the time afresh."""
    table = registered(1).beat("m1", life(1), Phase.RUNNING, 3, 0.0).table
    for now in (10.0, 20.0, 30.0, 39.0):
        table = table.beat("m1", life(1), Phase.RUNNING, 3, now).table
    assert [loss.cause for loss in table.expire(40.0)[1]] == [Cause.STALLED]
    saving = table.beat("m1", life(1), Phase.SAVING, 3, 39.0).table
    assert saving.beat("m1", life(1), Phase.SAVING, 3, 50.0).verdict is Verdict.OK


def test_leaving_loses_nobody() -> None:
    """A lease given back is gone without a loss, and its incarnation does not come back."""
    outcome = registered(1, 2).leave("m1", life(1), 1.0)
    assert (outcome.verdict, outcome.losses) == (Verdict.OK, ())
    assert list(outcome.table.holders()) == ["m2"]
    assert outcome.table.beat("m1", life(1), Phase.RUNNING, 1, 1.0).verdict is Verdict.FENCED


def test_a_grantor_that_was_away_blames_nobody() -> None:
    """Grace gives every lease its full time again."""
    table = registered(1, 2).grace(100.0)
    assert table.expire(129.9)[1] == ()
    assert len(table.expire(130.0)[1]) == 2


@pytest.mark.parametrize(("elapsed", "may"), [(0.0, True), (24.9, True), (25.0, False), (math.inf, False)])
def test_a_holder_stops_before_its_grantor_does(elapsed: float, may: bool) -> None:  # noqa: FBT001 - a table's column
    """A holder acts for 25 of 30 seconds after sending the last answered beat."""
    assert may_act(Timing(), 100.0, 100.0 + elapsed) is may


@settings(max_examples=40, stateful_step_count=30, deadline=None)
class LeasesAgainstModel(RuleBasedStateMachine):
    """
    The table against a plain model that remembers every life by name.

    The model keeps a set of all lives that ever ended; the table only the youngest of each member.
    """

    lives = Bundle("lives")

    def __init__(self) -> None:
        super().__init__()
        self.table = LeaseTable(TIMING)
        self.now = 0.0
        self.births = 0
        self.current: dict[str, dict] = {}
        self.ended: set[tuple[str, Incarnation]] = set()
        self.seen: dict[str, list[Incarnation]] = {}

    @rule(target=lives, member=st.sampled_from(["a", "b"]))
    def is_born(self, member: str) -> tuple[str, Incarnation]:
        self.births += 1
        return member, life(self.births)

    @rule(seconds=st.sampled_from([0.0, 1.0, 14.0, 29.0, 30.0, 45.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(who=lives)
    def registers(self, who: tuple[str, Incarnation]) -> None:
        member, incarnation = who
        losses = self.model_expires()
        held = self.current.get(member)
        if self.is_over(member, incarnation):
            verdict = Verdict.FENCED
        else:
            verdict = Verdict.OK
            if held and held["life"] == incarnation:
                held["heard"] = self.now
            else:
                if held:
                    losses.add((member, held["life"], Cause.SUPERSEDED))
                    self.ended.add((member, held["life"]))
                self.current[member] = {
                    "life": incarnation,
                    "heard": self.now,
                    "moved": self.now,
                    "told": (Phase.STARTING, 0),
                }
                self.seen.setdefault(member, []).append(incarnation)
        self.compare(self.table.register(member, "actor", incarnation, self.now), verdict, losses)

    @rule(who=lives, phase=st.sampled_from([Phase.STARTING, Phase.RUNNING]), progress=st.integers(0, 2))
    def beats(self, who: tuple[str, Incarnation], phase: Phase, progress: int) -> None:
        member, incarnation = who
        losses = self.model_expires()
        held = self.current.get(member)
        if held and held["life"] == incarnation:
            verdict = Verdict.OK
            held["heard"] = self.now
            if held["told"] != (phase, progress):
                held.update(told=(phase, progress), moved=self.now)
        else:
            verdict = Verdict.FENCED if self.is_over(member, incarnation) else Verdict.UNKNOWN
        self.compare(self.table.beat(member, incarnation, phase, progress, self.now), verdict, losses)

    @rule(who=lives)
    def leaves(self, who: tuple[str, Incarnation]) -> None:
        member, incarnation = who
        losses = self.model_expires()
        if self.current.get(member, {}).get("life") == incarnation:
            verdict = Verdict.OK
            del self.current[member]
            self.ended.add(who)
        else:
            verdict = Verdict.FENCED if self.is_over(member, incarnation) else Verdict.UNKNOWN
        self.compare(self.table.leave(member, incarnation, self.now), verdict, losses)

    @rule()
    def grantor_returns(self) -> None:
        for held in self.current.values():
            held.update(heard=self.now, moved=self.now)
        self.table = self.table.grace(self.now)

    @invariant()
    def holders_agree(self) -> None:
        self.table, losses = self.table.expire(self.now)
        assert self.named(losses) == self.model_expires()
        assert self.table.holders() == {member: str(held["life"]) for member, held in self.current.items()}

    def is_over(self, member: str, incarnation: Incarnation) -> bool:
        if self.current.get(member, {}).get("life") == incarnation:
            return False
        if (member, incarnation) in self.ended:
            return True
        return any(other.born_nanoseconds > incarnation.born_nanoseconds for other in self.seen.get(member, []))

    def model_expires(self) -> set:
        losses = set()
        for member, held in list(self.current.items()):
            patience = 100.0 if held["told"][0] is Phase.STARTING else 40.0
            if self.now - held["heard"] >= 30.0:
                losses.add((member, held["life"], Cause.SILENT))
            elif self.now - held["moved"] >= patience:
                losses.add((member, held["life"], Cause.STALLED))
            else:
                continue
            del self.current[member]
            self.ended.add((member, held["life"]))
        return losses

    @staticmethod
    def named(losses: tuple[Loss, ...]) -> set:
        return {(loss.lease.member, loss.lease.incarnation, loss.cause) for loss in losses}

    def compare(self, outcome, verdict: Verdict, losses: set) -> None:
        assert outcome.verdict is verdict
        assert self.named(outcome.losses) == losses
        self.table = outcome.table


TestLeasesAgainstModel = LeasesAgainstModel.TestCase
TestLeasesAgainstModel.__doc__ = "Whatever members and time do, the lease table answers as the plain model does."
