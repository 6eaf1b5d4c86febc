"""The state of a Stable-Baselines3 model and of its callbacks, beside nets, optimizers, replay and environments."""

from __future__ import annotations

import copy
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EvalCallback, EventCallback
from stable_baselines3.common.distributions import StateDependentNoiseDistribution
from stable_baselines3.common.noise import VectorizedActionNoise
from stable_baselines3.common.vec_env import VecEnv

from perdure.adapters._sb3_attributes import Attributes
from perdure.adapters._sb3_environments import VectorEnvironment
from perdure.adapters._sb3_logs import BestModel, Logs
from perdure.adapters._sb3_versions import check_version, framework_versions
from perdure.capture.objects import does_not_fit
from perdure.core.manifest import Grade, lowest_grade
from perdure.core.names import Section

_NANOSECONDS = 1_000_000_000

_ELSEWHERE = frozenset({
    "action_noise", "action_space", "env", "observation_space", "replay_buffer", "rollout_buffer", "start_time",
    "_custom_logger", "_logger", "_vec_normalize_env",
})  # fmt: skip
"""Attributes of a model that other parts of a checkpoint hold, or that `learn` sets up anew."""
_NOISE_SETTINGS = frozenset({"_mu", "_sigma", "initial_noise"})
_CALLBACK_LINKS = frozenset({
    "callback", "callback_on_new_best", "callbacks", "eval_env", "globals", "locals", "model", "parent",
})  # fmt: skip
_MODULE_LINKS = frozenset({"training"})
_UPDATE = "_do_one_update"
_DRAWN = ("deltas", "candidate_weights")
"""What ARS has drawn when a rollout starts, in variables of the method above it."""
_MATRICES = ("exploration_mat", "exploration_matrices")
_SHOWN_DIFFERENCES = 8
MEAN_REWARD = "eval/mean_reward"


class Model:
    """
    What a model keeps in attributes: counters, last observations, episode statistics, exploration, pending log values.

    A save is taken when a rollout starts. What the framework draws just before that, noise matrices and candidates of
    an evolution strategy, would be drawn again by the resumed rollout: `settle` puts it back at that very point.

    Args:
        model: Borrowed; restored in place.
        grade: `Grade.STATISTICAL` if parts of the training live where they cannot be captured.
    """

    section = Section.STATE

    def __init__(self, model: BaseAlgorithm, grade: Grade) -> None:
        self.kind = f"sb3.{type(model).__name__}"
        self.grade = grade
        self.is_rollout_start = False
        """Whether saves are taken at the start of a rollout, and not after the last one."""
        self._model = model
        self._logs = Logs(model.logger)
        self._parts = dict(_parts(model))
        self._drawn: dict[str, Any] | None = None

    def capture(self) -> object:
        """Everything by part; arrays are borrowed."""
        return {
            "versions": framework_versions(),
            "attributes": self._names(),
            "spaces": self._spaces(),
            "environments": self._model.n_envs,
            "elapsed_seconds": (time.time_ns() - self._model.start_time) / _NANOSECONDS,
            "parts": {name: part.capture() for name, part in self._parts.items()},
            "logs": self._logs.capture(),
            "drawn": self._capture_drawn() if self.is_rollout_start else None,
        }

    def _names(self) -> dict[str, list[str]]:
        return {name: part.names for name, part in self._parts.items()}

    def _spaces(self) -> dict[str, str]:
        return {"observation": repr(self._model.observation_space), "action": repr(self._model.action_space)}

    def _capture_drawn(self) -> dict[str, Any]:
        matrices = {
            path: {name: getattr(noise, name).detach() for name in _MATRICES}
            for path, noise in _noise_distributions(self._model)
        }
        frame = _update_frame(self._model)
        return {"matrices": matrices, "update": {name: frame.f_locals[name] for name in _DRAWN} if frame else {}}

    def check(self, tree: object) -> None:
        """Refuse other spaces, another number of environments, and another version that keeps other attributes."""
        assert isinstance(tree, dict)
        check_version(tree, self._names())
        for name, here in self._spaces().items():
            if tree["spaces"][name] != here:
                there = tree["spaces"][name]
                raise does_not_fit(
                    "the model", f"its {name} space is {there} in the checkpoint, {here} here", here, there
                )
        count, saved = self._model.n_envs, tree["environments"]
        if count != saved:
            raise does_not_fit(
                "the model", f"it had {saved} environments in the checkpoint and has {count} here", count, saved
            )

    def restore(self, tree: object) -> str:
        """Bring all parts to the state; settings that differ are named and left as the program has them."""
        assert isinstance(tree, dict)
        differences = []
        for name, part in self._parts.items():
            if name in tree["parts"]:
                differences += part.restore(tree["parts"][name])
        self._model.start_time = time.time_ns() - int(tree["elapsed_seconds"] * _NANOSECONDS)
        self._logs.restore(tree["logs"], self._model.num_timesteps)
        self._drawn = tree["drawn"]
        for _, noise in _noise_distributions(self._model):
            _forget_gradients(noise)
        return describe_differences(differences)

    @property
    def is_pending(self) -> bool:
        """Whether the restored state is that of the start of a rollout, and `settle` has not been called."""
        return self._drawn is not None

    def settle(self) -> None:
        """Put back, at the start of the first rollout, what had been drawn before the one that was saved."""
        drawn, self._drawn = self._drawn, None
        if drawn is None:
            return
        for path, noise in _noise_distributions(self._model):
            for name, value in drawn["matrices"].get(path, {}).items():
                setattr(noise, name, value.to(getattr(noise, name).device, copy=True))
        frame = _update_frame(self._model)
        if frame is not None:
            for name, value in drawn["update"].items():
                frame.f_locals[name].copy_(value)


