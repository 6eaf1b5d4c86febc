"""Guarantees name tests that exist, and the planted bugs that there are."""

import ast
import re

import pytest

from tests.docs.pages import ROOT, text_of
from tests.durability.planted import BUGS


def functions_of(path):
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("page", ["docs/guarantees.md", "docs/track-record.md"])
def test_every_test_that_is_named_exists(page):
    """A path of a test in backticks is a file, and the function behind it is in there."""
    named = re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", text_of(page))
    assert len(named) > 5
    for path, function in named:
        assert (ROOT / path).is_file(), path
        assert not function or function in functions_of(ROOT / path), function


def test_every_guarantee_names_a_test():
    """No section of a guarantee is without one."""
    sections = re.findall(r"^## (G\d+: .*?)(?=^## )", text_of("docs/guarantees.md"), re.MULTILINE | re.DOTALL)
    assert [f"G{number}" for number in range(1, len(sections) + 1)] == [each.partition(":")[0] for each in sections]
    assert all("tests/" in section for section in sections)


def test_every_planted_bug_is_listed_with_its_tier():
    """The table is that of the tests."""
    table = text_of("docs/guarantees.md").partition("## The planted bugs")[2]
    listed = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", table, re.MULTILINE))
    assert {name: bug.tier for name, bug in BUGS.items()} == {
        name: tier for name, tier in listed.items() if name not in ("bug", "---")
    }
