"""The rows of RLlib's new API stack."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME

import perdure.rllib
from matrix.life import Life
from matrix.row import Framework, Own, Row, State
from matrix.rows._global import seed_spaces, seed_streams, streams, without
from matrix.rows._ray import ray_running
from matrix.steps import Steps
from perdure.adapters._rllib_plain import pack
from perdure.adapters._rllib_runners import capture_runner

Make: TypeAlias = Callable[[Life], Any]
"""From a life to a configuration."""

PER_ITERATION = 64
PER_UPDATE = 8
"""Steps between two updates of an algorithm that replays."""
NETS = {"fcnet_hiddens": [16], "head_fcnet_hiddens": [16]}
OF_THE_MOMENT = frozenset({
    # Names that are drawn for every episode, and clocks.
    "id_", "shared", "for_metrics", "_start_time", "_last_step_time",
    # Metrics, most of which are durations.
    "metrics", "metrics_logger",
})  # fmt: skip
"""What may differ between two trainings that are the same."""


class EveryStep(RLlibCallback):  # type: ignore[misc] # types of Ray are not looked at
    """Tells a life which step has been done: each of a local runner, those of remote runners when they come in."""

    life: ClassVar[Life | None] = None
    """In the process of the algorithm; None in those of remote runners."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: Steps | None = None

    def on_algorithm_init(self, *, algorithm: Any, **_: Any) -> None:
        """The generator of a replay buffer, which RLlib itself draws from the system's entropy, begins."""
        replay = getattr(algorithm, "local_replay_buffer", None)
        if replay is not None:
            replay.rng = np.random.default_rng(algorithm.config.seed)

    def on_environment_created(self, *, env_runner: Any, env: Any, **_: Any) -> None:
        """A runner has made its environments."""
        seed_spaces(env, env_runner.config.seed + env_runner.worker_index)

    def on_episode_step(self, *, env_runner: Any, **_: Any) -> None:
        """A local runner has made a step."""
        if type(self).life is not None and not env_runner.config.in_evaluation:
            if self._steps is None:
                self._steps = Steps(type(self).life, lambda: int(env_runner.num_env_steps_sampled_lifetime))
            self._steps.made(1)


def tell_when_learning(algorithm: Any, life: Life) -> None:
    """Tell a life of the steps that have come in whenever the learner begins an update."""
    update = algorithm.learner_group.update

    def told(*arguments: Any, **named: Any) -> Any:
        life.at(sampled(algorithm))
        return update(*arguments, **named)

    algorithm.learner_group.update = told


def sampled(algorithm: Any) -> int:
    """Steps that the runners have made."""
    return int(algorithm.metrics.peek((ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME), default=0))


@contextmanager
def built(make: Make, life: Life, *saving: type[RLlibCallback]) -> Iterator[Any]:
    """An algorithm of a life."""
    seed_streams(life.seed)
    EveryStep.life = life
    algorithm = make(life).callbacks([EveryStep, *saving]).build_algo()
    tell_when_learning(algorithm, life)
    try:
        yield algorithm
    finally:
        algorithm.stop()


def train_to(algorithm: Any, steps: int) -> None:
    """Go on until so many steps have been made in all."""
    while sampled(algorithm) < steps:
        algorithm.train()


def live(make: Make, life: Life) -> State:
    """Build, train, tell."""
    if life.store is None:
        with built(make, life) as algorithm:
            train_to(algorithm, life.steps)
            return state_of(algorithm)
    with built(make, life, perdure.rllib.checkpointing(**life.options)) as algorithm:
        (run,) = (one.run for one in algorithm.callbacks if isinstance(one, perdure.rllib.Checkpointing))
        try:
            train_to(algorithm, life.steps)
            return state_of(algorithm)
        finally:
            life.tell(run)


def training(make: Make) -> Callable[[Life], State]:
    """What a row does: live with a Ray of its own."""

    def train(life: Life) -> State:
        with ray_running():
            return live(make, life)

    return train


def state_of(algorithm: Any) -> State:
    """Everything that a training consists of, by group."""
    learners = algorithm.learner_group.get_state()["learner"]
    replay = getattr(algorithm, "local_replay_buffer", None)
    return {
        "parameters": learners["rl_module"],
        "optimizer": learners["optimizer"],
        "environment": runners_of(algorithm.env_runner_group),
        "evaluation": runners_of(algorithm.eval_env_runner_group),
        "replay": None if replay is None else replay_of(replay),
        "counters": {"iteration": algorithm.iteration, "sampled": sampled(algorithm)},
        "rng": streams(),
    }


