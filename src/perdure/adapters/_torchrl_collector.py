"""
TorchRL's collectors and environments: what one holds between two batches.

A collector's own ``state_dict`` leaves out what it carries from one step to the next: the observation that the policy
sees next, counts of steps and returns, recurrent states, noise. Without it a resumed collector begins new episodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.collectors import BaseCollector, Collector
from torchrl.envs import EnvBase, GymLikeEnv, SerialEnv, TransformedEnv

from perdure.adapters._sb3_attributes import Attributes
from perdure.adapters._torchrl_replay import pack, unpack
from perdure.capture import environments
from perdure.capture.environments.snapshot import fill
from perdure.capture.objects import check_arrays, does_not_fit
from perdure.core.manifest import Grade
from perdure.core.names import Section

_MODULE = frozenset(vars(torch.nn.Module()))
_BOUND = frozenset({"parent", "_container", "parent_env"})
PROVEN_TRANSFORMS = frozenset({
    "BinarizeReward", "CatFrames", "CatTensors", "ClipTransform", "Compose", "DTypeCastTransform", "DoubleToFloat",
    "ExcludeTransform", "FlattenObservation", "FrameSkipTransform", "InitTracker", "ObservationNorm", "RenameTransform",
    "RewardClipping", "RewardScaling", "RewardSum", "SignTransform", "SqueezeTransform", "StepCounter", "TargetReturn",
    "TensorDictPrimer", "TimeMaxPool", "UnsqueezeTransform", "VecNorm", "VecNormV2",
})  # fmt: skip
"""TorchRL's transforms of which a test shows that nothing is lost."""


def _unproven(part: Any, proven: frozenset[str]) -> str:
    cls = type(part)
    if cls.__module__.partition(".")[0] == "torchrl" and cls.__name__ in proven:
        return ""
    if cls is torch.nn.ModuleList:  # what a Compose keeps its parts in
        return ""
    return environments.untried(cls)


