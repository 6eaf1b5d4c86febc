"""The members' side: what is sent, when, and that nothing is ever disturbed by it."""

from __future__ import annotations

import json
import os
import select
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.core.restarts import Phase
from perdure.errors import InvalidInputError
from perdure.supervise.beats import Beat, Beater, decode_beat

BEAT = Beat("actor", "actor-2", 123, 1, Phase.SAVING, progress=7, step=700, generation=3, note="x")


class Listener:
    """A supervisor's end of the socket."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(10.0)
        self.environ = {"PERDURE_SUPERVISOR": str(path), "PERDURE_RESTART_COUNT": "4"}

    def next(self) -> Beat:
        """Return the next beat that arrives."""
        beat = decode_beat(self.socket.recv(4096))
        assert beat is not None
        return beat

    def is_idle(self) -> bool:
        """Say whether nothing has arrived."""
        return not select.select([self.socket], [], [], 0)[0]


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    """A socket to beat to."""
    listening = Listener(tmp_path / "s")
    with listening.socket:
        yield listening


@pytest.fixture
def beater(listener: Listener) -> Iterator[Callable[..., Beater]]:
    """Started beaters that are stopped at the end; by default they beat by themselves only once a minute."""
    started: list[Beater] = []

    def make(interval_seconds: float = 60.0, **keys: object) -> Beater:
        started.append(Beater("learner", "learner-0", interval_seconds, **{"environ": listener.environ, **keys}))
        started[-1].start()
        return started[-1]

    yield make
    for each in started:
        each.stop()


def test_a_beat_is_one_json_object() -> None:
    """The datagram is plain JSON with a schema number, and reads back as what it was."""
    fields = {"schema": 1, "role": "actor", "name": "actor-2", "pid": 123, "incarnation": 1, "phase": "saving"}
    assert {**fields, "progress": 7, "step": 700, "generation": 3, "note": "x"} == json.loads(BEAT.encode())
    assert decode_beat(BEAT.encode()) == BEAT
    least = Beat("r", "n", 1, 0, Phase.STARTING)
    assert decode_beat(least.encode()) == least


def test_unknown_fields_are_ignored() -> None:
    """A later version may add fields."""
    assert decode_beat(json.dumps({**json.loads(BEAT.encode()), "more": [1]}).encode()) == BEAT


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": 2},
        {"schema": None},
        {"phase": "dancing"},
        {"pid": "123"},
        {"pid": True},
        {"pid": None},
        {"progress": 1.5},
        {"name": 3},
        {"note": None},
        {"incarnation": {}},
    ],
)
def test_what_is_no_beat_is_not_taken_for_one(changes: dict[str, object]) -> None:
    """Wrong schemas, types and phases are no beats."""
    assert decode_beat(json.dumps({**json.loads(BEAT.encode()), **changes}).encode()) is None


@settings(max_examples=100, deadline=None)
@given(st.one_of(st.binary(max_size=200), st.integers(0, 200).map(lambda cut: BEAT.encode()[:cut])))
def test_any_bytes_may_arrive(datagram: bytes) -> None:
    """No datagram makes the decoder fail."""
    assert decode_beat(datagram) in (None, BEAT)


def test_deep_nesting_is_no_beat() -> None:
    """A datagram made to exhaust the parser is answered like any other rubbish."""
    assert decode_beat(b"[" * 4096) is None


def test_the_first_beat_is_sent_at_once(listener: Listener, beater) -> None:
    """A process that has just started says so without waiting for the interval."""
    beater()
    assert listener.next() == Beat("learner", "learner-0", os.getpid(), 4, Phase.STARTING)


def test_a_phase_is_sent_at_once_and_progress_with_the_next_beat(listener: Listener, beater) -> None:
    """The phase's patience must apply from its beginning; progress may be set in every iteration."""
    sender = beater()
    first = listener.next()
    sender.set_progress(5, step=500)
    sender.set_generation(2)
    assert listener.is_idle()
    sender.set_phase(Phase.RUNNING)
    assert listener.next() == replace(first, phase=Phase.RUNNING, progress=5, step=500, generation=2)


def test_beats_go_on_by_themselves(listener: Listener, beater) -> None:
    """The thread repeats the newest state at the interval."""
    sender = beater(0.02)
    sender.set_progress(9)
    while listener.next().progress != 9:
        pass
    assert listener.next().progress == 9


