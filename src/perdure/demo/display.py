"""What is seen while the demo runs: a board on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from perdure.chaos import Freeze, Thaw
from perdure.demo.incidents import Incident
from perdure.demo.session import Session
from perdure.demo.table import after_text, seconds_text
from perdure.demo.training import Happening
from perdure.supervise.member import MemberState, MemberStatistics

LINE_SECONDS = 5.0
"""Time between two lines where nobody watches."""
_REFRESHES_A_SECOND = 8
_BLOCKS = "▁▂▃▄▅▆▇█"
_HIGHEST_RETURN = 500.0
_CURVE_WIDTH = 48


class Display(Protocol):
    """Shows sessions to whoever watches."""

    def hear(self, session: Session, happening: Happening) -> None:
        """Take in what has happened in a session."""


class Silence:
    """Shows nothing."""

    def hear(self, session: Session, happening: Happening) -> None:
        """Take nothing in."""


class State:
    """What is known of a session at a moment; written by the session's thread, read by any."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.update = 0
        self.step = 0
        self.generation = 0
        self.train_return: float | None = None
        self.eval_return: float | None = None
        self.checkpoints_saved = 0
        self.newest_step: int | None = None
        self.curve: dict[int, float] = {}
        """Return of training by update."""

    def hear(self, happening: Happening) -> None:
        """Take in what has happened."""
        event = happening.event
        if event["event"] == "update":
            self.update, self.step, self.generation = event["update"], event["step"], event["generation"]
            self.train_return = event["value"]
            self.curve[self.update] = event["value"]
        elif event["event"] == "evaluation":
            self.eval_return = event["value"]
        elif event["event"] == "saved":
            self.checkpoints_saved += 1
            self.newest_step = event["step"]
        elif event["event"] in ("restored", "generation-minted"):
            self.generation = event["generation"]

    def frozen(self) -> set[str]:
        """Return the members that are frozen."""
        faults = [each.fault for incident in self.session.director.incidents for each in incident.injections]
        frozen = {fault.member for fault in faults if isinstance(fault, Freeze)}
        return frozen - {fault.member for fault in faults if isinstance(fault, Thaw)}


@contextmanager
def shown(console: Console, *, is_quiet: bool) -> Iterator[Display]:
    """Show sessions during the block, in the way that suits the console."""
    if is_quiet:
        yield Silence()
    elif console.is_terminal:
        board = Board()
        with Live(
            get_renderable=board.render, console=console, refresh_per_second=_REFRESHES_A_SECOND, redirect_stdout=False
        ):
            yield board
    else:
        yield Lines(console)


class Board:
    """A board that is drawn again and again: the session of the moment, and what the one before it came to."""

    def __init__(self) -> None:
        self._state: State | None = None

    def hear(self, session: Session, happening: Happening) -> None:
        """Take in what has happened."""
        if self._state is None or self._state.session is not session:
            self._state = State(session)
        self._state.hear(happening)

    def render(self) -> RenderableType:
        """Return the board as of now."""
        return Text("starting …") if self._state is None else board(self._state)


def board(state: State) -> RenderableType:
    """Return a session's board."""
    session = state.session
    facts = Table.grid(padding=(0, 3, 0, 0))
    facts.add_column(style="dim")
    facts.add_column()
    for name, value in (
        ("update", _progress(state)),
        ("step", f"{state.step:,}"),
        ("return", _returns_text(state)),
        ("", Text(sparkline(state.curve, session.settings.updates, _CURVE_WIDTH), "blue")),
        ("generation", str(state.generation)),
        ("checkpoints", _checkpoints_text(state)),
        ("members", _members_text(session.members, state.frozen())),
    ):
        facts.add_row(name, value)
    title = Text.assemble(
        ("perdure demo", "bold"), f"  PPO on CartPole, {session.name} run  ", (f"{session.seconds:.0f} s", "dim")
    )
    return Group(title, Text(), facts, Text(), *_faults(session))


