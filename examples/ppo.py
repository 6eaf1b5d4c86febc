"""
PPO on CartPole in one file, resumable: kill it at any moment and run the same command again.

The algorithm is Schulman et al., "Proximal Policy Optimization Algorithms", 2017, with generalised advantages
(Schulman et al., 2015). Six lines make it resumable; they are marked with `# perdure`.
"""

import argparse
import random
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

import perdure
from perdure import Every, Last


@dataclass
class Settings:
    seed: int = 1
    env: str = "CartPole-v1"
    envs: int = 4
    steps: int = 128
    updates: int = 200
    epochs: int = 4
    minibatches: int = 4
    rate: float = 2.5e-4
    discount: float = 0.99
    trace: float = 0.95
    clip: float = 0.2
    value_weight: float = 0.5
    entropy_weight: float = 0.01
    save_steps: int = 5_000
    store: str = "runs"
    run: str = "ppo"


class Agent(nn.Module):
    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.critic = nn.Sequential(
            nn.Linear(observations, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
        )
        self.actor = nn.Sequential(
            nn.Linear(observations, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, actions)
        )

    def act(self, observation, action=None):
        choice = Categorical(logits=self.actor(observation))
        action = choice.sample() if action is None else action
        return action, choice.log_prob(action), choice.entropy(), self.critic(observation).squeeze(-1)


def advantages_of(rewards, values, dones, last_value, last_done, settings):
    advantages, carried = torch.zeros_like(rewards), torch.zeros(rewards.shape[1])
    for t in reversed(range(settings.steps)):
        end = t == settings.steps - 1
        alive = 1.0 - (last_done if end else dones[t + 1])
        following = last_value if end else values[t + 1]
        surprise = rewards[t] + settings.discount * following * alive - values[t]
        advantages[t] = carried = surprise + settings.discount * settings.trace * alive * carried
    return advantages


def train(settings: Settings):
    random.seed(settings.seed)
    np.random.seed(settings.seed)
    torch.manual_seed(settings.seed)
    torch.set_num_threads(1)
    envs = gym.wrappers.vector.RecordEpisodeStatistics(gym.make_vec(settings.env, settings.envs, "sync"))
    observations, actions = envs.single_observation_space.shape[0], envs.single_action_space.n
    agent = Agent(observations, actions)
    optimizer = torch.optim.Adam(agent.parameters(), lr=settings.rate, eps=1e-5)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, settings.updates)
    first, _ = envs.reset(seed=settings.seed)
    returns: list[float] = []

    with perdure.open(
        settings.store, run=settings.run, save=Every(steps=settings.save_steps), keep=Last(3)
    ) as run:  # perdure
        run.track(agent=agent, optimizer=optimizer, scheduler=scheduler, envs=envs, returns=returns)  # perdure
        count = run.counters(global_step=0)  # perdure
        now = run.locals(observation=torch.tensor(first), done=torch.zeros(settings.envs))  # perdure
        for _ in run.loop(0, settings.updates):  # perdure
            shape = (settings.steps, settings.envs)
            seen, acted = torch.zeros(*shape, observations), torch.zeros(shape, dtype=torch.int64)
            logs, rewards, dones, values = (torch.zeros(shape) for _ in range(4))
            for t in range(settings.steps):
                seen[t], dones[t] = now.observation, now.done
                with torch.no_grad():
                    acted[t], logs[t], _, values[t] = agent.act(now.observation)
                following, reward, ended, cut, info = envs.step(acted[t].numpy())
                now.observation, now.done = torch.tensor(following), torch.tensor(ended | cut, dtype=torch.float32)
                rewards[t] = torch.tensor(reward)
                count.global_step += settings.envs
                returns += [float(info["episode"]["r"][i]) for i in np.flatnonzero(info.get("_episode", []))]
            with torch.no_grad():
                last_value = agent.critic(now.observation).squeeze(-1)
            advantages = advantages_of(rewards, values, dones, last_value, now.done, settings)
            targets = (advantages + values).flatten()
            batch = [part.flatten(0, 1) for part in (seen, acted, logs, advantages)]
            update(agent, optimizer, batch, targets, settings)
            scheduler.step()
            run.metric("train/return", float(np.mean(returns[-20:] or [0.0])))  # perdure
    return agent, optimizer, returns


def update(agent, optimizer, batch, targets, settings):
    size = len(targets) // settings.minibatches
    for _ in range(settings.epochs):
        for chosen in torch.tensor(np.random.permutation(len(targets))).split(size):
            seen, acted, logs, advantage = (part[chosen] for part in batch)
            _, new_logs, entropy, value = agent.act(seen, acted)
            ratio = (new_logs - logs).exp()
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
            policy_loss = -torch.min(ratio * advantage, clipped * advantage).mean()
            value_loss = 0.5 * (value - targets[chosen]).pow(2).mean()
            loss = policy_loss + settings.value_weight * value_loss - settings.entropy_weight * entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in vars(Settings()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    _, _, finished = train(Settings(**vars(parser.parse_args())))
    print(f"mean return of the last 20 of {len(finished)} episodes: {np.mean(finished[-20:]):.1f}")
