"""RLlib's algorithm and learners as components."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from ray.rllib.utils.schedules.scheduler import Scheduler

from perdure.adapters._rllib_plain import pack, unpack
from perdure.capture.numbers import GlobalGenerators
from perdure.capture.objects import does_not_fit
from perdure.core.component import Shortfall
from perdure.core.manifest import Grade
from perdure.core.names import Section

_MODULE = "rl_module"
_COUNTS = ("_iteration", "_time_total", "_timesteps_total", "_episodes_total")
_PROVEN = frozenset({"PPO", "DQN", "SAC"})
"""Algorithms of which a test has shown that a resume is exact."""
_HELD_BY_MODULE = ("_schedulers_per_module", "last_update_ts_by_mid")
"""How attributes of a learner end that hold coefficients, or the step of the last update of a target."""
_ASYNCHRONOUS = frozenset({"APPO", "IMPALA"})
_CONNECTORS = ("env_to_module_connector", "module_to_env_connector")
"""The connectors that an algorithm without a local runner merges those of its runners into."""
_TRAINED = "should_module_be_updated"
"""Which modules are trained: a setting, and a function if the program says so by one."""


class AlgorithmState:
    """
    An algorithm's counts and metrics; schedules follow from its counts of steps.

    Args:
        algorithm: Borrowed, between two iterations; restored in place.
    """

    section = Section.STATE

    def __init__(self, algorithm: Any) -> None:
        self._algorithm = algorithm
        name = type(algorithm).__name__
        self.kind = f"rllib.{name}"
        self.grade = Grade.EXACT if name in _PROVEN else Grade.STATISTICAL
        self._reason = ""
        if name in _ASYNCHRONOUS:
            self._reason = f"{name} had samples in flight, which nobody can ask for"
        elif name not in _PROVEN:
            self._reason = f"no test has shown that {name} goes on exactly"

    def capture(self) -> object:
        """Counts, and every statistic of the metrics logger."""
        algorithm = self._algorithm
        return {
            "counts": {name: getattr(algorithm, name, None) for name in _COUNTS},
            "counters": dict(algorithm._counters),  # noqa: SLF001 - none of it has a public name
            "metrics": pack(algorithm.metrics.get_state()),
            "connectors": {name: pack(connector.get_state()) for name, connector in self._connectors()},
        }

    def _connectors(self) -> list[tuple[str, Any]]:
        found = ((name, getattr(self._algorithm, name, None)) for name in _CONNECTORS)
        return [(name, connector) for name, connector in found if connector is not None]

    def check(self, tree: object) -> None:
        """Nothing: settings belong to the program."""

    def restore(self, tree: object) -> str:
        """Set counts and metrics."""
        assert isinstance(tree, dict)
        for name, value in tree["counts"].items():
            setattr(self._algorithm, name, value)
        self._algorithm._counters.update(tree["counters"])  # noqa: SLF001
        self._algorithm.metrics.set_state(unpack(tree["metrics"]))
        for name, connector in self._connectors():
            if name in tree["connectors"]:
                connector.set_state(unpack(tree["connectors"][name]))
        return self._reason


class Learners:
    """
    All learners: nets, targets, optimizers, and coefficients that the framework's own state leaves out.

    Args:
        algorithm: Its learner group is borrowed; all learners hold the same.
    """

    kind = "rllib.learners"
    section = Section.MODEL
    grade = Grade.EXACT

    def __init__(self, algorithm: Any) -> None:
        self._group = algorithm.learner_group

    def capture(self) -> object:
        """The group's state, connectors, and the streams of learners in processes of their own; arrays are borrowed."""
        group = self._group.get_state()
        if callable(group["learner"].get(_TRAINED)):
            del group["learner"][_TRAINED]
        return {
            "group": pack(group),
            "coefficients": self._each(_coefficients)[0],
            "connectors": self._each(_connectors),
            "streams": self._each(_streams) if self._group.is_remote else [],
        }

    def _each(self, function: Callable[[Any], Any]) -> list[Any]:
        return [found.get() for found in self._group.foreach_learner(function)]

    def check(self, tree: object) -> None:
        """Refuse other modules, or parameters of other shapes."""
        assert isinstance(tree, dict)
        live, saved = _shapes(self._group.get_state()), _shapes(tree["group"])
        for parameter in sorted(live.keys() | saved.keys()):
            here, there = live.get(parameter), saved.get(parameter)
            if here != there:
                raise does_not_fit("the learner", f"{parameter} was {there} and is {here} here", here, there)

    def restore(self, tree: object) -> str:
        """Set the state of every learner."""
        assert isinstance(tree, dict)
        self._each(_take_any_weights)
        self._group.set_state(unpack(tree["group"]))
        self._each(partial(_set_coefficients, saved=unpack(tree["coefficients"])))
        self._each(partial(_set_connectors, saved=tree["connectors"]))
        saved, count = tree["streams"], len(self._group)
        if len(saved) != count:
            return Shortfall(f"{len(saved)} remote learners were saved and there are {count}: their streams begin anew")
        if saved:
            self._each(partial(_set_streams, saved=saved))
        return ""


