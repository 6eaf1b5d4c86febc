"""RLlib under perdure, around the rows of the matrix: what a resume reaches, what is refused, what bites."""

import copy
import os
import shutil
import sys

import pytest

pytest.importorskip(
    "ray.rllib", reason="the extra rllib is not installed; `make test-rllib` makes an environment of it"
)

from functools import partial
from typing import ClassVar

import gymnasium
import numpy as np
from matrix.life import CutError, Life
from matrix.states import compare, flatten
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.connectors.connector_v2 import ConnectorV2

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


def life_of(store, *, seed=1, steps=STEPS, end_step=0, environments=None, save_steps=100):
    end = "cut" if end_step else ""
    return Life(store, seed, steps, save_steps, end=end, end_step=end_step, environments=environments)


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
def expected(rows):
    """What PPO with a local runner ends with if nothing interrupts it."""
    state, _ = live(rows, partial(rows.ppo, runners=0), None)
    return state


@pytest.fixture(scope="module")
def interrupted(rows, tmp_path_factory):
    """A run of PPO with a local runner that an error has ended."""
    store = tmp_path_factory.mktemp("interrupted")
    live(rows, partial(rows.ppo, runners=0), store, end_step=450)
    return store


def copied(store, tmp_path):
    """A run of one's own, so that what one test saves is not what another one restores."""
    return shutil.copytree(store, tmp_path / "runs", symlinks=True)


def test_an_interrupted_training_goes_on_exactly(rows, expected, interrupted, tmp_path):
    """A training that an error has ended goes on, with another seed, to the bits of one that nothing interrupted."""
    ended, report = live(rows, partial(rows.ppo, runners=0), copied(interrupted, tmp_path), seed=2)

    assert report["step"] > 0
    assert report["grade"] == "exact"
    assert compare(expected, ended).places == ()


@pytest.mark.parametrize("forgotten", ["runners", "learners", "algorithm"])
def test_what_is_forgotten_shows(forgotten, rows, expected, interrupted, tmp_path, monkeypatch):
    """The comparison is not blind: an algorithm of which something is not restored ends elsewhere."""
    make = partial(rows.ppo, runners=0)
    track = perdure.Run.track
    monkeypatch.setattr(
        perdure.Run,
        "track",
        lambda run, *objects, **named: track(run, *objects, **{k: v for k, v in named.items() if k != forgotten}),
    )
    monkeypatch.setattr(Life, "options", property(lambda life, own=Life.options: {**own.fget(life), "accept": ["*"]}))
    ended, report = live(rows, make, copied(interrupted, tmp_path), seed=2)

    assert report["step"] > 0
    assert any(place.startswith("/parameters") for place in compare(expected, ended).places)


def test_an_error_in_an_iteration_saves_no_half_of_it(rows, tmp_path):
    """`stop` after an error saves nothing: what was collected has not been learned from."""
    make = partial(rows.ppo, runners=0)
    live(rows, make, tmp_path, end_step=200, save_steps=10_000)
    _, report = build(rows, make, tmp_path)

    assert report.checkpoint is None


def connectors(runner):
    """What a runner has of the others: statistics of observations, and weights."""
    from perdure.adapters._rllib_plain import pack

    state = runner.get_state()
    return pack({name: state[name] for name in ("env_to_module_connector", "rl_module")})


@pytest.mark.long
def test_every_remote_runner_gets_its_own_connectors(rows, tmp_path):
    """After a restore each remote runner has the statistics that it had, and the weights of the learner."""
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
        [np.float32(0.25)] * 40,
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


def evaluated(rows, runners, *, beside=False):
    """PPO that is evaluated after each iteration, or beside it."""

    def make(life):
        return rows.ppo(life, 0).evaluation(
            evaluation_interval=1,
            evaluation_duration=2,
            evaluation_num_env_runners=runners,
            evaluation_parallel_to_training=beside,
        )

    return make


