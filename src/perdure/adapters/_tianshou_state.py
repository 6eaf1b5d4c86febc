"""Tianshou's algorithms, collectors, vector environments and trainers: what they keep beside nets and replay."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tianshou.algorithm import Algorithm
from tianshou.data import Batch
from tianshou.env import DummyVectorEnv, VectorEnvNormObs
from tianshou.env.venv_wrappers import VectorEnvWrapper
from tianshou.env.worker import DummyEnvWorker
from tianshou.utils import MovAvg

from perdure.adapters._sb3_attributes import Attributes
from perdure.capture import environments
from perdure.capture.environments.snapshot import fill
from perdure.capture.objects import does_not_fit
from perdure.core.manifest import Grade
from perdure.core.names import Section

_FRAMEWORK = "tianshou"
_MODULE = frozenset(vars(torch.nn.Module()))
_SHOWN_DIFFERENCES = 8
_OBJECTS = "~objects"
_BATCH = "~batch"


def find_parts(root: Any) -> Iterator[tuple[str, Any]]:
    """
    Everything of Tianshou's, and every optimizer and scheduler, that hangs on an algorithm, by dotted path.

    Classes of the user that inherit from Tianshou's or from `torch.nn.Module` count among them.
    """
    seen: set[int] = set()
    waiting = [("algorithm", root)]
    while waiting:
        path, value = waiting.pop(0)
        if id(value) in seen or not _is_part(value):
            continue
        seen.add(id(value))
        yield path, value
        if isinstance(value, torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler):
            continue
        children = {**vars(value), **getattr(value, "_modules", {})}
        for name, child in children.items():
            for index, item in enumerate(child) if isinstance(child, list | tuple) else [("", child)]:
                waiting.append((f"{path}.{name}.{index}" if index != "" else f"{path}.{name}", item))


def _is_part(value: Any) -> bool:
    if isinstance(value, torch.nn.Module | torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler):
        return True
    if isinstance(value, type) or not hasattr(value, "__dict__"):
        return False
    return any(cls.__module__.partition(".")[0] == _FRAMEWORK for cls in type(value).__mro__)


class AlgorithmState:
    """
    What an algorithm keeps in plain attributes: update counts, delays, epsilon, noise, statistics of returns.

    Args:
        algorithm: Borrowed; restored in place. Its nets, optimizers and schedulers are components of their own.
    """

    section = Section.STATE
    grade = Grade.EXACT

    def __init__(self, algorithm: Algorithm) -> None:
        self.kind = f"tianshou.{type(algorithm).__name__}"
        ignored = _MODULE | {"_optimizers", "lr_schedulers", "action_space", "observation_space"}
        self._parts = {
            path: Attributes(part, ignored)
            for path, part in find_parts(algorithm)
            if not isinstance(part, torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler)
            and not type(part).__module__.startswith("torch.")
        }

    def capture(self) -> object:
        """Attributes by the part's path; arrays are borrowed."""
        return {path: part.capture() for path, part in self._parts.items()}

    def check(self, tree: object) -> None:
        """Refuse an algorithm of other parts."""
        assert isinstance(tree, dict)
        missing, unknown = sorted(self._parts.keys() - tree.keys()), sorted(tree.keys() - self._parts.keys())
        if missing or unknown:
            what = f"its parts differ; only here: {missing}; only in the checkpoint: {unknown}"
            raise does_not_fit("the algorithm", what, missing, unknown)

    def restore(self, tree: object) -> str:
        """Bring the attributes to the state; settings that differ are named and left as the program has them."""
        assert isinstance(tree, dict)
        differences = [line for path, part in self._parts.items() for line in part.restore(tree[path])]
        shown = ", ".join(differences[:_SHOWN_DIFFERENCES])
        return f"the program's settings are kept: {shown}" if differences else ""


