"""
MuJoCo environments: everything that the simulation keeps between two steps.

Positions and velocities are not enough: solvers start from the forces of the step before, and rewards are computed from
quantities that the last step left behind. So every array of the data goes into the state whose size is fixed by the
model; contacts and rows of constraints are worked out anew by each step. The model is compared with what its file says,
so that physics which the program changed is state too.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perdure.capture.environments.plain import Tree
from perdure.capture.environments.traits import Outside
from perdure.errors import IncompatibleError

__all__ = ["Simulation"]

Arrays = dict[str, NDArray[Any]]
_KNOWN_MODELS = 16


class Simulation:
    """The extension that reaches ``env.data``, and what the program has changed in ``env.model``."""

    def capture(self, owner: Any) -> Outside:
        """Copy the data, a few tens of kilobytes, packed by type of number."""
        reference = _reference(owner.fullpath)
        model, original = _arrays(owner.model, reference.model_names), _arrays(reference.model, reference.model_names)
        if _layout(model) != _layout(original):
            return Outside(None, [f"{type(owner).__qualname__}.model is not that of the file {owner.fullpath}"])
        options = _options(owner.model)
        data = _arrays(owner.data, reference.data_names)
        return Outside(
            {
                "layout": _layout(data),
                "time": float(owner.data.time),
                "data": _pack(data),
                "model": {name: array for name, array in model.items() if _differ(array, original[name])},
                "options": {n: v for n, v in options.items() if _differ(v, _options(reference.model)[n])},
            }
        )

    def check(self, owner: Any, state: Tree, component: str) -> None:
        """Refuse the data of another model, or of a MuJoCo with other fields."""
        if state is None:
            return
        layout = _layout(_arrays(owner.data, _reference(owner.fullpath).data_names))
        if state["layout"] != layout:
            raise IncompatibleError(
                f"cannot restore {component}: its simulation had other fields in the checkpoint than here",
                kind="environment.incompatible",
                hint="use the model and the version of MuJoCo that the checkpoint was written with",
                component=component,
                expected=state["layout"],
                actual=layout,
            )

    def restore(self, owner: Any, state: Tree) -> None:
        """Write the state into the live simulation, whatever it did before."""
        if state is None:
            return
        reference = _reference(owner.fullpath)
        for name, array in _arrays(owner.model, reference.model_names).items():
            array[...] = state["model"].get(name, getattr(reference.model, name))
        for name, value in {**_options(reference.model), **state["options"]}.items():
            if isinstance(value, np.ndarray):
                getattr(owner.model.opt, name)[...] = value
            else:
                setattr(owner.model.opt, name, value)
        _unpack(state["data"], _arrays(owner.data, reference.data_names))
        owner.data.time = state["time"]


@dataclass(frozen=True, slots=True)
class _Reference:
    """A model as its file says, and the names of the arrays that matter."""

    model: Any
    model_names: tuple[str, ...]
    data_names: tuple[str, ...]


@functools.lru_cache(_KNOWN_MODELS)
def _reference(path: str) -> _Reference:
    mujoco = sys.modules["mujoco"]
    model = mujoco.MjModel.from_xml_path(path)
    # Before the first step there are no contacts and constraints: arrays that grow with them are empty.
    return _Reference(model, _names(model), _names(mujoco.MjData(model)))


def _names(owner: Any) -> tuple[str, ...]:
    found = {name: getattr(owner, name, None) for name in dir(owner) if not name.startswith("_")}
    return tuple(name for name, value in sorted(found.items()) if isinstance(value, np.ndarray) and value.size)


def _arrays(owner: Any, names: tuple[str, ...]) -> Arrays:
    return {name: getattr(owner, name) for name in names}


def _layout(arrays: Arrays) -> str:
    text = ",".join(f"{name}{array.dtype}{array.shape}" for name, array in arrays.items())
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _options(model: Any) -> dict[str, Any]:
    values = {name: getattr(model.opt, name) for name in dir(model.opt) if not name.startswith("_")}
    return {name: value for name, value in values.items() if isinstance(value, int | float | np.ndarray)}


def _differ(one: Any, other: Any) -> bool:
    return np.asarray(one).tobytes() != np.asarray(other).tobytes()


def _pack(arrays: Arrays) -> Arrays:
    """One array for all of one type: an environment has two hundred, and sixty-four of them have ten thousand."""
    kinds = {array.dtype.str: array.dtype for array in arrays.values()}
    return {
        text: np.concatenate([array.ravel() for array in arrays.values() if array.dtype == kind])
        for text, kind in kinds.items()
    }


def _unpack(packed: Arrays, arrays: Arrays) -> None:
    ends = dict.fromkeys(packed, 0)
    for array in arrays.values():
        begin = ends[array.dtype.str]
        ends[array.dtype.str] = begin + array.size
        array[...] = packed[array.dtype.str][begin : begin + array.size].reshape(array.shape)