def test_a_training_that_is_evaluated_goes_on_exactly(rows, tmp_path):
    """
    Evaluations after a resume are those that would have been, and so is the training around them.

    Each evaluation resets its environments with the seed of its runner, and draws from the streams of the training:
    episodes of another seed would be of another length.
    """
    make = evaluated(rows, 0)
    expected, _ = live(rows, make, None)
    live(rows, make, tmp_path, end_step=450)
    ended, report = live(rows, make, tmp_path, seed=2)

    assert report["step"] > 0
    assert report["grade"] == "exact"
    assert compare(expected, ended).places == ()


@pytest.mark.long
def test_remote_evaluations_leave_the_training_exact(rows, tmp_path):
    """
    What remote evaluation runners know is up to a race inside of RLlib, and the report says so; the training is exact.

    RLlib drops what it has to tell a runner that is still busy with its new weights.
    """
    make = evaluated(rows, 2)
    expected, _ = live(rows, make, None)
    live(rows, make, tmp_path, end_step=450)
    ended, report = live(rows, make, tmp_path, seed=2)

    assert report["grade"] == "statistical"
    assert "happen to be free" in str(report)
    assert [place for place in compare(expected, ended).places if not place.startswith("/evaluation")] == []


@pytest.mark.long
def test_an_evaluation_beside_the_training_is_not_exact(rows, tmp_path):
    """A clock decides what such an evaluation begins with: the grade is statistical, and the report says why."""
    make = evaluated(rows, 1, beside=True)
    life = life_of(tmp_path)
    with rows.built(make, life, perdure.rllib.checkpointing(**life.options)) as algorithm:
        rows.train_to(algorithm, 200)
    _, report = build(rows, make, tmp_path)

    assert report.grade is perdure.Grade.STATISTICAL
    assert "a clock decides" in next(one.note for one in report.components if one.name == "evaluation-runners")


@pytest.mark.parametrize("algorithm", ["PPO", *(pytest.param(name, marks=pytest.mark.long) for name in ("DQN", "SAC"))])
def test_settings_of_rllib_itself_go_on_exactly(algorithm, rows, tmp_path):
    """An algorithm of which the program has set next to nothing goes on as one whose coefficients have schedules."""

    def make(life):
        config = getattr(rows, f"{algorithm}Config")().environment(
            "Pendulum-v1" if algorithm == "SAC" else "CartPole-v1"
        )
        config.env_runners(num_env_runners=0).rl_module(model_config=rows.NETS).debugging(seed=life.seed)
        config.reporting(min_sample_timesteps_per_iteration=rows.PER_ITERATION, min_time_s_per_iteration=0)
        few = {"train_batch_size": 128, "minibatch_size": 64, "num_epochs": 2}
        return config.training(**few if algorithm == "PPO" else {"num_steps_sampled_before_learning_starts": 64})

    expected, _ = live(rows, make, None, steps=300)
    live(rows, make, tmp_path, end_step=200, steps=300)
    ended, report = live(rows, make, tmp_path, seed=2, steps=300)

    assert report["step"] > 0
    assert report["grade"] == "exact"
    assert compare(expected, ended).places == ()


