"""How the demo's processes keep in step."""

from types import SimpleNamespace

import pytest

from perdure.demo.actor import still_ahead
from perdure.demo.learner import nonzero, remember
from perdure.demo.process import serve, tell
from perdure.demo.settings import Settings, write_settings
from perdure.errors import FencedError


def weights(lineage, learner_step):
    """Weights as far as being ahead of them matters."""
    return SimpleNamespace(lineage=lineage, learner_step=learner_step)


@pytest.mark.parametrize(
    ("ahead", "before", "now", "expected"),
    [
        (2, weights(1, 5), weights(1, 6), 1),
        (2, weights(1, 5), weights(1, 7), 0),
        (1, weights(1, 5), weights(1, 9), 0),
        (2, weights(1, 9), weights(2, 4), 0),
        (0, None, weights(1, 0), 0),
    ],
)
def test_an_update_uses_up_one_sample_of_every_actor(ahead, before, now, expected):
    """An actor is one sample less ahead for every update, never less than none, and not at all after a recovery."""
    assert expected == still_ahead(ahead, before, now)


def test_the_newest_returns_are_remembered():
    """Of the returns of ended episodes the last fifty are kept, in place, because they are part of the checkpoint."""
    returns = [0.0] * 49
    kept = returns
    remember(returns, [SimpleNamespace(info={"returns": [1.0, 2.0]}), SimpleNamespace(info={"returns": [3.0]})])
    assert kept is returns
    assert len(returns) == 50
    assert returns[-3:] == [1.0, 2.0, 3.0]


def test_what_has_not_happened_is_not_counted():
    """Counts of zero are left out of what watchers are told."""
    assert nonzero({"stale": 0, "undone": 2}) == {"undone": 2}


def test_a_process_ends_with_its_errors_code(tmp_path, monkeypatch, capsys):
    """A fenced process exits with 12 and says why; one that is done exits with 0."""
    write_settings(Settings(seed=9), tmp_path / "s.json")
    monkeypatch.setattr("sys.argv", ["demo", str(tmp_path / "s.json")])

    def be_fenced(settings):
        assert settings.seed == 9
        raise FencedError("cannot go on: superseded", kind="member.fenced")

    assert serve(be_fenced) == 12
    assert "superseded" in capsys.readouterr().err
    assert serve(lambda _settings: None) == 0


def test_watchers_are_told_in_whole_lines(capsys):
    """What a process tells is one JSON object on a line of its own."""
    tell("update", update=1)
    assert capsys.readouterr().out == '{"event": "update", "update": 1}\n'
