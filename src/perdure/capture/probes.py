"""
Probes: what a restored run is checked with before it may go on.

While a program trains, the first small input that each tracked module is called with is kept as an example. It is
saved with every checkpoint, so that a restored module can be shown to work on the very kind of input that it works on.
Facts that a correct restore must reproduce, the learning rates and the next draw of each random number generator, are
recorded beside them.
"""

from __future__ import annotations

import platform
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from perdure.capture.arrays import loaded_torch, on_accelerator
from perdure.capture.numbers import unpack_python
from perdure.core.manifest import Grade
from perdure.core.names import Section

PROBES_NAME = "probes"
_ATTEMPTS = 100
"""Calls after which a part that only gets large or several inputs is left alone."""
_MAXIMUM_BYTES = 1024 * 1024


class Probes:
    """One example input for each tracked module, or for its parts if it is never called itself."""

    kind = "sanity.probes"
    section = Section.STATE
    grade = Grade.EXACT

    def __init__(self) -> None:
        self._examples: dict[str, Any] = {}

    @property
    def examples(self) -> Mapping[str, Any]:
        """Example inputs by ``component:path of the part``."""
        return self._examples

    def watch(self, name: str, module: Any) -> None:
        """Keep the first small input of the module and of each of its direct parts; costs nothing after that."""
        for path, part in [("", module), *module.named_children()]:
            self._watch_one(f"{name}:{path}", part)

    def _watch_one(self, key: str, part: Any) -> None:
        attempts = iter(range(_ATTEMPTS - 1, -1, -1))

        def keep(_: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
            example = None if keywords else _small_example(arguments)
            if example is not None:
                self._examples.setdefault(key, example)
            if example is not None or next(attempts) == 0:
                handle.remove()

        handle = part.register_forward_pre_hook(keep, with_kwargs=True)

    def fix_state(self) -> Callable[[], object] | None:
        """The examples, which never change, unless a device would have to be asked for one."""
        if any(on_accelerator(example) for example in self._examples.values()):
            return None
        examples = dict(self._examples)
        return lambda: examples

    def capture(self) -> object:
        """The examples, borrowed."""
        return dict(self._examples)

    def check(self, tree: object) -> None:
        """Nothing to check: examples are tried, not used."""

    def restore(self, tree: object) -> str:
        """Take the saved examples over."""
        assert isinstance(tree, dict)
        self._examples = dict(tree)
        return ""


def _small_example(arguments: tuple[Any, ...]) -> Any:
    # Whole or not at all: nothing says which dimension, if any, is that of the batch.
    torch = loaded_torch()
    if len(arguments) != 1 or not isinstance(arguments[0], torch.Tensor):
        return None
    example = arguments[0].detach()
    return example.clone() if 0 < example.numel() * example.element_size() <= _MAXIMUM_BYTES else None


def next_draws(state: Mapping[str, Any]) -> dict[str, float]:
    """
    What the process-wide generators in ``state`` will give next, found out on generators of its own.

    Args:
        state: What `GlobalGenerators.capture` gave; not changed.
    """
    python = random.Random()  # noqa: S311 - a copy of the program's own stream
    python.setstate(unpack_python(state["python"]))
    numpy = np.random.RandomState()
    numpy.set_state(state["numpy"])
    draws = {"python": python.random(), "numpy": float(numpy.random_sample())}
    torch = loaded_torch()
    if torch is not None and "torch" in state:
        generator = torch.Generator()
        generator.set_state(state["torch"])
        draws["torch"] = float(torch.rand((), generator=generator, dtype=torch.float64))
    return draws


def generator_versions() -> dict[str, str]:
    """Versions of what the process-wide generators belong to."""
    versions = {"python": platform.python_version(), "numpy": np.__version__}
    torch = loaded_torch()
    return versions if torch is None else {**versions, "torch": str(torch.__version__)}


def learning_rates(optimizers: Mapping[str, Any]) -> dict[str, list[float]]:
    """Learning rate of each parameter group by optimizer."""
    return {name: [float(group["lr"]) for group in optimizer.param_groups] for name, optimizer in optimizers.items()}
