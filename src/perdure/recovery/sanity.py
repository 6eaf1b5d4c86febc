"""
The sanity check: whether what was restored works.

A checkpoint can be whole and still be useless: saved in the middle of a diverging update, or put together wrongly. So
before anyone is told of a recovery, every module runs forward on its example input, a throw-away copy takes one
gradient step, and what was recorded at the save is compared. The program's own random streams are not drawn from.

A verdict can cost a run all its checkpoints, so it is passed on nothing that a healthy program does: buffers and
outputs may hold infinities, as masks do, and a module that cannot be tried out is a note.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

from perdure.capture.arrays import loaded_torch
from perdure.capture.numbers import GlobalGenerators
from perdure.capture.probes import generator_versions, learning_rates, next_draws

FORWARD_PASSES = 10
_LARGEST_RELATIVE_MOVE = 10.0
_LARGEST_MOVE = 1.0
"""A single step that moves parameters by far more than their size is not training, unless all are close to zero."""


def failures(
    modules: Mapping[str, Any],
    optimizers: Mapping[str, Any],
    examples: Mapping[str, Any],
    recorded: Mapping[str, Any],
    note: Callable[[str], None],
) -> list[str]:
    """
    Check the live objects after a restore.

    Args:
        modules: Tracked torch modules by component name.
        optimizers: Tracked torch optimizers by component name.
        examples: Example inputs by ``component:part``.
        recorded: ``learning_rates``, ``next_draws`` and ``drawn_with`` as of the save.
        note: Told what could not be checked, and why.

    Returns:
        What is wrong, in words; empty if all is well.
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
    draws, versions, drawn_with = next_draws(before), generator_versions(), recorded.get("drawn_with")
    for name, expected in recorded.get("next_draws", {}).items():
        # Another version of a library may rightly make other numbers of the same state.
        is_comparable = drawn_with is None or drawn_with.get(name) == versions.get(name)
        if name in draws and is_comparable and draws[name] != expected:
            found.append(f"the next draw of the {name} generator is {draws[name]!r}, {expected!r} was recorded")
    if not found:
        try:
            for key, example in examples.items():
                found += _try_out(key, modules, optimizers, example, note)
        finally:
            generators.restore(before)
    return found


def _check_finite(name: str, module: Any) -> list[str]:
    bad = [
        key
        for key, value in module.named_parameters()
        if value.requires_grad and value.is_floating_point() and not _is_finite(value)
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


def _try_out(
    key: str,
    modules: Mapping[str, Any],
    optimizers: Mapping[str, Any],
    example: Any,
    note: Callable[[str], None],
) -> list[str]:
    name, _, path = key.partition(":")
    if name not in modules:
        return []
    try:
        trial = copy.deepcopy(modules[name].get_submodule(path))
        return _judge(key, trial, example, _rate(modules[name], optimizers))
    except Exception as error:  # noqa: BLE001 - code of the program's, which raises what it likes
        # The checkpoint is not to blame: its values fit the module. If training fails in the same way it will say so.
        note(f"{key} could not be tried out: {type(error).__name__}: {error}")
        return []


def _judge(key: str, trial: Any, example: Any, rate: float) -> list[str]:
    outputs = _outputs(trial, example)
    if any(_is_hopeless(output) for output in outputs):
        return [f"{key} gives values that are not finite on an input it was trained on"]
    if not outputs or not outputs[-1].requires_grad or not loaded_torch().isfinite(outputs[-1]).all():
        return []
    return _try_step(key, trial, outputs[-1], rate)


def _outputs(trial: Any, example: Any) -> list[Any]:
    """What the forward passes give; nothing if that is no tensor."""
    parameter = next(trial.parameters(), None)
    given = example if parameter is None else example.to(parameter.device)
    outputs = (_first_tensor(trial(given)) for _ in range(FORWARD_PASSES))
    return [output for output in outputs if output is not None]


def _is_hopeless(output: Any) -> bool:
    """Whether an output holds what is no number, or nothing finite. Infinities among others are masks."""
    torch = loaded_torch()
    finite = torch.isfinite(output)
    return bool(torch.isnan(output).any()) or (output.numel() > 0 and not finite.any())


def _try_step(key: str, trial: Any, output: Any, rate: float) -> list[str]:
    torch = loaded_torch()
    square = output.float().pow(2).mean()
    # Scaled by its own size: a value network that rightly says 500 must not look like one that diverges.
    loss = square / (1 + square.detach())
    loss.backward()
    if not math.isfinite(loss.item()):
        return [f"the loss of {key} is not finite"]
    moved, size, count = 0.0, 0.0, 0
    with torch.no_grad():
        for parameter in trial.parameters():
            if parameter.grad is not None:
                # As long as an adaptive or a clipped step: a plain one on large inputs is longer than any that is made.
                moved += float((rate * parameter.grad.float().clamp(-1, 1)).pow(2).sum())
                size += float(parameter.float().pow(2).sum())
                count += parameter.numel()
    if not math.isfinite(moved):
        return [f"the gradient of {key} is not a number"]
    is_far = moved > _LARGEST_RELATIVE_MOVE**2 * size and moved > _LARGEST_MOVE**2 * count
    if size and is_far:
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