def pack(value: Any) -> Any:
    """What a collector carries as plain data: arrays of dictionaries as lists, batches as dictionaries."""
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return {_OBJECTS: [pack(item) for item in value]}
    if isinstance(value, Batch):
        return {_BATCH: {key: pack(value[key]) for key in value.get_keys()}}
    if isinstance(value, dict):
        return {key: pack(item) for key, item in value.items()}
    return value


def unpack(value: Any) -> Any:
    """
    What `pack` made plain, in memory of its own.

    What was read from a file lies anywhere, and a product of matrices may differ in its last bit with the alignment.
    """
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict) and _OBJECTS in value:
        array: NDArray[Any] = np.empty(len(value[_OBJECTS]), object)
        array[:] = [unpack(item) for item in value[_OBJECTS]]
        return array
    if isinstance(value, dict) and _BATCH in value:
        return Batch({key: unpack(item) for key, item in value[_BATCH].items()})
    if isinstance(value, dict):
        return {key: unpack(item) for key, item in value.items()}
    return value


class CollectorState:
    """
    A collector as a component: what it carries to the next step, its counts, its environments.

    Args:
        name: Named in errors.
        collector: Borrowed, between two collections; restored in place.
    """

    kind = "tianshou.collector"
    section = Section.ENVIRONMENT

    def __init__(self, name: str, collector: Any) -> None:
        self._name = name
        self._collector = collector
        self._layers, self._workers, self._doubt = _look_into(collector.env)
        self._unproven = {
            environments.untried(type(layer)) for layer in self._layers if type(layer) is not VectorEnvNormObs
        }
        self._attributes = {str(index): Attributes(layer, _STRUCTURE) for index, layer in enumerate(self._layers)}
        self.grade = Grade.STATISTICAL
        self.was_reset = False
        """Whether the last restore had to begin new episodes."""

    def capture(self) -> object:
        """Carried observations, infos and hidden states, counts, wrappers, every environment."""
        carried = {
            name: pack(value)
            for name, value in vars(self._collector).items()
            if name.startswith(_CARRIED) and not callable(value)
        }
        trees = [environments.capture_environment(worker.env) for worker in self._workers]
        reasons = [reason for tree in trees if (reason := environments.level_of(tree)[1])]
        reasons += [self._doubt] if self._doubt else []
        unproven = sorted({found for tree in trees if (found := environments.unproven_of(tree))} | self._unproven)
        self.grade = Grade.STATISTICAL if reasons or unproven else Grade.EXACT
        wrappers = {
            key: {"attributes": part.capture(), "statistics": _statistics(layer)}
            for (key, part), layer in zip(self._attributes.items(), self._layers, strict=True)
        }
        return {
            "carried": carried,
            "wrappers": wrappers,
            "environments": trees,
            "reasons": reasons,
            "unproven": unproven,
        }

    def check(self, tree: object) -> None:
        """Refuse another stack or number of environments."""
        assert isinstance(tree, dict)
        here, there = len(self._workers), len(tree["environments"])
        if here != there or tree["wrappers"].keys() != self._attributes.keys():
            raise does_not_fit(self._name, f"it had {there} environments and has {here} here", here, there)
        for index, (worker, saved) in enumerate(zip(self._workers, tree["environments"], strict=True)):
            environments.check(worker.env, saved, f"{self._name}[{index}]")

    def restore(self, tree: object) -> str:
        """Bring everything to the state; environments that cannot be captured begin new episodes."""
        assert isinstance(tree, dict)
        collector = self._collector
        for key, (layer, part) in enumerate(zip(self._layers, self._attributes.values(), strict=True)):
            part.restore(tree["wrappers"][str(key)]["attributes"])
            _set_statistics(layer, tree["wrappers"][str(key)]["statistics"])
        for worker, saved in zip(self._workers, tree["environments"], strict=True):
            fill(worker.env, saved)
        for name, value in tree["carried"].items():
            setattr(collector, name, unpack(value))
        self.was_reset = bool(tree["reasons"])
        if not self.was_reset:
            return "; ".join(tree.get("unproven", ()))
        seed = environments.derive_reset_seed("", self._name, collector.collect_step)
        collector.reset_env({"seed": seed} if self._workers else {})
        return f"episodes begin anew: {'; '.join(tree['reasons'])}"


