"""
A small training with RLlib, run as a script: ``python -m tests.adapters.rllib_training JSON``.

Prints one JSON line with digests of everything that it ended with, or kills itself in the midst of an iteration.
"""

import json
import sys
import warnings

warnings.simplefilter("ignore")  # what Ray says of itself is not what is tested

import ray
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.env_to_module import MeanStdFilter

import perdure
import perdure.rllib
from perdure import Every
from perdure.adapters._rllib_state import capture_runner
from tests.lives import _die, digest, seed_all, streams


def configured(algorithm, runners):
    if algorithm == "dqn":
        config = DQNConfig().training(
            train_batch_size=16,
            num_steps_sampled_before_learning_starts=64,
            target_network_update_freq=64,
            epsilon=[(0, 1.0), (800, 0.1)],
            replay_buffer_config={"type": "PrioritizedEpisodeReplayBuffer", "capacity": 500, "alpha": 0.6, "beta": 0.4},
        )
    else:
        config = PPOConfig().training(
            train_batch_size=128, minibatch_size=64, num_epochs=2, lr=[[0, 1e-3], [2_000, 1e-4]],
            entropy_coeff=[[0, 0.01], [2_000, 0.0]],
        )  # fmt: skip
    return (
        config.environment("CartPole-v1")
        .env_runners(
            num_env_runners=runners,
            num_envs_per_env_runner=2 if algorithm == "ppo" else 1,
            env_to_module_connector=lambda env, spaces, device: MeanStdFilter(),
        )
        .reporting(min_sample_timesteps_per_iteration=64, min_time_s_per_iteration=0)
        .debugging(seed=1)
    )


def without_clocks(tree):
    if isinstance(tree, dict):
        return {
            key: without_clocks(value)
            for key, value in tree.items()
            if key not in ("metrics", "metrics_logger", "for_metrics", "_start_time", "_last_step_time", "id_")
        }
    if isinstance(tree, list | tuple):
        return [without_clocks(item) for item in tree]
    return tree


def state_of(algorithm):
    runners = algorithm.env_runner_group.foreach_env_runner(capture_runner)
    replay = getattr(algorithm, "local_replay_buffer", None)
    learners = algorithm.learner_group.get_state()["learner"]
    return {
        "modules": digest(learners["rl_module"]),
        "optimizers": digest(learners["optimizer"]),
        "runners": [
            {key: digest(part) for key, part in without_clocks(one).items() if key != "shared"} for one in runners
        ],
        "replay": None if replay is None else digest([episode.get_observations() for episode in replay.episodes]),
        "priorities": digest(getattr(replay, "_sum_segment", None) and replay._sum_segment.value),
        "iteration": algorithm.iteration,
        "streams": digest(streams()),
    }


def main(store, *, algorithm, iterations, runners=0, die_at=0, forget=()):
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    seed_all(3)
    track = perdure.Run.track
    perdure.Run.track = lambda run, *objects, **named: track(
        run, *objects, **{name: part for name, part in named.items() if name not in forget}
    )
    saving = perdure.rllib.checkpointing(store, run="r", save=Every(steps=200), budget=None)
    algo = configured(algorithm, runners).callbacks(saving).build_algo()
    if die_at:
        update = algo.learner_group.update

        def deadly(*arguments, **named):
            if algo.iteration == die_at:
                _die()
            return update(*arguments, **named)

        algo.learner_group.update = deadly
    while algo.iteration < iterations:
        algo.train()
    (run,) = (one.run for one in algo.callbacks)
    result = state_of(algo)
    result["report"] = {"grade": run.report.grade.value, "step": run.report.step, "global_step": run.global_step}
    algo.stop()
    ray.shutdown()
    print(json.dumps(result))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
