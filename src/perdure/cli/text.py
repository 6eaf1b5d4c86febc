"""Numbers as people read them, and tables as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

UNKNOWN = "?"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


@dataclass(frozen=True, slots=True)
class Word:
    """A piece of text in a colour."""

    text: str
    colour: str


Cell = str | Word
"""What stands in one place of a table."""


def size_text(count_bytes: int) -> str:
    """Return a size in binary units with two to four digits: ``512 B``, ``1.9 GiB``, ``41 MiB``."""
    value, unit = float(count_bytes), _UNITS[0]
    for larger in _UNITS[1:]:
        if round(value) < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" or round(value, 1) >= 10 else f"{value:.1f} {unit}"


def span_text(seconds: float | None) -> str:
    """Return a span of time in its two largest units: ``8s``, ``13m``, ``1h20m``, ``3d4h``; ``?`` if unknown."""
    if seconds is None:
        return UNKNOWN
    whole = int(seconds)
    if whole < _MINUTE:
        return f"{whole}s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m"
    if whole < _DAY:
        return _pair(whole, _HOUR, "h", _MINUTE, "m")
    return _pair(whole, _DAY, "d", _HOUR, "h")


def _pair(whole: int, large: int, large_unit: str, small: int, small_unit: str) -> str:
    rest = whole % large // small
    return f"{whole // large}{large_unit}" + (f"{rest}{small_unit}" if rest else "")


def ago_text(seconds: float | None) -> str:
    """Return how long ago something was, as in a sentence."""
    return "at an unknown time" if seconds is None else f"{span_text(seconds)} ago"


def duration_text(seconds: float) -> str:
    """Return how long something took: ``1.2ms``, ``420ms``, ``6.2s``, ``3m``."""
    if seconds < 1:
        return f"{seconds * 1000:.3g}ms"
    return f"{seconds:.1f}s" if seconds < _MINUTE else span_text(seconds)


def count_text(count: int, noun: str) -> str:
    """Return a number of things: ``1 checkpoint``, ``1,200 files``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def number_text(value: object) -> str:
    """Return a number with six significant digits, or whatever it is as text."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def printable(text: str) -> str:
    """
    Return ``text`` with everything that a terminal would act on spelled out.

    Names, reasons and events come from files that anybody may have written; an escape sequence in them must not reach
    the terminal.
    """
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def layout(headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[list[Cell]]:
    """
    Pad the cells of a table to the width of their columns.

    Args:
        headings: One a column; one that begins with ``>`` aligns its column to the right.
        rows: As many cells in each.

    Returns:
        The lines, the headings first; the last column is padded only if it is aligned to the right.
    """
    right = [heading.startswith(">") for heading in headings]
    lines: list[Sequence[Cell]] = [[heading.removeprefix(">") for heading in headings], *rows]
    texts = [[printable(cell.text if isinstance(cell, Word) else cell) for cell in line] for line in lines]
    widths = [max(len(line[column]) for line in texts) for column in range(len(headings))]
    widths = [width if right[i] or i + 1 < len(widths) else 0 for i, width in enumerate(widths)]
    return [
        [
            _pad(cell, text, width, is_right)
            for cell, text, width, is_right in zip(line, row, widths, right, strict=True)
        ]
        for line, row in zip(lines, texts, strict=True)
    ]


def _pad(cell: Cell, text: str, width: int, is_right: bool) -> Cell:  # noqa: FBT001
    padded = text.rjust(width) if is_right else text.ljust(width)
    return Word(padded, cell.colour) if isinstance(cell, Word) else padded
