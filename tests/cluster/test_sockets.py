"""Endpoints: private, short, and taken over atomically."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import zmq

from perdure.cluster.sockets import (
    CONTROL,
    ConnectionWatch,
    Waker,
    connect,
    endpoint_directory,
    listen,
    receive,
    send,
)
from perdure.errors import InvalidInputError, StoreError
from tests.waiting import wait_until


@pytest.fixture
def context():
    context = zmq.Context()
    opened = []
    make = context.socket
    context.socket = lambda kind: opened.append(make(kind)) or opened[-1]
    yield context
    for each in opened:
        each.close(0)
    context.term()


def test_the_directory_follows_from_the_run_directory(directory: Path, tmp_path: Path) -> None:
    """Every way to write the same run directory leads to the same private place, another run to another one."""
    found = endpoint_directory(directory)
    link = tmp_path / "link"
    link.symlink_to(directory)
    assert endpoint_directory(link) == found
    assert endpoint_directory(tmp_path) != found
    assert found.name.startswith(f"perdure-{os.geteuid()}-")
    assert found.stat().st_mode & 0o777 == 0o700


def test_a_directory_that_others_can_enter_is_refused(directory: Path) -> None:
    """Somebody else could listen there in the learner's place."""
    endpoint_directory(directory).chmod(0o755)
    with pytest.raises(StoreError) as caught:
        endpoint_directory(directory)
    assert caught.value.kind == "endpoint.unsafe"


def test_a_link_is_refused(directory: Path, tmp_path: Path) -> None:
    """A link that somebody placed there is not followed."""
    found = endpoint_directory(directory)
    found.rmdir()
    (tmp_path / "elsewhere").mkdir(0o700)
    found.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError) as caught:
        endpoint_directory(directory)
    assert caught.value.kind == "endpoint.unsafe"


def test_a_path_too_long_for_a_socket_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to set, because the run directory is not to blame."""
    monkeypatch.setattr("tempfile.tempdir", "/tmp/" + "x" * 90)
    with pytest.raises(InvalidInputError) as caught:
        endpoint_directory(directory)
    assert (caught.value.kind, caught.value.field) == ("endpoint.too-long", "TMPDIR")


def test_a_successor_takes_over_and_a_late_close_does_not_remove_it(directory: Path, context) -> None:
    """New connections reach the newest listener, and the old one's end leaves its socket alone."""
    path = endpoint_directory(directory) / CONTROL
    old = listen(context, zmq.PULL, path)
    new = listen(context, zmq.PULL, path)
    old.close(0)
    sender = connect(context, zmq.PUSH, path)
    wait_until(lambda: send(sender, [b"hello"]), 30)
    wait_until(lambda: new.poll(0), 30)
    assert [bytes(frame) for frame in receive(new)] == [b"hello"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_comings_and_goings_are_noticed(directory: Path, context) -> None:
    """A member sees when its learner's end closes and when a successor is there."""
    path = endpoint_directory(directory) / CONTROL
    member = connect(context, zmq.DEALER, path)
    watch = ConnectionWatch(member)
    seen: list[bool] = []
    for _ in range(2):
        listening = listen(context, zmq.ROUTER, path)
        wait_until(lambda: seen.extend(watch.changes()) or (seen and seen[-1]), 30)
        listening.close(0)
        wait_until(lambda: seen.extend(watch.changes()) or not seen[-1], 30)
    assert seen == [True, False, True, False]
    watch.close()


def test_nothing_is_queued_for_nobody(directory: Path, context) -> None:
    """Without a listener a message is not taken, so that it can be kept for the successor."""
    sender = connect(context, zmq.PUSH, endpoint_directory(directory) / CONTROL)
    assert not send(sender, [b"hello"])


def test_a_waker_wakes_once_for_many_calls() -> None:
    """Wakings before the wait make it return at once; clearing forgets them all."""
    waker = Waker()
    poller = zmq.Poller()
    poller.register(waker, zmq.POLLIN)
    waker.wake()
    waker.wake()
    assert poller.poll(0)
    waker.clear()
    waker.clear()
    assert not poller.poll(0)
