"""Documents of ``--json`` and docs/reference/json.md agree."""

import re

import pytest

from perdure.cli.catalogue import SUMMARIES
from perdure.cluster.control import Control
from perdure.supervise.claims import exclusive
from tests.cli.stores import damage, make_run
from tests.docs.pages import text_of

TEXT = text_of("docs/reference/json.md")
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))

FREE = {
    "versions",
    "metrics",
    "host",
    "meta",
    "packages",
    "detail",
    "pins",
    "spared",
    "last_events",
    "events",
    "sources",
}
"""Objects whose keys are the user's or described elsewhere."""
ELSEWHERE = {"problem", "problems", "error"}


def keys_in(value, name=""):
    """Every key of a document, at every depth that the reference describes."""
    if isinstance(value, dict) and name not in FREE | ELSEWHERE:
        for key, inner in value.items():
            yield key
            yield from keys_in(inner, key)
    elif isinstance(value, list) and name not in FREE | ELSEWHERE:
        for inner in value:
            yield from keys_in(inner, name)


@pytest.fixture
def eventful(root):
    """A run in which every list of every document has something in it."""
    run = make_run(root)
    run.record_keep("last:2")
    run.store.pin(run.store.checkpoints()[-1], "v1")
    damage(run.store.checkpoints()[1].directory / "model/policy.safetensors")
    run.store.quarantine(run.commit(4000).directory, "bad", "2027-01-01T00:00:00Z")
    run._previous = None  # what it could link to has just been moved
    (run.commit(5000).directory / "manifest.json").unlink()
    run.store.replace_json("restoring.step-000000003000-03030303", {"checkpoint": run.ids[2], "attempts": 1})
    run.event("member-started", member="actor", role="actor")
    with Control(run.directory).acquire("here:1"), exclusive(run.directory):
        yield run


@pytest.mark.parametrize(
    "words",
    [
        ["runs"],
        ["ls"],
        ["show"],
        ["verify"],
        ["events"],
        ["status"],
        ["gc", "--dry-run"],
        ["scrub"],
        ["repair", "--dry-run"],
        ["migrate"],
        ["key", "key-file"],
        ["chaos", "--on", "memory", "--rounds", "2"],
        ["pin"],
        ["pin", "latest", "v2"],
        ["pin", "--remove", "v1"],
        ["version"],
    ],
    ids=" ".join,
)
def test_every_field_of_a_document_is_described(cli, eventful, words):
    """What a verb prints with --json has no key that its section, or one that it refers to, does not name."""
    document = cli(*words, "--json").document

    described = set(
        re.findall(r"`(\w+)`", "".join([SECTIONS[words[0]], SECTIONS["ls"], TEXT[: TEXT.index("## Error")]]))
    )
    assert 1 == document["schema"]
    assert set() == set(keys_in(document)) - described


def test_every_field_of_an_error_is_described(cli, root):
    """An error has the fields of every error, and those of its class."""
    described = set(re.findall(r"`(\w+)`", SECTIONS["Error"]))
    assert set() == set(cli("ls", "nope", "--json").error) - described - {"schema"}


def test_every_verb_has_a_section():
    """The reference describes the output of each verb."""
    assert set(SUMMARIES) | {"Error"} == set(SECTIONS)