# What learners are called with, in their own processes. Nothing of it has a public name.


def _take_any_weights(learner: Any, *_: Any) -> None:
    # Or it would take older weights for stale ones.
    learner._weights_seq_no = 0  # noqa: SLF001


def _streams(_: Any) -> Any:
    return GlobalGenerators().capture()


def _set_streams(learner: Any, *_: Any, saved: list[Any]) -> None:
    GlobalGenerators().restore(saved[learner._learner_index])  # noqa: SLF001


def _connectors(learner: Any) -> Any:
    pipeline = learner._learner_connector  # noqa: SLF001
    return None if pipeline is None else pack(pipeline.get_state())


def _set_connectors(learner: Any, *_: Any, saved: list[Any]) -> None:
    # With another number of learners all get those of the first.
    index = learner._learner_index or 0  # noqa: SLF001
    state = saved[index] if index < len(saved) else saved[0]
    if state is not None:
        learner._learner_connector.set_state(unpack(state))  # noqa: SLF001


def _shapes(state: Any) -> dict[str, tuple[int, ...]]:
    modules = state["learner"][_MODULE]
    return {
        f"{module}.{name}": tuple(value.shape)
        for module, values in modules.items()
        for name, value in values.items()
        if hasattr(value, "shape")
    }


def _held(learner: Any) -> list[tuple[str, Any, Any]]:
    """What changes while training, beside nets: names, and the dictionaries and keys that it stands under."""
    return [
        (f"{attribute}.{key}", owner, key)
        for attribute, owner in vars(learner).items()
        if isinstance(owner, dict) and (attribute.startswith("curr_") or attribute.endswith(_HELD_BY_MODULE))
        for key in list(owner)
    ]


def _coefficients(learner: Any, *_: Any) -> dict[str, Any]:
    found = {}
    for name, owner, key in _held(learner):
        value = owner[key]
        if isinstance(value, Scheduler):
            if not value.use_schedule:  # fixed by the program
                continue
            value = value._curr_value  # noqa: SLF001
        if isinstance(value, torch.Tensor):
            found[name] = value.detach().cpu()
        elif isinstance(value, int | float | np.generic):
            found[name] = pack(value)
    return found


def _set_coefficients(learner: Any, *__: Any, saved: dict[str, Any]) -> None:
    for name, value in saved.items():
        attribute, _, key = name.partition(".")
        owner = getattr(learner, attribute, None)
        if owner is None:  # the program no longer has it
            continue
        if not isinstance(value, torch.Tensor):
            owner[key] = value
            continue
        # They are made when they are first asked for, and what is not there yet is asked for here.
        found = owner[key]
        if isinstance(found, Scheduler):
            if not found.use_schedule:
                continue
            found = found._curr_value  # noqa: SLF001
        found.data.copy_(value)
