"""
TorchRL: its objects as components, its two kinds of training loop under a run.

What TorchRL's classes give by ``state_dict`` is taken from there. What they keep to themselves, carried observations,
orders of sampling, generators, attributes of transforms, is taken beside it. The point at which everything belongs
together is between two batches of the collector.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.collectors import BaseCollector
from torchrl.data import ReplayBuffer
from torchrl.objectives import LossModule, TargetNetUpdater
from torchrl.trainers import Trainer, TrainerHookBase

from perdure.adapters._late_replay import LateReplay
from perdure.adapters._torchrl_collector import CollectorState
from perdure.adapters._torchrl_replay import Sampling, StorageRing
from perdure.capture.objects import Stateful, check_arrays
from perdure.core.manifest import Grade
from perdure.core.names import Section
from perdure.errors import InvalidInputError
from perdure.run import Run

STEP_COUNTER = "global_step"
_POLICY = "policy"


def track(run: Run, **objects: Any) -> None:
    """
    Say what a training with TorchRL consists of, by name.

    Collectors, replay buffers and updaters of target networks become the components that TorchRL's own classes do not
    give; everything else is tracked as `Run.track` does it. Tensors of a collector's policy that no tracked module
    has, such as the epsilon of an exploration module, become a component of their own.

    Args:
        run: Not restored yet.
        objects: Such as ``collector=``, ``replay=``, ``loss=``, ``optimizer=``, ``updater=``. Borrowed.

    Raises:
        InvalidInputError: A replay buffer cannot be saved, or a name or object cannot be tracked.
    """
    run.track({name: part for key, value in objects.items() for name, part in _components(key, value).items()})
    modules = [value for value in objects.values() if isinstance(value, torch.nn.Module)]
    for name, value in objects.items():
        if isinstance(value, BaseCollector):
            rest = _rest_of_policy(value, modules)
            if rest:
                run.track({f"{name}-{_POLICY}": _Tensors(f"{name}'s policy", rest)})


def _components(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, BaseCollector):
        return {name: CollectorState(value)}
    if isinstance(value, ReplayBuffer):
        return {name: LateReplay(StorageRing(value)), f"{name}-sampling": Sampling(value)}
    if isinstance(value, TargetNetUpdater):
        return {name: Stateful(value, "torchrl.updater", Section.STATE)}
    if isinstance(value, LossModule):
        return {name: value, f"{name}-algorithm": _Algorithm(value)}
    return {name: value}


def _rest_of_policy(collector: Any, modules: list[torch.nn.Module]) -> dict[str, torch.Tensor]:
    policy = getattr(collector, "_wrapped_policy", None) or getattr(collector, "policy", None)
    if not isinstance(policy, torch.nn.Module):
        return {}
    known = {tensor.data_ptr() for module in modules for tensor in _tensors_of(module).values() if tensor.numel()}
    return {name: tensor for name, tensor in _tensors_of(policy).items() if tensor.data_ptr() not in known}


def _tensors_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value for name, value in module.state_dict().items() if isinstance(value, torch.Tensor)}


class _Algorithm:
    """Which loss is descended, as the kind of a component: a checkpoint of another one is refused, even if it fits."""

    section = Section.STATE
    grade = Grade.EXACT

    def __init__(self, loss: LossModule) -> None:
        self.kind = f"torchrl.{type(loss).__name__}"

    def capture(self) -> object:
        """Nothing: the kind says it all."""
        return {}

    def check(self, tree: object) -> None:
        """Nothing: a component of another kind has been refused."""

    def restore(self, tree: object) -> str:  # noqa: ARG002 - as every component has it
        """Nothing."""
        return ""


class _Tensors:
    """Tensors by name, filled in place."""

    kind = "torch.module"
    section = Section.MODEL
    grade = Grade.EXACT

    def __init__(self, name: str, tensors: Mapping[str, torch.Tensor]) -> None:
        self._name = name
        self._tensors = dict(tensors)

    def capture(self) -> object:
        """The tensors, borrowed."""
        return self._tensors

    def check(self, tree: object) -> None:
        """Refuse other names, shapes or types."""
        assert isinstance(tree, dict)
        check_arrays(self._name, self._tensors, tree)

    def restore(self, tree: object) -> str:
        """Copy the values in."""
        assert isinstance(tree, dict)
        for name, tensor in self._tensors.items():
            tensor.detach().copy_(tree[name])
        return ""


def collect(run: Run, collector: BaseCollector) -> Iterator[TensorDictBase | None]:
    """
    Iterate over a collector's batches as ``for batch in collector`` does, over what is left to collect.

    Restores before the first batch; between two batches saves when that is due, and stops if the run is asked to.
    After the last batch everything is saved and committed. The counter ``global_step`` follows the collector's frames.

    Args:
        run: What `track` was told of, this collector among it; not restored yet.
        collector: Borrowed. ``total_frames`` means the whole run.

    Raises:
        StoppedError: The run was asked to stop; everything is committed and the same command continues.
        FencedError: A newer generation has taken over.
    """
    counters = run.counters()
    if STEP_COUNTER not in counters:
        run.counters(**{STEP_COUNTER: 0})
    run.boundary(moved=False)
    for batch in collector:
        yield batch
        counters.global_step = collector._frames  # noqa: SLF001 - it has no public name
        run.boundary()
    run.finish()


class Checkpointing(TrainerHookBase):  # type: ignore[misc] # TorchRL has no complete types
    """
    Saves a `torchrl.trainers.Trainer` into a run and continues it: the same command again goes on, bit for bit.

    ``total_frames`` means the whole run, also on the second start.

    Args:
        run: An opened run, not restored yet; its policies say when to save and what to keep.
        objects: What the trainer does not know of, by name, such as ``scheduler=``.

    Example:
        >>> with perdure.open("runs", run="ppo") as run:  # doctest: +SKIP
        ...     perdure.torchrl.Checkpointing(run).register(trainer)
        ...     trainer.train()
    """

    def __init__(self, run: Run, **objects: Any) -> None:
        self._run = run
        self._objects = objects
        self._trainer: Any = None

    def register(self, trainer: Trainer, name: str = "perdure") -> None:  # noqa: ARG002 - as every hook has it
        """Add the hooks; to be called before `Trainer.train`."""
        if self._trainer is not None:
            raise InvalidInputError(
                "cannot register twice: one run is one call of Trainer.train",
                kind="torchrl.registered",
                hint="make another Checkpointing, with a run of its own",
                field="trainer",
            )
        self._trainer = trainer
        trainer.register_op("setup", self._begin)
        trainer.register_op("shutdown", self._run.finish)

    def _begin(self) -> None:
        trainer, run = self._trainer, self._run
        if getattr(trainer, "async_collection", False) or getattr(trainer, "learner_backend", None) == "ray":
            raise InvalidInputError(
                "cannot save this trainer: it collects or learns behind the loop, so no point belongs together",
                kind="torchrl.asynchronous",
                hint="train with async_collection=False in the training process",
                field="trainer",
            )
        known = {id(value) for value in self._objects.values()}
        found = {
            "loss": trainer.loss_module,
            "optimizer": trainer._checkpoint_optimizer(),  # noqa: SLF001 - how TorchRL's own checkpoints find it
            "collector": trainer.collector,
            "replay": _replay_of(trainer),
            "updater": getattr(trainer, "target_net_updater", None),
        }
        parts = {name: value for name, value in found.items() if value is not None and id(value) not in known}
        track(run, trainer=_TrainerState(trainer, parts.values()), **parts, **self._objects)
        run.counters(**{STEP_COUNTER: 0})
        run.boundary(moved=False)
        # Registered now, so that it comes after whatever other hooks do at the end of a step.
        trainer.register_op("post_steps_log", self._step_ends)

    def _step_ends(self, _: TensorDictBase | None) -> None:
        self._run.counters().global_step = self._trainer.collected_frames
        self._run.boundary()

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the run holds the state."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing: the run holds the state."""


