"""The gate: what is let in, what is turned away and why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.fencing import Accept, Announcement, GateState, Reason, Reject, Stamp, admit, recheck

STATE = GateState("run", 7, 1000, holders={"a": "a-2", "b": "b-1"}, watermarks={"a-2": 4}, max_staleness=300)
STAMP = Stamp("run", 7, "a", "a-2", 5, 900)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"run": "other"}, Reason.WRONG_RUN),
        ({"generation": 6}, Reason.WRONG_GENERATION),
        ({"generation": 8}, Reason.WRONG_GENERATION),
        ({"incarnation": "a-1"}, Reason.FENCED_MEMBER),
        ({"member": "c"}, Reason.FENCED_MEMBER),
        ({"member": "b"}, Reason.FENCED_MEMBER),
        ({"sequence": 4}, Reason.DUPLICATE),
        ({"sequence": 1}, Reason.DUPLICATE),
        ({"learner_step": 699}, Reason.STALE),
        ({"learner_step": 1001}, Reason.FUTURE),
    ],
)
def test_one_wrong_field_is_named(changes: dict, reason: Reason) -> None:
    """A stamp with a single fault is turned away for that fault."""
    assert admit(replace(STAMP, **changes), STATE) == Reject(reason)


def test_faults_are_named_in_a_fixed_order() -> None:
    """Of several faults the run comes first, then generation, member, duplicate and distance."""
    worst = Stamp("other", 6, "a", "a-1", 1, 5000)
    repairs = [{"run": "run"}, {"generation": 7}, {"incarnation": "a-2"}, {"sequence": 5}, {"learner_step": 1000}]
    named = []
    for repair in repairs:
        verdict = admit(worst, STATE)
        assert isinstance(verdict, Reject)
        named.append(verdict.reason)
        worst = replace(worst, **repair)
    assert named == [
        Reason.WRONG_RUN,
        Reason.WRONG_GENERATION,
        Reason.FENCED_MEMBER,
        Reason.DUPLICATE,
        Reason.FUTURE,
    ]
    assert isinstance(admit(worst, STATE), Accept)


@pytest.mark.parametrize("learner_step", [700, 1000])
def test_both_ends_of_the_staleness_range_are_inside(learner_step: int) -> None:
    """A policy exactly as old as allowed, or exactly current, is let in."""
    assert isinstance(admit(replace(STAMP, learner_step=learner_step), STATE), Accept)


def test_an_accepted_stamp_is_a_duplicate_afterwards() -> None:
    """Letting a stamp in raises its sender's watermark and nobody else's."""
    verdict = admit(STAMP, STATE)
    assert isinstance(verdict, Accept)
    assert verdict.state.watermarks == {"a-2": 5}
    assert admit(STAMP, verdict.state) == Reject(Reason.DUPLICATE)
    assert isinstance(admit(replace(STAMP, member="b", incarnation="b-1", sequence=1), verdict.state), Accept)


def test_an_evaluation_may_be_old_but_not_early() -> None:
    """Without the staleness bound an old policy is let in and a future one is not."""
    assert isinstance(admit(replace(STAMP, learner_step=0), STATE, bounds_staleness=False), Accept)
    early = admit(replace(STAMP, learner_step=1001), STATE, bounds_staleness=False)
    assert early == Reject(Reason.FUTURE)


def test_a_second_look_ignores_leases_and_duplicates() -> None:
    """A queued sample stays valid when its sender leaves, and becomes invalid with its generation or its age."""
    queued = replace(STAMP, sequence=4)
    assert recheck(queued, STATE.with_holders({})) is None
    assert recheck(queued, replace(STATE, generation=8)) is Reason.WRONG_GENERATION
    assert recheck(queued, replace(STATE, learner_step=1201)) is Reason.STALE
    assert recheck(queued, replace(STATE, learner_step=899)) is Reason.FUTURE


def test_watermarks_go_with_their_leases() -> None:
    """A change of holders forgets the watermarks of those who hold nothing any more."""
    assert STATE.with_holders({"b": "b-1"}).watermarks == {}
    assert STATE.with_holders({"a": "a-2"}).watermarks == {"a-2": 4}


@pytest.mark.parametrize(
    ("lineage", "learner_step", "is_kept"), [(5, 999, True), (4, 100, True), (4, 101, False), (6, 50, True)]
)
def test_a_rollback_undoes_what_came_after_its_checkpoint(lineage: int, learner_step: int, is_kept: bool) -> None:  # noqa: FBT001 - a table's column
    """A policy survives if it is of the present lineage or no younger than the checkpoint resumed from."""
    assert Announcement(generation=6, lineage=5, resumed_step=100).keeps(lineage, learner_step) is is_kept


@given(
    st.lists(
        st.builds(
            Stamp,
            st.just("run"),
            st.integers(6, 8),
            st.sampled_from("ab"),
            st.sampled_from(["a-1", "a-2", "b-1"]),
            st.integers(0, 6),
            st.integers(690, 1010),
        ),
        max_size=30,
    )
)
def test_nothing_is_let_in_twice_or_from_a_stranger(stamps: list[Stamp]) -> None:
    """Whatever arrives in whatever order, all that is let in is current, held, fresh and strictly ascending."""
    state = STATE
    admitted: list[Stamp] = []
    for stamp in stamps:
        verdict = admit(stamp, state)
        if isinstance(verdict, Accept):
            state = verdict.state
            admitted.append(stamp)
    assert all(stamp.generation == 7 and STATE.holders[stamp.member] == stamp.incarnation for stamp in admitted)
    assert all(0 <= 1000 - stamp.learner_step <= 300 for stamp in admitted)
    for incarnation, start in (("a-2", 4), ("b-1", 0)):
        sequences = [start, *(stamp.sequence for stamp in admitted if stamp.incarnation == incarnation)]
        assert sequences == sorted(set(sequences))
