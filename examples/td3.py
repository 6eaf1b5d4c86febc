"""
TD3 on Pendulum in one file, resumable: kill it at any moment and run the same command again.

The algorithm is Fujimoto et al., "Addressing Function Approximation Error in Actor-Critic Methods", 2018. What resumes
of it forget most often is the targets of both networks. The lines that make it resumable are marked with `# perdure`.
"""

import argparse
import copy
import math
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
    env: str = "Pendulum-v1"
    steps: int = 10_000
    capacity: int = 10_000
    batch: int = 128
    rate: float = 1e-3
    discount: float = 0.99
    mixing: float = 0.005
    begin: int = 1_000
    actor_every: int = 2
    exploration: float = 0.1
    smoothing: float = 0.2
    smoothing_limit: float = 0.5
    save_steps: int = 1_000
    store: str = "runs"
    run: str = "td3"


def layers(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))


class Actor(nn.Module):
    """An action within the bounds of the space."""

    def __init__(self, observations, space):
        super().__init__()
        self.net = layers(observations, space.shape[0])
        self.scale = torch.tensor((space.high - space.low) / 2)
        self.middle = torch.tensor((space.high + space.low) / 2)

    def forward(self, observation):
        return torch.tanh(self.net(observation)) * self.scale + self.middle

    def disturb(self, action, noise):
        """Add noise in units of the space's half width, and stay within it."""
        return torch.clamp(action + noise * self.scale, self.middle - self.scale, self.middle + self.scale)


class Critics(nn.ModuleList):
    """Two estimates of the value of an action; the lower one counts."""

    def forward(self, observation, action):
        return torch.stack([net(torch.cat([observation, action], -1)).squeeze(-1) for net in self])


class Learner:
    def __init__(self, settings, observations, space):
        self.settings = settings
        self.actor = Actor(observations, space)
        self.critics = Critics(layers(observations + space.shape[0], 1) for _ in range(2))
        self.actor_target, self.critics_target = copy.deepcopy(self.actor), copy.deepcopy(self.critics)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), settings.rate)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), settings.rate)

    def act(self, observation):
        with torch.no_grad():
            action = self.actor(torch.tensor(observation))
            return self.actor.disturb(action, torch.randn_like(action) * self.settings.exploration).numpy()

    def learn(self, replay, step):
        sample = replay.sample(self.settings.batch, discount=self.settings.discount)
        batch, limit = sample.torch(), self.settings.smoothing_limit
        with torch.no_grad():
            noise = (torch.randn_like(batch["action"]) * self.settings.smoothing).clamp(-limit, limit)
            following = self.actor_target.disturb(self.actor_target(batch["next_obs"]), noise)
            value = self.critics_target(batch["next_obs"], following).min(0).values
            wanted = batch["reward"] + torch.from_numpy(sample.discount) * value
        loss = (self.critics(batch["obs"], batch["action"]) - wanted).pow(2).mean(1).sum()
        descend(self.critic_optimizer, loss)
        if step % self.settings.actor_every == 0:
            descend(self.actor_optimizer, -self.critics(batch["obs"], self.actor(batch["obs"]))[0].mean())
            self.follow(self.actor_target, self.actor)
            self.follow(self.critics_target, self.critics)

    def follow(self, target, source):
        with torch.no_grad():
            for behind, ahead in zip(target.parameters(), source.parameters(), strict=True):
                behind.lerp_(ahead, self.settings.mixing)


def descend(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def train(settings: Settings):
    torch.manual_seed(settings.seed)
    torch.set_num_threads(1)
    env = gym.wrappers.RecordEpisodeStatistics(gym.make(settings.env))
    env.action_space.seed(settings.seed)
    shape, space = env.observation_space.shape, env.action_space
    learner = Learner(settings, math.prod(shape), space)
    seen, acted, ended = (np.float32, shape), (np.float32, space.shape), (np.bool_, ())
    columns = {"obs": seen, "next_obs": seen, "action": acted, "reward": (np.float32, ()), "terminated": ended}
    replay = RingBuffer(settings.capacity, columns, rng=settings.seed)
    returns: list[float] = []
    first, _ = env.reset(seed=settings.seed)

    saves = Every(steps=settings.save_steps)
    with perdure.open(settings.store, run=settings.run, save=saves, keep=Last(3)) as run:  # perdure
        state = {name: part for name, part in vars(learner).items() if hasattr(part, "state_dict")}
        run.track(state, replay=replay, returns=returns)  # perdure
        run.track(env=env, actions=space)  # perdure
        now = run.locals(obs=first)  # perdure
        for step in run.loop(0, settings.steps):  # perdure
            action = space.sample() if step < settings.begin else learner.act(now.obs)
            following, reward, terminated, truncated, info = env.step(action)
            replay.add(obs=now.obs, next_obs=following, action=action, reward=reward, terminated=terminated)
            now.obs = following
            if terminated or truncated:
                returns.append(float(info["episode"]["r"]))
                now.obs, _ = env.reset()
                run.metric("train/return", float(np.mean(returns[-20:])))  # perdure
            if step >= settings.begin:
                learner.learn(replay, step)
    return learner, replay, returns


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in vars(Settings()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    *_, finished = train(Settings(**vars(parser.parse_args())))
    print(f"mean return of the last 20 of {len(finished)} episodes: {np.mean(finished[-20:]):.1f}")
