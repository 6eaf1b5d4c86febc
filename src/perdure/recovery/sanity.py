"""
The sanity check: whether what was restored works.

A checkpoint can be whole and still be useless: saved in the middle of a diverging update, or put together wrongly. So
before anyone is told of a recovery, every module runs forward on its example input, a throw-away copy takes one
gradient step, and what was recorded at the save is compared. The program's own random streams are not drawn from.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

from perdure.capture.arrays import loaded_torch
from perdure.capture.numbers import GlobalGenerators
from perdure.capture.probes import learning_rates, next_draws
from perdure.errors import IncompatibleError

FORWARD_PASSES = 10
_LARGEST_RELATIVE_MOVE = 1.0
"""A single step that moves parameters by more than their own size is not training."""


def failures(
    modules: Mapping[str, Any],
    optimizers: Mapping[str, Any],
    examples: Mapping[str, Any],
    recorded: Mapping[str, Any],
) -> list[str]:
    """
    Check the live objects after a restore.

    Args:
        modules: Tracked torch modules by component name.
        optimizers: Tracked torch optimizers by component name.
        examples: Example inputs by ``component:part``.
        recorded: ``learning_rates`` and ``next_draws`` as of the save.

    Returns:
        What is wrong, in words; empty if all is well.

    Raises:
        IncompatibleError: Kind ``sanity.forward-fails``: the program's module no longer takes its own input.
    """
    found: list[str] = []
    for name, module in modules.items():
        found += _check_finite(name, module)
    for name, rates in learning_rates(optimizers).items():
        expected = recorded.get("learning_rates", {}).get(name)
        if expected is not None and expected != rates:
            found.append(f"learning rate of {name} is {rates}, {expected} was recorded")
    generators = GlobalGenerators()
    before = generators.capture()
    draws = next_draws(generators.last_captured)
    for name, expected in recorded.get("next_draws", {}).items():
        if name in draws and draws[name] != expected:
            found.append(f"the next draw of the {name} generator is {draws[name]!r}, {expected!r} was recorded")
    if not found:
        try:
            for key, example in examples.items():
                found += _try_out(key, modules, optimizers, example)
        finally:
            generators.restore(before)
    return found


def _check_finite(name: str, module: Any) -> list[str]:
    torch = loaded_torch()
    bad = [
        key
        for key, value in module.state_dict().items()
        if isinstance(value, torch.Tensor) and value.is_floating_point() and not _is_finite(value)
    ]
    return [f"{name} has values that are not finite in {', '.join(bad[:3])}"] if bad else []


def _is_finite(tensor: Any) -> bool:
    torch = loaded_torch()
    # One pass that takes no memory: nothing that is not finite leaves a finite sum. The reverse is not so, for a sum of
    # finite values can overflow.
    if torch.isfinite(tensor.sum(dtype=torch.float32)):
        return True
    # Types of one byte can be summed and converted, and nothing else.
    return bool(torch.isfinite(tensor.float() if tensor.element_size() == 1 else tensor).all())


def _try_out(key: str, modules: Mapping[str, Any], optimizers: Mapping[str, Any], example: Any) -> list[str]:
    name, _, path = key.partition(":")
    if name not in modules:
        return []
    torch = loaded_torch()
    original = modules[name].get_submodule(path)
    parameter = next(original.parameters(), None)
    trial = copy.deepcopy(original)
    given = example if parameter is None else example.to(parameter.device)
    output = None
    for _ in range(FORWARD_PASSES):
        output = _first_tensor(_forward(key, trial, given))
        if output is None:
            return []
        if not torch.isfinite(output).all():
            return [f"{key} gives values that are not finite on an input it was trained on"]
    assert output is not None
    if parameter is None or not output.requires_grad:
        return []
    return _try_step(key, trial, output, _rate(modules[name], optimizers))


def _forward(key: str, trial: Any, given: Any) -> Any:
    try:
        return trial(given)
    except RuntimeError as error:
        # The checkpoint is not to blame: its values fit the module, and the module no longer takes its own input.
        raise IncompatibleError(
            f"cannot use {key}: it fails on an input that it was trained on ({error})",
            kind="sanity.forward-fails",
            hint="make the module's forward take what it took when it was saved, or start another run",
            component=key.partition(":")[0],
        ) from error


def _try_step(key: str, trial: Any, output: Any, rate: float) -> list[str]:
    torch = loaded_torch()
    square = output.float().pow(2).mean()
    # Scaled by its own size: a value network that rightly says 500 must not look like one that diverges.
    loss = square / (1 + square.detach())
    loss.backward()
    if not math.isfinite(loss.item()):
        return [f"the loss of {key} is not finite"]
    moved, size = 0.0, 0.0
    with torch.no_grad():
        for parameter in trial.parameters():
            if parameter.grad is not None:
                moved += float((rate * parameter.grad).float().pow(2).sum())
                size += float(parameter.float().pow(2).sum())
    if not math.isfinite(moved):
        return [f"the gradient of {key} is not finite"]
    if size and math.sqrt(moved) > _LARGEST_RELATIVE_MOVE * math.sqrt(size):
        return [f"one step would move {key} by {math.sqrt(moved / size):.1f} times its size"]
    return []


def _first_tensor(output: Any) -> Any:
    torch = loaded_torch()
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, tuple | list):
        return next((item for item in output if isinstance(item, torch.Tensor)), None)
    return None


def _rate(module: Any, optimizers: Mapping[str, Any]) -> float:
    """Learning rate of the optimizer that holds the module's parameters, or a customary one."""
    mine = {id(parameter) for parameter in module.parameters()}
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            if any(id(parameter) in mine for parameter in group["params"]):
                return float(group["lr"])
    return 1e-3
