"""
Stable-Baselines3, resumable: kill it at any moment and run the same command again.

One argument makes it so, `callback=Checkpointing(run)`. Nets, optimizers, the replay buffer, environments with their
episodes, normalisers, schedules, callbacks, logs and all random streams continue where they stood.
"""

import argparse
from dataclasses import dataclass

from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

import perdure.sb3
from perdure import Best, Every, Last


@dataclass
class Settings:
    algorithm: str = "ppo"
    env: str = "CartPole-v1"
    envs: int = 4
    steps: int = 50_000
    seed: int = 1
    save_steps: int = 5_000
    eval_steps: int = 5_000
    store: str = "runs"
    run: str = "sb3"


def falling(remaining: float) -> float:
    """A learning rate that goes to zero over the whole run, however often that was interrupted."""
    return 3e-4 * remaining


def build(settings: Settings) -> BaseAlgorithm:
    env = make_vec_env(settings.env, settings.envs, seed=settings.seed)
    match settings.algorithm:
        case "ppo":
            normalized = VecNormalize(env)
            return PPO("MlpPolicy", normalized, falling, n_steps=256, seed=settings.seed, device="cpu")
        case "dqn":
            return DQN("MlpPolicy", env, falling, buffer_size=50_000, seed=settings.seed, device="cpu")
        case "sac":
            return SAC("MlpPolicy", env, falling, buffer_size=50_000, seed=settings.seed, device="cpu")
        case unknown:
            raise SystemExit(f"unknown algorithm {unknown!r}: ppo, dqn or sac")


def train(settings: Settings) -> tuple[BaseAlgorithm, EvalCallback]:
    model = build(settings)
    other = make_vec_env(settings.env, 1, seed=settings.seed + 1_000)
    if settings.algorithm == "ppo":
        other = VecNormalize(other, training=False, norm_reward=False)

    saves, kept = Every(steps=settings.save_steps), Last(3) | Best("eval/mean_reward")
    with perdure.open(settings.store, run=settings.run, save=saves, keep=kept) as run:
        evaluation = EvalCallback(
            other,
            eval_freq=max(1, settings.eval_steps // settings.envs),
            log_path=str(run.directory / "evaluations"),
            best_model_save_path=str(run.directory / "evaluations"),
            verbose=0,
        )
        model.learn(settings.steps, callback=[evaluation, perdure.sb3.Checkpointing(run)])
    return model, evaluation


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in vars(Settings()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    finished, last = train(Settings(**vars(parser.parse_args())))
    means = [sum(rewards) / len(rewards) for rewards in last.evaluations_results]
    print(f"{finished.num_timesteps:,} steps; mean rewards of {len(means)} evaluations: {means}")
