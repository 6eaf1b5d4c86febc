"""The pages of the documentation, and what is in them."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+)$", re.MULTILINE)
_ROW = re.compile(r"^\|(.+)\|$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: the words behind the fence, its text, and the line of the page that it begins in."""

    words: tuple[str, ...]
    text: str
    line: int


def name_of(page):
    """A page's path below the repository, for people."""
    return str(page.relative_to(ROOT))


def text_of(name):
    """The text of a page by its path."""
    return (ROOT / name).read_text(encoding="utf-8")


def blocks_of(text):
    """All fenced blocks, in order."""
    return [
        Block(tuple(match[1].split()), match[2], text.count("\n", 0, match.start(2)) + 1)
        for match in _FENCE.finditer(text)
    ]


def prose_of(text):
    """The text without its fenced blocks."""
    return _FENCE.sub("", text)


def links_of(text):
    """Targets of all links."""
    return _LINK.findall(prose_of(text))


def anchors_of(text):
    """The anchors that headings get where Markdown is shown."""
    headings = (re.sub(r"[`*]", "", heading).strip().lower() for heading in _HEADING.findall(prose_of(text)))
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


def rows_of(text):
    """Cells of all table rows, headings and rulers included."""
    rows = [re.split(r"(?<!\\)\|", row) for row in _ROW.findall(prose_of(text))]
    return [[cell.strip() for cell in row] for row in rows]


def codes_of(text):
    """Everything that stands in backquotes."""
    return set(re.findall(r"`([^`\n]+)`", prose_of(text)))
