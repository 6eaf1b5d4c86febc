"""
SAC on Pendulum in one file, resumable: kill it at any moment and run the same command again.

The algorithm is Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", 2018. What resumes of it forget most
often is the learned temperature and its optimizer. The lines that make it resumable are marked with `# perdure`.
"""

import argparse
import math
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Normal

import perdure
from perdure import Every, Last, RingBuffer


@dataclass
class Settings:
    seed: int = 1
    env: str = "Pendulum-v1"
    steps: int = 10_000
    capacity: int = 10_000
    batch: int = 128
    actor_rate: float = 3e-4
    critic_rate: float = 1e-3
    discount: float = 0.99
    mixing: float = 0.005
    begin: int = 1_000
    actor_every: int = 2
    save_steps: int = 1_000
    store: str = "runs"
    run: str = "sac"


def layers(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))


class Actor(nn.Module):
    """A normal distribution, squashed into the bounds of the actions."""

    def __init__(self, observations, space):
        super().__init__()
        self.net = layers(observations, 2 * space.shape[0])
        self.scale = torch.tensor((space.high - space.low) / 2)
        self.middle = torch.tensor((space.high + space.low) / 2)

    def forward(self, observation):
        mean, spread = self.net(observation).chunk(2, dim=-1)
        normal = Normal(mean, spread.clamp(-5, 2).exp())
        drawn = normal.rsample()
        squashed = torch.tanh(drawn)
        log = normal.log_prob(drawn) - torch.log(self.scale * (1 - squashed.pow(2)) + 1e-6)
        return squashed * self.scale + self.middle, log.sum(-1)


class Critics(nn.ModuleList):
    """Two estimates of the value of an action; the lower one counts."""

    def forward(self, observation, action):
        return torch.stack([net(torch.cat([observation, action], -1)).squeeze(-1) for net in self])


class Learner:
    def __init__(self, settings, observations, space):
        self.settings, actions = settings, space.shape[0]
        self.actor = Actor(observations, space)
        self.critics, self.targets = (Critics(layers(observations + actions, 1) for _ in range(2)) for _ in range(2))
        self.targets.load_state_dict(self.critics.state_dict())
        self.log_temperature = torch.zeros(1, requires_grad=True)
        self.wanted_entropy = -float(actions)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), settings.actor_rate)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), settings.critic_rate)
        self.temperature_optimizer = torch.optim.Adam([self.log_temperature], settings.critic_rate)

    def learn(self, replay, step):
        sample = replay.sample(self.settings.batch, discount=self.settings.discount)
        batch, temperature = sample.torch(), self.log_temperature.detach().exp()
        with torch.no_grad():
            following, log = self.actor(batch["next_obs"])
            soft = self.targets(batch["next_obs"], following).min(0).values - temperature * log
            wanted = batch["reward"] + torch.from_numpy(sample.discount) * soft
        loss = (self.critics(batch["obs"], batch["action"]) - wanted).pow(2).mean(1).sum()
        descend(self.critic_optimizer, loss)
        if step % self.settings.actor_every == 0:
            action, log = self.actor(batch["obs"])
            value = self.critics(batch["obs"], action).min(0).values
            descend(self.actor_optimizer, (temperature * log - value).mean())
            entropy = (-log.detach() - self.wanted_entropy).mean()
            descend(self.temperature_optimizer, (self.log_temperature.exp() * entropy).sum())
        with torch.no_grad():
            for target, source in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
                target.lerp_(source, self.settings.mixing)


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
        run.track(state, temperature=learner.log_temperature, replay=replay, returns=returns)  # perdure
        run.track(env=env, actions=space)  # perdure
        now = run.locals(obs=first)  # perdure
        for step in run.loop(0, settings.steps):  # perdure
            with torch.no_grad():
                action = space.sample() if step < settings.begin else learner.actor(torch.tensor(now.obs))[0].numpy()
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
