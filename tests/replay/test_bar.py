"""What somebody who waits for a restore gets to see."""

import io
import os

import pytest

from perdure.replay import ProgressBar

GIB = 2**30


class Terminal(io.StringIO):
    """A stream that somebody watches."""

    def isatty(self):
        """It is one."""
        return True


def shown(stream, times, **settings):
    """What is written when a gibibyte of four is done at each of some times."""
    clock = iter(times)
    bar = ProgressBar("loading", stream=stream, clock_seconds=lambda: next(clock), **settings)
    for done in range(len(times)):
        bar(done * GIB, (len(times) - 1) * GIB)
    return stream.getvalue()


def test_a_terminal_gets_a_bar_that_ends_with_its_line():
    """The bar moves on in its line, not more often than can be seen, and its end is always shown."""
    text = shown(Terminal(), [10.0, 11.0, 11.01, 12.0, 12.01])
    lines = text.split("\r")[1:]
    assert [line.split(" ")[2] for line in lines] == ["0.00", "1.00", "3.00", "4.00"]
    assert text.endswith("(100%, 1.99 GiB/s)\n")
    assert text.count("\n") == 1


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_a_bar_fits_into_its_line(columns, monkeypatch):
    """However narrow the terminal, no line is longer than it: one that wraps would pile up."""
    monkeypatch.setattr(Terminal, "fileno", lambda self: 1)
    monkeypatch.setattr(os, "get_terminal_size", lambda descriptor: os.terminal_size((columns, 24)))
    lines = shown(Terminal(), [10.0, 11.0, 12.0]).rstrip("\n").split("\r")[1:]
    assert all(len(line) < columns for line in lines)
    assert all("loading: " in line for line in lines)


def test_what_is_done_in_no_time_needs_no_bar():
    """With patience a bar begins late, and what ends before leaves nothing on the terminal."""
    assert shown(Terminal(), [0.0, 0.5, 1.9], patience_seconds=2.0) == ""
    text = shown(Terminal(), [0.0, 0.5, 2.5, 2.51], patience_seconds=2.0)
    assert [line.split(" ")[2] for line in text.split("\r")[1:]] == ["2.00", "3.00"]
    assert text.endswith("\n")


def test_a_log_gets_a_line_now_and_then():
    """Where nobody watches, a restore of less than half a minute says nothing, and a longer one a line each time."""
    assert shown(io.StringIO(), [0.0, 1.0, 29.0]) == ""
    text = shown(io.StringIO(), [0.0, 31.0, 40.0, 62.0, 63.0])
    assert text.splitlines() == [
        "loading: 1.00 of 4.00 GiB (25%, 0.03 GiB/s)",
        "loading: 3.00 of 4.00 GiB (75%, 0.05 GiB/s)",
    ]
