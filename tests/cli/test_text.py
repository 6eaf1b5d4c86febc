"""Numbers and tables as people read them, and what may reach a terminal."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.cli.output import Manner, Output, wants_colour
from perdure.cli.text import (
    Word,
    ago_text,
    count_text,
    duration_text,
    layout,
    number_text,
    printable,
    size_text,
    span_text,
)
from perdure.errors import NotFoundError


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (10 * 1024 - 1, "10 KiB"),
        (41 * 2**20, "41 MiB"),
        (1024 * 1024 - 1, "1.0 MiB"),
        (int(1.9 * 2**30), "1.9 GiB"),
        (2**60, "1024 PiB"),
    ],
)
def test_sizes_are_in_binary_units(count, text):
    """One decimal below ten, none above, and never four digits where the next unit will do."""
    assert text == size_text(count)


@given(st.integers(0, 2**58))
def test_sizes_are_short(count):
    """No size takes more than eight characters."""
    assert len(size_text(count)) <= 8


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "?"),
        (0.0, "0s"),
        (59.9, "59s"),
        (60, "1m"),
        (3599, "59m"),
        (3600, "1h"),
        (4800, "1h20m"),
        (86400, "1d"),
        (90000, "1d1h"),
    ],
)
def test_spans_are_in_their_two_largest_units(seconds, text):
    """The second unit is left out where it is zero."""
    assert text == span_text(seconds)


def test_small_texts():
    """Counts agree with their nouns, durations and numbers keep what matters."""
    assert ("3m ago", "at an unknown time") == (ago_text(180), ago_text(None))
    assert ("1 file", "1,200 files") == (count_text(1, "file"), count_text(1200, "file"))
    assert ["1.2ms", "420ms", "6.2s", "2m"] == [duration_text(each) for each in (0.0012, 0.42, 6.2, 120)]
    assert ["0.333333", "1,000", "True", "x"] == [number_text(each) for each in (1 / 3, 1000, True, "x")]


def test_columns_are_as_wide_as_their_widest_cell():
    """Numbers stand to the right, and the last column is not padded."""
    table = layout(("NAME", ">N", "WHY"), [("a", "1,000", "x"), (Word("longer", "red"), "1", "")])

    assert [["NAME  ", "    N", "WHY"], ["a     ", "1,000", "x"], [Word("longer", "red"), "    1", ""]] == table


@given(st.text())
def test_nothing_that_a_terminal_obeys_gets_through(text):
    """Every character that is written can be printed, and printable text is left as it is."""
    assert printable(text).isprintable()
    if text.isprintable():
        assert text == printable(text)


@pytest.mark.parametrize(
    ("choice", "environ", "is_terminal", "wanted"),
    [
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"TERM": "dumb"}, True, False),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("auto", {"PERDURE_NO_COLOR": "1"}, True, False),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
        ("auto", {"FORCE_COLOR": "1", "TERM": "dumb"}, False, True),
        ("auto", {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
    ],
)
def test_colours_follow_the_option_then_the_environment_then_the_terminal(choice, environ, is_terminal, wanted):
    """A word on the command line beats everything, and a refusal in the environment beats a wish."""
    assert wanted == wants_colour(choice, environ, is_terminal=is_terminal)


def output(**manner):
    out, err = io.StringIO(), io.StringIO()
    return Output(out, err, Manner(**manner), {}), out, err


def test_only_words_are_coloured():
    """A word is wrapped in its colour and nothing else is; escapes out of a file are spelled out all the same."""
    talk, out, _ = output(color="always")
    talk.line(Word("da\x1bmaged", "red"), "  x")
    assert "\x1b[31mda\\x1bmaged\x1b[0m  x\n" == out.getvalue()


def test_text_is_silent_with_json_and_messages_are_with_quiet():
    """A document stands alone, and quiet commands say nothing that is no result."""
    talk, out, err = output(json=True)
    talk.line("text")
    talk.note("message")
    assert ("", "") == (out.getvalue(), err.getvalue())

    talk, out, err = output(quiet=True)
    talk.line("result")
    talk.note("message")
    assert ("result\n", "") == (out.getvalue(), err.getvalue())


def test_an_error_is_a_message_and_a_hint():
    """The hint has a line of its own, and escapes in either are spelled out."""
    talk, _, err = output()
    talk.error(NotFoundError("cannot find \x1b[2J", kind="x", hint="look"))
    assert "perdure: cannot find \\x1b[2J\nhint: look\n" == err.getvalue()
