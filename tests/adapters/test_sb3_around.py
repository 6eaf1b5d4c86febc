"""What surrounds a training of Stable-Baselines3: callbacks, logs, evaluation, environments, replay buffers."""

import copy
import csv
import os
import pickle
import signal
import sys
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import DQN, PPO, HerReplayBuffer
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    EvalCallback,
    EveryNTimesteps,
    StopTrainingOnNoModelImprovement,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.logger import configure
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import SubprocVecEnv

import perdure
from perdure import Best, Every, UntrackedStateWarning
from perdure.adapters._sb3_environments import Workers
from perdure.adapters._sb3_replay import ReplayRing
from perdure.errors import DeadlineError
from perdure.trackers import tracker_ids
from tests.adapters.sb3_cases import CASES, cartpole, crash, epochs, learn, opened, replay, state

SHORT = 448


class Count(BaseCallback):
    """Counts rollouts and draws, and remembers what it has seen; its limit is a setting."""

    def __init__(self, limit=5):
        super().__init__()
        self.limit = limit
        self.rollouts = 0
        self.rewards = []
        self.mean = np.zeros(2)

    def _on_rollout_start(self):
        self.rollouts += 1
        self.rewards.append(float(np.random.rand()))

    def _on_step(self):
        self.mean = 0.9 * self.mean + 0.1 * self.locals["rewards"]
        return True


def evaluation(where, seed, **options):
    env = make_vec_env("CartPole-v1", 1, seed=seed)
    return EvalCallback(
        env, eval_freq=50, n_eval_episodes=2, verbose=0, log_path=str(where), best_model_save_path=str(where), **options
    )


def callbacks(where, seed):
    """Callbacks in nested lists, before and after the one that saves."""
    patience = StopTrainingOnNoModelImprovement(100)
    return Count(), CallbackList([CallbackList([evaluation(where, seed, callback_after_eval=patience)]), Count()])


def train(model, where, around, *, crash_at=None, **options):
    before, after = around
    with opened(where, **{"save": Every(steps=64), **options}) as run:
        saver = CallbackList([before, CallbackList([perdure.sb3.Checkpointing(run)]), after])
        if crash_at is not None:
            saver.callbacks.append(_Crash(crash_at))
        try:
            model.learn(SHORT, callback=saver, log_interval=None)
        except ZeroDivisionError:
            assert crash_at is not None
        return run.report


class _Crash(BaseCallback):
    def __init__(self, at):
        super().__init__()
        self.at = at

    def _on_step(self):
        return self.num_timesteps < self.at or 1 / 0


def test_callbacks_go_on_wherever_they_are(tmp_path):
    """Evaluation history, best score, patience, counters and draws of callbacks are those of an unhurt training."""
    whole = callbacks(tmp_path / "whole", 1)
    model = CASES["PPO"](1)
    model.learn(SHORT, callback=CallbackList(list(whole)), log_interval=None)
    expected = state(model)
    train(CASES["PPO"](1), tmp_path / "a", callbacks(tmp_path / "parts", 1), crash_at=330)
    parts = callbacks(tmp_path / "parts", 9)
    model = CASES["PPO"](7)
    report = train(model, tmp_path / "a", parts)

    assert 320 == report.step
    assert expected == state(model)
    for one, other in zip(flat(whole), flat(parts), strict=True):
        assert plain(one) == plain(other)
    files = [np.load(tmp_path / name / "evaluations.npz") for name in ("whole", "parts")]
    assert [224 // 50 * 100, 4] == [files[0]["timesteps"][-1], len(files[0]["timesteps"])]
    assert all((files[0][key] == files[1][key]).all() for key in files[0])


def flat(around):
    before, after = around
    (evaluations,) = after.callbacks[0].callbacks
    return before, evaluations, evaluations.callback, after.callbacks[1]


def plain(callback):
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in vars(callback).items()
        if isinstance(value, int | float | list | np.ndarray)
    }


def test_the_best_model_is_never_lost_to_a_worse_one(tmp_path):
    """A best model of a future that did not happen is kept beside the file, and a worse one replaces nothing else."""
    where = tmp_path / "best"
    train(CASES["PPO"](1), tmp_path / "a", (Count(), evaluation(where, 1)), crash_at=330, save=Every(steps=1))
    best = where / "best_model.zip"
    best.write_bytes(b"better, and later than the checkpoint")
    again = evaluation(where, 1)
    train(CASES["PPO"](7), tmp_path / "a", (Count(), again))

    (aside,) = where.glob("best_model.superseded-*.zip")
    assert b"better, and later than the checkpoint" == aside.read_bytes()
    assert max(np.mean(again.evaluations_results, axis=1)) == again.best_mean_reward


