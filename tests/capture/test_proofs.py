"""Proofs: what is captured on somebody's word is called exact once a trial has shown it, and not before."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import perdure
from perdure import Every, Grade
from perdure.capture.environments import (
    capture_environment,
    level_of,
    register_environment,
    restore_environment,
    unproven_of,
)
from perdure.capture.environments.certificates import Certificate, Certificates, find, keep, subject_of
from perdure.capture.environments.copies import MAXIMUM_BYTES, Copy, copy_of
from perdure.capture.environments.proofs import PATIENCE_SECONDS, Proofs
from perdure.capture.environments.proven import Unit, layers_of
from perdure.errors import InvalidInputError
from perdure.files.door import Files
from tests.capture import hidden
from tests.capture.lives import cartpole, exact
from tests.waiting import wait_until


def started() -> Any:
    """An environment of a user's own in mid-episode."""
    env = wrappers.TimeLimit(hidden.Honest(), 40)
    env.reset(seed=3)
    env.step(1)
    return env


class Silent:
    """Trials that never end, counted."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.waited: list[float] = []
        self.certificate: Certificate | None = None
        self.failure = ""

    def __call__(self, subject: Any, content: bytes, stack: tuple[str, ...]) -> Any:
        """Begin one."""
        self.begun.append(subject.stack[0])
        return self

    def wait(self, seconds: float) -> bool:
        """Wait in vain."""
        self.waited.append(seconds)
        return False


def unit_of(env: Any) -> Unit:
    """An environment whose inmost layer needs a proof."""
    layers = layers_of(env)
    return Unit(layers, len(layers))


@pytest.mark.process
def test_an_environment_of_the_users_own_is_tried_out_once(trials: Path) -> None:
    """The first look begins a trial, the next waits for it; other processes find the certificate."""
    env = started()
    assert "Honest is being tried out" in unproven_of(capture_environment(env))
    tree = capture_environment(env)
    assert (level_of(tree)[1], unproven_of(tree)) == ("", "")

    other, silent = started(), Silent()
    assert Proofs(Certificates(), silent).standing(unit_of(other)).unproven == ""
    assert silent.begun == []
    found = find(subject_of(other.env), Files(), trials)
    assert found is not None
    assert found.level == "E0"


@pytest.mark.process
def test_what_fails_its_trial_is_reset(trials: Path) -> None:
    """A class whose word is not true is named with what came out otherwise, and is captured no more."""
    env = hidden.InModule()
    env.reset(seed=1)
    capture_environment(env)
    level, reason = level_of(capture_environment(env))
    assert level.value == "E3"
    assert reason.startswith("InModule has failed its probe (E4): restored")


@pytest.mark.process
def test_a_trial_changes_nothing_of_the_run(trials: Path) -> None:
    """No stream is drawn from, the environment is not touched, nor what its class keeps in its module."""
    env = hidden.InModule()
    env.reset(seed=1)
    random.seed(5)
    np.random.seed(6)
    before = random.getstate(), np.random.get_state()[1].tobytes(), exact(vars(env)["steps"]), dict(hidden.MODULE)
    generator = env.np_random.bit_generator.state
    capture_environment(env)
    capture_environment(env)
    after = random.getstate(), np.random.get_state()[1].tobytes(), exact(vars(env)["steps"]), dict(hidden.MODULE)
    assert after == before
    assert env.np_random.bit_generator.state == generator


class Connected(hidden.Honest):
    """Hands its state over, and holds what cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.connection = socket.socket()

    def get_state(self) -> int:
        """Give the state."""
        return self.count

    def set_state(self, state: int) -> None:
        """Take the state."""
        self.count = state


