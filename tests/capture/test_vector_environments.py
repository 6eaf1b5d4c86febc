"""Vector environments, in this process and in others, with the resets they owe."""

from __future__ import annotations

import os
import signal
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces, wrappers
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from perdure.capture.environments import Level, capture_environment, environment_level, level_of, restore_environment
from perdure.capture.environments.workers import Workers, serve
from perdure.errors import DeadlineError, IncompatibleError, InvalidInputError
from tests.capture.lives import Counting, assert_exact, exact, make_one, makers, travelled, vector_statistics
from tests.waiting import wait_until


def vector_transformed(envs: gym.vector.VectorEnv) -> gym.vector.VectorEnv:
    """Wrappers that transform."""
    envs = wrappers.vector.DictInfoToList(wrappers.vector.ClipReward(envs, -0.5, 0.5))
    if isinstance(envs.single_action_space, spaces.Box):
        envs = wrappers.vector.ClipAction(envs)
    if envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP:
        envs = wrappers.vector.FlattenObservation(envs)
    return envs


VECTOR_STACKS = {"bare": lambda envs: envs, "statistics": vector_statistics, "transformed": vector_transformed}


VECTOR_CASES = [
    *((name, stack) for name in ("CartPole-v1", "Pendulum-v1") for stack in VECTOR_STACKS),
    *((name, "bare") for name in ("Blackjack-v1", "Taxi-v4")),
]


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize(("name", "stack"), VECTOR_CASES)
def test_a_vector_environment_continues_exactly(name: str, stack: str, mode: AutoresetMode) -> None:
    """A pending autoreset is state: whichever the mode, every sub-environment goes on as it would have."""
    original, target = (VECTOR_STACKS[stack](SyncVectorEnv(makers(name), autoreset_mode=mode)) for _ in range(2))
    assert "ended" in assert_exact(original, target, steps=60)