def test_evaluations_are_metrics_of_the_run(tmp_path):
    """Mean rewards of an EvalCallback are recorded, so that the best checkpoint can be kept by them."""
    evaluations = evaluation(tmp_path / "best", 1)
    options = {"keep": Best("eval/mean_reward"), "save": Every(steps=128)}
    train(CASES["PPO"](1), tmp_path / "a", (Count(), evaluations), **options)

    with opened(tmp_path / "a") as run:
        rows = list(run._store.metrics.read())
    means = [float(np.mean(rewards)) for rewards in evaluations.evaluations_results]
    assert means == [row["value"] for row in rows]
    assert {"eval/mean_reward"} == {row["name"] for row in rows}


def test_callbacks_may_come_and_go(tmp_path):
    """A callback that the checkpoint does not know begins as it was built, and is named in the report."""
    train(CASES["PPO"](1), tmp_path / "a", (Count(), EveryNTimesteps(50, Count())), crash_at=200)
    added = evaluation(tmp_path / "best", 1)
    report = train(CASES["PPO"](7), tmp_path / "a", (Count(), added))

    assert "not in the checkpoint: EvalCallback" in next(c.note for c in report.components if c.name == "callbacks")
    assert len(added.evaluations_timesteps) > 0


class Own(PPO):
    """An algorithm that a user has made of another."""


def test_an_algorithm_of_the_user_is_graded_down(tmp_path):
    """What a user's own algorithm keeps where cannot be known, so its resume is not called exact."""
    crash(Own("MlpPolicy", cartpole(1), seed=1, **epochs()), tmp_path, 200)
    report = learn(Own("MlpPolicy", cartpole(7), seed=7, **epochs()), tmp_path, total=256)

    assert "statistical" == report.grade.value


def test_a_changed_setting_is_kept_and_named(tmp_path):
    """A hyperparameter that the program has changed between two starts is not undone, and the report names it."""
    crash(CASES["PPO"](1), tmp_path, 200)
    model = CASES["PPO"](1)
    model.gamma = 0.5
    report = learn(model, tmp_path, total=256)

    assert 0.5 == model.gamma
    assert "gamma 0.99 -> 0.5" in next(c.note for c in report.components if c.name == "model")


# Logs


def learn_logged(seed, where, folder, callback=None):
    """Train with files of all kinds, which are closed as the end of a program would."""
    env = make_vec_env("CartPole-v1", 2, seed=seed, monitor_dir=str(where))
    logger = configure(str(folder), ["csv", "json", "log"])
    try:
        model = PPO("MlpPolicy", env, seed=seed, **epochs())
        model.set_logger(logger)
        model.learn(SHORT, callback=callback)
    finally:
        env.close()
        logger.close()


def rows(path, without):
    lines = path.read_text().splitlines()
    table = csv.DictReader(line for line in lines if not line.startswith("#"))
    return [{name: value for name, value in row.items() if name not in without} for row in table]


def test_logs_go_on_without_gap_or_overlap(tmp_path):
    """Monitor's and the logger's files have every row once after a crash, those of the lost future cut off."""
    clock = ("t", "time/fps", "time/time_elapsed", "time/iterations")
    learn_logged(1, tmp_path / "a", tmp_path / "log-a")
    with pytest.raises(ZeroDivisionError), opened(tmp_path, save=Every(steps=128)) as run:
        saver = perdure.sb3.Checkpointing(run)
        learn_logged(1, tmp_path / "b", tmp_path / "log-b", [saver, _Crash(250)])
    with opened(tmp_path) as run:
        learn_logged(7, tmp_path / "b", tmp_path / "log-b", perdure.sb3.Checkpointing(run))

    assert 128 == run.report.step
    for name in ("0.monitor.csv", "1.monitor.csv"):
        assert rows(tmp_path / "a" / name, clock) == rows(tmp_path / "b" / name, clock)
        times = [float(row["t"]) for row in rows(tmp_path / "b" / name, ())]
        assert sorted(times) == times
    expected, found = (rows(tmp_path / f"log-{x}" / "progress.csv", clock) for x in "ab")
    assert [{**row, "": None} for row in expected] == [{**row, "": None} for row in found]
    assert len(expected) == (tmp_path / "log-b" / "progress.json").read_text().count("\n")
    assert len(expected) == (tmp_path / "log-b" / "log.txt").read_text().count("total_timesteps")