def test_what_cannot_be_copied_is_put_back_and_not_called_exact(trials: Path) -> None:
    """Its declared state is restored, the grade is statistical, and the reason says why and what to run."""
    env, target = Connected(), Connected()
    env.reset(seed=1)
    env.step(1)
    tree = capture_environment(env)
    restored = restore_environment(target, tree, reset_seed=0)
    for each in (env, target):
        each.connection.close()
    assert target.count == env.count
    assert (restored.restored, restored.grade) == ("continued", "statistical")
    assert "no test has shown that Connected goes on exactly" in restored.note
    assert "cannot copy Connected: TypeError" in restored.note
    assert "perdure doctor --env module:function" in restored.note


def test_a_copy_is_bounded() -> None:
    """An environment that holds much is not copied: pickling it would hold up the training."""
    env = hidden.Honest()
    env.ballast = np.zeros(MAXIMUM_BYTES, np.uint8)
    with pytest.raises(InvalidInputError, match="larger than"):
        copy_of(env)


def test_a_copy_is_of_the_same_kind() -> None:
    """What comes out of a pickle as something else proves nothing."""
    assert type(Copy(copy_of(started()), ("TimeLimit", "Honest"))().unwrapped) is hidden.Honest
    with pytest.raises(InvalidInputError, match="comes out as TimeLimit > Honest"):
        Copy(copy_of(started()), ("Other",))()


@pytest.mark.parametrize(("setting", "patience"), [("", PATIENCE_SECONDS), ("30", 30.0), ("auto", PATIENCE_SECONDS)])
def test_a_save_waits_for_a_trial_no_longer_than_its_patience(
    trials: Path, monkeypatch: pytest.MonkeyPatch, setting: str, patience: float
) -> None:
    """Patience counts from the beginning of the trial; when it is over, looks no longer wait."""
    monkeypatch.setenv("PERDURE_PROBE", setting)
    now = [100.0]
    silent = Silent()
    proofs = Proofs(Certificates(), silent, clock=lambda: now[0])
    env = started()
    for at in (100.0, 103.0, 150.0):
        now[0] = at
        assert "being tried out" in proofs.standing(unit_of(env)).unproven
    assert silent.waited == [patience - 3, patience - 50]


def test_environments_of_one_kind_share_a_trial(trials: Path) -> None:
    """A vector of eight begins one trial, and its proven wrappers need none."""
    silent = Silent()
    proofs = Proofs(Certificates(), silent)
    for _ in range(8):
        proofs.standing(unit_of(started()))
    assert len(silent.begun) == 1
    proofs.standing(Unit(layers_of(cartpole()), 0))
    assert len(silent.begun) == 1


