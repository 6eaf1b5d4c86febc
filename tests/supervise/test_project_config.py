"""perdure.toml: what it may say, and how each mistake is answered."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from perdure.core.restarts import DEFAULT_BUDGETS, Phase, PhaseBudget, RestartPolicy
from perdure.errors import InvalidInputError, NotFoundError, StoreError
from perdure.supervise.config import (
    ProjectConfig,
    RoleConfig,
    Timing,
    config_for_command,
    parse_config,
    parse_duration,
    read_config,
)

WHOLE = """
store = "checkpoints"
run = "ppo-ant"

[timing]
beat = 2
grace = "1m"
reap = "500ms"

[roles.learner]
command = ["python", "learner.py", "--fast"]
env = { OMP_NUM_THREADS = "1" }
phases.restoring = { silence = "2h" }
phases.running = { silence = 12.5, stall = "10m" }

[roles.actor]
command = ["python", "actor.py"]
replicas = 2
essential = false
cwd = "actors"
phases.starting.silence = inf

[roles.actor.restart]
max_restarts = 10
window = "1h"
backoff_first = 0.5
backoff_limit = "10s"
min_progress = 200
restarts_fenced = true
"""

LEAST = {"run": "r", "roles": {"main": {"command": ["true"]}}}


def test_a_whole_file_is_read_into_values(tmp_path: Path) -> None:
    """Every key lands in its field, durations in seconds, directories relative to the file."""
    path = tmp_path / "perdure.toml"
    path.write_text(WHOLE)
    learner = RoleConfig(
        name="learner",
        command=("python", "learner.py", "--fast"),
        env={"OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        budgets={
            **DEFAULT_BUDGETS,
            Phase.RESTORING: PhaseBudget(7200.0),
            Phase.RUNNING: PhaseBudget(12.5, 600.0),
        },
    )
    actor = RoleConfig(
        name="actor",
        command=("python", "actor.py"),
        replicas=2,
        essential=False,
        cwd=tmp_path / "actors",
        restart=RestartPolicy(10, 3600.0, 0.5, 10.0, 200, restarts_fenced=True),
        budgets={**DEFAULT_BUDGETS, Phase.STARTING: PhaseBudget(math.inf)},
    )
    expected = ProjectConfig(
        store=tmp_path / "checkpoints", run="ppo-ant", roles=(learner, actor), timing=Timing(2.0, 60.0, 0.5)
    )
    assert expected == read_config(path)
    assert tmp_path / "checkpoints" / "ppo-ant" == expected.directory
    assert actor.members == ("actor-0", "actor-1")
    assert learner.members == ("learner",)


def test_a_least_file_has_the_documented_defaults(tmp_path: Path) -> None:
    """A run's name and one command are enough."""
    config = parse_config(LEAST, tmp_path)
    role = RoleConfig(name="main", command=("true",), cwd=tmp_path)
    assert ProjectConfig(store=tmp_path / "runs", run="r", roles=(role,)) == config
    assert (config.timing.beat_seconds, config.timing.grace_seconds, config.timing.reap_seconds) == (5.0, 25.0, 10.0)
    assert role.essential


def _role(**keys: object) -> dict[str, object]:
    return {"run": "r", "roles": {"main": {"command": ["true"], **keys}}}


