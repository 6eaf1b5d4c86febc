"""Real supervised runs: members are tiny scripts, and every run has a deadline."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from perdure.core.restarts import DEFAULT_BUDGETS, Phase, PhaseBudget, RestartPolicy
from perdure.supervise.config import ProjectConfig, RoleConfig, Timing
from perdure.supervise.supervisor import Supervisor

DEADLINE_SECONDS = 20.0

PRELUDE = """
import json, os, select, signal, socket, subprocess, sys

life = int(os.environ["PERDURE_RESTART_COUNT"])

def beat(phase="running", progress=None, note="", life=life, name=os.environ["PERDURE_MEMBER"]):
    fields = {"schema": 1, "role": os.environ["PERDURE_ROLE"], "name": name, "pid": os.getpid(), "incarnation": life,
              "phase": phase, "progress": progress, "step": None, "generation": 7, "note": note}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(json.dumps(fields).encode(), os.environ["PERDURE_SUPERVISOR"])

def wait(seconds=60.0):
    select.select([], [], [], seconds)
"""
"""What a member script begins with: a beat made by hand, to be independent of the code under test."""

FAST_RESTARTS = RestartPolicy(backoff_first_seconds=0.01)


@dataclass
class Run:
    """A supervised run under test: what it reported, and the supervisor itself."""

    config: ProjectConfig
    directory: Path
    on_event: Callable[[Run, dict[str, object]], None] | None = None
    on_output: Callable[[Run, str, str], None] | None = None
    options: dict[str, object] = field(default_factory=dict)
    events: list[dict[str, object]] = field(default_factory=list)
    lines: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.supervisor = Supervisor(
            self.config, self.directory, on_event=self._hear_event, on_output=self._hear_line, **self.options
        )

    def _hear_event(self, event: dict[str, object]) -> None:
        self.events.append(event)
        if self.on_event:
            self.on_event(self, event)

    def _hear_line(self, member: str, line: str) -> None:
        self.lines.append((member, line))
        if self.on_output:
            self.on_output(self, member, line)

    def exit_code(self) -> int:
        """Run to the end, or fail after the deadline."""
        late = threading.Timer(DEADLINE_SECONDS, lambda: [self.supervisor.stop(), self.supervisor.stop()])
        late.start()
        try:
            code = self.supervisor.run()
        finally:
            is_late = not late.is_alive()
            late.cancel()
            late.join()
        assert not is_late, f"the run did not end: {self.events[:20]} {self.lines[:20]}"
        return code

    def named(self, name: str, member: str | None = None) -> list[dict[str, object]]:
        """Events of a name."""
        return [event for event in self.events if event["event"] == name and member in (None, event.get("member"))]

    def pid(self, member: str) -> int:
        """Process id of a member's present incarnation."""
        (pid,) = (each.pid for each in self.supervisor.members() if each.name == member)
        assert pid is not None
        return pid


@pytest.fixture
def role(tmp_path: Path) -> Callable[..., RoleConfig]:
    """A role whose members run a script; silence budgets are for the phases by name."""

    def make(script: str, name: str = "main", silence: dict[str, float] | None = None, **keys: object) -> RoleConfig:
        path = tmp_path / f"{name}.py"
        path.write_text(PRELUDE + script)
        budgets = {**DEFAULT_BUDGETS, **{Phase(phase): PhaseBudget(each) for phase, each in (silence or {}).items()}}
        keys = {"restart": FAST_RESTARTS, "budgets": budgets, "cwd": tmp_path, **keys}
        return RoleConfig(name=name, command=(sys.executable, "-S", str(path)), **keys)

    return make


@pytest.fixture
def run_of(tmp_path: Path) -> Callable[..., Run]:
    """A run of some roles in a directory of its own."""

    def make(*roles: RoleConfig, timing: Timing = Timing(grace_seconds=10.0), **keys: object) -> Run:  # noqa: B008 - frozen
        config = ProjectConfig(store=tmp_path / "runs", run="r", roles=roles, timing=timing)
        return Run(config, config.directory, **keys)

    return make


@pytest.fixture
def watched() -> Iterator[Callable[[int], Callable[[], bool]]]:
    """Watch a process by its id; what is returned waits for its death and says whether it came in time."""
    descriptors = []

    def watch(pid: int) -> Callable[[], bool]:
        descriptor = os.pidfd_open(pid)
        descriptors.append(descriptor)
        return lambda: bool(select.select([descriptor], [], [], 5.0)[0])

    yield watch
    for descriptor in descriptors:
        os.close(descriptor)
