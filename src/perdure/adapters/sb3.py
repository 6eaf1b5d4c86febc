"""
Stable-Baselines3 and sb3-contrib: one callback makes ``learn`` resumable.

The training loop stays the framework's. When a training starts, everything is brought in place to where the run had
come; when a rollout starts, the last update is done and the next step has not begun, so that is where saves are taken.
Loading a model anew, as SB3 does it, is avoided: it seeds all generators again and drops the last observation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from perdure.adapters._sb3_attributes import can_store
from perdure.adapters._sb3_environments import VectorEnvironment
from perdure.adapters._sb3_replay import ReplayRing
from perdure.adapters._sb3_state import Callbacks, Model, state_paths, walk
from perdure.adapters._sb3_versions import FRAMEWORKS
from perdure.capture.environments import derive_reset_seed
from perdure.capture.numbers import GlobalGenerators
from perdure.capture.objects import Space
from perdure.core.manifest import Grade
from perdure.errors import InvalidInputError
from perdure.namespaces import Namespace
from perdure.run import Run
from perdure.trackers import Trackers

STEP_COUNTER = "global_step"


class Checkpointing(BaseCallback):
    """
    Saves a training into a run and continues it: the same command again goes on, bit for bit.

    ``total_timesteps`` means the whole run, also on the second start. The callback may stand anywhere in nested lists
    of callbacks, but not inside one that triggers others. One run is one call of ``learn``.

    Args:
        run: An opened run, not restored yet; its policies say when to save and what to keep.
        verbose: As in every callback of SB3.

    Example:
        >>> with perdure.open("runs", run="ppo") as run:  # doctest: +SKIP
        ...     PPO("MlpPolicy", "CartPole-v1").learn(100_000, callback=perdure.sb3.Checkpointing(run))
    """

    def __init__(self, run: Run, verbose: int = 0) -> None:
        super().__init__(verbose)
        self._run = run
        self._training: _Training | None = None
        self._is_in_rollout = False

    def _on_training_start(self) -> None:
        if self.parent is not None:
            raise _misplaced()
        if self._training is not None:
            raise InvalidInputError(
                "cannot learn twice in one run: total_timesteps means the whole run",
                kind="sb3.second-learn",
                hint="call learn once with the whole total, and do what comes between in a callback",
                field="total_timesteps",
            )
        self._training = _Training(self._run, self.model, self.locals["callback"], self)
        self._training.begin(is_all_here=self.locals.get("async_eval") is None)

    def _on_rollout_start(self) -> None:
        assert self._training is not None
        self._is_in_rollout = True
        self._training.rollout_starts()

    def _on_step(self) -> bool:
        if self._training is None:
            raise _misplaced()
        return True

    def _on_rollout_end(self) -> None:
        self._is_in_rollout = False

    def _on_training_end(self) -> None:
        assert self._training is not None
        # A callback that ends a training does so in the middle of a rollout, where nothing belongs together.
        self._training.end(is_whole=not self._is_in_rollout)


def _misplaced() -> InvalidInputError:
    return InvalidInputError(
        "cannot save from inside a callback that triggers others: it does not tell when rollouts start",
        kind="sb3.misplaced",
        hint="pass Checkpointing to learn itself, alone or in a list",
        field="callback",
    )


def _apart(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What no checkpoint stores by itself, by name; what hides in a list or a dictionary too."""
    if can_store(value):
        return
    yield name, value
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _apart(f"{name}[{key}]", part)