def test_tensorboard_goes_on_in_its_folder(tmp_path):
    """A resumed training writes into the folder that it had, and events beyond the checkpoint are purged there."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def make(seed):
        return PPO("MlpPolicy", cartpole(seed), seed=seed, tensorboard_log=str(tmp_path / "tb"), **epochs())

    with pytest.raises(ZeroDivisionError), opened(tmp_path, save=Every(steps=128)) as run:
        make(1).learn(SHORT, callback=[perdure.sb3.Checkpointing(run), _Crash(250)])
    with opened(tmp_path) as run:
        make(7).learn(SHORT, callback=perdure.sb3.Checkpointing(run))

    assert ["PPO_1"] == [folder.name for folder in (tmp_path / "tb").iterdir()]
    events = accumulator.EventAccumulator(str(tmp_path / "tb" / "PPO_1")).Reload()
    assert list(range(64, SHORT + 1, 64)) == [event.step for event in events.Scalars("rollout/ep_rew_mean")]


# Environments


def remote(seed):
    return make_vec_env("CartPole-v1", 2, seed=seed, vec_env_cls=SubprocVecEnv, vec_env_kwargs={"start_method": "fork"})


def closing(model):
    model.env.close()
    return model


@pytest.mark.process
def test_environments_in_worker_processes_are_captured_there(tmp_path):
    """A resume with a SubprocVecEnv is exact; its workers leave Ctrl-C to the parent."""
    expected = PPO("MlpPolicy", cartpole(1), seed=1, **epochs())
    expected.learn(SHORT, log_interval=None)
    digests = state(expected)
    first = PPO("MlpPolicy", remote(1), seed=1, **epochs())
    crash(first, tmp_path, 200, save=Every(steps=64))
    for process in first.env.processes:
        os.kill(process.pid, signal.SIGINT)
    crash(first, tmp_path / "workers answer", 64)
    closing(first)
    model = PPO("MlpPolicy", remote(7), seed=7, **epochs())
    report = learn(model, tmp_path, total=SHORT)
    closing(model)

    assert "exact" == report.grade.value
    found = state(model)
    assert all(digests[name] == found[name] for name in digests if not name.startswith("env"))


@pytest.mark.process
def test_a_dead_worker_is_told_and_not_waited_for():
    """Capturing a SubprocVecEnv with a dead worker raises at once."""
    env = remote(1)
    workers = Workers(env, "env")
    env.processes[0].kill()
    env.processes[0].join(10)
    with pytest.raises(DeadlineError, match="worker 0 is dead"):
        workers.capture()
    env.remotes[0].close()
    env.remotes[1].send(("close", None))
    env.processes[1].join(10)


class Opaque(BitFlippingEnv):
    """An environment with state that nobody knows how to capture."""

    def __init__(self):
        super().__init__(n_bits=4, continuous=False, max_steps=6)
        self.hidden = object()


def test_an_unknown_environment_is_reset_and_graded_down(tmp_path):
    """What cannot be captured begins new episodes with a derived seed, and the replay buffer's open ones end there."""

    def make(seed):
        env = make_vec_env(Opaque, 2, seed=seed)
        return DQN("MultiInputPolicy", env, replay_buffer_class=HerReplayBuffer, seed=seed, **replay())

    crash(make(1), tmp_path, 300)
    model = make(7)
    seen = {}

    class Look(BaseCallback):
        def _on_rollout_start(self):
            if not seen:
                buffer = self.model.replay_buffer
                seen.update(starts=buffer._current_ep_start.copy(), pos=buffer.pos, done=buffer.dones[buffer.pos - 1])

        def _on_step(self):
            return True

    report = learn(model, tmp_path, total=400, others=[Look()])

    assert "statistical" == report.grade.value
    assert "was reset" in next(c.note for c in report.components if c.name == "env")
    assert seen["starts"].tolist() == [seen["pos"]] * 2
    assert seen["done"].tolist() == [1, 1]
    assert 400 <= model.num_timesteps