def test_trials_can_be_forbidden(trials: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PERDURE_PROBE=never begins none, and says so."""
    monkeypatch.setenv("PERDURE_PROBE", "never")
    silent = Silent()
    reason = Proofs(Certificates(), silent).standing(unit_of(started())).unproven
    assert "PERDURE_PROBE is never" in reason
    assert silent.begun == []


def test_a_certificate_of_outer_wrappers_proves_what_they_wrap(trials: Path) -> None:
    """What `perdure doctor` has found out about the whole stack needs no trial of a part of it."""
    env = started()
    keep(Certificate(subject_of(env), "E0", "", 10), Files(), trials)
    assert unproven_of(capture_environment(env)) == ""


def test_a_certificate_is_of_one_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another source of the class, or another registration, needs another certificate; proven classes have none."""
    from perdure.capture.environments import certificates

    before = subject_of(hidden.Honest())
    monkeypatch.setattr(certificates, "_digests", {"tests.capture.hidden": "another"})
    assert subject_of(hidden.Honest()).key != before.key
    monkeypatch.undo()
    register_environment(hidden.Honest, ["count"])
    try:
        assert subject_of(hidden.Honest()).key != before.key
    finally:
        register_environment(hidden.Honest)
    assert subject_of(hidden.Honest()).key == before.key
    assert subject_of(cartpole()).sources == {}


@pytest.mark.process
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_sub_environments_are_tried_out(trials: Path, kind: Any) -> None:
    """Wherever they live, and however they were made, one trial speaks for all of them."""
    envs = kind([lambda: wrappers.TimeLimit(hidden.Honest(), 20)] * 2)
    try:
        envs.reset(seed=1)
        first, second = (capture_environment(envs) for _ in range(2))
        assert "being tried out" in unproven_of(first)
        assert (level_of(second)[1], unproven_of(second)) == ("", "")
        assert len(list((trials / "certificates").glob("*.json"))) == 1
    finally:
        envs.close()


@pytest.mark.process
def test_the_first_save_has_its_grade_by_proof(trials: Path, tmp_path: Path) -> None:
    """A checkpoint names the certificate; where trials are forbidden it says what is lacking."""
    with perdure.open(tmp_path, run="t", save=Every(steps=1), quiet=True) as run:
        run.track(env=started())
        run.save().wait()
        (checkpoint,) = run._store.checkpoints()
    entry = checkpoint.manifest.component("env")
    assert (entry.grade, entry.detail["unproven"], entry.detail["certificate"]) == (Grade.EXACT, "", "E0")


def test_a_manifest_says_what_is_not_proven(tmp_path: Path) -> None:
    """A state on somebody's word is saved as statistical, and a resume says of what and why."""
    for _ in range(2):
        with perdure.open(tmp_path, run="t", save=Every(steps=1), quiet=True) as run:
            run.track(env=started())
            report = run.restore()
            run.save().wait()
            entry = run._store.checkpoints()[0].manifest.component("env")
    assert entry.grade is Grade.STATISTICAL
    assert "Honest" in entry.detail["unproven"]
    assert report.grade is Grade.STATISTICAL
    assert any("no test has shown that Honest goes on exactly" in (each.note or "") for each in report.components)


SCRIPT = """
import pathlib, sys
import gymnasium as gym, numpy as np
from perdure.capture.environments import capture_environment, unproven_of

with pathlib.Path(sys.argv[1]).open("a") as told:
    told.write("begun\\n")

class Mine(gym.Env):
    observation_space = gym.spaces.Box(-99, 99, (1,))
    action_space = gym.spaces.Discrete(2)
    count = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += STRIDE + int(action)
        return np.array([self.count], np.float32), float(self.np_random.random()), self.count > 30, False, {}

    def get_state(self):
        return {"count": self.count}

    def set_state(self, state):
        self.count = state["count"]

STRIDE = 1
env = Mine()
env.reset(seed=1)
for _ in range(2):
    lacking = unproven_of(capture_environment(env))
print(repr(lacking))
"""


@pytest.mark.process
def test_the_main_program_is_not_run_again(trials: Path, tmp_path: Path) -> None:
    """An environment that a script without a guard defines is tried out, and the script does not begin once more."""
    script, told = tmp_path / "train.py", tmp_path / "told"
    script.write_text(SCRIPT)
    ended = subprocess.run(
        [sys.executable, str(script), str(told)], capture_output=True, text=True, timeout=120, check=True
    )
    assert ended.stdout.strip() == "''"
    assert told.read_text() == "begun\n"
    assert '"train.Mine"' in next((trials / "certificates").glob("*.json")).read_text()


@pytest.mark.process
def test_a_program_that_ends_leaves_no_trial_behind(trials: Path, tmp_path: Path) -> None:
    """A trial that takes for ever is ended with the program that began it."""
    told = tmp_path / "pid"
    program = (
        "import sys, time; sys.path[:] = " + repr([str(Path.cwd()), *sys.path]) + "\n"
        "from tests.capture import hidden\n"
        "from perdure.capture.environments import capture_environment\n"
        f"env = hidden.Endless(); env.told = {str(told)!r}; env.reset(seed=1); capture_environment(env)\n"
        "import pathlib\n"
        f"while not pathlib.Path({str(told)!r}).exists(): time.sleep(0.05)\n"
    )
    subprocess.run([sys.executable, "-c", program], timeout=120, check=True)
    wait_until(lambda: not _lives(int(told.read_text())), 20)


def _lives(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
