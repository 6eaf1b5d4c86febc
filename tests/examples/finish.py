"""Runs an example to its end and prints digests of everything that it ended with, as one JSON line."""

import hashlib
import importlib.util
import json
import random
import sys
from pathlib import Path

import numpy as np
import torch


def digest(*values):
    """Digest of arrays, tensors and plain values, bit for bit."""
    total = hashlib.sha256()
    for value in values:
        if isinstance(value, torch.Tensor):
            value = value.detach().numpy()
        if isinstance(value, np.ndarray):
            total.update(str((value.dtype, value.shape)).encode() + np.ascontiguousarray(value).tobytes())
        elif isinstance(value, dict):
            total.update(digest(*(item for pair in value.items() for item in pair)).encode())
        elif isinstance(value, list | tuple):
            total.update(digest(*value).encode())
        else:
            total.update(repr(value).encode())
    return total.hexdigest()


def main(example, settings):
    spec = importlib.util.spec_from_file_location(Path(example).stem, example)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    model, optimizer, *rest = module.train(module.Settings(**settings))
    results = {
        "parameters": digest(model.state_dict()),
        "optimizer": digest(optimizer.state_dict()),
        "returns": digest(rest[-1]),
        "episodes": len(rest[-1]),
        "random": digest(random.getstate()),
        "numpy": digest(np.random.get_state(legacy=False)),
        "torch": digest(torch.get_rng_state()),
    }
    if len(rest) > 1:
        replay = rest[0]
        results["replay"] = digest(replay.columns, len(replay), replay.total_count, replay.rng.bit_generator.state)
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