class Remembering(ActorCriticPolicy):
    """A policy with state that it has registered nowhere."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.calls = 0
        self.trace = torch.zeros(3)

    def forward(self, obs, deterministic=False):
        self.calls += 1
        self.trace = self.trace * 0.5 + self.calls
        return super().forward(obs, deterministic)


def test_unregistered_state_of_a_policy_is_restored(tmp_path):
    """Numbers and tensors that a custom policy keeps in plain attributes are part of the checkpoint."""
    whole = PPO(Remembering, cartpole(1), seed=1, **epochs())
    whole.learn(256, log_interval=None)
    crash(PPO(Remembering, cartpole(1), seed=1, **epochs()), tmp_path, 200)
    model = PPO(Remembering, cartpole(7), seed=7, **epochs())
    learn(model, tmp_path, total=256)

    assert whole.policy.calls == model.policy.calls
    assert torch.equal(whole.policy.trace, model.policy.trace)


def test_a_module_that_nothing_saves_is_named(tmp_path):
    """A net that hangs on a callback is named in a warning when the training starts."""
    extra = Count()
    extra.curiosity = torch.nn.Linear(2, 2)
    with pytest.warns(UntrackedStateWarning, match="Count.curiosity"):
        learn(CASES["PPO"](1), tmp_path, total=64, others=[extra])


class Hiding(ActorCriticPolicy):
    """A policy with a net that torch does not know of."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.hidden = [torch.nn.Linear(2, 2)]


def test_a_net_that_a_policy_hides_is_named(tmp_path):
    """A net in a plain list of a custom policy is in no state_dict, and is named before the training begins."""
    with pytest.warns(UntrackedStateWarning, match=r"policy\.hidden\[0\]"):
        learn(PPO(Hiding, cartpole(1), seed=1, **epochs()), tmp_path, total=64)


def test_runs_of_trackers_are_kept(tmp_path, monkeypatch):
    """The ids of the runs that a training reports to are in the manifest, and another one at a resume is named."""
    reported = SimpleNamespace(run=SimpleNamespace(id="abc"))
    monkeypatch.setitem(sys.modules, "wandb", reported)
    active = SimpleNamespace(info=SimpleNamespace(run_id="m1"))
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(active_run=lambda: active))
    assert {} == tracker_ids(tmp_path, "t")
    crash(CASES["PPO"](1), tmp_path, 200)
    assert {"wandb": "abc", "mlflow": "m1"} == tracker_ids(tmp_path, "t")
    reported.run.id, active.info.run_id = "xyz", "m2"
    report = learn(CASES["PPO"](7), tmp_path, total=256)
    note = next(c.note for c in report.components if c.name == "trackers")

    assert "wandb run was abc, is xyz" in note
    assert "mlflow run was m1, is m2" in note


# Replay buffers


def test_a_buffer_that_is_being_saved_can_be_pickled_and_copied():
    """The announced ``add`` is not part of a buffer's pickle or copy, and goes when the training ends."""
    buffer = CASES["DQN"](1).replay_buffer
    ring = ReplayRing(buffer)
    row = [np.ones((2, 4)), np.ones((2, 4)), np.ones((2, 1)), np.ones(2), np.zeros(2), [{}, {}]]
    buffer.add(*row)
    for twin in (pickle.loads(pickle.dumps(buffer)), copy.deepcopy(buffer)):
        twin.add(*row)
        assert (2, 1, 1) == (twin.pos, buffer.pos, ring.total_count)
    ring.release()
    buffer.add(*row)

    assert (2, 1) == (buffer.pos, ring.total_count)


def test_rows_that_are_overwritten_during_a_save_are_kept():
    """A pending save gets the rows of its moment though the buffer has gone round meanwhile."""
    buffer = DQN("MlpPolicy", gym.make("CartPole-v1"), buffer_size=4, policy_kwargs={"net_arch": [4]}).replay_buffer
    ring = ReplayRing(buffer)
    component = perdure.replay.RingComponent(ring)

    def add(value):
        observation = np.full((1, 4), value)
        buffer.add(observation, observation, np.zeros((1, 1)), np.full(1, value), np.zeros(1), [{}])

    for value in range(4):
        add(value)
    taken = component.capture_parts("replay")
    for value in range(4, 8):
        add(value)
    content = b"".join(bytes(chunk) for part in taken.parts[:-1] for chunk in part.chunks())
    taken.on_aborted()

    assert all(np.float32(value).tobytes() * 4 in content for value in range(1, 4))
    assert not any(np.float32(value).tobytes() * 4 in content for value in range(4, 8))
