"""Following a run's history."""

import time

import pytest

from perdure.demo.history import History


def test_only_what_is_new_is_told(tmp_path):
    """Each event is told once, with its age, whoever wrote it, and torn lines are passed over."""
    mine, other = History(tmp_path, time.time), History(tmp_path, time.time)
    assert list(mine.fresh()) == []
    mine.append({"event": "one"})
    other.append({"event": "two"})
    ages, events = zip(*mine.fresh(), strict=True)
    assert [event["event"] for event in events] == ["one", "two"]
    assert all(0 <= age < 60 for age in ages)
    assert list(mine.fresh()) == []
    with (tmp_path / "events.jsonl").open("ab") as stream:
        stream.write(b"{torn\n")
    other.append({"event": "three", "at": "2000-01-01T00:00:00.000Z"})
    [(age, event)] = mine.fresh()
    assert event["event"] == "three"
    assert age == pytest.approx(time.time() - 946684800, abs=5)


def test_an_event_without_a_time_counts_as_new(tmp_path):
    """An event whose time cannot be read is taken to have happened now."""
    (tmp_path / "events.jsonl").write_text('{"event": "x"}\n{"event": "y", "at": "yesterday"}\n', encoding="utf-8")
    assert [age for age, _ in History(tmp_path, time.time).fresh()] == [0.0, 0.0]
