"""
Tianshou 2: a trainer's run, saved between two of its training steps and continued there.

`Trainer.run` resets counters, collectors and the best score before it trains, so a resumed training must not go
through it. `train` does what it does, from where the training stood.
"""

from __future__ import annotations

from typing import Any

import torch
from tianshou.data import InfoStats
from tianshou.trainer import OfflineTrainer, Trainer

from perdure.adapters._late_replay import LateReplay
from perdure.adapters._tianshou_replay import BufferRing, BufferState
from perdure.adapters._tianshou_state import AlgorithmState, CollectorState, TrainerState, find_parts
from perdure.errors import InvalidInputError
from perdure.run import Run

STEP_COUNTER = "global_step"


def train(run: Run, trainer: Trainer) -> InfoStats:
    """
    Train as ``trainer.run()`` does, saved and resumable: the same command again goes on, bit for bit.

    Saves are taken between two training steps, each a collection and its updates. The parameters of the trainer mean
    the whole run, also on the second start. The first test step is left out on a resume: the best model is never
    replaced by a worse one.

    Args:
        run: An opened run, not restored yet; its policies say when to save and what to keep.
        trainer: As the algorithm made it, such as ``algorithm.create_trainer(params)``. Borrowed.

    Raises:
        InvalidInputError: The replay buffer cannot be saved, or the trainer's loop has no point that belongs together.
        StoppedError: The run was asked to stop; everything is committed and the same command continues.
        FencedError: A newer generation has taken over.
    """
    return _Training(run, trainer).run()


class _Training:
    """One call of `train`."""

    def __init__(self, run: Run, trainer: Any) -> None:
        self._run = run
        self._trainer = trainer
        self._state = TrainerState(trainer)
        self._rings: list[BufferRing] = []
        self._collectors: list[CollectorState] = []
        self._counters = run.counters()
        self._track()

    def _track(self) -> None:
        run, trainer = self._run, self._trainer
        algorithm = trainer.algorithm
        if trainer.params.resume_from_log:
            raise InvalidInputError(
                "cannot resume twice: the trainer would take its counts from the log",
                kind="tianshou.resume-from-log",
                hint="leave resume_from_log out of the trainer's parameters",
                field="resume_from_log",
            )
        parts = dict(find_parts(algorithm))
        run.track({"algorithm": dict(algorithm.named_children()), "attributes": AlgorithmState(algorithm)})
        run.track({
            path.removeprefix("algorithm.").replace(".", "-"): part
            for path, part in parts.items()
            if isinstance(part, torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler)
        })  # fmt: skip
        run.track(trainer=self._state)
        if isinstance(trainer, OfflineTrainer):
            self._track_replay("replay", trainer._buffer)  # noqa: SLF001 - it has no public name
        else:
            self._track_replay("replay", trainer.params.training_collector.buffer)
            self._track_collector("collector", trainer.params.training_collector)
        if trainer.params.test_collector is not None:
            self._track_collector("test_collector", trainer.params.test_collector)
        run.counters(**{STEP_COUNTER: 0})

    def _track_replay(self, name: str, buffer: Any) -> None:
        ring = BufferRing(buffer)
        self._rings.append(ring)
        self._run.track({name: LateReplay(ring), f"{name}-state": BufferState(ring)})

    def _track_collector(self, name: str, collector: Any) -> None:
        state = CollectorState(name, collector)
        self._collectors.append(state)
        self._run.track({name: state})

    def run(self) -> InfoStats:
        """Restore, train what is left, save the end."""
        run, trainer = self._run, self._trainer
        is_fresh = run.restore().checkpoint is None
        if is_fresh:
            trainer.reset()
        elif self._collectors and self._collectors[0].was_reset:
            for ring in self._rings:
                ring.end_episodes()
        run.boundary(moved=False)
        own_step = trainer._training_step  # noqa: SLF001 - between two of these everything is at rest
        trainer._training_step = lambda: self._step(own_step)  # noqa: SLF001
        try:
            self._finish_epoch()
            while trainer._epoch < trainer.params.max_epochs and not trainer._stop_fn_flag:  # noqa: SLF001
                self._run_epoch()
        finally:
            del trainer._training_step  # noqa: SLF001
            for ring in self._rings:
                ring.release()
        run.finish()
        return trainer._create_info_stats()  # noqa: SLF001 - what `Trainer.run` returns

    def _finish_epoch(self) -> None:
        """Do what is left of an epoch in the midst of which the training was saved."""
        trainer, done = self._trainer, self._state.steps_in_epoch
        if not done:
            return
        whole = trainer.params.epoch_num_steps
        trainer._epoch -= 1  # noqa: SLF001 - it is counted when an epoch begins
        trainer.params.epoch_num_steps = whole - done
        try:
            self._run_epoch()
        finally:
            trainer.params.epoch_num_steps = whole

    def _run_epoch(self) -> None:
        self._trainer.execute_epoch()
        self._state.steps_in_epoch = 0
        self._boundary()

    def _step(self, own_step: Any) -> Any:
        trainer = self._trainer
        if self._is_within_epoch:
            # The step about to be made has been counted already.
            trainer._current_update_step -= 1  # noqa: SLF001
            self._boundary()
            trainer._current_update_step += 1  # noqa: SLF001
        result = own_step()
        self._state.steps_in_epoch += result.get_steps_in_epoch_advancement()
        self._is_within_epoch = True
        return result

    _is_within_epoch = False

    def _boundary(self) -> None:
        self._is_within_epoch = False
        self._counters.global_step = self._trainer._env_step  # noqa: SLF001
        self._run.boundary()
