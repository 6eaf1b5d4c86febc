"""How the matrix interrupts, compares and tells: with rows that take no time."""

import json
import random

import numpy as np
import pytest
from matrix.page import BEGIN, END, PAGE, line_of, read, renewed
from matrix.row import Row
from matrix.states import compare, flatten
from matrix.trials import AFTER_STEPS, OTHER_NUMBER, TRIALS, plan, trials_of


def row(**options):
    return Row("PPO", "CartPole-v1", lambda life: {}, **options)


@pytest.mark.parametrize("trial", TRIALS)
def test_a_trial_leaves_enough_steps_to_compare(trial):
    """Every life but the last ends after the first save, later than the one before, and 1,000 steps before the end."""
    for seed in range(50):
        *interrupted, last = plan(trial, row(), random.Random(seed))
        ends = [leg.end_step for leg in interrupted]
        assert "" == last.end
        assert all(250 <= end <= 2_400 - AFTER_STEPS for end in ends)
        assert sorted(set(ends)) == ends
        assert (OTHER_NUMBER if trial == "number" else None) == last.environments


def test_a_row_without_a_number_of_environments_is_not_asked_for_another():
    """What has no number of environments has no trial with another one."""
    assert "number" not in trials_of(row(other_number=""))
    assert list(TRIALS) == trials_of(row())


def state(**options):
    return {"parameters": {"w": np.array([1.0, 2.0])}, "counters": {"steps": 3, "name": "a", "none": None}, **options}


def test_equal_states_have_no_differing_bit():
    """Two states of the same values are the same, wherever their arrays lie."""
    difference = compare(flatten(state()), flatten(state()))

    assert (0, (), 0.0) == (difference.bits, difference.places, difference.relative_l2)
    assert difference.of_bits > 128


@pytest.mark.parametrize(
    ("found", "bits", "place"),
    [
        (state(parameters={"w": np.array([1.0, np.nextafter(2.0, 3)])}), 1, "/parameters/w"),
        (state(parameters={"w": np.array([1.0, 2.0], np.float32)}), 128, "/parameters/w"),
        (state(parameters={"w": np.array([-0.0 + 1.0, 2.0]), "v": np.zeros(1)}), None, "/parameters/v"),
        (state(counters={"steps": 2, "name": "a", "none": None}), 1, "/counters/steps"),
        (state(counters={"steps": 3, "name": "c", "none": None}), 1, "/counters/name"),
        (state(counters={"steps": 3, "name": "a", "none": 0}), None, "/counters/none"),
    ],
)
def test_every_difference_is_counted_and_named(found, bits, place):
    """A bit, a type, a missing name and a plain value that differ are all found."""
    difference = compare(flatten(state()), flatten(found))

    assert place in difference.places
    assert difference.bits > 0
    if bits is not None:
        assert bits == difference.bits


def test_what_is_no_plain_value_is_not_compared_by_its_name():
    """An object in a state is an error, because its text would say nothing about it."""
    with pytest.raises(TypeError, match="/rng is a object"):
        flatten({"rng": object()})


def test_the_drift_is_that_of_the_parameters():
    """The distance is of floating-point parameters, over their length."""
    difference = compare(flatten(state()), flatten(state(parameters={"w": np.array([1.0, 2.5])})))

    assert pytest.approx(0.5 / np.sqrt(5)) == difference.relative_l2


def test_the_page_is_that_of_the_results():
    """docs/matrix.md shows what docs/matrix.json holds, and nothing older."""
    page = PAGE.read_text()

    assert page == renewed(page, read())


def test_every_row_that_is_published_holds():
    """No broken row is published, and every exact row has no differing bit in any trial."""
    for result in read():
        assert result["holds"], line_of(result)
        if result["grade"] == "exact":
            assert {0} == {outcome["bits"] for outcome in result["outcomes"] if outcome["bits"] is not None}


def test_what_is_around_the_tables_stays():
    """Renewing the tables changes nothing outside of them."""
    page = renewed(f"before\n{BEGIN}\nold\n{END}\nafter\n", json.loads("[]"))

    assert page.startswith("before\n")
    assert page.endswith("\nafter\n")
    assert "old" not in page
