"""RLlib under perdure, around the rows of the matrix: what a resume reaches, what is refused, what bites."""

import shutil
import sys

import pytest

pytest.importorskip(
    "ray.rllib", reason="the extra rllib is not installed; `make test-rllib` makes an environment of it"
)

from functools import partial

import numpy as np
from matrix.life import CutError, Life
from matrix.states import compare, flatten

import perdure
import perdure.rllib
from perdure.errors import IncompatibleError, InvalidInputError

pytestmark = [
    pytest.mark.process,
    pytest.mark.filterwarnings("ignore"),  # of Ray, about itself
    pytest.mark.timeout(600),
]
STEPS = 700


@pytest.fixture(scope="module")
def rows():
    import matrix.rows.rllib

    with matrix.rows.rllib.ray_running():
        yield matrix.rows.rllib


def life_of(store, *, seed=1, end_step=0, environments=None, save_steps=100):
    end = "cut" if end_step else ""
    return Life(store, seed, STEPS, save_steps, end=end, end_step=end_step, environments=environments)


def live(rows, make, store, **options):
    life = life_of(store, **options)
    try:
        return flatten(rows.live(make, life)), life.report
    except CutError:
        return None


def build(rows, make, store, **options):
    """An algorithm that has been restored, and what was reported of it."""
    life = life_of(store, seed=2, **options)
    with rows.built(make, life, perdure.rllib.checkpointing(**life.options)) as algorithm:
        return algorithm, run_of(algorithm).report


def run_of(algorithm):
    (run,) = (one.run for one in algorithm.callbacks if isinstance(one, perdure.rllib.Checkpointing))
    return run


@pytest.fixture(scope="module")
def interrupted(rows, tmp_path_factory):
    """A run of PPO with a local runner that an error has ended."""
    store = tmp_path_factory.mktemp("interrupted")
    live(rows, partial(rows.ppo, runners=0), store, end_step=450)
    return store


def copied(store, tmp_path):
    """A run of one's own, so that what one test saves is not what another one restores."""
    return shutil.copytree(store, tmp_path / "runs", symlinks=True)


@pytest.mark.parametrize("forgotten", ["runners", "learners", "algorithm"])
def test_what_is_forgotten_shows(forgotten, rows, interrupted, tmp_path, monkeypatch):
    """The comparison is not blind: an algorithm of which something is not restored ends elsewhere."""
    make = partial(rows.ppo, runners=0)
    expected, _ = live(rows, make, None)
    whole, _ = live(rows, make, copied(interrupted, tmp_path / "whole"), seed=2)
    track = perdure.Run.track
    monkeypatch.setattr(
        perdure.Run,
        "track",
        lambda run, *objects, **named: track(run, *objects, **{k: v for k, v in named.items() if k != forgotten}),
    )
    monkeypatch.setattr(Life, "options", property(lambda life, own=Life.options: {**own.fget(life), "accept": ["*"]}))
    ended, report = live(rows, make, copied(interrupted, tmp_path), seed=2)

    assert compare(expected, whole).places == ()
    assert report["step"] > 0
    assert any(place.startswith("/parameters") for place in compare(expected, ended).places)


def test_an_error_in_an_iteration_saves_no_half_of_it(rows, tmp_path):
    """`stop` after an error saves nothing: what was collected has not been learned from."""
    make = partial(rows.ppo, runners=0)
    live(rows, make, tmp_path, end_step=200, save_steps=10_000)
    _, report = build(rows, make, tmp_path)

    assert report.checkpoint is None


def test_every_remote_runner_gets_its_own_connectors(rows, tmp_path):
    """After a restore each remote runner has the statistics that it had, and the weights of the learner."""

    def connectors(runner):
        from perdure.adapters._rllib_plain import pack

        state = runner.get_state()
        return pack({name: state[name] for name in ("env_to_module_connector", "rl_module")})

    make = partial(rows.ppo, runners=2)
    filters = []
    for seed in (1, 2):
        life = life_of(tmp_path, seed=seed)
        with rows.built(make, life, perdure.rllib.checkpointing(**life.options)) as algorithm:
            if seed == 1:
                rows.train_to(algorithm, 200)
            filters.append([flatten(state) for state in algorithm.env_runner_group.foreach_env_runner(connectors)[1:]])

    assert len(filters[0]) == 2
    assert [compare(*pair).places for pair in zip(*filters, strict=True)] == [(), ()]


