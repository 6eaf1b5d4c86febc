"""What is seen while the demo runs."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from perdure.core.restarts import Phase
from perdure.demo.display import Board, Lines, shown, sparkline
from perdure.supervise.member import MemberState, MemberStatistics
from tests.demo.story import Story


def member(name, state=MemberState.ALIVE, phase=Phase.RUNNING):
    """A supervised process at a moment."""
    return MemberStatistics(name, name.split("-")[0], state, 1, 0, phase, None, None, None)


def watched(display, story):
    """Show a story to a display, as a session would; returns the session."""
    session = SimpleNamespace(
        name="disturbed",
        settings=story.settings,
        director=story.director,
        seconds=0.0,
        members=(
            member("learner"),
            member("actor-0", phase=Phase.STARTING),
            member("actor-1", MemberState.WAITING),
            member("actor-2"),
        ),
    )
    tell = story.tell

    def tell_and_show(event, **facts):
        tell(event, **facts)
        session.seconds = story.at
        display.hear(session, story.happenings[-1])

    story.tell = tell_and_show
    return session


def text_of(console):
    """What a console has written."""
    return console.file.getvalue()


@pytest.fixture
def console():
    """A console that nobody watches."""
    return Console(file=io.StringIO(), width=200, no_color=True)


def test_lines_tell_of_every_fault(console):
    """Where nobody watches, every fault, discovery and recovery is one line, and each is written once."""
    story = Story()
    watched(Lines(console), story)
    story.told()
    text = text_of(console)
    assert text.count("fault: ") == 4
    assert text.count("noticed by the ") == 4
    assert text.count("back after ") == 4
    assert "10,240 steps lost: learner killed, newest checkpoint deleted" in text


def test_lines_are_few(console):
    """Besides faults there is a line every five seconds."""
    story = Story(acts=())
    watched(Lines(console), story)
    story.train(100)
    lines = text_of(console).splitlines()
    assert [line.split()[1] for line in lines] == ["0", "5"]


def test_the_board_shows_where_everything_stands(console):
    """The board has progress, returns, checkpoints, members in their states, and faults past and to come."""
    board, story = Board(), Story()
    watched(board, story)
    story.train(21)
    story.lose_learner("c1", at_update=11)
    story.train(36)
    story.lose_actor("actor-1")
    story.train(55)
    console.print(board.render())
    text = text_of(console)
    for expected in (
        "55 of 100",
        "275   evaluated 480",
        "newest at step 51,200",
        "learner running",
        "actor-0 starting",
    ):
        assert expected in text
    assert "actor-1 waiting" in text
    assert "actor-2 frozen" in text
    assert "10,240 steps lost" in text
    assert "at update 71" in text


def test_the_board_can_be_shown_before_anything_happened(console):
    """An empty board says that things are starting."""
    console.print(Board().render())
    assert "starting" in text_of(console)


@pytest.mark.parametrize(
    ("is_terminal", "is_quiet", "expected"), [(False, True, "Silence"), (False, False, "Lines"), (True, False, "Board")]
)
def test_the_display_suits_the_console(is_terminal, is_quiet, expected):
    """A terminal gets a board, a log gets lines, and who asks for silence gets it."""
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=120)
    with shown(console, is_quiet=is_quiet) as display:
        assert expected == type(display).__name__


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ({}, ""),
        ({1: 0.0}, "▁"),
        ({1: 0.0, 2: 250.0, 3: 500.0, 4: 499.0, 5: 0.0}, "▁▅█▁"),
        ({4: 500.0}, "   █"),
        ({1: 0.0, 4: 500.0}, "▁▁▁█"),
    ],
)
def test_a_sparkline_is_as_long_as_progress(curve, expected):
    """The curve in blocks ends where training is; where nothing is known it goes on as it was."""
    assert expected == sparkline(curve, updates=4, width=4)
