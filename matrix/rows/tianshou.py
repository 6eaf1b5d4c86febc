"""The rows of Tianshou."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from tianshou.algorithm import DQN, PPO, SAC, TD3
from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory, LRSchedulerFactoryLinear
from tianshou.data import Collector, PrioritizedVectorReplayBuffer, ReplayBuffer, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, VectorEnvNormObs
from tianshou.exploration import OUNoise
from tianshou.trainer import OffPolicyTrainerParams, OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorDeterministic, ContinuousActorProbabilistic, ContinuousCritic
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

import perdure.tianshou
from matrix.life import Life
from matrix.row import Framework, Own, Row, State
from matrix.rows._global import seed_streams, streams
from matrix.steps import Steps

EPOCHS = 4
OFF_POLICY: dict[str, Any] = {
    "collection_step_num_env_steps": 10, "update_step_num_gradient_steps_per_sample": 0.2, "batch_size": 16,
}  # fmt: skip


def environments(name: str, count: int, seed: int) -> DummyVectorEnv:
    """So many environments, each with a seed of its own."""
    found = DummyVectorEnv([lambda: gym.make(name) for _ in range(count)])
    found.seed(seed)
    return found


def limits(life: Life) -> dict[str, Any]:
    """How long a trainer trains."""
    return {
        "max_epochs": EPOCHS, "epoch_num_steps": life.steps // EPOCHS, "show_progress": False, "verbose": False,
        "test_step_num_episodes": 2,
    }  # fmt: skip


def adam() -> AdamOptimizerFactory:
    """An optimizer to be."""
    return AdamOptimizerFactory(lr=1e-3)


def dqn(life: Life) -> Any:
    """DQN with priorities, an annealed epsilon, and tests between epochs."""
    count = life.environments or 2
    training = environments("CartPole-v1", count, life.seed)
    net = Net(state_shape=4, action_shape=2, hidden_sizes=[16])
    policy = DiscreteQLearningPolicy(model=net, action_space=training.action_space[0], eps_training=1.0)
    algorithm = DQN(policy=policy, optim=adam(), target_update_freq=7)
    buffer = PrioritizedVectorReplayBuffer(350 * count, count, alpha=0.6, beta=0.4)

    def anneal(_: int, step: int) -> None:
        policy.set_eps_training(max(0.1, 1 - step / life.steps))

    return algorithm.create_trainer(
        OffPolicyTrainerParams(
            training_collector=Collector(policy, training, buffer, exploration_noise=True),
            test_collector=Collector(policy, environments("CartPole-v1", 1, life.seed + 50)),
            training_fn=anneal,
            **OFF_POLICY,
            **limits(life),
        )
    )


def ppo(life: Life) -> Any:
    """PPO with normalised observations and returns, and a falling learning rate."""
    count = life.environments or 2
    training = VectorEnvNormObs(environments("CartPole-v1", count, life.seed))
    net = Net(state_shape=4, hidden_sizes=[16])
    policy = ProbabilisticActorPolicy(
        actor=DiscreteActor(preprocess_net=net, action_shape=2),
        dist_fn=torch.distributions.Categorical,
        action_space=gym.spaces.Discrete(2),
        action_scaling=False,
    )
    falling = LRSchedulerFactoryLinear(EPOCHS, life.steps // EPOCHS, 40)
    algorithm = PPO(
        policy=policy,
        critic=DiscreteCritic(preprocess_net=net),
        optim=adam().with_lr_scheduler_factory(falling),
        return_scaling=True,
    )
    return algorithm.create_trainer(
        OnPolicyTrainerParams(
            training_collector=Collector(policy, training, VectorReplayBuffer(100 * count, count)),
            test_collector=None,
            collection_step_num_env_steps=40,
            update_step_num_repetitions=2,
            batch_size=16,
            **limits(life),
        )
    )


def _continuous(life: Life, algorithm: Any, *, exploration_noise: bool) -> Any:
    training = environments("Pendulum-v1", 1, life.seed)
    collector = Collector(algorithm.policy, training, ReplayBuffer(700), exploration_noise=exploration_noise)
    return algorithm.create_trainer(
        OffPolicyTrainerParams(training_collector=collector, test_collector=None, **OFF_POLICY, **limits(life))
    )


def _critic() -> ContinuousCritic:
    net = Net(state_shape=3, action_shape=1, hidden_sizes=[16], concat=True)
    return ContinuousCritic(preprocess_net=net)


def sac(life: Life) -> Any:
    """SAC with a learned temperature."""
    actor = ContinuousActorProbabilistic(
        preprocess_net=Net(state_shape=3, hidden_sizes=[16]), action_shape=1, unbounded=True, conditioned_sigma=True
    )
    policy = SACPolicy(actor=actor, action_space=gym.spaces.Box(-2, 2, (1,)))
    algorithm = SAC(
        policy=policy, policy_optim=adam(), critic=_critic(), critic_optim=adam(), alpha=AutoAlpha(-1.0, 0.0, adam())
    )
    return _continuous(life, algorithm, exploration_noise=False)


def td3(life: Life) -> Any:
    """TD3, whose delays and noise go on where they stood."""
    actor = ContinuousActorDeterministic(preprocess_net=Net(state_shape=3, hidden_sizes=[16]), action_shape=1)
    policy = ContinuousDeterministicPolicy(
        actor=actor, action_space=gym.spaces.Box(-2, 2, (1,)), exploration_noise=OUNoise(), action_bound_method="clip"
    )
    algorithm = TD3(policy=policy, policy_optim=adam(), critic=_critic(), critic_optim=adam(), update_actor_freq=2)
    return _continuous(life, algorithm, exploration_noise=True)


def state_of(trainer: Any) -> State:
    """Everything that a training consists of, by group."""
    algorithm, collector = trainer.algorithm, trainer.params.training_collector
    learned = algorithm.state_dict()
    buffer = collector.buffer
    return {
        "optimizer": {
            "states": learned.pop("_optimizers"),
            "schedulers": [one.state_dict() for one in algorithm.lr_schedulers],
        },
        "parameters": learned,
        "replay": {
            **{name: np.asarray(buffer._meta[name]) for name in ("obs", "act", "rew", "done")},  # noqa: SLF001 - no public name
            "weights": buffer.weight._value if hasattr(buffer, "weight") else None,  # noqa: SLF001 - as above
            "newest": buffer.last_index,
            "transitions": len(buffer),
        },
        "counters": {
            name: getattr(trainer, name)
            for name in ("_epoch", "_env_step", "_env_episode", "_current_update_step", "_best_score", "_best_epoch")
        },
        "curves": {name: average.cache for name, average in trainer._stat.items()},  # noqa: SLF001 - as above
        "environment": {"observation": collector._pre_collect_obs_RO},  # noqa: SLF001 - as above
        "rng": streams(),
    }


def _count(trainer: Any, life: Life) -> None:
    collector = trainer.params.training_collector
    steps = Steps(life, lambda: int(trainer._env_step))  # noqa: SLF001 - as above
    collector.set_on_step_hook(lambda _, batch: steps.made(len(batch.rew)))


def training(make: Callable[[Life], Any]) -> Callable[[Life], State]:
    """What a row does: build, train, tell."""

    def train(life: Life) -> State:
        seed_streams(life.seed)
        trainer = make(life)
        _count(trainer, life)
        with life.open() as run:
            if run is None:
                trainer.run()
            else:
                perdure.tianshou.train(run, trainer)
        return state_of(trainer)

    return train


def own(make: Callable[[Life], Any]) -> Own:
    """Tianshou's documented way: the algorithm's state dictionary and the buffer as HDF5; counts come from a log."""

    def save(life: Life, folder: Path) -> None:
        seed_streams(life.seed)
        trainer = make(life)
        trainer.params.max_epochs = EPOCHS // 2
        trainer.run()
        torch.save(trainer.algorithm.state_dict(), folder / "algorithm.pt")
        trainer.params.training_collector.buffer.save_hdf5(str(folder / "buffer.hdf5"))

    def load(life: Life, folder: Path) -> State:
        seed_streams(life.seed)
        trainer = make(life)
        _count(trainer, life)
        # As its documentation says; the file is one that this row has just written.
        trainer.algorithm.load_state_dict(torch.load(folder / "algorithm.pt", weights_only=False))
        collector = trainer.params.training_collector
        collector.buffer = type(collector.buffer).load_hdf5(str(folder / "buffer.hdf5"))
        trainer.params.max_epochs = EPOCHS // 2
        trainer.run()
        return state_of(trainer)

    return Own(save, load)


def _row(algorithm: str, environment: str, make: Callable[[Life], Any], *, in_suite: bool = False) -> Row:
    several = " x " in environment
    return Row(
        algorithm, environment, training(make), own(make), save_steps=100, in_suite=in_suite,
        other_number="refused" if several else "",
    )  # fmt: skip


FRAMEWORK = Framework(
    "Tianshou",
    ("tianshou", "gymnasium", "torch", "numpy"),
    (
        _row("DQN, prioritized", "CartPole-v1 x 2", dqn, in_suite=True),
        _row("PPO", "CartPole-v1 x 2, VectorEnvNormObs", ppo, in_suite=True),
        _row("SAC", "Pendulum-v1", sac),
        _row("TD3, Ornstein-Uhlenbeck noise", "Pendulum-v1", td3),
    ),
)
