"""
Golden runs: small runs as each schema version wrote them, and what a restore of them has to give.

    python -m tests.compat.golden

adds the run of the current version beside the older ones, once. What is there is never written again.
"""

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import torch

import perdure
from perdure import RingBuffer
from perdure.core.manifest import SCHEMA_VERSION
from perdure.store.keyfile import KEY_FILE_VARIABLE
from perdure.surroundings import Surroundings

HERE = Path(__file__).parent
KEY_FILE = HERE / "golden.key"
"""Not a secret: it signs golden runs and nothing else."""
CAPACITY = 8


class Program:
    """A training of every common kind of state, small and without any chance in it."""

    def __init__(self, seed):
        torch.manual_seed(seed)
        self.policy = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=2, gamma=0.5)
        self.generator = np.random.default_rng(seed)
        self.replay = RingBuffer(CAPACITY, {"observation": (np.float32, (3,)), "reward": (np.float64, ())}, rng=seed)
        self.notes = {"best": float("-inf"), "seen": {1: (2, 3)}, "words": ["a", b"b", None, 2**70]}

    def track(self, run):
        """Hand everything to a run."""
        run.track(
            policy=self.policy,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            generator=self.generator,
            replay=self.replay,
            notes=self.notes,
        )
        return run.counters(global_step=0, episodes=0)

    def train(self, step):
        """Change everything."""
        observation = self.generator.normal(size=3).astype("float32")
        self.replay.add(observation=observation, reward=float(step))
        loss = self.policy(torch.as_tensor(observation)).square().sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.notes["best"] = max(self.notes["best"], float(step))

    def state(self, counters):
        """Everything as JSON, numbers exactly."""
        return {
            "policy": [value.tolist() for value in self.policy.state_dict().values()],
            "moments": [value["exp_avg"].tolist() for value in self.optimizer.state_dict()["state"].values()],
            "rate": self.scheduler.get_last_lr(),
            "draw": self.generator.random(3).tolist(),
            "replay": {name: np.asarray(column).tolist() for name, column in sorted(self.replay.columns.items())},
            "held": len(self.replay),
            "notes": repr(self.notes),
            "counters": [counters.global_step, counters.episodes],
        }


def generate(directory):
    """Make a golden run, the same signed, and the file that says what both hold."""
    for name, keys in (("golden", ""), ("signed", str(KEY_FILE))):
        os.environ[KEY_FILE_VARIABLE] = keys
        program = Program(1)
        with perdure.open(directory, run=name, save=None, keep=None, quiet=True) as run:
            counters = program.track(run)
            for step in run.loop(0, 11):
                program.train(step)
                counters.global_step = step + 1
                counters.episodes = step // 3
                if step == 3:
                    run.save()
        for left in ("events.jsonl", "control.db"):
            (directory / name / left).unlink(missing_ok=True)
        shutil.rmtree(directory / name / "leases")
    (directory / "expected.json").write_text(json.dumps(program.state(counters), indent=1) + "\n")


def nowhere(_surroundings):
    """The machine on which a golden run was made is nobody's business."""
    return {"name": "golden"}


if __name__ == "__main__":
    target = HERE / f"v{SCHEMA_VERSION}"
    if target.exists():
        sys.exit(f"{target} is there already, and golden runs are never written again")
    Surroundings.host = nowhere
    generate(target)
