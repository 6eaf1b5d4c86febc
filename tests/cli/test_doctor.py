"""``perdure doctor``: what it prints, keeps, and ends with."""

import json
import re

import pytest

from tests.cli.test_json_reference import SECTIONS


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PERDURE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "certificates"


@pytest.mark.process
def test_an_exact_environment_is_certified(cli, cache):
    """The document has every field that its section describes, and the certificate is kept under its key."""
    result = cli("doctor", "--env", "CartPole-v1", "--steps", "30", "--json")

    assert (0, "E0") == (result.code, result.document["level"])
    described = set(re.findall(r"`(\w+)`", SECTIONS["doctor"]))
    assert set() == set(result.document) - described - {"schema"}
    kept = json.loads((cache / f"{result.document['key']}.json").read_text())
    assert kept["subject"] == result.document["subject"]


@pytest.mark.process
def test_an_environment_that_fails_is_told(cli, cache):
    """What continues otherwise ends with another code, and names the first thing that differs."""
    result = cli("doctor", "--env", "tests.capture.hidden:InModule", "--steps", "30")

    assert 4 == result.code
    assert "E4  unknown" in result.out
    assert "because restored" in result.out


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--arguments", "[1]"], "is no JSON object"), (["--arguments", "{"], "is no JSON object")],
)
def test_arguments_that_cannot_be_used_are_refused(words, message, cli, cache):
    """Arguments of an environment are a JSON object, and nothing is made with anything else."""
    result = cli("doctor", "--env", "CartPole-v1", *words)

    assert 2 == result.code
    assert message in result.err
