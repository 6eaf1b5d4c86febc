"""Small trainings of every algorithm of Stable-Baselines3 and sb3-contrib, and digests of all that they end with."""

import hashlib
import json
import random
import sys

import gymnasium as gym
import numpy as np
import torch
from sb3_contrib import ARS, QRDQN, TQC, TRPO, CrossQ, MaskablePPO, RecurrentPPO
from sb3_contrib.common.envs import InvalidActionEnvDiscrete
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3, HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecMonitor, VecNormalize

import perdure
import perdure.sb3
from perdure.capture.environments import register_environment
from perdure.capture.environments.snapshot import take

torch.set_num_threads(1)
register_environment(InvalidActionEnvDiscrete)
register_environment(BitFlippingEnv)

TOTAL = 1_400
TARGET = {"target_update_interval": 50}
OF_THE_CLOCK = {"t", "t_start", "episode_times", "log", "results_writer"}
"""What may differ between two runs that are the same."""


def falling(progress):
    """A learning rate that depends on the whole horizon."""
    return 1e-4 + 3e-3 * progress


def cartpole(seed, envs=2):
    return make_vec_env("CartPole-v1", envs, seed=seed)


def pendulum(seed, envs=2):
    return make_vec_env("Pendulum-v1", envs, seed=seed)


def normalized(seed, envs=2):
    return VecNormalize(pendulum(seed, envs))


def monitored(seed):
    env = VecMonitor(DummyVecEnv([lambda: gym.make("CartPole-v1")] * 2))
    env.seed(seed)
    return env


def masked(seed):
    return make_vec_env(
        lambda: gym.wrappers.TimeLimit(InvalidActionEnvDiscrete(8, n_invalid_actions=4), 30), 2, seed=seed
    )


def bits(seed):
    return make_vec_env(lambda: BitFlippingEnv(n_bits=4, continuous=False, max_steps=6), 2, seed=seed)


def net(**options):
    return {"policy_kwargs": {"net_arch": [8], **options}}  # a new one each time: models add to it


def rollout(**options):
    return {"n_steps": 32, **net(**options)}


def epochs(count=2, **options):
    return {**rollout(**options), "batch_size": 64, "n_epochs": count}


def replay(**options):
    return {"buffer_size": 600, "learning_starts": 64, "batch_size": 16, "train_freq": 8, **net(**options)}


def noise(kind):
    return kind(np.zeros(1), 0.2 * np.ones(1))


CASES = {
    "PPO": lambda s: PPO("MlpPolicy", cartpole(s), falling, seed=s, **epochs()),
    "PPO-gSDE": lambda s: PPO("MlpPolicy", pendulum(s), use_sde=True, seed=s, **epochs()),
    "PPO-VecNormalize": lambda s: PPO("MlpPolicy", VecNormalize(VecFrameStack(pendulum(s), 3)), seed=s, **epochs()),
    "A2C": lambda s: A2C("MlpPolicy", monitored(s), falling, seed=s, **rollout()),
    "DQN": lambda s: DQN("MlpPolicy", cartpole(s), falling, exploration_fraction=0.5, seed=s, **replay(), **TARGET),
    "DQN-n-step": lambda s: DQN("MlpPolicy", cartpole(s), n_steps=3, seed=s, **replay(), **TARGET),
    "DQN-one-array": lambda s: DQN(
        "MlpPolicy",
        cartpole(s),
        optimize_memory_usage=True,
        replay_buffer_kwargs={"handle_timeout_termination": False},
        seed=s,
        **replay(),
    ),
    "DQN-HER": lambda s: DQN("MultiInputPolicy", bits(s), replay_buffer_class=HerReplayBuffer, seed=s, **replay()),
    "SAC": lambda s: SAC("MlpPolicy", pendulum(s), falling, seed=s, **replay()),
    "SAC-gSDE": lambda s: SAC(
        "MlpPolicy", normalized(s), use_sde=True, use_sde_at_warmup=True, sde_sample_freq=3, seed=s, **replay()
    ),
    "TD3": lambda s: TD3(
        "MlpPolicy", normalized(s), action_noise=noise(OrnsteinUhlenbeckActionNoise), seed=s, **replay()
    ),
    "DDPG": lambda s: DDPG("MlpPolicy", pendulum(s), action_noise=noise(NormalActionNoise), seed=s, **replay()),
    "TQC": lambda s: TQC("MlpPolicy", pendulum(s), seed=s, **replay()),
    "QRDQN": lambda s: QRDQN("MlpPolicy", cartpole(s), seed=s, **replay(n_quantiles=9), **TARGET),
    "CrossQ": lambda s: CrossQ("MlpPolicy", pendulum(s), seed=s, **replay()),
    "TRPO": lambda s: TRPO("MlpPolicy", cartpole(s), batch_size=32, seed=s, **rollout()),
    "RecurrentPPO": lambda s: RecurrentPPO(
        "MlpLstmPolicy",
        cartpole(s),
        seed=s,
        **epochs(1, lstm_hidden_size=8),
    ),
    "MaskablePPO": lambda s: MaskablePPO("MlpPolicy", masked(s), seed=s, **epochs()),
    "ARS": lambda s: ARS("LinearPolicy", pendulum(s, 1), n_delta=1, seed=s),
}


