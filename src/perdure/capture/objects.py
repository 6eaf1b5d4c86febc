"""Modules, optimizers, schedulers, arrays, containers and environments as components."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from perdure.capture import environments
from perdure.capture.arrays import is_tensor, loaded_torch, stored_bytes
from perdure.core.manifest import Grade
from perdure.core.names import Section
from perdure.errors import IncompatibleError

_MOMENTS = 2
"""Arrays of a parameter's size that an optimizer of the Adam family comes to hold."""
_SHOWN = 3
"""Differences named in one error."""


def does_not_fit(component: str, what: str, expected: object, actual: object) -> IncompatibleError:
    """The error for a checkpoint that is whole and belongs to another object."""
    return IncompatibleError(
        f"cannot restore {component}: {what}",
        kind="component.does-not-fit",
        hint="build the object as it was when it was saved, or start another run (perdure.fork keeps the old one)",
        component=component,
        expected=str(expected),
        actual=str(actual),
    )


class Module:
    """A `torch.nn.Module`: parameters and buffers, restored in place."""

    kind = "torch.module"
    section = Section.MODEL
    grade = Grade.EXACT

    def __init__(self, name: str, module: Any) -> None:
        self._name = name
        self._module = module

    def capture(self) -> object:
        """The live ``state_dict``, borrowed."""
        return self._module.state_dict()

    def check(self, tree: object) -> None:
        """Refuse other names, shapes or types of parameters and buffers."""
        assert isinstance(tree, Mapping)
        check_arrays(self._name, self._module.state_dict(), tree)

    def expected_bytes(self) -> int:
        """Bytes of the parameters and buffers that are saved; none for those of a lazy module without shapes yet."""
        return sum(stored_bytes(value) for value in self._module.state_dict().values() if is_tensor(value))

    def restore(self, tree: object) -> str:
        """Copy the values into the live parameters and buffers, so that optimizers stay tied to them."""
        self._module.load_state_dict(tree, strict=True)
        return ""