@pytest.mark.parametrize("stack", VECTOR_STACKS)
def test_a_natively_vectorised_environment_continues_exactly(stack: str) -> None:
    """Gymnasium's own vectorised CartPole is captured like any other, with the resets it owes."""
    original, target = (
        VECTOR_STACKS[stack](gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point"))
        for _ in range(2)
    )
    assert "ended" in assert_exact(original, target)


ASYNC_KINDS = {
    "shared": {},
    "piped": {"shared_memory": False},
    "same-step": {"autoreset_mode": AutoresetMode.SAME_STEP},
    "disabled": {"autoreset_mode": AutoresetMode.DISABLED, "shared_memory": False},
}


@pytest.mark.process
@pytest.mark.parametrize("kind", ASYNC_KINDS)
def test_an_asynchronous_vector_environment_continues_exactly(kind: str) -> None:
    """The autoreset that is pending in a worker's loop is captured and comes back in another worker's loop."""
    original, target = (vector_statistics(AsyncVectorEnv(makers("Pendulum-v1"), **ASYNC_KINDS[kind])) for _ in range(2))
    try:
        assert assert_exact(original, target, steps=60) >= {"fresh", "reset", "middle", "ended"}
    finally:
        original.close()
        target.close()


@pytest.mark.process
def test_an_asynchronous_vector_environment_of_composite_observations_continues_exactly() -> None:
    """Observations that are tuples, in memory shared with the workers, are filled in place."""
    original, target = (AsyncVectorEnv(makers("Blackjack-v1")) for _ in range(2))
    try:
        assert "ended" in assert_exact(original, target, steps=40)
    finally:
        original.close()
        target.close()


def own_worker(*arguments: Any) -> None:
    """The usual worker under another name."""
    from gymnasium.vector.async_vector_env import _async_worker

    _async_worker(*arguments)


@pytest.mark.process
def test_an_asynchronous_vector_environment_says_when_it_cannot_be_reached() -> None:
    """A worker function of its own, a pending step and a closed environment are level E3, each with its reason."""
    envs = AsyncVectorEnv(makers("CartPole-v1", 1), worker=own_worker)
    try:
        level, reason = environment_level(envs)
        assert level is Level.E3
        assert "worker function of its own" in reason
        restored = restore_environment(envs, capture_environment(envs), reset_seed=4)
        assert exact(restored.observation) == exact(envs.reset(seed=4)[0])
    finally:
        envs.close()
    envs = AsyncVectorEnv(makers("CartPole-v1", 1))
    try:
        envs.reset(seed=1)
        whole = capture_environment(envs)
        envs.step_async(np.array([0]))
        assert "pending step" in environment_level(envs)[1]
        with pytest.raises(InvalidInputError, match="pending step"):
            restore_environment(envs, whole, reset_seed=0)
        envs.step_wait()
    finally:
        envs.close()
    assert "is closed" in environment_level(envs)[1]


def test_a_loop_that_is_not_known_is_not_guessed_at() -> None:
    """A worker's loop without the variables that are looked for gives no state."""
    assert serve("capture", None) is None


@pytest.mark.process
def test_unknown_environments_in_workers_are_reset() -> None:
    """The reason says which sub-environment, and a restore resets all with seeds that follow each other."""
    original, target = (AsyncVectorEnv([Counting, Counting]) for _ in range(2))
    try:
        original.reset(seed=1)
        tree = travelled(capture_environment(original))
        assert level_of(tree)[1].startswith("sub-environment 0: Counting is not an environment")
        restored = restore_environment(target, tree, reset_seed=6)
        assert restored.restored == "reset"
        assert exact(restored.observation) == exact(original.reset(seed=6)[0])
    finally:
        original.close()
        target.close()


@pytest.mark.process
def test_a_worker_that_does_not_answer_is_named() -> None:
    """No wait for a worker is without end: a frozen one is named, and so is a dead one."""
    envs = AsyncVectorEnv(makers("CartPole-v1", 2))
    frozen = envs.processes[1]
    try:
        os.kill(frozen.pid, signal.SIGSTOP)
        with pytest.raises(DeadlineError, match="worker 1 did not answer") as caught:
            Workers(answer_seconds=0.2).capture(envs)
        assert caught.value.holder == "worker 1"
        assert "pending call" in environment_level(envs)[1]
        os.kill(frozen.pid, signal.SIGKILL)
        frozen.join(10)
        envs._state = type(envs._state).DEFAULT
        with pytest.raises(DeadlineError, match="worker 1 is dead"):
            capture_environment(envs)
    finally:
        envs._state = type(envs._state).DEFAULT
        envs.close(terminate=True)


@pytest.mark.process
def test_misfits_in_workers_are_found_before_anything_is_changed() -> None:
    """A sub-environment that differs is reported by the worker it lives in, and every worker goes on."""
    original = AsyncVectorEnv(makers("Pendulum-v1"))
    target = AsyncVectorEnv([lambda: make_one("Pendulum-v1"), lambda: make_one("Pendulum-v1")])
    try:
        original.reset(seed=1)
        target.reset(seed=2)
        before = exact(capture_environment(target))
        with pytest.raises(IncompatibleError, match=r"envs\[1\]") as caught:
            restore_environment(target, capture_environment(original), reset_seed=0, component="envs")
        assert (caught.value.expected, caught.value.actual) == ("33", "30")
        assert exact(capture_environment(target)) == before
    finally:
        original.close()
        target.close()


@pytest.mark.process
def test_answers_of_a_step_that_failed_half_way_are_not_taken_for_a_capture() -> None:
    """A step with too few actions leaves answers in the pipes: nothing is captured then, and it is said why."""
    envs = AsyncVectorEnv(makers("CartPole-v1"))
    try:
        envs.reset(seed=1)
        with pytest.raises(ValueError, match="shorter"):
            envs.step(np.zeros(1, np.int64))
        wait_until(lambda: any(pipe.poll() for pipe in envs.parent_pipes), 20)
        level, reason = environment_level(envs)
        assert (level, reason) == (Level.E3, "AsyncVectorEnv has answers that nobody has read")
    finally:
        envs.close(terminate=True)
