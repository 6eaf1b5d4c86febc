"""The probe: environments are graded by trying, and what fails is never called exact."""

import json
import pickle

import pytest

from perdure import Every
from perdure.capture.environments import Level, capture_environment, environment_level, restore_environment
from perdure.capture.environments.certificates import CERTIFICATES, Certificate, Certificates, find, keep, subject_of
from perdure.capture.environments.probe import Maker, probe
from perdure.errors import DeadlineError, InvalidInputError
from perdure.files.door import Files
from tests.capture import hidden
from tests.capture.lives import cartpole


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "level", "reason"),
    [
        ("CartPole-v1", "E0", ""),
        ("tests.capture.hidden:LateReward", "E2", "in its first step: the reward"),
        ("tests.capture.hidden:InModule", "E4", "the observation, the reward"),
        ("tests.capture.hidden:Unrepeatable", "E4", "the observation"),
        ("tests.capture.hidden:Pickling", "E3", "is not an environment whose state is known"),
        ("tests.capture.hidden:vector", "E0", ""),
        ("tests.capture.hidden:vector_of_failures", "E4", "the observation, the reward"),
    ],
)
def test_environments_are_graded_by_trying(name, level, reason):
    """What is captured, what comes late, what hides in a module and what nothing repeats are told apart."""
    certificate = probe(Maker(name, {}), steps=60)

    assert level == certificate.level
    assert reason in certificate.reason


@pytest.mark.process
def test_an_environment_that_cannot_be_made_is_an_error():
    """Nothing is certified of what cannot be made."""
    with pytest.raises(InvalidInputError, match="cannot make environment Nothing-v0"):
        probe(Maker("Nothing-v0", {}), steps=10)


@pytest.mark.process
def test_an_environment_that_fails_by_itself_is_an_error():
    """What an environment raises is told, and not taken for a grade."""
    with pytest.raises(InvalidInputError, match="it fails with RuntimeError: no step today"):
        probe(Maker("tests.capture.hidden:Failing", {}), steps=10)


@pytest.mark.process
def test_a_probe_has_a_deadline():
    """An environment that never answers is given up."""
    with pytest.raises(DeadlineError, match="took longer"):
        probe(Maker("CartPole-v1", {}), steps=10, deadline_seconds=0.0)


def test_that_it_pickles_is_never_taken_for_it_is_captured():
    """An environment that comes out of a pickle as it was is reset all the same, until it is registered."""
    env = hidden.Pickling()
    env.reset(seed=1)
    env.step(1)
    assert env.count == pickle.loads(pickle.dumps(env)).count

    assert Level.E3 is environment_level(env)[0]
    assert "statistical" == restore_environment(env, capture_environment(env), reset_seed=0).grade


def test_a_certificate_is_of_one_subject(tmp_path):
    """A certificate is found for the same id, arguments, wrappers and versions, and for nothing else."""
    subject = subject_of(cartpole())
    keep(Certificate(subject, "E0", "", 10), Files(), tmp_path)

    assert "E0" == find(subject_of(cartpole()), Files(), tmp_path).level
    assert find(subject_of(cartpole(sutton_barto_reward=True)), Files(), tmp_path) is None
    assert find(subject_of(cartpole().unwrapped), Files(), tmp_path) is None


def test_a_damaged_certificate_is_as_if_there_were_none(tmp_path):
    """What is no JSON, or not a certificate, says nothing."""
    subject = subject_of(cartpole())
    path = keep(Certificate(subject, "E0", "", 10), Files(), tmp_path)
    for content in ("{", json.dumps({"level": "E0"}), "[]"):
        path.write_text(content)
        assert find(subject, Files(), tmp_path) is None


def test_an_environment_that_failed_its_probe_is_reset(tmp_path, monkeypatch):
    """A class that says that all of its state is known, and was found out, is level E3 with the reason."""
    env = hidden.InModule()
    assert (Level.E0, "") == environment_level(env)
    monkeypatch.setenv("PERDURE_CACHE", str(tmp_path))
    keep(Certificate(subject_of(hidden.InModule()), "E4", "it continues otherwise", 10), Files(), tmp_path)
    monkeypatch.setattr(CERTIFICATES, "_found", {})

    level, reason = environment_level(hidden.InModule())
    assert Level.E3 is level
    assert "InModule has failed its probe (E4): it continues otherwise" == reason


def test_a_manifest_names_the_certificate(tmp_path, monkeypatch):
    """The manifest says which environment was captured, in which wrappers, how, and what its probe has found."""
    import perdure

    monkeypatch.setenv("PERDURE_CACHE", str(tmp_path))
    monkeypatch.setattr(CERTIFICATES, "_found", Certificates()._found)
    keep(Certificate(subject_of(cartpole()), "E0", "", 10), Files(), tmp_path)
    with perdure.open(tmp_path, run="t", save=Every(steps=1), quiet=True) as run:
        run.track(env=cartpole())
        run.save().wait()
        (checkpoint,) = run._store.checkpoints()

    detail = checkpoint.manifest.component("env").detail
    assert ("E0", "CartPole-v1", "E0") == (detail["level"], detail["id"], detail["certificate"])
    assert "gymnasium.wrappers.common.TimeLimit" == detail["stack"][0]
