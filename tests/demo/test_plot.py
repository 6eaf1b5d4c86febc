"""The picture of the learning curve."""

from dataclasses import replace

import pytest

from perdure.demo.plot import draw
from tests.demo.story import Story, report

PNG = b"\x89PNG\r\n\x1a\n"


def size_of(path):
    """Width and height that a PNG file's header names."""
    content = path.read_bytes()
    assert content.startswith(PNG)
    return int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")


def stories():
    """Reports of every kind: whole, without a target, with a fault that was not recovered, with nothing at all."""
    whole = report()
    yield whole
    yield replace(whole, settings=replace(whole.settings, target_return=None))
    cut = Story()
    cut.train(21)
    cut.train(40)
    yield report(cut)
    yield report(Story())


@pytest.mark.parametrize("told", [*stories()], ids=["whole", "untargeted", "unrecovered", "empty"])
def test_every_report_can_be_drawn(told, tmp_path):
    """A picture of fixed size comes out, whatever did or did not happen."""
    draw(told, tmp_path / "curve.png")
    assert size_of(tmp_path / "curve.png") == (1650, 1080)