def sparkline(curve: dict[int, float], updates: int, width: int) -> str:
    """Draw returns by update as a line of blocks, as wide as all updates will be."""
    columns: dict[int, str] = {}
    for update, value in sorted(curve.items()):
        height = int(value / _HIGHEST_RETURN * len(_BLOCKS))
        columns[min(width, update * width // updates)] = _BLOCKS[min(len(_BLOCKS) - 1, height)]
    line, block = "", " "
    for column in range(1, max(columns, default=0) + 1):
        block = columns.get(column, block)
        line += block
    return line


def _progress(state: State) -> RenderableType:
    updates = state.session.settings.updates
    row = Table.grid(padding=(0, 2, 0, 0))
    row.add_row(ProgressBar(total=updates, completed=state.update, width=_CURVE_WIDTH), f"{state.update} of {updates}")
    return row


def _returns_text(state: State) -> str:
    training = "none yet" if state.train_return is None else f"{state.train_return:.0f}"
    evaluated = "" if state.eval_return is None else f"   evaluated {state.eval_return:.0f}"
    return f"{training}{evaluated}"


def _checkpoints_text(state: State) -> str:
    newest = "" if state.newest_step is None else f", newest at step {state.newest_step:,}"
    return f"{state.checkpoints_saved} saved{newest}"


def _members_text(members: tuple[MemberStatistics, ...], frozen: set[str]) -> Text:
    text = Text()
    for member in members:
        word, colour = _condition(member, is_frozen=member.name in frozen)
        text.append(f"{member.name} ").append(word, colour).append("   ")
    return text


def _condition(member: MemberStatistics, *, is_frozen: bool) -> tuple[str, str]:
    if is_frozen:
        return "frozen", "cyan"
    if member.state is MemberState.ALIVE:
        return member.phase.value, "green" if member.phase.value == "running" else "yellow"
    return member.state.value, "red" if member.state in (MemberState.WAITING, MemberState.KILLED) else "dim"


def _faults(session: Session) -> list[RenderableType]:
    table = Table.grid(padding=(0, 3, 0, 0))
    for incident in session.director.incidents:
        table.add_row(*_fault_cells(incident))
    for act in session.director.waiting:
        table.add_row(Text("waits", "dim"), Text(act.title, "dim"), Text(f"at update {act.begins_at}", "dim"))
    return [table] if table.row_count else []


def _fault_cells(incident: Incident) -> tuple[RenderableType, ...]:
    noticed = f"noticed after {after_text(incident, incident.detected_at)}" if incident.detected_at is not None else ""
    back = f"back after {after_text(incident, incident.back_at)}" if incident.back_at is not None else ""
    word = Text("back", "green") if incident.back_at is not None else Text("down", "red")
    lost = f"{incident.steps_lost:,} steps lost" if incident.steps_lost else ""
    return word, incident.act.title, f"at update {incident.update}", noticed, back, lost


class Lines:
    """
    Writes a line every few seconds, and one for each fault, discovery and recovery.

    Args:
        console: Where to.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._state: State | None = None
        self._next_at = 0.0
        self._told: set[str] = set()

    def hear(self, session: Session, happening: Happening) -> None:
        """Take in what has happened."""
        if self._state is None or self._state.session is not session:
            self._state = State(session)
            self._next_at = 0.0
            self._told = set()
        self._state.hear(happening)
        for line in incident_lines(session.director.incidents):
            if line not in self._told:
                self._told.add(line)
                self._write(session, line)
        if session.seconds >= self._next_at:
            self._next_at = session.seconds + LINE_SECONDS
            self._write(session, state_line(self._state))

    def _write(self, session: Session, line: str) -> None:
        self._console.print(
            f"{session.name} {session.seconds:5.0f} s  {line}", highlight=False, markup=False, soft_wrap=True
        )


def state_line(state: State) -> str:
    """Describe a session in one line."""
    members = state.session.members
    running = sum(member.state is MemberState.ALIVE for member in members)
    return (
        f"update {state.update} of {state.session.settings.updates}, step {state.step:,}, "
        f"return {_returns_text(state)}, generation {state.generation}, "
        f"{_checkpoints_text(state)}, {running} of {len(members)} members"
    )


def incident_lines(incidents: list[Incident]) -> Iterator[str]:
    """Describe, in a line each, everything that has come of faults so far."""
    for incident in incidents:
        title = incident.act.title
        yield f"fault: {title}, at update {incident.update}"
        if incident.detected_at is not None:
            yield f"noticed by the {incident.detected_by} after {after_text(incident, incident.detected_at)}: {title}"
        if incident.back_at is not None:
            after = seconds_text(max(0.0, incident.back_at - incident.began_at))
            yield f"back after {after}, {incident.steps_lost:,} steps lost: {title}"