@pytest.mark.parametrize(
    ("document", "kind", "field"),
    [
        ({"roles": LEAST["roles"]}, "config.missing-key", "run"),
        ({"run": "r"}, "config.bad-value", "roles"),
        ({"run": "r", "roles": {}}, "config.bad-value", "roles"),
        ({"run": "r", "roles": []}, "config.wrong-type", "roles"),
        ({"run": "r", "roles": {"main": {}}}, "config.missing-key", "roles.main.command"),
        ({"run": "r", "roles": {"main": 3}}, "config.wrong-type", "roles.main"),
        ({"run": "r", "roles": {"../x": {"command": ["true"]}}}, "name.invalid", "roles.../x.role"),
        ({**LEAST, "run": "../up"}, "name.invalid", "run"),
        ({**LEAST, "run": 7}, "config.wrong-type", "run"),
        ({**LEAST, "store": ""}, "config.wrong-type", "store"),
        ({**LEAST, "stroe": "x"}, "config.unknown-key", "stroe"),
        ({**LEAST, "timing": {"grace": 0}}, "config.bad-value", "timing.grace"),
        ({**LEAST, "timing": {"grace": math.inf}}, "config.bad-value", "timing.grace"),
        ({**LEAST, "timing": {"grace": "soon"}}, "config.wrong-type", "timing.grace"),
        ({**LEAST, "timing": {"graces": 1}}, "config.unknown-key", "timing.graces"),
        (_role(command="python train.py"), "config.wrong-type", "roles.main.command"),
        (_role(command=[]), "config.bad-value", "roles.main.command"),
        (_role(command=["python", 3]), "config.wrong-type", "roles.main.command"),
        (_role(command=["a\0b"]), "config.bad-value", "roles.main.command"),
        (_role(replicas="4"), "config.wrong-type", "roles.main.replicas"),
        (_role(replicas=True), "config.wrong-type", "roles.main.replicas"),
        (_role(replicas=0), "config.bad-value", "roles.main.replicas"),
        (_role(replica=4), "config.unknown-key", "roles.main.replica"),
        (_role(essential="yes"), "config.wrong-type", "roles.main.essential"),
        (_role(essential=False), "config.bad-value", "roles"),
        (_role(env={"A": 1}), "config.wrong-type", "roles.main.env.A"),
        (_role(env={"A=B": "x"}), "config.bad-value", "roles.main.env"),
        (_role(env={"A": "x\0"}), "config.bad-value", "roles.main.env"),
        (_role(cwd=1), "config.wrong-type", "roles.main.cwd"),
        (_role(restart={"max_restarts": 1.5}), "config.wrong-type", "roles.main.restart.max_restarts"),
        (_role(restart={"max_restarts": -1}), "config.bad-value", "roles.main.restart.max_restarts"),
        (_role(restart={"window": "0s"}), "config.bad-value", "roles.main.restart.window"),
        (_role(restart={"backof_first": 1}), "config.unknown-key", "roles.main.restart.backof_first"),
        (_role(phases={"runing": {}}), "config.unknown-key", "roles.main.phases.runing"),
        (_role(phases={"running": {"silence": -1}}), "config.bad-value", "roles.main.phases.running.silence"),
        (_role(phases={"running": {"silence": True}}), "config.wrong-type", "roles.main.phases.running.silence"),
        (_role(phases={"running": 30}), "config.wrong-type", "roles.main.phases.running"),
        (
            {"run": "r", "roles": {"a": {"command": ["x"], "replicas": 2}, "a-1": {"command": ["x"]}}},
            "config.bad-value",
            "roles",
        ),
    ],
)
def test_each_mistake_is_an_error_that_names_its_key(document: dict[str, object], kind: str, field: str) -> None:
    """Nothing that is not understood is ignored or replaced by a default."""
    with pytest.raises(InvalidInputError) as caught:
        parse_config(document, Path("/x"))
    assert (kind, field, 2) == (caught.value.kind, caught.value.field, caught.value.exit_code)


@pytest.mark.parametrize(
    ("document", "hint"),
    [
        ({**LEAST, "stroe": "x"}, "did you mean 'store'?"),
        (_role(replica=4), "did you mean 'replicas'?"),
        (_role(phases={"runing": {}}), "did you mean 'running'?"),
        ({**LEAST, "timing": {"xyz": 1}}, "it has beat, grace, reap"),
    ],
)
def test_a_misspelt_key_is_answered_with_the_nearest_one(document: dict[str, object], hint: str) -> None:
    """The hint names the key that was probably meant, or else all there are."""
    with pytest.raises(InvalidInputError) as caught:
        parse_config(document, Path("/x"))
    assert hint == caught.value.hint


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(3, 3.0), (0.5, 0.5), ("90s", 90.0), ("15m", 900.0), ("2h", 7200.0), ("250ms", 0.25), ("1.5 m", 90.0)],
)
def test_durations_are_numbers_or_text_with_a_unit(value: object, seconds: float) -> None:
    """Seconds are what a bare number means."""
    assert seconds == parse_duration(value, "x")


@pytest.mark.parametrize("value", ["90", "s", "1d", "-1s", "1s ", "", True, None, [1]])
def test_other_durations_are_refused(value: object) -> None:
    """Text without a unit, or with one that is not offered, is no duration."""
    with pytest.raises(InvalidInputError, match="expected a number of seconds"):
        parse_duration(value, "x")


@pytest.mark.parametrize("content", [b"run = ", b'run = "\xff"', b"run = 'a'\nrun = 'b'"])
def test_a_file_that_is_no_toml_is_a_syntax_error(tmp_path: Path, content: bytes) -> None:
    """The error names the file."""
    path = tmp_path / "perdure.toml"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError) as caught:
        read_config(path)
    assert caught.value.kind == "config.syntax"
    assert str(path) in caught.value.message


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    """The error names the file and the way to do without one."""
    with pytest.raises(NotFoundError) as caught:
        read_config(tmp_path / "perdure.toml")
    assert caught.value.kind == "config.not-found"
    assert "perdure run --" in caught.value.hint


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    """What cannot be read is an error of the store."""
    with pytest.raises(StoreError):
        read_config(tmp_path)


def test_a_bare_command_is_a_run_with_one_member(tmp_path: Path) -> None:
    """`perdure run -- COMMAND` supervises one essential member called main."""
    config = config_for_command(["python", "train.py"], store=Path("runs"), run="r", cwd=tmp_path)
    role = RoleConfig(name="main", command=("python", "train.py"), cwd=tmp_path)
    assert ProjectConfig(store=tmp_path / "runs", run="r", roles=(role,)) == config


def test_a_bare_run_needs_a_command(tmp_path: Path) -> None:
    """An empty command is refused before anything is started."""
    with pytest.raises(InvalidInputError) as caught:
        config_for_command([], store=Path("runs"), run="r", cwd=tmp_path)
    assert caught.value.field == "command"