class _Training:
    """
    One call of ``learn`` under a run.

    Args:
        run: Not restored yet.
        model: With its environment set up, as `BaseAlgorithm.learn` leaves it before the first rollout.
        root: All callbacks.
        saver: The one among them that saves.
    """

    def __init__(self, run: Run, model: BaseAlgorithm, root: BaseCallback, saver: BaseCallback) -> None:
        self._run = run
        self._model = model
        env = model.get_env()
        assert env is not None
        self._env = env
        self._others = [callback for callback in walk(root) if callback is not saver]
        self._callbacks = Callbacks(self._others, env)
        self._state: Model
        self._counters: Namespace
        self._ring: ReplayRing | None = None
        self._generators: Any = None
        self._has_begun = False

    def begin(self, *, is_all_here: bool) -> None:
        """
        Track everything and restore it.

        Args:
            is_all_here: Whether no part of the training lives in a process that nobody can look into.
        """
        run, model = self._run, self._model
        # What has been proven is proven of these algorithms, and not of what a user makes of them.
        is_exact = is_all_here and type(model).__module__.partition(".")[0] in FRAMEWORKS
        # The model's state is tracked first, because it is checked first: it says best what does not fit.
        self._state = Model(model, Grade.EXACT if is_exact else Grade.STATISTICAL)
        run.track({"model": self._state, **state_paths(model), "callbacks": self._callbacks, "trackers": Trackers()})
        self._track_replay()
        self._track_environments()
        self._counters = run.counters()
        if STEP_COUNTER not in self._counters:
            run.counters(**{STEP_COUNTER: 0})
        run.restore()
        self._audit()
        generators = GlobalGenerators()
        # Between this moment and the first rollout other callbacks and the framework itself may draw.
        self._generators = generators.capture() if self._state.is_pending else None

    def _track_replay(self) -> None:
        replay = getattr(self._model, "replay_buffer", None)
        if replay is not None:
            self._ring = ReplayRing(replay)
            self._run.track(replay=self._ring)

    def _track_environments(self) -> None:
        self._run.track(env=VectorEnvironment("env", self._env, self._begin_episodes))
        spaces = {"action_space": self._model.action_space, "observation_space": self._model.observation_space}
        self._run.track({name: Space(name, space) for name, space in spaces.items()})

    def _begin_episodes(self) -> None:
        """Go on from a reset, where the environments could not be brought to where they were."""
        model = self._model
        self._env.seed(derive_reset_seed(self._run.name, "env", model.num_timesteps))
        model._last_obs = self._env.reset()  # type: ignore[assignment] # noqa: SLF001 - what `_setup_learn` does after its reset
        model._last_episode_starts = np.ones((model.n_envs,), dtype=bool)  # noqa: SLF001
        normalizer = model.get_vec_normalize_env()
        if normalizer is not None:
            model._last_original_obs = normalizer.get_original_obs()  # noqa: SLF001
        if self._ring is not None:
            self._ring.end_episodes()

    def _audit(self) -> None:
        owners = {"model": self._model, **{type(callback).__name__: callback for callback in self._others}}
        held = {f"{owner}.{name}": value for owner, one in owners.items() for name, value in vars(one).items()}
        for path, module in self._model.policy.named_modules():
            own = {name: value for name, value in vars(module).items() if not name.startswith("_")}
            held |= {".".join(filter(None, ("policy", path, name))): value for name, value in own.items()}
        self._run.audit({name: part for name, value in held.items() for name, part in _apart(name, value)})

    def rollout_starts(self) -> None:
        """Save if it is time to; the first time, complete the restore."""
        self._state.is_rollout_start = True
        if self._ring is not None and vars(self._model)["replay_buffer"] is not self._ring.buffer:
            raise InvalidInputError(
                "cannot save: the model has got another replay buffer since the training started",
                kind="sb3.replay-replaced",
                hint="load or make the replay buffer before calling learn",
                field="replay_buffer",
            )
        if not self._has_begun:
            self._has_begun = True
            self._settle()
            self._run.boundary(moved=False)
            return
        self._record()
        self._run.boundary()

    def _settle(self) -> None:
        if self._generators is not None:
            self._callbacks.settle()
            self._state.settle()
            GlobalGenerators().restore(self._generators)

    def _record(self) -> None:
        self._counters.global_step = self._model.num_timesteps
        for metric, reward in self._callbacks.take_new_evaluations().items():
            self._run.metric(metric, reward)

    def end(self, *, is_whole: bool) -> None:
        """
        Save the end of the training.

        Args:
            is_whole: Whether the last rollout was used; otherwise the checkpoints before stay the newest.
        """
        if is_whole:
            self._state.is_rollout_start = False
            has_moved = self._model.num_timesteps != self._counters.global_step
            self._record()
            self._run.boundary(moved=has_moved)
            self._run.finish()
        if self._ring is not None:
            self._ring.release()