def runners_of(group: Any) -> list[State] | None:
    """What the runners of a group hold, if there is such a group."""
    runners = [] if group is None else group.foreach_env_runner(capture_runner)
    return [without(runner, OF_THE_MOMENT) for runner in runners] or None


def replay_of(replay: Any) -> State:
    """The content of a replay buffer, its priorities and its generator."""
    return {
        "episodes": [without(pack(episode), OF_THE_MOMENT) for episode in replay.episodes],
        "priorities": pack(replay._sum_segment.value) if hasattr(replay, "_sum_segment") else None,  # noqa: SLF001 - no public name
        "generator": replay.rng.bit_generator.state,
    }


def own(make: Make) -> Own:
    """RLlib's documented way: ``save_to_path`` and ``restore_from_path``."""

    def save(life: Life, folder: Path) -> None:
        with ray_running(), built(make, life) as algorithm:
            train_to(algorithm, life.steps // 2)
            algorithm.save_to_path(folder / "algorithm")

    def load(life: Life, folder: Path) -> State:
        with ray_running(), built(make, life) as algorithm:
            algorithm.restore_from_path(folder / "algorithm")
            train_to(algorithm, life.steps)
            return state_of(algorithm)

    return Own(save, load)


def _common(config: Any, life: Life, runners: int) -> Any:
    return (
        config.env_runners(num_env_runners=runners)
        .rl_module(model_config=NETS)
        .reporting(min_sample_timesteps_per_iteration=PER_ITERATION, min_time_s_per_iteration=0)
        .debugging(seed=life.seed)
    )


def ppo(life: Life, runners: int, learners: int = 0) -> Any:
    """PPO with normalised observations, a schedule, and a learned coefficient of its KL penalty."""
    return (
        _common(PPOConfig(), life, runners)
        .environment("CartPole-v1")
        .learners(num_learners=learners)
        .env_runners(
            num_envs_per_env_runner=life.environments or 2,
            env_to_module_connector=lambda env, spaces, device: MeanStdFilter(),  # noqa: ARG005 - as RLlib calls it
        )
        .training(
            train_batch_size=128,
            minibatch_size=64,
            num_epochs=2,
            lr=[[0, 1e-3], [life.steps, 1e-4]],
            entropy_coeff=[[0, 0.01], [life.steps, 0.0]],
        )
    )


def dqn(life: Life, runners: int) -> Any:
    """DQN with priorities and an annealed epsilon."""
    replay = {"type": "PrioritizedEpisodeReplayBuffer", "capacity": 700, "alpha": 0.6, "beta": 0.4}
    return (
        _common(DQNConfig(), life, runners)
        .environment("CartPole-v1")
        .env_runners(rollout_fragment_length=PER_UPDATE)
        .training(
            train_batch_size=16,
            num_steps_sampled_before_learning_starts=64,
            target_network_update_freq=64,
            epsilon=[(0, 1.0), (life.steps // 2, 0.1)],
            replay_buffer_config=replay,
        )
    )


def sac(life: Life, runners: int) -> Any:
    """SAC with a learned temperature."""
    return (
        _common(SACConfig(), life, runners)
        .environment("Pendulum-v1")
        .env_runners(rollout_fragment_length=PER_UPDATE)
        .training(
            train_batch_size=16,
            num_steps_sampled_before_learning_starts=64,
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": 700},
        )
    )


def _row(
    algorithm: str, environment: str, make: Callable[[Life, int], Any], runners: int = 0, *, in_suite: bool = False
) -> Row:
    making = partial(make, runners=runners)
    other_number = "refused" if " x " in environment else ""
    return Row(algorithm, environment, training(making), own(making), other_number=other_number, in_suite=in_suite)


FRAMEWORK = Framework(
    "RLlib",
    ("ray", "gymnasium", "torch", "numpy"),
    (
        _row("PPO", "CartPole-v1 x 2, MeanStdFilter", ppo),
        _row("PPO, two remote runners", "CartPole-v1 x 2, MeanStdFilter", ppo, 2, in_suite=True),
        _row("PPO, a remote learner", "CartPole-v1 x 2, MeanStdFilter", partial(ppo, learners=1)),
        _row("DQN, prioritized", "CartPole-v1", dqn),
        _row("DQN, prioritized, two remote runners", "CartPole-v1", dqn, 2, in_suite=True),
        _row("SAC", "Pendulum-v1", sac),
        _row("SAC, two remote runners", "Pendulum-v1", sac, 2),
    ),
)
