"""A small training that tests run, stop, damage and resume."""

import numpy as np
import torch
from torch import nn

import perdure


class Training:
    """A network, its optimizer and a generator; one step draws data and learns from it."""

    def __init__(self, *, hidden=8, seed=0, rate=1e-2):
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(3, hidden), nn.BatchNorm1d(hidden), nn.Tanh(), nn.Linear(hidden, 1))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=rate)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 5, 0.5)
        self.rng = np.random.default_rng(seed)
        self.history = []

    def track(self, run):
        run.track(
            net=self.net, optimizer=self.optimizer, scheduler=self.scheduler, rng_data=self.rng, history=self.history
        )

    def step(self):
        x = torch.tensor(self.rng.normal(size=(16, 3)), dtype=torch.float32) + torch.randn(16, 3)
        loss = (self.net(x) - x.sum(1, keepdim=True)).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.history.append(loss.item())

    def run(self, where, *, until, stop_at=None, on_step=None, **options):
        """Train to ``until`` under perdure; leave without warning at ``stop_at``, as a killed process would."""
        options = {"save": perdure.Every(steps=1), "budget": None, "quiet": True, "run": "t", **options}
        run = perdure.open(where, **options)
        try:
            self.track(run)
            count = run.counters(global_step=0)
            for i in run.loop(0, until):
                if i == stop_at:
                    break
                self.step()
                count.global_step += 1
                run._saver.drain(30)  # so that no save is skipped because the disk is busy
                if on_step is not None:
                    on_step(run, i)
            return run
        finally:
            run.close()

    def state(self):
        """Everything that a resume must bring back, comparable with ``==``."""
        flat = {
            **self.net.state_dict(),
            **{f"{k}.{n}": v for k, s in self.optimizer.state_dict()["state"].items() for n, v in s.items()},
        }
        return (
            {name: value.numpy().tobytes() for name, value in flat.items()},
            self.scheduler.state_dict()["last_epoch"],
            self.rng.bit_generator.state,
            list(self.history),
        )
