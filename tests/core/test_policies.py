"""When to save, what to keep, which checkpoint a word means, and what a rollback makes untrue: decisions as tables."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.history import Rollback, live_rows
from perdure.core.manifest import Cut, Grade, Manifest, lowest_grade
from perdure.core.names import Section
from perdure.core.recovery import (
    STATE_STEPS,
    Step,
    compare_components,
    plan_restore,
    should_pass_over,
)
from perdure.core.retention import Best, EverySteps, Last, plan_retention
from perdure.core.saving import (
    Adaptive,
    Budget,
    Cost,
    Every,
    OnImprovement,
    Save,
    SaveContext,
    Skip,
    decide_save,
    widen,
)
from perdure.core.selectors import select
from perdure.errors import InvalidInputError, NotFoundError


def context(**changes):
    values = {"steps": 0, "seconds": 0.0, "metrics": {}, "saved": {}, **changes}
    return SaveContext(**values)


BOTH = Every(steps=100) | Every(seconds=60)


@pytest.mark.parametrize(
    ("policy", "changes", "expected"),
    [
        (BOTH, {"steps": 99, "seconds": 59}, Skip("not due")),
        (BOTH, {"steps": 100, "seconds": 1}, Save("every-steps")),
        (BOTH, {"steps": 1, "seconds": 60}, Save("every-seconds")),
        (BOTH, {"steps": 199, "stretch": 2.0}, Skip("not due")),
        (BOTH, {"steps": 200, "stretch": 2.0}, Save("every-steps")),
        (None, {"steps": 10**9}, Skip("not due")),
        (None, {"final": True}, Save("final")),
        (None, {"stop_requested": True}, Save("preemption")),
        (
            BOTH,
            {"stop_requested": True, "final": True, "moved": False},
            Skip("nothing has happened since the last save"),
        ),
        (OnImprovement("r"), {"metrics": {}}, Skip("not due")),
        (OnImprovement("r"), {"metrics": {"r": 1.0}}, Save("improved r")),
        (OnImprovement("r"), {"metrics": {"r": 1.0}, "saved": {"r": (0.0, 1.0)}}, Skip("not due")),
        (OnImprovement("r"), {"metrics": {"r": 1.1}, "saved": {"r": (0.0, 1.0)}}, Save("improved r")),
        (OnImprovement("r", "min"), {"metrics": {"r": -0.1}, "saved": {"r": (0.0, 1.0)}}, Save("improved r")),
        (OnImprovement("r"), {"metrics": {"r": math.nan}}, Skip("not due")),
    ],
)
def test_decide_save(policy, changes, expected):
    """A save is due by the first trigger that is, and by a stop or the end if anything has happened."""
    assert expected == decide_save(policy, context(**changes))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Every(),
        lambda: Every(steps=1, seconds=1),
        lambda: Every(steps=0),
        lambda: Every(seconds=-1),
        lambda: OnImprovement("r", "up"),
        lambda: Last(0),
        lambda: Best("r", 0),
        lambda: Best("r", mode="most"),
        lambda: EverySteps(0),
        lambda: Budget(0),
        lambda: Budget(1.5),
    ],
)
def test_policies_refuse_nonsense(make):
    """A policy that cannot mean anything is refused when it is made."""
    with pytest.raises(InvalidInputError):
        make()


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.01, 1000)), max_size=30))
def test_the_budget_stays_in_bounds_and_recovers(costs):
    """Whatever saves cost, the stretch stays between 1 and 64, and cheap saves bring it back to 1."""
    budget = Budget(0.1)
    for cost, interval in costs:
        budget = budget.after(cost, interval)

        assert 1.0 <= budget.stretch <= 64.0
    for _ in range(20):
        budget = budget.after(0.0, 1.0)

    assert 1.0 == budget.stretch


@pytest.mark.parametrize(("cost", "stretch"), [(0.05, 1.0), (0.1, 1.0), (0.2, 2.0), (1.0, 10.0), (1000, 64.0)])
def test_the_budget_stretches_to_its_share(cost, stretch):
    """A save that cost k times its share makes the next interval k times as long."""
    assert stretch == pytest.approx(Budget(0.1).after(cost, 1.0).stretch)


def checkpoint(order, step, *, generation=1, identity=None, **metrics):
    return Manifest(
        run="r",
        id=identity or f"{order:032x}",
        global_step=step,
        generation=generation,
        sequence=order,
        cut=Cut(step, "loop"),
        reason="x",
        created_at="",
        metrics=metrics,
    )


FIVE = [checkpoint(i, i * 100, r=float(v)) for i, v in enumerate([1, 9, 3, 9, 2], 1)]


def kept(policy, checkpoints=FIVE, **options):
    plan = plan_retention(checkpoints, policy, **{"pins": {}, **options})
    assert {c.id for c in checkpoints} == set(plan.keep) | {c.id for c in plan.remove}
    return [int(c.id, 16) for c in checkpoints if c.id in plan.keep]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (None, [1, 2, 3, 4, 5]),
        (Last(2), [4, 5]),
        (Last(9), [1, 2, 3, 4, 5]),
        (Best("r"), [2, 5]),
        (Best("r", 2), [2, 4, 5]),
        (Best("r", mode="min"), [1, 5]),
        (Best("absent"), [5]),
        (Last(1) | Best("r", mode="min"), [1, 5]),
        (EverySteps(200), [1, 2, 4, 5]),
    ],
)
def test_plan_retention(policy, expected):
    """A policy keeps what it says, and the newest checkpoint always stays."""
    assert expected == kept(policy)


def test_pinned_and_used_checkpoints_stay():
    """Pins and checkpoints in use outlive every policy; a pin of a checkpoint that is gone changes nothing."""
    assert [1, 3, 5] == kept(Last(1), pins={FIVE[0].id: "mine", "f" * 32: "gone"}, protected=[FIVE[2].id])


def test_newest_is_by_generation_not_by_step():
    """After a run went back, its newer generation is the newest, whatever its step."""
    rewound = checkpoint(1, 50, generation=2, identity="e" * 32)

    assert [rewound.id] == list(plan_retention([*FIVE, rewound], Last(1), {}).keep)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("latest", 5),
        ("latest~1", 4),
        ("latest~4", 1),
        ("@300", 3),
        ("@1,000", 5),
        ("@399", 3),
        ("pin:good", 2),
        ("good", 2),
        (FIVE[2].id, 3),
    ],
)
def test_select(word, expected):
    """A word picks by recency, step, pin or id."""
    assert expected == int(select(word, FIVE, {"good": FIVE[1].id}).id, 16)


@pytest.mark.parametrize("word", ["latest~5", "@99", "pin:none", "ffff", "", "latest~", "@", "../x"])
def test_select_refuses(word):
    """A word that means no checkpoint is an error."""
    with pytest.raises(NotFoundError):
        select(word, FIVE, {})


def test_an_ambiguous_prefix_is_refused():
    """An id prefix that begins several ids is refused."""
    with pytest.raises(InvalidInputError, match="more digits"):
        select("00000000", FIVE, {})


def test_restore_order():
    """Models come before their optimizer, replay before counters, and the global generators last of all."""
    sections = {
        "rng": Section.RNG,
        "a_generator": Section.RNG,
        "zoo": Section.ENVIRONMENT,
        "policy": Section.MODEL,
        "optimizer": Section.OPTIMIZER,
        "lr": Section.SCHEDULER,
        "replay": Section.BUFFER,
        "locals": Section.STATE,
    }
    plan = plan_restore(sections, "rng")

    assert ["policy", "optimizer", "lr", "replay", "locals", "zoo", "a_generator", "rng"] == [
        n for step in STATE_STEPS for n in plan[step]
    ]
    assert ("a_generator", "rng") == plan[Step.GENERATORS]


def test_differences_left_after_what_is_accepted():
    """Accepted names and the star take differences away; all others stay."""
    assert (("b",), ("c",)) == _difference(["a", "b"], ["a", "c"], [])
    assert ((), ("c",)) == _difference(["a", "b"], ["a", "c"], ["b"])
    assert ((), ()) == _difference(["a", "b"], ["a", "c"], ["*"])


def _difference(*arguments):
    difference = compare_components(*arguments)
    return difference.unknown, difference.missing


@pytest.mark.parametrize(
    ("deaths", "older", "expected"), [(1, True, False), (2, True, True), (2, False, False), (99, False, False)]
)
def test_passing_over_a_checkpoint_that_kills(deaths, older, expected):
    """Two deaths are enough where there is an older checkpoint, and never where there is none."""
    assert expected is should_pass_over(deaths, has_older=older)


def test_rows_beyond_a_rollback_are_superseded():
    """Rows of an abandoned future are left out; rows of the new one at the same steps are not."""
    rows = [{"generation": 1, "step": s} for s in (10, 20, 30)] + [{"generation": 2, "step": s} for s in (20, 30)]
    rollbacks = [Rollback(2, 10), Rollback(3, 25)]

    assert [(1, 10), (2, 20)] == [(row["generation"], row["step"]) for row in live_rows(rows, rollbacks)]


def test_the_weakest_part_grades_the_whole():
    """One part that is not exact makes the whole not exact."""
    assert [Grade.EXACT, Grade.WARM, Grade.STATISTICAL] == [
        lowest_grade(grades)
        for grades in ([], [Grade.EXACT, Grade.WARM, Grade.STATISTICAL], [Grade.STATISTICAL, Grade.EXACT])
    ]


def test_ranges_of_metrics_widen():
    """Each checkpoint widens the range of its metrics."""
    assert {"a": (1.0, 3.0), "b": (2.0, 2.0)} == widen(widen({"a": (2.0, 3.0)}, {"a": 1.0}), {"b": 2.0})


@pytest.mark.parametrize(
    ("cost", "faults", "share", "expected"),
    [
        (Cost(1, 0.0, 2.0), 3600.0, 0.1, 120.0),  # sqrt(2 * 2 * 3600)
        (Cost(1, 1.0, 1.0), 3600.0, 0.1, 120.0),
        (Cost(1, 0.0, 2.0), 4.0, 0.1, 20.0),  # its share of the time
        (Cost(), 7200.0, 0.1, 120.0),  # as if a save cost a second
    ],
)
def test_an_adaptive_interval_loses_least_within_its_share(cost, faults, share, expected):
    """The interval follows from cost and faults, and never lets saving take more than its share."""
    policy = Adaptive(faults, share)

    assert expected == pytest.approx(policy.interval_seconds(cost))
    assert policy.due(context(seconds=expected + 1, cost=cost)) == "adaptive"
    assert policy.due(context(seconds=expected - 1, cost=cost)) is None
    assert expected == pytest.approx((Every(steps=10**9) | policy).interval_seconds(cost))


@given(st.lists(st.floats(0.001, 100.0), min_size=1, max_size=30))
def test_the_average_cost_lies_among_the_costs(seconds):
    """However costs vary, their average stays between the least and the greatest."""
    cost = Cost()
    for each in seconds:
        cost = cost.after(each / 2, each / 2)

    assert min(seconds) * 0.999 <= cost.seconds <= max(seconds) * 1.001
    assert len(seconds) == cost.saves


@pytest.mark.parametrize("arguments", [(0.0, 0.1), (10.0, 0.0), (10.0, 1.5)])
def test_an_impossible_adaptive_policy_is_refused(arguments):
    """Faults that are no time apart and shares beyond 0 to 1 are refused."""
    with pytest.raises(InvalidInputError):
        Adaptive(*arguments)
