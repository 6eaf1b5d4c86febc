"""
A learner and its actors, each a process of its own, on one machine: kill any of them at any moment.

    perdure run --config examples/cluster.toml

Evolution strategies (Salimans et al., 2017) on CartPole: actors try disturbed copies of a linear policy and report how
well they did, the learner moves the policy towards those that did better. Nothing but NumPy is needed.
"""

import os
import sys

import gymnasium as gym
import numpy as np

import perdure
from perdure import Every, Last, Timing

UPDATES = int(os.environ.get("UPDATES", "60"))
PAIRS = 4  # disturbances in one sample, each tried in both directions
SAMPLES = 6  # samples in one update
SPREAD, RATE = 0.3, 0.4
TIMING = Timing(beat_seconds=0.5, lease_seconds=5.0)  # shorter than the default, to see something happen


def open_run():
    return perdure.open(save=Every(seconds=2), keep=Last(3), timing=TIMING, algorithm="es")


def learn():
    policy = np.zeros((4, 2))
    with open_run() as run:
        run.track(policy=policy)
        count = run.counters(global_step=0, updates=0)
        run.restore()
        with run.learner(learner_step=count.updates, max_staleness=3) as learner:
            for _ in run.loop(0, UPDATES):
                learner.publish({"policy": policy}, count.updates)
                samples = []
                while not samples:  # nobody may be there at the moment; the supervisor brings them back
                    run.stop_if_asked()
                    samples = learner.collect(samples=SAMPLES, timeout_seconds=1)
                noise = np.concatenate([sample.arrays["noise"] for sample in samples])
                score = np.concatenate([sample.arrays["score"] for sample in samples])
                gain = (score[:, 0] - score[:, 1]) / (score.std() + 1e-6)
                policy += RATE * np.tensordot(gain, noise, 1) / len(noise)
                count.global_step += int(score.sum())  # CartPole gives a point a step
                count.updates += 1
                run.metric("train/return", float(score.mean()))
            learner.dismiss()
    print(f"done after {count.updates} updates and {count.global_step:,} steps, mean return {score.mean():.0f}")


def act(name):
    env = gym.make("CartPole-v1")
    rng = np.random.default_rng()
    with open_run() as run, run.actor(name) as actor:
        weights = None
        while not actor.should_stop:
            weights = actor.weights(weights, timeout_seconds=0.0 if weights else 10.0) or weights
            if weights is None:
                continue
            run.progress(weights.learner_step)
            noise = rng.normal(size=(PAIRS, 4, 2))
            score = np.array([[play(env, weights.arrays["policy"] + s * SPREAD * n) for s in (1, -1)] for n in noise])
            actor.send({"noise": noise, "score": score}, weights)


def play(env, policy):
    observation, _ = env.reset()
    total, over = 0.0, False
    while not over:
        observation, reward, ended, cut, _ = env.step(int(np.argmax(observation @ policy)))
        total, over = total + reward, ended or cut
    return total


if __name__ == "__main__":
    try:
        learn() if os.environ["PERDURE_ROLE"] == "learner" else act(os.environ["PERDURE_MEMBER"])
    except perdure.FencedError as error:
        sys.exit(error.exit_code)
