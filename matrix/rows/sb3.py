"""Stable-Baselines3 and sb3-contrib: every algorithm, in environments of every family."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
from sb3_contrib import ARS, QRDQN, TQC, TRPO, CrossQ, MaskablePPO, RecurrentPPO
from sb3_contrib.common.envs import InvalidActionEnvDiscrete
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3, HerReplayBuffer
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecEnv,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)

from matrix.row import Framework, Row
from matrix.rows._sb3 import Make, own, training
from perdure.environments import register_environment
from perdure.gymnasium import NewWorld

register_environment(InvalidActionEnvDiscrete)
register_environment(BitFlippingEnv)

Build = Callable[[VecEnv, int], BaseAlgorithm]
Environments = Callable[[int, int], VecEnv]


def falling(progress: float) -> float:
    """A learning rate that depends on the whole horizon."""
    return 1e-4 + 3e-3 * progress


# Environments


def of(name: str, **options: Any) -> Environments:
    """Environments of Gymnasium by id, each under SB3's monitor."""
    return lambda seed, number: make_vec_env(name, number, seed=seed, **options)


def remote(name: str) -> Environments:
    """The same in worker processes. Forked, because each other kind of worker imports the frameworks anew."""
    return of(name, vec_env_cls=SubprocVecEnv, vec_env_kwargs={"start_method": "fork"})