class Environments:
    """
    An environment of TorchRL with its transforms and sub-environments.

    Args:
        env: Borrowed; restored in place.
    """

    def __init__(self, env: EnvBase) -> None:
        self.doubts: list[str] = []
        """Why a resume cannot be exact; found when the environment was looked at last."""
        self._parts = dict(self._find("env", env))

    def _find(self, path: str, env: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(env, TransformedEnv):
            for name, transform in env.transform.named_modules():
                yield f"{path}.transform.{name}", _Module(transform)
            yield from self._find(f"{path}.base", env.base_env)
        elif isinstance(env, SerialEnv):
            if env.is_closed:
                env.start()
            if hasattr(env, "shared_tensordict_parent"):
                yield f"{path}.shared", _Tensors(env.shared_tensordict_parent)
            for index, one in enumerate(env._envs):  # noqa: SLF001 - it has no public name
                yield from self._find(f"{path}.{index}", one)
        elif isinstance(env, GymLikeEnv) and environments.is_environment(env._env):  # noqa: SLF001
            yield path, _Gym(env._env)  # noqa: SLF001
        elif callable(getattr(env, "get_state", None)) and callable(getattr(env, "set_state", None)):
            yield path, _Own(env)
        else:
            self.doubts.append(f"the state of a {type(env).__name__} is not known (give it get_state and set_state)")

    def capture(self) -> dict[str, Any]:
        """The state of every part by path."""
        return {path: part.capture() for path, part in self._parts.items()}

    @property
    def reasons(self) -> list[str]:
        """Why what was captured last is not exact; empty if it is."""
        return [*self.doubts, *(part.reason for part in self._parts.values() if part.reason)]

    @property
    def unproven(self) -> list[str]:
        """Of which parts nothing shows that what was captured last is all of their state."""
        return sorted({part.unproven for part in self._parts.values() if part.unproven})

    def check(self, tree: Mapping[str, Any]) -> None:
        """Refuse another stack of environments and transforms."""
        if set(tree) != set(self._parts):
            there = ", ".join(sorted(set(tree) - set(self._parts))) or "nothing"
            here = ", ".join(sorted(set(self._parts) - set(tree))) or "nothing"
            what = f"only the checkpoint has {there}, only the program has {here}"
            raise does_not_fit("the collector's environment", what, here, there)
        for path, part in self._parts.items():
            part.check(tree[path], path)

    def restore(self, tree: Mapping[str, Any]) -> None:
        """Bring every part to its state."""
        for path, part in self._parts.items():
            part.restore(tree[path])


class _Gym:
    """A Gymnasium environment inside one of TorchRL's."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.reason = ""
        self.unproven = ""

    def capture(self) -> object:
        tree = environments.capture_environment(self._env)
        self.reason, self.unproven = environments.level_of(tree)[1], environments.unproven_of(tree)
        return tree

    def check(self, tree: Any, path: str) -> None:
        environments.check(self._env, tree, path)

    def restore(self, tree: Any) -> None:
        fill(self._env, tree)


class _Own:
    """An environment that hands its state over by itself."""

    reason = ""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.unproven = _unproven(env, frozenset())

    def capture(self) -> object:
        return pack(self._env.get_state())

    def check(self, tree: Any, path: str) -> None:
        """Nothing is known of the state but that the environment accepts its own."""

    def restore(self, tree: Any) -> None:
        self._env.set_state(unpack(tree))


class _Module:
    """A transform: its buffers, what it says to be its state, and its plain attributes."""

    reason = ""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self.unproven = _unproven(module, PROVEN_TRANSFORMS)
        self._attributes = Attributes(module, _MODULE | _BOUND)

    def _own_state(self) -> dict[str, Any]:
        prefixes = tuple(f"{name}." for name, _ in self._module.named_children())
        return {key: value for key, value in self._module.state_dict().items() if not key.startswith(prefixes)}

    def capture(self) -> object:
        return {"state": pack(self._own_state()), "attributes": self._attributes.capture()}

    def check(self, tree: Any, path: str) -> None:
        live = {key: value for key, value in self._own_state().items() if isinstance(value, torch.Tensor)}
        saved = {key: value for key, value in tree["state"].items() if isinstance(value, torch.Tensor)}
        check_arrays(path, live, saved)

    def restore(self, tree: Any) -> None:
        if tree["state"]:
            self._module.load_state_dict(unpack(tree["state"]), strict=False)
        self._attributes.restore(tree["attributes"])


class _Tensors:
    """A tensor dictionary that others hold on to: filled in place."""

    reason = ""
    unproven = ""

    def __init__(self, content: TensorDictBase) -> None:
        self._content = content

    def _leaves(self) -> dict[str, torch.Tensor]:
        return {
            "/".join(key) if isinstance(key, tuple) else key: value
            for key, value in self._content.items(include_nested=True, leaves_only=True)
        }

    def capture(self) -> object:
        return self._leaves()

    def check(self, tree: Any, path: str) -> None:
        check_arrays(path, self._leaves(), tree)

    def restore(self, tree: Any) -> None:
        for name, leaf in self._leaves().items():
            leaf.copy_(tree[name])


class CollectorState:
    """
    A collector as a component: its counts, what it carries from step to step, its environments.

    Collectors that work in other processes hand over less: their counts and their transforms, and what they carry is
    lost, so their grade is ``statistical``.

    Args:
        collector: Borrowed, between two batches; restored in place.
    """

    kind = "torchrl.collector"
    section = Section.ENVIRONMENT

    def __init__(self, collector: BaseCollector) -> None:
        self._collector: Any = collector
        self._is_local = type(collector) is Collector
        self._environments = Environments(self._collector.env) if self._is_local else None
        self.grade = Grade.STATISTICAL

    def _reasons(self) -> list[str]:
        if self._environments is None:
            return [f"what a {type(self._collector).__name__} carries lives in other processes"]
        if self._collector.trajs_per_batch is not None:
            return [
                "trajectories that are being put together live in the collector's loop",
                *self._environments.reasons,
            ]
        return self._environments.reasons

    @property
    def frames(self) -> int:
        """Frames collected so far."""
        return int(self._collector._frames)  # noqa: SLF001 - it has no public name

    def capture(self) -> object:
        """Counts, the carried tensors, environments; arrays are borrowed."""
        collector = self._collector
        tree: dict[str, Any] = {"frames": self.frames, "iterations": collector._iter}  # noqa: SLF001
        if self._environments is None:
            tree["own"] = pack(collector.state_dict())
        else:
            carried = collector._carrier  # noqa: SLF001
            tree["environments"] = self._environments.capture()
            tree["carried"] = pack(carried)
            tree["batch_size"] = list(carried.batch_size)
            tree["version"] = collector.policy_version
            if collector.track_traj_ids:
                tree["trajectories"] = collector._traj_pool.state_dict()  # noqa: SLF001
        tree["reasons"] = self._reasons()
        tree["unproven"] = [] if self._environments is None else self._environments.unproven
        self.grade = Grade.STATISTICAL if tree["reasons"] or tree["unproven"] else Grade.EXACT
        return tree

    def check(self, tree: object) -> None:
        """Refuse other environments, or another number of them."""
        assert isinstance(tree, dict)
        if ("own" in tree) == (self._environments is not None):
            there = "in other processes" if "own" in tree else "in the training process"
            raise does_not_fit("the collector", f"it worked {there} when it was saved", "", there)
        if self._environments is None:
            return
        here, there = list(self._collector._carrier.batch_size), tree["batch_size"]  # noqa: SLF001
        if here != there:
            raise does_not_fit("the collector", f"its batch size was {there} and is {here} here", here, there)
        self._environments.check(tree["environments"])

    def restore(self, tree: object) -> str:
        """Bring the collector to where it stood; environments that cannot be captured begin new episodes."""
        assert isinstance(tree, dict)
        collector = self._collector
        if self._environments is None:
            collector.load_state_dict(unpack(tree["own"]))
            collector._frames, collector._iter = tree["frames"], tree["iterations"]  # noqa: SLF001
            return f"episodes begin anew: {'; '.join(tree['reasons'])}"
        self._environments.restore(tree["environments"])
        collector._frames, collector._iter = tree["frames"], tree["iterations"]  # noqa: SLF001
        if tree["version"] is not None and collector.policy_version_tracker is not None:
            collector.policy_version_tracker.version = tree["version"]
        if "trajectories" in tree and collector.track_traj_ids:
            collector._traj_pool.load_state_dict(tree["trajectories"])  # noqa: SLF001
        if tree["reasons"]:
            collector.env.set_seed(environments.derive_reset_seed("", "collector", tree["frames"]))
            collector.reset()
            return f"episodes begin anew: {'; '.join(tree['reasons'])}"
        device = collector._carrier.device  # noqa: SLF001
        collector._carrier = TensorDict(unpack(tree["carried"]), tree["batch_size"], device=device)  # noqa: SLF001
        return "; ".join(tree.get("unproven", ()))
