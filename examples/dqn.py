"""
DQN on CartPole in one file, resumable: kill it at any moment and run the same command again.

The algorithm is Mnih et al., "Human-level control through deep reinforcement learning", 2015. The replay buffer is
saved with everything else: what changed since the last save is written, the rest is shared with it. Six lines make it
resumable; they are marked with `# perdure`.
"""

import argparse
import random
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from torch import nn

import perdure
from perdure import Every, Last, RingBuffer


@dataclass
class Settings:
    seed: int = 1
    env: str = "CartPole-v1"
    steps: int = 20_000
    capacity: int = 10_000
    batch: int = 128
    rate: float = 2.5e-4
    discount: float = 0.99
    begin: int = 1_000
    train_every: int = 10
    target_every: int = 500
    epsilon_last: float = 0.05
    epsilon_steps: int = 10_000
    save_steps: int = 2_000
    store: str = "runs"
    run: str = "dqn"


def network(observations: int, actions: int) -> nn.Module:
    return nn.Sequential(nn.Linear(observations, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, actions))


def train(settings: Settings):
    random.seed(settings.seed)
    np.random.seed(settings.seed)
    torch.manual_seed(settings.seed)
    torch.set_num_threads(1)
    env = gym.wrappers.RecordEpisodeStatistics(gym.make(settings.env))
    env.action_space.seed(settings.seed)
    shape, actions = env.observation_space.shape, int(env.action_space.n)
    values, target = network(shape[0], actions), network(shape[0], actions)
    target.load_state_dict(values.state_dict())
    optimizer = torch.optim.Adam(values.parameters(), lr=settings.rate)
    replay = RingBuffer(
        settings.capacity,
        {
            "obs": (np.float32, shape),
            "next_obs": (np.float32, shape),
            "action": (np.int64, ()),
            "reward": (np.float32, ()),
            "terminated": (np.bool_, ()),
        },
        rng=settings.seed,
    )
    returns: list[float] = []
    first, _ = env.reset(seed=settings.seed)

    with perdure.open(
        settings.store, run=settings.run, save=Every(steps=settings.save_steps), keep=Last(3)
    ) as run:  # perdure
        run.track(values=values, target=target, optimizer=optimizer, replay=replay, env=env, returns=returns)  # perdure
        run.track(actions=env.action_space)  # perdure
        now = run.locals(obs=first)  # perdure
        for step in run.loop(0, settings.steps):  # perdure
            epsilon = max(settings.epsilon_last, 1 - step / settings.epsilon_steps * (1 - settings.epsilon_last))
            if random.random() < epsilon:
                action = int(env.action_space.sample())
            else:
                with torch.no_grad():
                    action = int(values(torch.tensor(now.obs)).argmax())
            following, reward, terminated, truncated, info = env.step(action)
            replay.add(obs=now.obs, next_obs=following, action=action, reward=reward, terminated=terminated)
            now.obs = following
            if terminated or truncated:
                returns.append(float(info["episode"]["r"]))
                now.obs, _ = env.reset()
                run.metric("train/return", float(np.mean(returns[-20:])))  # perdure
            if step >= settings.begin and step % settings.train_every == 0:
                learn(values, target, optimizer, replay, settings)
            if step % settings.target_every == 0:
                target.load_state_dict(values.state_dict())
    return values, optimizer, replay, returns


def learn(values, target, optimizer, replay, settings):
    sample = replay.sample(settings.batch, discount=settings.discount)
    batch = sample.torch()
    with torch.no_grad():
        best = target(batch["next_obs"]).max(dim=1).values
        wanted = batch["reward"] + torch.from_numpy(sample.discount) * best
    chosen = values(batch["obs"]).gather(1, batch["action"][:, None]).squeeze(1)
    loss = nn.functional.mse_loss(chosen, wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in vars(Settings()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    *_, finished = train(Settings(**vars(parser.parse_args())))
    print(f"mean return of the last 20 of {len(finished)} episodes: {np.mean(finished[-20:]):.1f}")