_CARRIED = ("_pre_collect_", "_current_", "_ready_env", "collect_step", "collect_episode", "collect_time")
_STRUCTURE = frozenset({"venv", "workers", "worker_class", "waiting_conn", "ready_id", "obs_rms"})


def _look_into(env: Any) -> tuple[list[Any], list[Any], str]:
    """The wrappers of a vector environment, its workers if they work in this process, and why not if they do not."""
    layers = []
    while isinstance(env, VectorEnvWrapper):
        layers.append(env)
        env = env.venv
    workers = list(getattr(env, "workers", []))
    if type(env) is DummyVectorEnv and all(type(worker) is DummyEnvWorker for worker in workers):
        return layers, workers, ""
    return layers, [], f"the environments of a {type(env).__name__} live in other processes"


def _statistics(layer: Any) -> Any:
    found = vars(layer).get("obs_rms")
    return None if found is None else {name: getattr(found, name) for name in ("mean", "var", "count")}


def _set_statistics(layer: Any, saved: Any) -> None:
    found = vars(layer).get("obs_rms")
    if found is not None and saved is not None:
        for name, value in saved.items():
            setattr(found, name, value)


_COUNTS = (
    "_epoch", "_start_epoch", "_env_step", "_env_episode", "_current_update_step", "_stop_fn_flag",
    "_best_score", "_best_reward", "_best_reward_std", "_best_epoch", "_policy_update_time",
)  # fmt: skip


class TrainerState:
    """
    A trainer's counts, its best score and its moving averages.

    Args:
        trainer: Borrowed; restored in place.
    """

    kind = "tianshou.trainer"
    section = Section.STATE
    grade = Grade.EXACT

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.steps_in_epoch = 0
        """How far the running epoch has come, in what the trainer counts epochs by."""

    def capture(self) -> object:
        """Counts, elapsed time, and the values behind each moving average."""
        trainer = self._trainer
        return {
            "counts": {name: getattr(trainer, name) for name in _COUNTS if hasattr(trainer, name)},
            "steps_in_epoch": self.steps_in_epoch,
            "elapsed_seconds": time.time() - trainer._start_time,  # noqa: SLF001 - none of it has a public name
            "averages": {key: _packed_numbers(average.cache) for key, average in trainer._stat.items()},  # noqa: SLF001
        }

    def check(self, tree: object) -> None:
        """Nothing: another length of the training is the program's choice."""

    def restore(self, tree: object) -> str:
        """Set counts and averages."""
        assert isinstance(tree, dict)
        trainer = self._trainer
        for name, value in tree["counts"].items():
            setattr(trainer, name, value)
        self.steps_in_epoch = tree["steps_in_epoch"]
        trainer._start_time = time.time() - tree["elapsed_seconds"]  # noqa: SLF001
        trainer._stat.clear()  # noqa: SLF001
        for key, values in tree["averages"].items():
            trainer._stat[key] = MovAvg()  # noqa: SLF001
            trainer._stat[key].cache = _unpacked_numbers(values)  # noqa: SLF001
        return ""


def _packed_numbers(numbers: list[Any]) -> Any:
    """Numbers of one type as one array, and what they were: Python's numbers or NumPy's."""
    if len({type(number) for number in numbers}) != 1:
        return numbers
    return {"values": np.array(numbers), "are_native": type(numbers[0]) in (int, float)}


def _unpacked_numbers(packed: Any) -> list[Any]:
    if isinstance(packed, list):
        return packed
    return packed["values"].tolist() if packed["are_native"] else list(packed["values"])
