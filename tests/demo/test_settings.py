"""What the demo is made of."""

import sys
from pathlib import Path

import pytest

from perdure.demo.process import heard
from perdure.demo.project import project_text, write_project
from perdure.demo.settings import FULL_UPDATES, Settings, plan, read_settings, write_settings
from perdure.supervise.config import read_config


def test_settings_survive_their_file(tmp_path):
    """What is written for the processes is what they read."""
    settings = plan(seed=5, quick=True, seconds=None)
    write_settings(settings, tmp_path / "s.json")
    assert settings == read_settings(tmp_path / "s.json")


def test_the_full_demo_must_learn_and_the_quick_one_need_not():
    """Only the full demo has a return to reach; both have leases that end long before a member's silence is fatal."""
    full, quick = plan(seed=0, quick=False, seconds=None), plan(seed=0, quick=True, seconds=None)
    assert full == Settings()
    assert full.target_return == 400
    assert quick.target_return is None
    assert quick.updates < full.updates
    for settings in (full, quick):
        assert settings.timing.holder_seconds > 4 * settings.beat_seconds


@pytest.mark.parametrize(("seconds", "updates"), [(120.0, FULL_UPDATES), (240.0, 2 * FULL_UPDATES), (1.0, 40)])
def test_a_wish_for_seconds_becomes_a_number_of_updates(seconds, updates):
    """Time decides how many updates there are, never fewer than the faults need."""
    assert updates == plan(seed=0, quick=False, seconds=seconds).updates


def test_several_checkpoints_exist_before_the_newest_is_deleted():
    """Retention keeps more than the two that the last fault needs, and saves come often enough to make them."""
    for quick in (False, True):
        settings = plan(seed=0, quick=quick, seconds=None)
        assert settings.keep > 2
        assert settings.save_every_updates * 3 < 0.7 * settings.updates


def test_the_project_file_is_one_that_perdure_run_reads(tmp_path):
    """The roles, replicas and restarts of the demo stand in a project file beside its settings."""
    settings = plan(seed=3, quick=False, seconds=None)
    config = read_config(write_project("disturbed", settings, tmp_path))
    assert config.directory == tmp_path / "runs" / "disturbed"
    learner, actor, evaluator = config.roles
    assert (learner.members, evaluator.members) == (("learner",), ("evaluator",))
    assert actor.members == ("actor-0", "actor-1", "actor-2", "actor-3")
    assert actor.restart.restarts_fenced
    assert not learner.restart.restarts_fenced
    assert (learner.essential, actor.essential, evaluator.essential) == (True, False, False)
    assert actor.command == (sys.executable, "-m", "perdure.demo.actor", str(tmp_path / "disturbed.json"))
    assert actor.env["OMP_NUM_THREADS"] == "1"
    assert read_settings(tmp_path / "disturbed.json") == settings
    assert config.timing.beat_seconds == settings.beat_seconds


def test_any_path_can_stand_in_a_project_file(tmp_path):
    """Quotes, backslashes and letters beyond ASCII survive the file."""
    odd = Path('/odd/a "quoted" \\ path/übung')
    (tmp_path / "p.toml").write_text(project_text("r", Settings(), odd), encoding="utf-8")
    assert read_config(tmp_path / "p.toml").roles[0].command[-1] == str(odd)


@pytest.mark.parametrize(
    ("line", "event"),
    [
        ('{"event": "update", "update": 3}', {"event": "update", "update": 3}),
        ("perdure: disturbed: resumed", None),
        ("{broken", None),
        ('{"no": "event"}', None),
        ('{"event": 3}', None),
        ("[1, 2]", None),
    ],
)
def test_only_events_are_heard(line, event):
    """Output that is no event is for the log alone."""
    assert event == heard(line)