class Picture(gym.ObservationWrapper[Any, Any, Any]):
    """CartPole as an image of one channel, whose axes are swapped for convolutions."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Box(0, 255, (36, 36, 1), np.uint8)

    def observation(self, observation: Any) -> Any:
        """Draw it."""
        lines = np.outer(np.resize(observation, 36), np.linspace(0, 1, 36))
        return (127 + 100 * np.tanh(lines)).astype(np.uint8)[..., None]


def pictures(seed: int, number: int) -> VecEnv:
    """Images, as SB3 turns them."""
    return _seeded(VecTransposeImage(make_vec_env("CartPole-v1", number, seed=seed, wrapper_class=Picture)), seed)


def _seeded(env: VecEnv, seed: int) -> VecEnv:
    # The framework draws from this space to learn its form, and does not seed it.
    env.observation_space.seed(seed)
    return env


def normalized(name: str) -> Environments:
    """Environments with running statistics of observations and returns."""
    return lambda seed, number: VecNormalize(of(name)(seed, number))


def stacked(seed: int, number: int) -> VecEnv:
    """Statistics over stacked observations."""
    return VecNormalize(VecFrameStack(of("Pendulum-v1")(seed, number), 3))


def monitored(seed: int, number: int) -> VecEnv:
    """One monitor around all environments."""
    env = VecMonitor(DummyVecEnv([lambda: gym.make("CartPole-v1")] * number))
    env.seed(seed)
    return env


def masked(seed: int, number: int) -> VecEnv:
    """Actions that are not always allowed."""
    return make_vec_env(
        lambda: gym.wrappers.TimeLimit(InvalidActionEnvDiscrete(8, n_invalid_actions=4), 30), number, seed=seed
    )


def atari(seed: int, number: int) -> VecEnv:
    """A game as it is usually trained on, on small screens."""
    gym.register_envs(ale_py)
    env = make_atari_env("PongNoFrameskip-v4", number, seed=seed, wrapper_kwargs={"screen_size": 36})
    return _seeded(VecTransposeImage(VecFrameStack(env, 4)), seed)


def bits(seed: int, number: int) -> VecEnv:
    """Goals that change."""
    return make_vec_env(lambda: BitFlippingEnv(n_bits=4, continuous=False, max_steps=6), number, seed=seed)


# Algorithms, small


def net(**options: Any) -> dict[str, Any]:
    """Options of a small net: new ones each time, because models add to them."""
    return {"policy_kwargs": {"net_arch": [8], **options}}


def rollout(**options: Any) -> dict[str, Any]:
    """Options of a short rollout."""
    return {"n_steps": 32, **net(**options)}


def epochs(count: int = 2, **options: Any) -> dict[str, Any]:
    """Options of a few epochs over it."""
    return {**rollout(**options), "batch_size": 64, "n_epochs": count}


def replay(**options: Any) -> dict[str, Any]:
    """Options of a small replay buffer that goes round."""
    return {"buffer_size": 600, "learning_starts": 64, "batch_size": 16, "train_freq": 8, **net(**options)}


def noise(kind: Any, env: VecEnv) -> Any:
    """Action noise of a kind."""
    size = env.action_space.shape or ()
    return kind(np.zeros(size), 0.2 * np.ones(size))


def small_cnn(algorithm: Any, **options: Any) -> Build:
    """An algorithm that looks at images through few features."""
    options["policy_kwargs"] = {**options["policy_kwargs"], "features_extractor_kwargs": {"features_dim": 8}}
    return lambda env, seed: algorithm("CnnPolicy", env, seed=seed, **copy.deepcopy(options))


TARGET: dict[str, Any] = {"target_update_interval": 50}
ON_POLICY: dict[str, Build] = {
    "PPO": lambda env, seed: PPO("MlpPolicy", env, falling, seed=seed, **epochs()),
    "A2C": lambda env, seed: A2C("MlpPolicy", env, falling, seed=seed, **rollout()),
    "TRPO": lambda env, seed: TRPO("MlpPolicy", env, batch_size=32, seed=seed, **rollout()),
    "RecurrentPPO": lambda env, seed: RecurrentPPO("MlpLstmPolicy", env, seed=seed, **epochs(1, lstm_hidden_size=8)),
    "ARS": lambda env, seed: ARS("LinearPolicy", env, n_delta=1, seed=seed),
}
FOR_CHOICES: dict[str, Build] = {
    "DQN": lambda env, seed: DQN("MlpPolicy", env, falling, exploration_fraction=0.5, seed=seed, **replay(), **TARGET),
    "QRDQN": lambda env, seed: QRDQN("MlpPolicy", env, seed=seed, **replay(n_quantiles=9), **TARGET),
}
FOR_FORCES: dict[str, Build] = {
    "SAC": lambda env, seed: SAC("MlpPolicy", env, falling, seed=seed, **replay()),
    "TD3": lambda env, seed: TD3(
        "MlpPolicy", env, action_noise=noise(OrnsteinUhlenbeckActionNoise, env), seed=seed, **replay()
    ),
    "DDPG": lambda env, seed: DDPG("MlpPolicy", env, action_noise=noise(NormalActionNoise, env), seed=seed, **replay()),
    "TQC": lambda env, seed: TQC("MlpPolicy", env, seed=seed, **replay()),
    "CrossQ": lambda env, seed: CrossQ("MlpPolicy", env, seed=seed, **replay()),
}
WITH_CHOICES = {
    "CartPole-v1": of("CartPole-v1"),
    "FrozenLake-v1": of("FrozenLake-v1"),
    "LunarLander-v3": of("LunarLander-v3"),
}
WITH_FORCES = {
    "Pendulum-v1": of("Pendulum-v1"),
    "MountainCarContinuous-v0, VecNormalize": normalized("MountainCarContinuous-v0"),
    "Hopper-v5": of("Hopper-v5"),
}
SPECIAL: dict[tuple[str, str], tuple[Build, Environments]] = {
    ("PPO, gSDE", "Pendulum-v1"): (
        lambda env, seed: PPO("MlpPolicy", env, use_sde=True, seed=seed, **epochs()),
        of("Pendulum-v1"),
    ),
    ("PPO", "Pendulum-v1, VecFrameStack, VecNormalize"): (ON_POLICY["PPO"], stacked),
    ("PPO, CNN", "CartPole-v1 as images, VecTransposeImage"): (small_cnn(PPO, **epochs(1)), pictures),
    ("A2C", "CartPole-v1, VecMonitor"): (ON_POLICY["A2C"], monitored),
    ("PPO", "CartPole-v1, SubprocVecEnv"): (ON_POLICY["PPO"], remote("CartPole-v1")),
    ("SAC", "Pendulum-v1, SubprocVecEnv"): (FOR_FORCES["SAC"], remote("Pendulum-v1")),
    ("DQN, 3 steps", "CartPole-v1"): (
        lambda env, seed: DQN("MlpPolicy", env, n_steps=3, seed=seed, **replay(), **TARGET),
        of("CartPole-v1"),
    ),
    ("DQN, one array", "CartPole-v1"): (
        lambda env, seed: DQN(
            "MlpPolicy",
            env,
            optimize_memory_usage=True,
            replay_buffer_kwargs={"handle_timeout_termination": False},
            seed=seed,
            **replay(),
        ),
        of("CartPole-v1"),
    ),
    ("DQN, HER", "BitFlipping"): (
        lambda env, seed: DQN("MultiInputPolicy", env, replay_buffer_class=HerReplayBuffer, seed=seed, **replay()),
        bits,
    ),
    ("SAC, gSDE", "Pendulum-v1, VecNormalize"): (
        lambda env, seed: SAC(
            "MlpPolicy", env, use_sde=True, use_sde_at_warmup=True, sde_sample_freq=3, seed=seed, **replay()
        ),
        normalized("Pendulum-v1"),
    ),
    ("PPO, CNN", "PongNoFrameskip-v4, AtariWrapper, VecFrameStack"): (small_cnn(PPO, **epochs(1)), atari),
    ("DQN, CNN", "PongNoFrameskip-v4, AtariWrapper, VecFrameStack"): (small_cnn(DQN, **replay(), **TARGET), atari),
    ("PPO", "BipedalWalker-v3, NewWorld"): (ON_POLICY["PPO"], of("BipedalWalker-v3", wrapper_class=NewWorld)),
    ("MaskablePPO", "InvalidActions"): (
        lambda env, seed: MaskablePPO("MlpPolicy", env, seed=seed, **epochs()),
        masked,
    ),
}
ELSEWHERE = ("Acrobot-v1", "Ant-v5", "BipedalWalker-v3", "CliffWalking-v1", "HalfCheetah-v5", "Humanoid-v5", "Taxi-v4")
"""Environments for PPO alone: what an algorithm has to do with an environment is the same in all of them."""
NOT_CAPTURED = {"BipedalWalker-v3"}
"""One world for all episodes."""
SUITE = {
    "PPO / Pendulum-v1, VecFrameStack, VecNormalize",
    "DQN / CartPole-v1",
}


def make(build: Build, environments: Environments, usual: int = 2) -> Make:
    """A model in fresh environments."""
    return lambda seed, number: build(environments(seed, number or usual), seed)


def _entries() -> dict[tuple[str, str], tuple[Build, Environments]]:
    discrete = {
        (algorithm, environment): (build, environments)
        for algorithm, build in {**ON_POLICY, **FOR_CHOICES}.items()
        for environment, environments in WITH_CHOICES.items()
        if not (algorithm == "ARS" and environment == "FrozenLake-v1")  # its policy takes vectors only
    }
    continuous = {
        (algorithm, environment): (build, environments)
        for algorithm, build in {**ON_POLICY, **FOR_FORCES}.items()
        for environment, environments in WITH_FORCES.items()
        if not (algorithm == "ARS" and "MountainCar" in environment)  # its rollouts are episodes, of 999 steps here
    }
    elsewhere = {("PPO", environment): (ON_POLICY["PPO"], of(environment)) for environment in ELSEWHERE}
    return {**discrete, **continuous, **elsewhere, **SPECIAL}


def _row(algorithm: str, environment: str, build: Build, environments: Environments) -> Row:
    # ARS trains on whole episodes, one environment a candidate; its first rollout is over when both have ended.
    is_evolution = algorithm == "ARS"
    made = make(build, environments, 1 if is_evolution else 2)
    return Row(
        algorithm,
        environment,
        training(made),
        own(made),
        steps=2_400,
        earliest_step=850 if is_evolution else 250,
        grade="statistical" if environment in NOT_CAPTURED else "exact",
        in_suite=f"{algorithm} / {environment}" in SUITE,
    )


MAKERS: dict[str, Make] = {
    f"{algorithm} / {environment}": make(build, environments, 1 if algorithm == "ARS" else 2)
    for (algorithm, environment), (build, environments) in _entries().items()
}
"""How each row builds its model, by the row's name."""

FRAMEWORK = Framework(
    "Stable-Baselines3",
    ("stable_baselines3", "sb3_contrib", "gymnasium", "torch", "numpy"),
    tuple(_row(*names, *parts) for names, parts in _entries().items()),
)
