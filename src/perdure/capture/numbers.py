"""Random number generators as components: the process-wide ones, and those that a program holds."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from perdure.capture.arrays import loaded_torch
from perdure.core.manifest import Grade
from perdure.core.names import Section
from perdure.errors import IncompatibleError

GLOBAL_NAME = "rng"
"""Name of the component that holds the process-wide generators; tracked without asking, restored last."""


class GlobalGenerators:
    """
    The generators of `random`, NumPy and torch, and of every accelerator that is in use.

    Those of torch are taken only if the program has imported it.
    """

    kind = "rng.global"
    section = Section.RNG
    grade = Grade.EXACT

    def __init__(self) -> None:
        self.last_fixed: Callable[[], dict[str, Any]] = dict
        """What gives the states of the last capture."""

    def fix_state(self) -> Callable[[], dict[str, Any]]:
        """Copies of all generators' states, which is what they give; put in form when they are asked for."""
        python = random.getstate()
        state: dict[str, Any] = {
            "numpy": np.random.get_state(legacy=False),  # noqa: NPY002 - the legacy stream is what programs draw from
        }
        torch = loaded_torch()
        if torch is not None:
            state["torch"] = torch.get_rng_state()
            state["devices"] = _device_states(torch)
        self.last_fixed = lambda: {"python": pack_python(python), **state}
        return self.last_fixed

    def capture(self) -> dict[str, Any]:
        """Copies of all generators' states."""
        return self.fix_state()()

    def check(self, tree: object) -> None:
        """Refuse a state with more accelerators than there are: their streams would silently be lost."""
        assert isinstance(tree, dict)
        saved = {name: len(states) for name, states in tree.get("devices", {}).items()}
        torch = loaded_torch()
        for name, count in saved.items():
            present = 0 if torch is None else len(_device_states(torch, initialise=name).get(name, []))
            if present < count:
                raise IncompatibleError(
                    f"cannot restore random number generators: {count} {name} devices were in use, {present} are here",
                    kind="rng.devices",
                    hint="run on a machine with as many devices, or restore with accept={'rng'}",
                    component=GLOBAL_NAME,
                    expected=str(count),
                    actual=str(present),
                )

    def restore(self, tree: object) -> str:
        """Set all generators; the next draw of each is the one that would have come."""
        assert isinstance(tree, dict)
        random.setstate(unpack_python(tree["python"]))
        np.random.set_state(tree["numpy"])  # noqa: NPY002 - see capture
        torch = loaded_torch()
        if torch is None or "torch" not in tree:
            return ""
        torch.set_rng_state(tree["torch"])
        for name, states in tree["devices"].items():
            module = torch.get_device_module(name)
            for index, state in enumerate(states):
                module.set_rng_state(state, index)
        return ""


def _device_states(torch: Any, initialise: str = "") -> dict[str, list[Any]]:
    """States of the accelerator's generators by device type; none if it is not in use, so as not to start it."""
    if not torch.accelerator.is_available():
        return {}
    name = torch.accelerator.current_accelerator().type
    module = torch.get_device_module(name)
    in_use = getattr(module, "is_initialized", lambda: True)()
    if not in_use and name != initialise:
        return {}
    return {name: [module.get_rng_state(index) for index in range(torch.accelerator.device_count())]}


def pack_python(state: tuple[Any, ...]) -> dict[str, Any]:
    """Turn what `random.getstate` gives into a state tree with one array."""
    version, internal, gauss = state
    return {"version": version, "internal": np.array(internal, np.uint32), "gauss": gauss}


def unpack_python(packed: dict[str, Any]) -> tuple[Any, ...]:
    """Turn it back."""
    return packed["version"], tuple(packed["internal"].tolist()), packed["gauss"]


class HeldGenerator:
    """A generator object of `random`, NumPy or torch that a program holds; restored in place."""

    section = Section.RNG
    grade = Grade.EXACT

    def __init__(self, generator: Any) -> None:
        self._generator = generator
        self._bits = getattr(generator, "bit_generator", generator)
        self.kind = f"rng.{type(self._bits).__name__}"

    def capture(self) -> object:
        """A copy of the generator's state."""
        generator = self._generator
        if isinstance(generator, random.Random):
            return pack_python(generator.getstate())
        if isinstance(generator, np.random.RandomState):
            return generator.get_state(legacy=False)
        if isinstance(self._bits, np.random.BitGenerator):
            return self._bits.state
        return {"state": generator.get_state()}

    def check(self, tree: object) -> None:
        """Nothing to check: the kind names the algorithm, and each algorithm has one form of state."""

    def restore(self, tree: object) -> str:
        """Set the generator's state."""
        assert isinstance(tree, dict)
        generator = self._generator
        if isinstance(generator, random.Random):
            generator.setstate(unpack_python(tree))
        elif isinstance(generator, np.random.RandomState):
            generator.set_state(tree)
        elif isinstance(self._bits, np.random.BitGenerator):
            self._bits.state = tree
        else:
            generator.set_state(tree["state"])
        return ""


def is_generator(value: object) -> bool:
    """Whether ``value`` is a random number generator that `HeldGenerator` can hold."""
    if isinstance(value, random.Random | np.random.Generator | np.random.RandomState | np.random.BitGenerator):
        return not isinstance(value, random.SystemRandom)
    torch = loaded_torch()
    return torch is not None and isinstance(value, torch.Generator)
