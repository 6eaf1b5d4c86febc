"""
Drivers: how a probe lives an environment, whatever its kind.

Actions are drawn from generators of the driver's own, so that none of the environment's is touched.
"""

from __future__ import annotations

import copy
from typing import Any, Protocol

import numpy as np

from perdure.capture.environments.proven import role_of

__all__ = ["Driver", "driver_of", "plain"]


class Driver(Protocol):
    """Lives one environment."""

    def reset(self, seed: int) -> Any:
        """Begin an episode; what is seen first, as plain values."""

    def choose(self) -> Any:
        """Draw the next action; plain data that another process can take as well."""

    def step(self, action: Any, *, after_end: bool) -> tuple[dict[str, Any], bool]:
        """Take one step, after a reset where one is due; the outcome as plain values, and whether an episode ended."""


def driver_of(env: Any, seed: int) -> Driver:
    """Return what can live an environment, with its actions drawn from a seed."""
    if role_of(env) == "turns":
        return _Turns(env, seed)
    return _Together(env, seed) if role_of(env) == "together" else _Gymnasium(env, seed)


class _Gymnasium:
    def __init__(self, env: Any, seed: int) -> None:
        self._env = env
        self._space = copy.deepcopy(env.action_space)
        self._space.seed(seed)

    def reset(self, seed: int) -> Any:
        return plain(self._env.reset(seed=seed))

    def choose(self) -> Any:
        return self._space.sample()

    def step(self, action: Any, *, after_end: bool) -> tuple[dict[str, Any], bool]:
        is_due = after_end and role_of(self._env) != "vector"  # these reset by themselves
        begun = plain(self._env.reset()[0]) if is_due else None
        observation, reward, terminated, truncated, info = self._env.step(action)
        outcome = {
            "the first observation": begun,
            "the observation": plain(observation),
            "the reward": plain(reward),
            "the end": [plain(terminated), plain(truncated)],
            "the keys of info": sorted(map(str, info)),
        }
        return outcome, bool(np.any(terminated) or np.any(truncated))


class _Agents:
    """The action spaces of agents, which come and go."""

    def __init__(self, env: Any, seed: int) -> None:
        self._env = env
        self._seed = seed
        self._spaces: dict[Any, Any] = {}

    def draw(self, agent: Any, observation: Any, info: Any) -> Any:
        """Draw an action that is allowed."""
        if agent not in self._spaces:
            self._spaces[agent] = copy.deepcopy(self._env.action_space(agent))
            self._spaces[agent].seed(self._seed + len(self._spaces))
        masks = (held.get("action_mask") for held in (observation, info) if isinstance(held, dict))
        mask = next((found for found in masks if found is not None), None)
        return self._spaces[agent].sample(None if mask is None else np.asarray(mask, np.int8))


class _Turns:
    """PettingZoo's environments in which agents act in turns."""

    def __init__(self, env: Any, seed: int) -> None:
        self._env = env
        self._agents = _Agents(env, seed)

    def reset(self, seed: int) -> Any:
        self._env.reset(seed=seed)
        return self._seen()

    def choose(self) -> Any:
        if not self._env.agents:
            return None  # a reset comes next
        observation, _, terminated, truncated, info = self._env.last()
        return None if terminated or truncated else self._agents.draw(self._env.agent_selection, observation, info)

    def step(self, action: Any, *, after_end: bool) -> tuple[dict[str, Any], bool]:
        if after_end:
            self._env.reset()
            begun = self._seen()
            return {"the first observation": begun, "whose turn it is": str(self._env.agent_selection)}, False
        self._env.step(action)
        return self._seen(), not self._env.agents

    def _seen(self) -> dict[str, Any]:
        if not self._env.agents:
            return {"the end": True}
        observation, reward, terminated, truncated, info = self._env.last()
        return {
            "whose turn it is": str(self._env.agent_selection),
            "the observation": plain(observation),
            "the reward": plain(reward),
            "the end": [plain(terminated), plain(truncated)],
            "the keys of info": sorted(map(str, info)),
        }


class _Together:
    """PettingZoo's environments in which agents act at the same time."""

    def __init__(self, env: Any, seed: int) -> None:
        self._env = env
        self._agents = _Agents(env, seed)
        self._last: tuple[Any, Any] = {}, {}

    def reset(self, seed: int) -> Any:
        self._last = self._env.reset(seed=seed)
        return plain(self._last[0])

    def choose(self) -> Any:
        observations, infos = self._last
        return {
            agent: self._agents.draw(agent, observations.get(agent), infos.get(agent)) for agent in self._env.agents
        }

    def step(self, action: Any, *, after_end: bool) -> tuple[dict[str, Any], bool]:
        if after_end:
            self._last = self._env.reset()
            return {"the first observation": plain(self._last[0])}, False
        observations, rewards, terminated, truncated, infos = self._env.step(action)
        self._last = observations, infos
        outcome = {
            "the observation": plain(observations),
            "the reward": plain(rewards),
            "the end": [plain(terminated), plain(truncated)],
            "the keys of info": sorted(map(str, infos)),
        }
        return outcome, not self._env.agents


def plain(value: Any) -> Any:
    """A copy that can be compared and sent; what is no plain data by its text."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.copy()
    return value if isinstance(value, bool | int | float | str | np.generic | None) else repr(value)