def describe_differences(differences: list[str]) -> str:
    """Settings that differ, as a note for the report."""
    more = len(differences) - _SHOWN_DIFFERENCES
    shown = [*differences[:_SHOWN_DIFFERENCES], *([f"and {more} more"] if more > 0 else [])]
    return f"the program's settings are kept: {', '.join(shown)}" if shown else ""


def _parts(model: BaseAlgorithm) -> Iterator[tuple[str, Attributes]]:
    yield "model", Attributes(model, _ELSEWHERE.union(state_paths(model)))
    noise = model.action_noise
    noises = noise.noises if isinstance(noise, VectorizedActionNoise) else [noise] if noise is not None else []
    for index, one in enumerate(noises):
        yield f"noise.{index}", Attributes(one, _NOISE_SETTINGS)
    replay = getattr(model, "replay_buffer", None)
    if replay is not None:
        # The arrays, and where they are written next, are the ring's.
        arrays = {name for name, value in vars(replay).items() if not isinstance(value, bool | int | float | str)}
        yield "replay", Attributes(replay, frozenset({"pos", "full", *arrays}))
    for path, module in model.policy.named_modules():
        if not type(module).__module__.startswith("torch."):
            own = frozenset(name for name in vars(module) if name.startswith("_"))
            yield f"policy.{path}" if path else "policy", Attributes(module, _MODULE_LINKS | own)


def _noise_distributions(model: BaseAlgorithm) -> Iterator[tuple[str, StateDependentNoiseDistribution]]:
    for path, module in model.policy.named_modules():
        found = getattr(module, "action_dist", None)
        if isinstance(found, StateDependentNoiseDistribution):
            yield path, found


def _forget_gradients(noise: StateDependentNoiseDistribution) -> None:
    """Cut noise off from the parameters that it was drawn with, which are others now; it is drawn anew before use."""
    vars(noise).pop("distribution", None)
    for name, value in vars(noise).items():
        if isinstance(value, torch.Tensor):
            setattr(noise, name, value.detach())
    noise.weights_dist = torch.distributions.Normal(noise.weights_dist.loc.detach(), noise.weights_dist.scale.detach())