def check_arrays(component: str, live: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Compare two dictionaries of arrays by names, shapes and types."""
    missing = sorted(set(live) - set(saved))
    unknown = sorted(set(saved) - set(live))
    if missing or unknown:
        raise does_not_fit(
            component,
            "; ".join(
                f"{len(names)} {label} ({', '.join(names[:_SHOWN])}{', …' if len(names) > _SHOWN else ''})"
                for names, label in ((missing, "entries are not in the checkpoint"), (unknown, "are not in the object"))
                if names
            ),
            sorted(live)[:_SHOWN],
            sorted(saved)[:_SHOWN],
        )
    for name, value in live.items():
        check_array(component, name, value, saved[name])


def check_array(component: str, name: str, live: Any, saved: Any) -> None:
    """Compare two arrays by shape and type."""
    for label in ("shape", "dtype"):
        expected, actual = getattr(live, label, None), getattr(saved, label, None)
        if expected != actual:
            raise does_not_fit(
                component, f"{label} of {name!r} is {_show(actual)} in the checkpoint and {_show(expected)} here",
                _show(expected), _show(actual),
            )  # fmt: skip


def _show(value: object) -> str:
    return str(tuple(value)) if isinstance(value, tuple) else str(value)


class Optimizer:
    """A `torch.optim.Optimizer`: its moments, step counts and parameter groups."""

    section = Section.OPTIMIZER
    grade = Grade.EXACT

    def __init__(self, name: str, optimizer: Any) -> None:
        self._name = name
        self._optimizer = optimizer
        self.kind = f"torch.optimizer.{type(optimizer).__name__}"

    def capture(self) -> object:
        """The live ``state_dict``, borrowed."""
        return self._optimizer.state_dict()

    def check(self, tree: object) -> None:
        """Refuse other parameter groups, and moments of other shapes than the parameters."""
        assert isinstance(tree, dict)
        live = [len(group["params"]) for group in self._optimizer.param_groups]
        saved = [len(group["params"]) for group in tree["param_groups"]]
        if live != saved:
            raise does_not_fit(
                self._name, f"its groups have {saved} parameters in the checkpoint, {live} here", live, saved
            )
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        for index, state in tree["state"].items():
            for key, value in state.items():
                dimensions = getattr(value, "ndim", 0)
                if dimensions and dimensions == parameters[index].ndim and value.shape != parameters[index].shape:
                    check_array(self._name, f"state.{index}.{key}", parameters[index], value)

    def expected_bytes(self) -> int:
        """Bytes of the state; before the first step, twice those of the parameters, as most optimizers come to."""
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        states = [self._optimizer.state[parameter] for parameter in parameters if parameter in self._optimizer.state]
        if states:
            return sum(stored_bytes(value) for state in states for value in state.values() if is_tensor(value))
        return _MOMENTS * sum(stored_bytes(parameter) for parameter in parameters)

    def restore(self, tree: object) -> str:
        """Hand the state over; the optimizer keeps the tensors of ``tree``, which nobody else holds."""
        self._optimizer.load_state_dict(tree)
        return ""


class Stateful:
    """Anything with ``state_dict`` and ``load_state_dict``."""

    grade = Grade.EXACT

    def __init__(self, value: Any, kind: str, section: Section) -> None:
        self._value = value
        self.kind = kind
        self.section = section

    def capture(self) -> object:
        """What the object's ``state_dict`` gives, borrowed."""
        return self._value.state_dict()

    def check(self, tree: object) -> None:
        """Nothing is known of the object's state but that it accepts its own."""

    def restore(self, tree: object) -> str:
        """Hand the state to the object."""
        self._value.load_state_dict(tree)
        return ""


class Array:
    """A tensor or NumPy array of its own, filled in place."""

    section = Section.STATE
    grade = Grade.EXACT

    def __init__(self, name: str, array: Any) -> None:
        self._name = name
        self._array = array
        self.kind = "numpy.array" if isinstance(array, np.ndarray) else "torch.tensor"

    def capture(self) -> object:
        """The live array, borrowed."""
        return {"value": self._array}

    def check(self, tree: object) -> None:
        """Refuse another shape or type."""
        assert isinstance(tree, dict)
        check_array(self._name, "value", self._array, tree["value"])

    def expected_bytes(self) -> int:
        """Bytes of the array."""
        return stored_bytes(self._array)

    def restore(self, tree: object) -> str:
        """Copy the values in."""
        assert isinstance(tree, dict)
        if isinstance(self._array, np.ndarray):
            np.copyto(self._array, tree["value"])
        else:
            self._array.detach().copy_(tree["value"])
        return ""


class Container:
    """A dictionary, list or deque of plain values, refilled in place."""

    section = Section.STATE
    grade = Grade.EXACT

    def __init__(self, name: str, value: Any) -> None:
        self._name = name
        self._value = value
        self.kind = f"python.{type(value).__name__}"

    def capture(self) -> object:
        """The live container, borrowed."""
        return {"value": self._value}

    def check(self, tree: object) -> None:
        """Refuse a deque of another length limit."""
        assert isinstance(tree, dict)
        if isinstance(self._value, deque) and self._value.maxlen != tree["value"].maxlen:
            expected, actual = self._value.maxlen, tree["value"].maxlen
            raise does_not_fit(
                self._name, f"its maxlen is {actual} in the checkpoint and {expected} here", expected, actual
            )

    def restore(self, tree: object) -> str:
        """Empty the live container and fill it again."""
        assert isinstance(tree, dict)
        self._value.clear()
        if isinstance(self._value, dict):
            self._value.update(tree["value"])
        else:
            self._value.extend(tree["value"])
        return ""


class Environment:
    """A Gymnasium environment, single or vectorised, with its wrappers."""

    section = Section.ENVIRONMENT
    kind = "environment"

    def __init__(self, name: str, env: Any) -> None:
        self._name = name
        self._env = env
        self._captures = 0
        self.detail: dict[str, Any] = {}
        self.grade = _grade_of(environments.capture_environment(env))

    def capture(self) -> object:
        """The environment's state, or a note that it has to be reset; how exact it is can change while it runs."""
        tree = environments.capture_environment(self._env)
        self.grade = _grade_of(tree)
        self.detail = environments.describe(self._env, tree)
        self._captures += 1
        return {"environment": tree, "captures": self._captures}

    def check(self, tree: object) -> None:
        """Refuse another class, id, wrapper stack, space or number of environments."""
        assert isinstance(tree, dict)
        environments.check(self._env, tree["environment"], self._name)

    def restore(self, tree: object) -> str:
        """Bring the environment to the state; one that cannot be captured is reset with a seed of its own."""
        assert isinstance(tree, dict)
        self._captures = tree["captures"]
        # Counted, so that a run that is resumed often does not begin the same episodes each time.
        seed = environments.derive_reset_seed("", self._name, self._captures)
        restored = environments.restore_environment(
            self._env, tree["environment"], reset_seed=seed, component=self._name
        )
        return restored.note


def _grade_of(tree: Any) -> Grade:
    return Grade.STATISTICAL if environments.shortcoming_of(tree) else Grade.EXACT


class Space:
    """An action or observation space: its random number generator."""

    kind = "space"
    section = Section.RNG
    grade = Grade.EXACT

    def __init__(self, name: str, space: Any) -> None:
        self._name = name
        self._space = space

    def capture(self) -> object:
        """The generators of the space and its children."""
        return environments.capture_space(self._space)

    def check(self, tree: object) -> None:
        """Refuse a space of another form."""
        environments.check(self._space, tree, self._name)

    def restore(self, tree: object) -> str:
        """Set the generators."""
        environments.restore_space(self._space, tree)
        return ""


def is_module(value: object) -> bool:
    """Whether ``value`` is a torch module."""
    torch = loaded_torch()
    return torch is not None and isinstance(value, torch.nn.Module)


def is_optimizer(value: object) -> bool:
    """Whether ``value`` is a torch optimizer."""
    torch = loaded_torch()
    return torch is not None and isinstance(value, torch.optim.Optimizer)


def is_scheduler(value: object) -> bool:
    """Whether ``value`` is a torch learning-rate scheduler."""
    torch = loaded_torch()
    return torch is not None and isinstance(value, torch.optim.lr_scheduler.LRScheduler)


def is_stateful(value: object) -> bool:
    """Whether ``value`` has the two methods by which the field's objects are saved."""
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))