def test_numbers_keep_their_types():
    """Priorities of several types, whose sums round by type, come back as what they were."""
    from perdure.adapters._rllib_plain import pack, unpack

    for value in (
        [0.0, np.float32(0.1), np.float64(0.3)] * 20,
        [1, np.int64(2)] * 20,
        [0.5] * 40,
        [np.float32(0.1), 2],
        np.float32(0.1),
        float("inf"),
    ):
        found = unpack(pack(value))
        assert [found] == [value]
        if isinstance(value, list):
            assert list(map(type, found)) == list(map(type, value))
        assert type(found) is type(value)


def test_another_number_of_runners_begins_new_episodes_and_says_so(rows, interrupted, tmp_path):
    """All runners get connectors and counts, their episodes begin anew, and the grade is no longer exact."""
    algorithm, report = build(rows, partial(rows.ppo, runners=1), copied(interrupted, tmp_path))
    (note,) = (component.note for component in report.components if component.name == "runners")

    assert "episodes begin anew" in note
    assert report.grade is perdure.Grade.STATISTICAL
    assert algorithm.iteration > 0


def test_another_number_of_environments_is_refused(rows, interrupted, tmp_path):
    """A checkpoint of two environments does not go into three."""
    with pytest.raises(IncompatibleError):
        build(rows, partial(rows.ppo, runners=0), copied(interrupted, tmp_path), environments=3)


def test_another_algorithm_is_refused(rows, interrupted, tmp_path):
    """A checkpoint of PPO does not go into DQN."""
    with pytest.raises(IncompatibleError):
        build(rows, partial(rows.dqn, runners=0), copied(interrupted, tmp_path))


def test_other_spaces_are_refused(rows, interrupted, tmp_path):
    """A checkpoint of one environment does not go into another one."""
    with pytest.raises(IncompatibleError):
        build(rows, lambda life: rows.ppo(life, 0).environment("Acrobot-v1"), copied(interrupted, tmp_path))


def test_another_version_is_named(rows, interrupted, tmp_path, monkeypatch):
    """A resume under another version of Ray goes on if everything fits, and the report says what has changed."""
    monkeypatch.setattr(sys.modules["ray"], "__version__", "99.0")
    _, report = build(rows, partial(rows.ppo, runners=0), copied(interrupted, tmp_path))

    assert report.grade is perdure.Grade.EXACT
    assert any("ray was" in note and "is 99.0" in note for note in report.notes)


def test_an_evaluation_says_that_it_does_not_go_on_exactly(rows, tmp_path):
    """The runners of an evaluation are restored, the report names them, and the grade is not exact."""

    def make(life):
        evaluation = {"evaluation_interval": 1, "evaluation_duration": 1, "evaluation_num_env_runners": 0}
        return rows.ppo(life, 0).evaluation(**evaluation)

    life = life_of(tmp_path)
    with rows.built(make, life, perdure.rllib.checkpointing(**life.options)) as algorithm:
        rows.train_to(algorithm, 200)
    _, report = build(rows, make, tmp_path)

    assert report.grade is perdure.Grade.STATISTICAL
    assert "evaluation" in next(one.note for one in report.components if one.name == "evaluation-runners")


def test_an_asynchronous_algorithm_says_what_it_lost(rows, tmp_path):
    """Samples in flight cannot be captured: the grade is statistical and the report says why."""
    from ray.rllib.algorithms.appo import APPOConfig

    def make(life):
        config = APPOConfig().environment("CartPole-v1").env_runners(num_env_runners=1)
        return config.training(train_batch_size=64).reporting(min_time_s_per_iteration=0).debugging(seed=life.seed)

    life = life_of(tmp_path)
    with rows.built(make, life, perdure.rllib.checkpointing(**life.options)) as algorithm:
        algorithm.train()
    _, report = build(rows, make, tmp_path)
    (note,) = (component.note for component in report.components if component.name == "algorithm")

    assert "samples in flight" in note
    assert report.grade is perdure.Grade.STATISTICAL


def test_the_old_stack_is_refused(rows, tmp_path):
    """An algorithm of the old API stack is refused when it is built, with what to change."""

    def make(life):
        old = {"enable_rl_module_and_learner": False, "enable_env_runner_and_connector_v2": False}
        return rows.PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=0).api_stack(**old)

    with pytest.raises(InvalidInputError, match="old API stack"):
        life = life_of(tmp_path)
        make(life).callbacks(perdure.rllib.checkpointing(**life.options)).build_algo()