class CrashError(Exception):
    """A program that ends without a warning."""


class CrashAt(BaseCallback):
    """Ends the program at a step, in the middle of a rollout."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def _on_step(self):
        if self.num_timesteps >= self.step:
            raise CrashError
        return True


def opened(where, **options):
    return perdure.open(
        where, **{"run": "t", "save": perdure.Every(steps=90), "budget": None, "quiet": True, **options}
    )


def learn(model, where, *, total=TOTAL, others=(), **options):
    """Train under perdure with other callbacks around; returns the report of the restore."""
    with opened(where, **options) as run:
        model.learn(total, callback=[perdure.sb3.Checkpointing(run), *others], log_interval=None)
        return run.report


def crash(model, where, at, *, total=TOTAL, others=(), **options):
    """Train under perdure until the program ends at a step."""
    try:
        learn(model, where, total=total, others=[*others, CrashAt(at)], **options)
    except CrashError:
        return
    raise AssertionError("the training came to its end")


def state(model):
    """Digests of all that a training consists of, by name."""
    names, tensors = model._get_torch_save_params()
    found = {name: reach(model, name) for name in names + tensors}
    values = {
        name: value.state_dict() if hasattr(value, "state_dict") else value.detach() for name, value in found.items()
    }
    plain = {
        name: value
        for name, value in vars(model).items()
        if isinstance(value, bool | int | float | np.ndarray | dict | torch.Tensor | tuple | np.generic)
        and name not in ("start_time", "seed", "policy_kwargs", "replay_buffer_kwargs")
    }
    replay = getattr(model, "replay_buffer", None)
    noises = [getattr(one, "noise_prev", None) for one in getattr(model.action_noise, "noises", [model.action_noise])]
    everything = {
        **values,
        **{f"model.{name}": value for name, value in plain.items()},
        "episodes": list(model.ep_info_buffer),
        "noise": noises,
        "env": take(model.env)["graph"],
        "env.shared": take(model.env)["shared"],
        **{
            f"replay.{n}": v
            for n, v in (vars(replay) if replay else {}).items()
            if isinstance(v, dict | np.ndarray | int)
        },
        "rng.python": random.getstate(),
        "rng.numpy": np.random.get_state(legacy=False),
        "rng.torch": torch.get_rng_state(),
        "rng.actions": model.action_space.np_random.bit_generator.state,
    }
    return {name: digest(value) for name, value in everything.items()}


def reach(model, path):
    for part in path.split("."):
        model = getattr(model, part)
    return model


def digest(value):
    """Digest of arrays, tensors and plain values, bit for bit, but for what a clock wrote."""
    total = hashlib.sha256()
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray):
        total.update(str((value.dtype, value.shape)).encode())
        total.update(repr(value.tolist()).encode() if value.dtype.hasobject else np.ascontiguousarray(value).tobytes())
    elif isinstance(value, dict):
        total.update("".join(f"{key}{digest(item)}" for key, item in value.items() if key not in OF_THE_CLOCK).encode())
    elif isinstance(value, list | tuple):
        total.update("".join(map(digest, value)).encode())
    else:
        total.update(repr(value).encode())
    return total.hexdigest()


def main(name, where, save_steps):
    """Run one case to its end, as a program of its own."""
    model = CASES[name](1)
    learn(model, where, save=perdure.Every(steps=int(save_steps)))
    print(json.dumps(state(model)))


if __name__ == "__main__":
    main(*sys.argv[1:])
