"""What the demo reports."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from perdure.demo.acts import plan_acts
from perdure.demo.report import Report
from perdure.demo.settings import Settings
from perdure.demo.table import counts_text, print_report, seconds_text
from perdure.demo.training import look_back
from tests.demo.story import SETTINGS, STEPS, Story, report, undisturbed


def test_a_demo_succeeds_when_everything_was_recovered():
    """With four recoveries and a return beyond the target nothing failed."""
    assert report().failures == ()


@pytest.mark.parametrize(
    ("change", "failure"),
    [
        ({"exit_code": 20}, "disturbed run ended with exit code 20"),
        ({"faults_missing": 2}, "the run was over before 2 of its faults"),
        ({"evaluations": ()}, "the last weights were not evaluated"),
        ({"curve": ()}, "the last weights were not evaluated"),
    ],
)
def test_a_demo_fails_for_a_stated_reason(change, failure):
    """Whatever is missing is named, and is what makes the demo fail."""
    whole = report()
    assert (failure,) == replace(whole, disturbed=replace(whole.disturbed, **change)).failures


def test_a_return_short_of_the_target_fails():
    """The last evaluation counts, not the best one; without a target any return will do."""
    whole = report()
    early = replace(whole.disturbed.evaluations[0], value=500.0)
    late = replace(whole.disturbed.evaluations[-1], value=399.4)
    short = replace(whole, disturbed=replace(whole.disturbed, evaluations=(early, late)))
    assert short.failures == ("the final return is 399, short of 400",)
    assert replace(short, settings=replace(SETTINGS, target_return=None)).failures == ()


def test_a_fault_that_was_not_recovered_fails():
    """An incident's own failures are the demo's."""
    story = Story()
    story.train(21)
    story.update = 100
    story.train(101)
    assert "learner killed: learner did not come back" in report(story).failures


def test_useful_time_is_a_ratio_of_both_runs():
    """F13 is the undisturbed run's time divided by the disturbed one's, with the raw numbers beside it."""
    whole = report()
    useful = whole.useful
    assert useful.share == pytest.approx(whole.undisturbed.seconds / whole.disturbed.seconds)
    assert useful.faults_a_minute == pytest.approx(4 * 60 / whole.disturbed.seconds)
    # Each fault of the learner cost its death, its restore and ten updates that were made again, and one more.
    lost = 2 * (0.02 + 5.0 + 0.1 + 10 * 0.1)
    assert whole.disturbed.seconds_lost == pytest.approx(lost)
    assert useful.share_within == pytest.approx(1 - lost / whole.disturbed.seconds)
    assert useful.share_at_one_a_minute == pytest.approx(60 / (60 + lost / 4))


def test_nothing_is_called_useful_of_a_run_that_did_not_end():
    """Without two whole runs there is no figure."""
    whole = report()
    broken = replace(whole, undisturbed=replace(whole.undisturbed, exit_code=1))
    assert broken.useful is None
    assert broken.to_json()["figures"] == []


def test_the_document_says_all_that_the_table_says():
    """The document is JSON, has a schema, and names every fault with its times, losses and drops."""
    document = json.loads(json.dumps(report().to_json(), allow_nan=False))
    assert document["schema"] == 1
    assert document["succeeded"]
    assert [fault["name"] for fault in document["faults"]] == [
        "learner-killed",
        "actor-killed",
        "actor-frozen",
        "checkpoint-deleted",
    ]
    frozen, deleted = document["faults"][2:]
    assert frozen["exit_code"] == 12
    assert frozen["detected_after_seconds"] == 1.5
    assert frozen["samples_dropped"] == {"wrong-generation": 3}
    assert deleted["steps_lost"] == 10 * STEPS
    assert deleted["injections"][1]["fallback"] == deleted["resumed_from"] == "c6"
    assert all(fault["recovered"] for fault in document["faults"])
    assert [figure["id"] for figure in document["figures"]] == ["F13@demo", "F13@demo-within", "F13@one-a-minute"]
    assert document["figures"][2]["target"] == ">=0.90"
    assert len(document["undisturbed"]["curve"]) == 100
    assert document["disturbed"]["final_return"] == document["final_return"] == 480.0


def test_curves_begin_with_the_first_update():
    """Starting processes is not part of training: seconds count from the first update."""
    story = undisturbed()
    story.happenings = [replace(each, at=each.at + 30) for each in story.happenings]
    training = story.training()
    assert training.curve[0].seconds == 0.0
    assert training.seconds == pytest.approx(99 * 0.1)
    assert training.checkpoints_saved == 10


def test_runs_are_compared_by_the_updates_that_were_planned():
    """A run that went on, because somebody was not back yet, is timed to the update that the other one ended with."""
    story = undisturbed()
    story.train(120)
    training = story.training()
    assert training.seconds == pytest.approx(99 * 0.1)
    assert training.whole_seconds == pytest.approx(119 * 0.1)


def test_updates_that_were_undone_are_not_arrived_at():
    """A fault beyond the last planned update counts if it takes the run back behind it."""
    story = Story(acts=plan_acts(160)[3:])  # its learner is killed at update 114
    story.train(114)
    story.lose_learner("c9", at_update=90)
    story.train(114)
    training = story.training()
    gone = 0.02 + 5.0
    assert training.seconds == pytest.approx((113 + 10) * 0.1 + gone)


def test_a_run_without_an_update_is_still_reported():
    """A run that never trained has empty curves and no final return."""
    empty = look_back("disturbed", 1, [], updates=100, samples_dropped={})
    whole = Report(Settings(), empty, empty, host={}, versions={})
    assert empty.final_return is None
    assert whole.to_json()["disturbed"]["updates"] == 0
    assert not whole.to_json()["succeeded"]


def test_the_table_has_a_row_for_every_fault():
    """People see each fault, its times, what was lost and dropped, and how both runs ended."""
    console = Console(file=io.StringIO(), width=160, no_color=True)
    print_report(report(), console, Path("demo-report/learning-curve.png"))
    text = console.file.getvalue()
    assert text.count("recovered") == 4
    for expected in ("back after", "10,240", "3 wrong-generation", "1.50 s", "final return 480", "learning-curve.png"):
        assert expected in text
    assert "instead of 30 s" in text


def test_the_table_says_what_failed():
    """A failure is printed in words."""
    console = Console(file=io.StringIO(), width=160, no_color=True)
    whole = report()
    print_report(replace(whole, disturbed=replace(whole.disturbed, evaluations=())), console, Path("p.png"))
    assert "the last weights were not evaluated" in console.file.getvalue()


def test_numbers_are_short():
    """Times have the digits that matter, and counts name their reasons in a fixed order."""
    assert [seconds_text(0.004), seconds_text(9.99), seconds_text(12.34)] == ["0.00 s", "9.99 s", "12.3 s"]
    assert counts_text({"undone": 2, "stale": 1}) == "1 stale, 2 undone"
    assert counts_text({}) == "none"
