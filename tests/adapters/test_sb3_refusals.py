"""What the adapter of Stable-Baselines3 refuses, before anything has changed."""

import sys

import gymnasium as gym
import numpy as np
import pytest
from sb3_contrib import TRPO
from stable_baselines3 import DQN, PPO, HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EvalCallback, EveryNTimesteps
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

import perdure
from perdure.errors import IncompatibleError, InvalidInputError, MissingDependencyError
from tests.adapters.sb3_cases import CASES, bits, cartpole, crash, digest, epochs, learn, of, opened, replay, rollout


class Narrow(gym.ObservationWrapper):
    """CartPole with another observation space."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = gym.spaces.Box(-1, 1, (4,))

    def observation(self, observation):
        return np.clip(observation, -1, 1).astype(np.float32)


OTHERS = {
    "algorithm": (lambda: TRPO("MlpPolicy", cartpole(7), seed=7, batch_size=64, **rollout()), r"sb3\.PPO .*sb3\.TRPO"),
    "kind of algorithm": (lambda: CASES["SAC"](7), "actor"),
    "spaces": (
        lambda: PPO("MlpPolicy", make_vec_env("CartPole-v1", 2, wrapper_class=Narrow), **epochs()),
        "observation space is Box.* in the checkpoint, Box",
    ),
    "normaliser": (
        lambda: PPO("MlpPolicy", VecNormalize(cartpole(7)), seed=7, **epochs()),
        "DummyVecEnv.*VecNormalize",
    ),
    "number": (lambda: PPO("MlpPolicy", cartpole(7, 4), **epochs()), "2 environments in the checkpoint and has 4"),
    "net": (
        lambda: PPO("MlpPolicy", cartpole(7), **{**epochs(), "policy_kwargs": {"net_arch": [9]}}),
        "shape of .* is .* in the checkpoint",
    ),
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_does_not_fit_is_refused_before_anything_changes(what, tmp_path):
    """A checkpoint of another algorithm, space, number of environments or net is refused; the model is untouched."""
    crash(CASES["PPO"](1), tmp_path, 200)
    make, message = OTHERS[what]
    model = make()
    before = digest(model.policy.state_dict())
    with pytest.raises(IncompatibleError, match=message):
        learn(model, tmp_path)

    assert before == digest(model.policy.state_dict())
    assert 0 == model.num_timesteps


def test_a_missing_normaliser_is_refused(tmp_path):
    """A training with running statistics is not continued without them."""
    crash(CASES["PPO-VecNormalize"](1), tmp_path, 200)
    model = PPO("MlpPolicy", VecFrameStack(of("Pendulum-v1")(7, 2), 3), seed=7, **epochs())
    with pytest.raises(IncompatibleError, match=r"VecNormalize.*VecFrameStack"):
        learn(model, tmp_path)

    assert 0 == model.num_timesteps


def test_another_version_of_the_framework_is_named(tmp_path, monkeypatch):
    """A resume under another version goes on if everything fits, and the report says what has changed."""
    crash(CASES["PPO"](1), tmp_path, 200)
    monkeypatch.setattr(sys.modules["stable_baselines3"], "__version__", "99.0")
    report = learn(CASES["PPO"](7), tmp_path, total=256)

    assert any("stable_baselines3 was" in note and "is 99.0" in note for note in report.notes)


def test_another_version_that_keeps_other_state_is_refused(tmp_path, monkeypatch):
    """Where a version has attributes that the other has not, nothing is restored, and both versions are named."""
    crash(CASES["PPO"](1), tmp_path, 200)
    version = sys.modules["stable_baselines3"].__version__
    model = CASES["PPO"](7)
    model.surprise_of_the_new_version = 3
    monkeypatch.setattr(sys.modules["stable_baselines3"], "__version__", "99.0")
    before = digest(model.policy.state_dict())
    with pytest.raises(IncompatibleError) as refused:
        learn(model, tmp_path)

    assert "sb3.other-version" == refused.value.kind
    assert f"saved under stable_baselines3 {version}" in refused.value.message
    assert "only the program has model.surprise_of_the_new_version" in refused.value.message
    assert f"install stable_baselines3 {version}" in refused.value.hint
    assert (before, 0) == (digest(model.policy.state_dict()), model.num_timesteps)


def test_other_attributes_under_the_same_version_are_the_programs(tmp_path):
    """What a program adds to its model between two starts stays as it is, as long as the framework is the same."""
    crash(CASES["PPO"](1), tmp_path, 200)
    model = CASES["PPO"](7)
    model.added = 3
    assert learn(model, tmp_path, total=256).checkpoint is not None
    assert 3 == model.added


def test_a_normaliser_that_is_gone_is_refused(tmp_path):
    """A training that loses its running statistics altogether is not continued without them."""
    crash(PPO("MlpPolicy", VecNormalize(cartpole(1)), seed=1, **epochs()), tmp_path, 200)
    model = PPO("MlpPolicy", cartpole(7), seed=7, **epochs())
    with pytest.raises(IncompatibleError, match=r"VecNormalize.*DummyVecEnv"):
        learn(model, tmp_path)

    assert 0 == model.num_timesteps


class Sticking(gym.Wrapper):
    """Repeats the action before where it likes, and keeps that where nothing shows it."""

    before = {"action": 0}  # noqa: RUF012 - which is what is wrong with it

    def step(self, action):
        held, self.before["action"] = self.before["action"], action
        return self.env.step(held)


@pytest.mark.process
def test_an_environment_that_fails_its_probe_is_reset_and_named(tmp_path, trials):
    """A wrapper of the user's that seems to be plain is found out before the first save, and the resume says so."""

    def make(seed):
        return PPO(
            "MlpPolicy", make_vec_env("CartPole-v1", 2, seed=seed, wrapper_class=Sticking), seed=seed, **epochs()
        )

    crash(make(1), tmp_path, 200)
    report = learn(make(7), tmp_path, total=256)
    note = next(component.note for component in report.components if component.name == "env")

    assert "statistical" == report.grade.value
    assert "was reset, its episodes are cut: " in note
    assert "Sticking (CartPole-v1) has failed its probe (E" in note


