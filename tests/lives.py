"""
Lives of a training, each in a process of its own that has imported the framework already.

Frameworks take seconds to import. A server process does it once, and every life is forked from it: it begins with no
state of any other, and nothing but the run's directory joins it to the one before.
"""

import hashlib
import itertools
import multiprocessing
import os
import random
import signal
from collections import deque

import numpy as np
import torch

LIFE_SECONDS = 240


def digest(value):
    """Digest of arrays, tensors and plain values, bit for bit; alike only if all of it is alike."""
    total = hashlib.sha256()
    _feed(total, value)
    return total.hexdigest()[:16]


def _feed(total, value):
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu().contiguous()
        _feed(total, (plain.view(torch.uint8) if plain.dtype is torch.bfloat16 else plain).numpy())
    elif isinstance(value, np.ndarray):
        total.update(str((value.dtype, value.shape)).encode() + np.ascontiguousarray(value).tobytes())
    elif isinstance(value, dict):
        for key in value:
            total.update(repr(key).encode())
            _feed(total, value[key])
    elif isinstance(value, list | tuple | deque):
        for item in value:
            _feed(total, item)
    else:
        total.update(repr(value).encode())


def streams():
    """The process-wide random streams."""
    return {"random": random.getstate(), "numpy": np.random.get_state(legacy=False), "torch": torch.get_rng_state()}


def seed_all(seed):
    """Begin all process-wide random streams."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _die():
    """End this process as the kernel would: nothing is flushed, closed or said."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_step(env_class, step):
    """Kill this process when environments of a class are stepped for the so manieth time; 0 is never."""
    original, steps = env_class.step, itertools.count(1)

    def counted(self, *arguments, **named):
        if next(steps) == step:
            _die()
        return original(self, *arguments, **named)

    env_class.step = counted


class Lives:
    """
    Starts lives of one training.

    Args:
        train: A function of a module; its result must be plain data.
        preload: Modules that the server imports.
    """

    def __init__(self, train, preload):
        self._train = train
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([*preload, train.__module__])

    def compare(self, store, life_steps, *, kills=1, **settings):
        """
        Live once unhurt, and once with kills at random steps.

        Args:
            store: Where the runs go.
            life_steps: Steps of the environment in a whole life.
            kills: How often.
            settings: For the training.

        Returns:
            What the two ended with.
        """
        unhurt = self.finish(store=store / "unhurt", **settings)
        for life in range(kills):
            die_at = random.SystemRandom().randrange(life_steps // 2, 9 * life_steps // 10)
            print(f"life {life} ends at step {die_at} of its own")
            self.kill(store=store / "hurt", die_at=die_at // kills, **settings)
        return unhurt, self.finish(store=store / "hurt", **settings)

    def finish(self, **settings):
        """Live to the end and return what the training ended with."""
        result, code = self._live(settings)
        assert code == 0, f"ended with {code}"
        return result

    def kill(self, **settings):
        """Live until the training kills its own process."""
        _, code = self._live(settings)
        assert code == -signal.SIGKILL, f"ended with {code}"

    def _live(self, settings):
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_tell, args=(theirs, self._train, settings))
        process.start()
        theirs.close()
        try:
            result = ours.recv() if ours.poll(LIFE_SECONDS) else None
        except EOFError:
            result = None
        process.join(LIFE_SECONDS)
        if process.exitcode is None:
            process.kill()
            process.join(LIFE_SECONDS)
        return result, process.exitcode


def _tell(pipe, train, settings):
    torch.set_num_threads(1)
    # A new process has other streams than the one before; only a restore may make up for that.
    seed_all(os.getpid())
    pipe.send(train(**settings))
