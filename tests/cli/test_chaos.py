"""``perdure chaos``: the proof of durability, on the user's own file system."""

import pytest

pytestmark = pytest.mark.process


def test_all_promises_are_kept_on_a_disk(cli, tmp_path):
    """Processes are killed in a run made for it; the verdict and the counts are told, and nothing is left."""
    place = tmp_path / "place"
    place.mkdir()

    ended = cli("chaos", "--directory", str(place), "--rounds", "6")

    assert 0 == ended.code
    assert ended.lines[-1].startswith("all promises kept: 6 times killed")
    assert [] == list(place.iterdir())


@pytest.mark.parametrize(
    ("words", "code"), [(["--rounds", "0"], 2), (["--directory", "nowhere"], 10), (["--on", "nfs"], 2)]
)
def test_what_cannot_be_tried_is_refused(cli, words, code):
    """Senseless arguments are usage errors, and a missing directory is not found."""
    assert code == cli("chaos", *words, "--json").code