def test_a_callback_inside_another_one_is_refused(tmp_path):
    """Inside a callback that triggers others nothing would ever be saved, so that is an error at once."""
    with opened(tmp_path) as run, pytest.raises(InvalidInputError, match="inside a callback"):
        inner = EveryNTimesteps(10, CallbackList([perdure.sb3.Checkpointing(run)]))
        CASES["PPO"](1).learn(64, callback=inner)


def test_a_callback_on_a_new_best_model_is_refused(tmp_path):
    """A place where a callback is not even told of the training's start is refused when it is called."""
    with opened(tmp_path) as run, pytest.raises(InvalidInputError, match="inside a callback"):
        saver = CallbackList([perdure.sb3.Checkpointing(run)])
        outer = EvalCallback(cartpole(1, 1), callback_on_new_best=saver, eval_freq=10, n_eval_episodes=1, verbose=0)
        CASES["PPO"](1).learn(64, callback=outer)


def test_a_second_learn_is_refused(tmp_path):
    """One run is one call of learn, because its total means the whole run."""
    model = CASES["PPO"](1)
    with opened(tmp_path) as run:
        saver = perdure.sb3.Checkpointing(run)
        model.learn(64, callback=saver)
        with pytest.raises(InvalidInputError, match="learn twice"):
            model.learn(64, callback=saver, reset_num_timesteps=False)


def test_info_dictionaries_in_a_buffer_are_refused(tmp_path):
    """A HerReplayBuffer that keeps infos cannot be saved, and says so before the training begins."""
    model = DQN(
        "MultiInputPolicy",
        bits(1, 2),
        replay_buffer_class=HerReplayBuffer,
        replay_buffer_kwargs={"copy_info_dict": True},
        **replay(),
    )
    with pytest.raises(InvalidInputError, match="copy_info_dict"):
        learn(model, tmp_path)


class Replace(BaseCallback):
    """Gives the model another replay buffer while it trains."""

    def _on_step(self):
        self.model.replay_buffer = CASES["DQN"](1).replay_buffer
        return True


def test_a_replaced_buffer_is_refused(tmp_path):
    """A replay buffer that was exchanged during the training would not be saved, so that is an error."""
    with pytest.raises(InvalidInputError, match="another replay buffer"):
        learn(CASES["DQN"](1), tmp_path, total=200, others=[Replace()])


class Enough(BaseCallback):
    """Ends the training in the middle of a rollout."""

    def _on_step(self):
        return self.num_timesteps < 200


def test_a_training_that_a_callback_ends_saves_no_half_rollout(tmp_path):
    """What a callback breaks off is never saved; starting again goes on from the last whole rollout."""
    for seed in (1, 7):
        model = CASES["PPO"](seed)
        report = learn(model, tmp_path, save=perdure.Every(steps=64), others=[Enough()])
        assert 200 == model.num_timesteps

    assert 192 == report.step


def test_a_missing_framework_is_named(monkeypatch):
    """Importing the adapter without Stable-Baselines3 says which extra brings it."""
    monkeypatch.delitem(sys.modules, "perdure.sb3")
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    with pytest.raises(MissingDependencyError, match=r"perdure\[sb3\]"):
        import perdure.sb3  # noqa: F401
