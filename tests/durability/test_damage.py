"""Damage: flipped bits, truncated, extended, zeroed, swapped and stale files are noticed before they are used."""

from __future__ import annotations

import json

import pytest

from perdure.store.layout import LATEST, PINS, RUN_FILE
from perdure.testing.promises import Promises
from tests.durability.damage import explore_damage, flips, keep
from tests.durability.tiers import Report, look, workspace


def test_all_damage_to_a_checkpoint_is_noticed_before_any_byte_of_it_is_handed_out():
    """Every flipped bit, every truncation, and everything else that goes wrong with files is noticed."""
    report = Report()
    explore_damage(report)
    assert report.violations == []
    assert report.tried >= 10_000


@pytest.mark.parametrize("name", [RUN_FILE, f"{PINS}/good.json", "progress.json"])
def test_damage_to_a_small_file_costs_no_checkpoint(name):
    """A flipped bit in a file that is no part of a checkpoint leaves every checkpoint as it is."""
    with workspace() as root:
        kept = keep(root)
        kept.store.pin(kept.older, "good")
        kept.store.replace_json("progress.json", {"value": "models"})
        promises = Promises()
        promises.settle(look(kept.store))
        path = root / "run" / name
        content = path.read_bytes()
        for _, damaged in flips(content):
            path.write_bytes(damaged)
            found, broken = kept.store.scan()
            assert [each.manifest.id for each in found] == [kept.newer.manifest.id, kept.older.manifest.id]
            assert not broken
            assert kept.store.read_json(name) is None
        path.write_bytes(content)
        assert promises.violations(look(kept.store)) == []


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"null", b"\xff\xfe", b'{"seal": 1}', b"[" * 100_000])
def test_what_is_no_sealed_object_is_read_as_absent(tmp_path, content):
    """A small JSON file that nobody sealed says nothing."""
    kept = keep(tmp_path)
    (tmp_path / "run" / "progress.json").write_bytes(content)
    assert kept.store.read_json("progress.json") is None


def test_the_hint_may_point_nowhere(tmp_path):
    """Readers find the newest checkpoint when ``latest`` is gone, dangles, or is a file."""
    kept = keep(tmp_path)
    latest = tmp_path / "run" / LATEST
    for damage in (lambda: None, lambda: latest.symlink_to("nowhere"), lambda: latest.write_text(json.dumps({}))):
        latest.unlink(missing_ok=True)
        damage()
        assert kept.store.checkpoints()[0].manifest.id == kept.newer.manifest.id