def test_a_recurrent_net_goes_on_exactly(rows, tmp_path):
    """The hidden states of an LSTM in mid-episode are those that it had."""

    def make(life):
        config = rows.ppo(life, 0)
        nets = {"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 8, "fcnet_hiddens": [16], "vf_share_layers": True}
        return config.rl_module(model_config=nets)

    expected, _ = live(rows, make, None)
    live(rows, make, tmp_path, end_step=450)
    ended, report = live(rows, make, tmp_path, seed=2)

    assert report["grade"] == "exact"
    assert compare(expected, ended).places == ()


def test_an_older_state_replaces_a_newer_one(rows):
    """Going back to an older checkpoint in the same process brings its weights, which RLlib would take for stale."""
    from perdure.adapters._rllib_state import Learners

    with rows.built(partial(rows.ppo, runners=0), life_of(None)) as algorithm:
        learners = Learners(algorithm)
        algorithm.train()
        older = copy.deepcopy(learners.capture())
        algorithm.train()
        newer = copy.deepcopy(learners.capture())
        learners.restore(copy.deepcopy(older))
        found = learners.capture()
    older, newer, found = (flatten(state["group"]["learner"]["rl_module"]) for state in (older, newer, found))

    assert compare(older, newer).bits > 0
    assert compare(older, found).bits == 0


def test_which_modules_are_trained_is_the_programs(rows, tmp_path):
    """A function that says so is a setting: it is neither saved nor a reason not to save."""

    def make(life):
        return rows.ppo(life, 0).multi_agent(policies_to_train=lambda module, *_: True)

    life = life_of(tmp_path)
    with rows.built(make, life, perdure.rllib.checkpointing(**life.options)) as algorithm:
        rows.train_to(algorithm, 200)
    _, report = build(rows, make, tmp_path)

    assert report.grade is perdure.Grade.EXACT


def test_a_program_that_was_refused_can_try_again(rows, interrupted, tmp_path):
    """A refusal lets go of the run: the same process may build what fits."""
    store = copied(interrupted, tmp_path)
    with pytest.raises(IncompatibleError):
        build(rows, partial(rows.ppo, runners=0), store, environments=3)
    algorithm, report = build(rows, partial(rows.ppo, runners=0), store)

    assert report.grade is perdure.Grade.EXACT
    assert algorithm.iteration > 0


class Counting(ConnectorV2):
    """A connector of a learner that counts its batches."""

    batches = 0

    def __call__(self, *, batch, **_):
        self.batches += 1
        return batch

    def get_state(self, *_, **__):
        return {"batches": self.batches}

    def set_state(self, state):
        self.batches = state["batches"]


def test_connectors_of_a_learner_go_on(rows, tmp_path):
    """What a connector between samples and learner has counted is there after a resume."""

    def make(life):
        return rows.ppo(life, 0).training(learner_connector=lambda *_: Counting())

    def counted(algorithm):
        (found,) = algorithm.learner_group.foreach_learner(
            lambda learner: next(one.batches for one in learner._learner_connector if isinstance(one, Counting))
        )
        return found.get()

    counts = []
    for seed in (1, 2):
        life = life_of(tmp_path, seed=seed)
        with rows.built(make, life, perdure.rllib.checkpointing(**life.options)) as algorithm:
            counts.append(counted(algorithm))
            algorithm.train()
            counts.append(counted(algorithm))

    assert counts[0] == 0
    assert counts[2] == counts[1] > 0


@pytest.mark.long
def test_an_algorithm_without_a_local_runner_goes_on_exactly(rows, tmp_path):
    """Statistics that an algorithm merges by itself, because no local runner does, are those that they were."""

    def make(life):
        return rows.ppo(life, 1).env_runners(create_local_env_runner=False)

    expected, _ = live(rows, make, None)
    live(rows, make, tmp_path, end_step=450)
    ended, report = live(rows, make, tmp_path, seed=2)

    assert report["step"] > 0
    assert report["grade"] == "exact"
    assert compare(expected, ended).places == ()


class Unknown(gymnasium.Env):
    """An environment of one's own that nobody can capture, and that tells its seeds."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    seeds: ClassVar[list] = []

    def __init__(self, _config=None):
        self.steps = 0
        self.opaque = object()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        Unknown.seeds.append(seed)
        self.steps = 0
        return self.np_random.random(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return self.np_random.random(2, np.float32), 1.0, self.steps == 20, False, {}


def test_episodes_that_begin_anew_are_not_the_first_ones_again(rows, tmp_path):
    """An environment that cannot be captured is reset with a seed of its own, and not with that of the beginning."""

    def make(life):
        return rows.ppo(life, 0).environment(Unknown)

    live(rows, make, tmp_path, end_step=200)
    first, _ = [seed for seed in Unknown.seeds if seed is not None], Unknown.seeds.clear()
    _, report = live(rows, make, tmp_path)
    second = [seed for seed in Unknown.seeds if seed is not None]

    assert report["grade"] == "statistical"
    assert len(first) == len(second) == 2
    assert not set(first) & set(second)


def test_multi_agent_episodes_begin_anew_and_the_report_says_so(rows, tmp_path):
    """Learners, connectors and counts of a multi-agent training go on, its episodes do not."""
    from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole

    def algorithm():
        return (
            rows.PPOConfig()
            .environment(MultiAgentCartPole, env_config={"num_agents": 2})
            .env_runners(num_env_runners=0)
            .training(train_batch_size=64, minibatch_size=32, num_epochs=1)
            .multi_agent(policies={"0", "1"}, policy_mapping_fn=lambda agent, *_, **__: str(agent))
            .callbacks(perdure.rllib.checkpointing(**life_of(tmp_path).options))
            .build_algo()
        )

    first = algorithm()
    first.train()
    first.stop()
    second = algorithm()
    report = run_of(second).report
    second.train()
    second.stop()
    (note,) = (component.note for component in report.components if component.name == "runners")

    assert report.grade is perdure.Grade.STATISTICAL
    assert "the episodes of a MultiAgentEnvRunner are not captured" in note
    assert second.iteration == 2


class Crash(RLlibCallback):
    """Crashes a remote runner after an iteration."""

    after: ClassVar[int] = 0

    def on_train_result(self, *, algorithm, **_):
        if algorithm.training_iteration == Crash.after:
            Crash.after = 0
            algorithm.env_runner_group.foreach_env_runner(crash_second, local_env_runner=False)


def crash_second(runner):
    if runner.worker_index == 2:
        os._exit(1)


@pytest.mark.long
def test_a_lost_runner_costs_its_episodes_only(rows, tmp_path):
    """
    A save goes on without a runner that has just been lost, and the report of a resume from it says so.

    One that is lost after a resume is started anew by Ray, with the weights and connectors of all.
    """

    def make(life):
        return rows.ppo(life, 2).fault_tolerance(restart_failed_env_runners=True)

    for seed in (1, 2):
        life = life_of(tmp_path, seed=seed)
        with rows.built(make, life, Crash, perdure.rllib.checkpointing(**life.options)) as algorithm:
            report = run_of(algorithm).report
            Crash.after = algorithm.iteration + 1
            algorithm.train()
            if seed == 1:
                continue
            while algorithm.env_runner_group.num_healthy_remote_env_runners() < 2:
                algorithm.train()
            algorithm.train()
            states = algorithm.env_runner_group.foreach_env_runner(connectors)
    (note,) = (component.note for component in report.components if component.name == "runners")

    assert report.step > 0
    assert "a runner had been lost" in note
    assert report.grade is perdure.Grade.STATISTICAL
    assert compare(flatten(states[1]), flatten(states[2])).places == ()


@pytest.mark.long
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


@pytest.mark.long
def test_each_trial_of_tune_has_a_run_of_its_own(rows, tmp_path):
    """Trials whose runs are named by their settings continue when the same search is started again."""
    from ray import tune
    from ray.rllib.algorithms.ppo import PPO

    def name(algorithm):
        return f"seed-{algorithm.config.seed}"

    def search(iterations):
        config = rows.ppo(life_of(None), 0).callbacks(perdure.rllib.checkpointing(tmp_path / "runs", run=name))
        config.debugging(seed=tune.grid_search([1, 2]), log_level="ERROR")
        ends = tune.RunConfig(stop={"training_iteration": iterations}, storage_path=str(tmp_path / "tune"), verbose=0)
        return list(tune.Tuner(PPO, param_space=config, run_config=ends).fit())

    first, second = search(2), search(4)

    assert [result.error for result in first + second] == [None] * 4
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["seed-1", "seed-2"]
    assert [list(result.metrics_dataframe["training_iteration"]) for result in second] == [[3, 4]] * 2


def test_the_old_stack_is_refused(rows, tmp_path):
    """An algorithm of the old API stack is refused when it is built, with what to change."""

    def make(life):
        old = {"enable_rl_module_and_learner": False, "enable_env_runner_and_connector_v2": False}
        return rows.PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=0).api_stack(**old)

    with pytest.raises(InvalidInputError, match="old API stack"):
        life = life_of(tmp_path)
        make(life).callbacks(perdure.rllib.checkpointing(**life.options)).build_algo()