def _replay_of(trainer: Any) -> ReplayBuffer | None:
    hook = trainer._modules.get("replay_buffer")  # noqa: SLF001 - where hooks put it
    replay = getattr(trainer, "replay_buffer", None) or getattr(hook, "replay_buffer", None)
    return replay if isinstance(replay, ReplayBuffer) else None


class _TrainerState:
    """A trainer's counts and the states of its hooks, but for what other components hold."""

    kind = "torchrl.trainer"
    section = Section.STATE
    grade = Grade.EXACT

    def __init__(self, trainer: Any, others: Any) -> None:
        self._trainer = trainer
        held = {id(value) for value in others}
        self._hooks = {
            name: hook
            for name, hook in trainer._modules.items()  # noqa: SLF001 - how TorchRL's own checkpoints find them
            if not held & {id(hook), id(getattr(hook, "replay_buffer", None)), id(getattr(hook, "optimizer", None))}
        }

    def capture(self) -> object:
        """Counts and the hooks' own states."""
        counts = dict(self._trainer._get_state())  # noqa: SLF001 - what TorchRL's own checkpoints save
        return {"counts": counts, "hooks": {name: hook.state_dict() for name, hook in self._hooks.items()}}

    def check(self, tree: object) -> None:
        """Nothing: hooks may come and go between two starts."""

    def restore(self, tree: object) -> str:
        """Bring the trainer and the hooks that the checkpoint knows to their state."""
        assert isinstance(tree, dict)
        for name, value in tree["counts"].items():
            setattr(self._trainer, name, value)
        for name, hook in self._hooks.items():
            if name in tree["hooks"]:
                hook.load_state_dict(tree["hooks"][name])
        different = sorted(self._hooks.keys() ^ tree["hooks"].keys())
        return f"only on one side: {', '.join(different)}" if different else ""
