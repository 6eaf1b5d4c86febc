"""Small trainings of Stable-Baselines3 and sb3-contrib, crashes in them, and digests of all that they end with."""

import hashlib

import torch
from matrix.rows._sb3 import state_of
from matrix.rows.sb3 import MAKERS, bits, epochs, of, replay, rollout
from matrix.states import flatten
from stable_baselines3.common.callbacks import BaseCallback

import perdure
import perdure.sb3

__all__ = [
    "CASES",
    "TOTAL",
    "bits",
    "cartpole",
    "crash",
    "digest",
    "epochs",
    "learn",
    "of",
    "opened",
    "replay",
    "rollout",
]
__all__ += ["state"]

torch.set_num_threads(1)

TOTAL = 1_300
_ROWS = {
    "PPO": "PPO / CartPole-v1",
    "PPO-gSDE": "PPO, gSDE / Pendulum-v1",
    "PPO-VecNormalize": "PPO / Pendulum-v1, VecFrameStack, VecNormalize",
    "DQN": "DQN / CartPole-v1",
    "DQN-HER": "DQN, HER / BitFlipping",
    "SAC": "SAC / Pendulum-v1",
    "SAC-gSDE": "SAC, gSDE / Pendulum-v1, VecNormalize",
    "TD3": "TD3 / Pendulum-v1",
    "RecurrentPPO": "RecurrentPPO / CartPole-v1",
    "ARS": "ARS / Pendulum-v1",
}
CASES = {short: lambda seed, make=MAKERS[row]: make(seed, None) for short, row in _ROWS.items()}
"""Models that have learned nothing, by a short name."""


def cartpole(seed, envs=2):
    return of("CartPole-v1")(seed, envs)


class CrashError(Exception):
    """A program that ends without a warning."""


class CrashAt(BaseCallback):
    """Ends the program at a step, in the middle of a rollout."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def _on_step(self):
        if self.num_timesteps >= self.step:
            raise CrashError
        return True


def opened(where, **options):
    return perdure.open(
        where, **{"run": "t", "save": perdure.Every(steps=90), "budget": None, "quiet": True, **options}
    )


def learn(model, where, *, total=TOTAL, others=(), **options):
    """Train under perdure with other callbacks around; returns the report of the restore."""
    with opened(where, **options) as run:
        model.learn(total, callback=[perdure.sb3.Checkpointing(run), *others], log_interval=None)
        return run.report


def crash(model, where, at, *, total=TOTAL, others=(), **options):
    """Train under perdure until the program ends at a step."""
    try:
        learn(model, where, total=total, others=[*others, CrashAt(at)], **options)
    except CrashError:
        return
    raise AssertionError("the training came to its end")


def state(model):
    """Digests of all that a training consists of, by group."""
    return {group: digest(part) for group, part in state_of(model).items()}


def digest(tree):
    """Digest of nested plain values, arrays and tensors, bit for bit."""
    total = hashlib.sha256()
    for path, array in flatten(tree).items():
        total.update(f"{path} {array.dtype} {array.shape}".encode() + array.tobytes())
    return total.hexdigest()
