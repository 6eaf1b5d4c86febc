"""A game of tag for two agents that move at the same time, which hands its state over."""

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv


class Tag(ParallelEnv):
    """Two agents on a line; the episode ends when they meet."""

    metadata = {"name": "tag", "render_modes": []}  # noqa: RUF012 - PettingZoo has it so

    render_mode = None

    def __init__(self):
        self.possible_agents = ["runner", "chaser"]
        self.agents = []
        self.places = np.zeros(2)
        self.rng = np.random.default_rng()

    def observation_space(self, agent):
        return Box(-10, 10, (2,))

    def action_space(self, agent):
        return Discrete(3)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.places = self.rng.normal(size=2)
        return self._seen(), {agent: {} for agent in self.agents}

    def _seen(self):
        return {agent: self.places.astype(np.float32) for agent in self.agents}

    def step(self, actions):
        for index, agent in enumerate(self.possible_agents):
            self.places[index] += 0.3 * (actions[agent] - 1) + 0.1 * self.rng.normal()
        met = bool(abs(self.places[0] - self.places[1]) < 0.05)
        rewards = {"runner": -float(met), "chaser": float(met)}
        ends = dict.fromkeys(self.agents, met)
        seen, infos = self._seen(), {agent: {} for agent in self.agents}
        if met:
            self.agents = []
        return seen, rewards, ends, dict.fromkeys(ends, False), infos

    def get_state(self):
        return {"agents": self.agents, "places": self.places, "rng": self.rng.bit_generator.state}

    def set_state(self, state):
        self.agents, self.places = list(state["agents"]), np.array(state["places"])
        self.rng.bit_generator.state = state["rng"]