def test_the_clock_decides_when_a_beat_is_due(listener: Listener, beater) -> None:
    """While the clock stands still no beat is due, whatever time has passed outside."""
    now = [0.0]
    sender = beater(0.01, clock=lambda: now[0])
    listener.next()
    select.select([listener.socket], [], [], 0.1)
    assert listener.is_idle()
    now[0] = 1.0
    listener.next()
    sender.stop()


def test_last_words_are_the_last_beat(listener: Listener, beater) -> None:
    """The kind of the error that ends a process is not overtaken by an ordinary beat."""
    sender = beater(0.01)
    sender.stop(last_words="store.full")
    sender.set_phase(Phase.DRAINING)
    notes = [listener.next().note]
    while not listener.is_idle():
        notes.append(listener.next().note)
    assert notes[-1] == "store.full"
    assert {""} == set(notes[:-1])


def test_stopping_twice_is_harmless(beater) -> None:
    """Stop is idempotent, and every method may be called after it."""
    sender = beater()
    sender.stop()
    sender.stop("x")
    sender.set_progress(1)


def test_without_a_supervisor_nothing_happens() -> None:
    """Outside `perdure run` every method is a no-op and no thread is started."""
    with Beater("main", "main", environ={}) as silent:
        silent.set_phase(Phase.RUNNING)
        silent.set_progress(1)
        assert not silent.is_active


def test_a_supervisor_that_is_gone_is_normal(listener: Listener, beater) -> None:
    """Neither a missing socket nor a closed one is an error for the one that trains."""
    sender = beater()
    listener.socket.close()
    sender.set_phase(Phase.RUNNING)
    Path(listener.environ["PERDURE_SUPERVISOR"]).unlink()
    sender.set_phase(Phase.SAVING)
    sender.stop("store.full")


def test_a_supervisor_that_does_not_read_blocks_nobody(listener: Listener, beater) -> None:
    """When the socket is full, beats are dropped and not waited for."""
    sender = beater()
    for _ in range(2000):
        sender.set_phase(Phase.RUNNING)
    assert listener.next().phase is Phase.STARTING


def test_a_forked_child_does_not_beat_for_its_parent(listener: Listener, beater) -> None:
    """A worker that inherited the beater is not the member."""
    sender = beater()
    listener.next()
    sender._pid += 1  # as it looks to a child
    sender.set_phase(Phase.RUNNING)
    assert not sender.is_active
    assert listener.is_idle()
    sender._pid -= 1


def test_a_member_finds_its_name_in_the_environment(listener: Listener) -> None:
    """What the supervisor set is enough to beat."""
    environ = {
        **listener.environ,
        "PERDURE_ROLE": "actor",
        "PERDURE_MEMBER": "actor-1",
        "PERDURE_BEAT_SECONDS": "30",
    }
    with Beater.of_member(environ=environ):
        assert listener.next() == Beat("actor", "actor-1", os.getpid(), 4, Phase.STARTING)


@pytest.mark.parametrize("variable", ["PERDURE_BEAT_SECONDS", "PERDURE_RESTART_COUNT"])
def test_a_broken_environment_is_an_error_that_names_it(variable: str) -> None:
    """A number that is none is refused before training starts."""
    with pytest.raises(InvalidInputError) as caught:
        Beater.of_member(environ={variable: "soon"})
    assert variable == caught.value.field


@pytest.mark.process
def test_a_beater_and_a_supervisor_understand_each_other(role, run_of) -> None:
    """A real beater's phase, progress, step, generation and last words reach a real supervisor."""
    script = """
from perdure.core.restarts import Phase
from perdure.supervise.beats import Beater
beater = Beater.of_member()
beater.set_progress(3, step=30)
beater.set_generation(9)
beater.start()
beater.set_phase(Phase.RUNNING)
beater.stop("store.full")
sys.exit(1)
"""
    member = role(script)
    run = run_of(replace(member, command=(sys.executable, member.command[-1])))
    assert run.exit_code() == 1
    (fault,) = run.named("member-fault")
    facts = {"phase": "running", "progress": 3, "generation": 9, "note": "store.full", "exit_code": 1}
    assert facts.items() <= fault.items()
    (main,) = run.supervisor.members()
    assert (main.step, main.generation) == (30, 9)
