"""Tianshou under perdure, around the rows of the matrix: epochs in their midst, what is refused, what bites."""

import sys

import pytest

pytest.importorskip("tianshou", reason="the extra tianshou is not installed")

import torch
from matrix.life import CutError, Life
from matrix.states import compare, flatten

import perdure
from perdure.errors import IncompatibleError, InvalidInputError

pytestmark = pytest.mark.filterwarnings("ignore")  # of Tianshou and what it is built on, about themselves
STEPS = 1_200


@pytest.fixture(scope="module")
def rows():
    import matrix.rows.tianshou

    torch.set_num_threads(1)
    return matrix.rows.tianshou


def live(rows, make, store, *, seed=1, end_step=0, environments=None):
    life = Life(
        store, seed=seed, steps=STEPS, save_steps=50, end="cut" if end_step else "", end_step=end_step,
        environments=environments,
    )  # fmt: skip
    try:
        return flatten(rows.training(make)(life)), life.report
    except CutError:
        return None


def test_an_epoch_goes_on_in_its_midst(rows, tmp_path):
    """A training cut within an epoch ends with the nets, schedulers, buffers and counts of one that never was."""
    expected, _ = live(rows, rows.ppo, None)
    live(rows, rows.ppo, tmp_path, end_step=150)
    ended, report = live(rows, rows.ppo, tmp_path, seed=2)

    assert compare(expected, ended).places == ()
    assert 0 < report["step"] % (STEPS // 4)
    assert STEPS - report["step"] >= 1_000
    assert report["grade"] == "exact"


def test_forgotten_attributes_show(rows, tmp_path, monkeypatch):
    """The comparison is not blind: without the algorithm's plain attributes a resumed training ends elsewhere."""
    expected, _ = live(rows, rows.dqn, None)
    track = perdure.Run.track

    def without(run, objects=None, /, **named):
        track(run, {name: part for name, part in {**(objects or {}), **named}.items() if name != "attributes"})

    monkeypatch.setattr(perdure.Run, "track", without)
    live(rows, rows.dqn, tmp_path, end_step=190)
    ended, report = live(rows, rows.dqn, tmp_path, seed=2)

    assert report["step"] > 0
    assert any(place.startswith("/parameters") for place in compare(expected, ended).places)


def test_another_number_of_environments_is_refused(rows, tmp_path):
    """A checkpoint of two environments does not go into three."""
    live(rows, rows.ppo, tmp_path, end_step=150)
    with pytest.raises(IncompatibleError):
        live(rows, rows.ppo, tmp_path, seed=2, environments=3)


def test_the_best_model_is_not_replaced_on_a_resume(rows, tmp_path):
    """The first test is left out on a resume, so `save_best_fn` is not called with a model that was not the best."""
    calls = []
    for seed, end_step in ((1, 190), (2, 0)):
        life = Life(tmp_path, seed=seed, steps=400, save_steps=50, end="cut" if end_step else "", end_step=end_step)
        trainer = rows.dqn(life)
        trainer.params.save_best_fn = lambda _, seed=seed, trainer=trainer: calls.append((seed, trainer._env_step))
        rows._count(trainer, life)
        try:
            with life.open() as run:
                perdure.tianshou.train(run, trainer)
        except CutError:
            pass

    assert (1, 0) in calls
    assert all(step > 0 for seed, step in calls if seed == 2)


def test_buffers_that_move_rows_are_refused(rows):
    """A buffer that rewrites what was added is refused when the training begins, with what to use."""
    from tianshou.data import HERReplayBuffer

    from perdure.adapters._tianshou_replay import BufferRing

    buffer = HERReplayBuffer(10, compute_reward_fn=lambda *_: 0.0, horizon=5)
    with pytest.raises(InvalidInputError, match="HERReplayBuffer") as caught:
        BufferRing(buffer)
    assert "VectorReplayBuffer" in caught.value.hint


def test_counts_from_a_log_are_refused(rows, tmp_path):
    """Counts come from the run alone."""
    trainer = rows.ppo(Life(tmp_path, seed=1, steps=400))
    trainer.params.resume_from_log = True
    with perdure.open(tmp_path, run="r", quiet=True) as run, pytest.raises(InvalidInputError, match="twice"):
        perdure.tianshou.train(run, trainer)


def test_another_version_is_named(rows, tmp_path, monkeypatch):
    """A resume under another version of Tianshou goes on if everything fits, and the report says what has changed."""
    live(rows, rows.ppo, tmp_path, end_step=150)
    monkeypatch.setattr(sys.modules["tianshou"], "__version__", "99.0")
    _, report = live(rows, rows.ppo, tmp_path, seed=2)

    assert any("tianshou was" in note and "is 99.0" in note for note in report["notes"])


def test_another_algorithm_is_refused(rows, tmp_path):
    """A checkpoint of SAC does not go into a training with TD3."""
    live(rows, rows.sac, tmp_path, end_step=150)
    with pytest.raises(IncompatibleError):
        live(rows, rows.td3, tmp_path, seed=2)


def test_other_spaces_are_refused(rows, tmp_path, monkeypatch):
    """A training on a pendulum does not go on in another environment, though the nets are the same."""
    live(rows, rows.sac, tmp_path, end_step=150)
    environments = rows.environments
    monkeypatch.setattr(rows, "environments", lambda name, *rest: environments("MountainCarContinuous-v0", *rest))
    with pytest.raises(IncompatibleError):
        live(rows, rows.sac, tmp_path, seed=2)