def _update_frame(model: BaseAlgorithm) -> FrameType | None:
    """The running call of ARS's update, whose variables hold the candidates that are about to be evaluated."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - the documented way to the caller's variables
    while frame is not None:
        if frame.f_code.co_name == _UPDATE and frame.f_locals.get("self") is model:
            return frame
        frame = frame.f_back
    return None


class Callbacks:
    """
    The state of all callbacks of a training, wherever they are nested, and of the environments that they evaluate in.

    What a callback does as a rollout starts may come before or after the save, by its place in the list. So its state
    is put back when the training starts and once more at the point where it was taken.

    Args:
        callbacks: All but the one that saves.
        training: The environment to train in, which is not theirs.
    """

    kind = "sb3.callbacks"
    section = Section.EVALUATION

    def __init__(self, callbacks: list[BaseCallback], training: VecEnv) -> None:
        self._callbacks = {
            name: Attributes(callback, _CALLBACK_LINKS) for name, callback in name_by_class(callbacks).items()
        }
        evaluations = [callback for callback in callbacks if isinstance(callback, EvalCallback)]
        self._evaluations: dict[str, EvalCallback] = name_by_class(evaluations)
        self._environments = {
            name: VectorEnvironment(f"the environment of {name}", callback.eval_env)
            for name, callback in self._evaluations.items()
            if callback.eval_env.unwrapped is not training.unwrapped
        }
        self._best = {
            name: BestModel(callback.best_model_save_path)
            for name, callback in self._evaluations.items()
            if callback.best_model_save_path is not None
        }
        self._counts = self._count_evaluations()
        self._restored: dict[str, Any] | None = None

    @property
    def grade(self) -> Grade:
        """As of the last capture: that of the least exact environment to evaluate in."""
        return lowest_grade([env.grade for env in self._environments.values()])

    def capture(self) -> object:
        """The attributes of each callback by its class and number, its environment, and which its best model is."""
        return {
            "callbacks": {name: attributes.capture() for name, attributes in self._callbacks.items()},
            "environments": {name: env.capture() for name, env in self._environments.items()},
            "best": {name: best.digest() for name, best in self._best.items()},
        }

    def check(self, tree: object) -> None:
        """Refuse other environments; callbacks may come and go between two starts."""
        assert isinstance(tree, dict)
        for name, env in self._environments.items():
            if name in tree["environments"]:
                env.check(tree["environments"][name])

    def restore(self, tree: object) -> str:
        """Bring the callbacks that the checkpoint knows to their state."""
        assert isinstance(tree, dict)
        notes = [best.keep_unless(tree["best"].get(name, "")) for name, best in self._best.items()]
        for name, env in self._environments.items():
            if name in tree["environments"]:
                notes.append(env.restore(tree["environments"][name]))
        self._restored = tree["callbacks"]
        differences = self._apply(self._restored)
        self._counts = self._count_evaluations()
        new = sorted(self._callbacks.keys() - self._restored.keys())
        if new:
            notes.append(f"not in the checkpoint: {', '.join(new)}")
        return "; ".join(note for note in [*notes, describe_differences(differences)] if note)

    def settle(self) -> None:
        """Put the state back once more, at the start of the first rollout."""
        if self._restored is not None:
            self._apply(self._restored)
            self._restored = None

    def _apply(self, saved: Mapping[str, Any]) -> list[str]:
        differences = []
        for name, attributes in self._callbacks.items():
            if name in saved:
                differences += attributes.restore(copy.deepcopy(saved[name]))
        return differences

    def take_new_evaluations(self) -> dict[str, float]:
        """Mean rewards of the evaluations since the last call, by metric; the first callback has the plain name."""
        counts, before = self._count_evaluations(), self._counts
        self._counts = counts
        return {
            f"{MEAN_REWARD}/{name}" if index else MEAN_REWARD: float(callback.last_mean_reward)
            for index, (name, callback) in enumerate(self._evaluations.items())
            if counts[name] > before[name]
        }

    def _count_evaluations(self) -> dict[str, int]:
        return {
            name: callback.n_calls // callback.eval_freq if callback.eval_freq > 0 else 0
            for name, callback in self._evaluations.items()
        }


def walk(callback: BaseCallback | None) -> Iterator[BaseCallback]:
    """A callback and all within it."""
    if callback is None:
        return
    yield callback
    if isinstance(callback, CallbackList):
        for child in callback.callbacks:
            yield from walk(child)
    if isinstance(callback, EvalCallback):
        yield from walk(callback.callback_on_new_best)
    if isinstance(callback, EventCallback):
        yield from walk(callback.callback)


def name_by_class(callbacks: list[Any]) -> dict[str, Any]:
    """Name callbacks by class, and by number from the second of a class on, so that others may come and go."""
    seen: Counter[str] = Counter()
    named = {}
    for callback in callbacks:
        kind = type(callback).__name__
        seen[kind] += 1
        named[kind if seen[kind] == 1 else f"{kind}-{seen[kind]}"] = callback
    return named


def state_paths(model: BaseAlgorithm) -> dict[str, Any]:
    """The nets, optimizers and learned tensors that a model itself declares to be its state, by dotted path."""
    names, tensors = model._get_torch_save_params()  # noqa: SLF001 - how SB3's algorithms, and users' own, declare it
    found = {}
    for name in [*names, *tensors]:
        value: Any = model
        for part in name.split("."):
            value = getattr(value, part)
        # A coefficient that is not learned is a setting.
        if not isinstance(value, torch.Tensor) or value.requires_grad:
            found[name] = value
    return found
