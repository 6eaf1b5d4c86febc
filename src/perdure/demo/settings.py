"""What the demo consists of: sizes, times and the faults, as values that its processes read from one file."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from perdure.core.leases import Timing
from perdure.demo.ppo import Hyperparameters

FULL_SECONDS = 120.0
"""About how long both runs of the full demo take together, on two cores."""
FULL_UPDATES = 400
QUICK_UPDATES = 40
_FEWEST_UPDATES = 40
_RETURN_TO_REACH = 400.0


@dataclass(frozen=True, slots=True)
class Settings:
    """One run of the demo."""

    seed: int = 0
    updates: int = FULL_UPDATES
    """Updates of the learner after which the run is over, unless something has still to go wrong or to be recovered: a
    machine that is fast at training and slow at starting processes goes on until the last process is back."""
    target_return: float | None = _RETURN_TO_REACH
    """Mean return that the last evaluation must reach; None for none."""
    actors: int = 4
    environments: int = 8
    """Environments of each actor."""
    rollout_steps: int = 32
    """Steps in each of them for one sample."""
    most_ahead: int = 2
    """Samples that an actor may be ahead of the weights: one that the learner works on, and one that is on its way."""
    max_staleness: int = 4
    """Updates by which the policy behind a sample may be behind. PPO wants few. Actors that are two samples ahead of a
    learner that takes all there is are one or two behind; more than four means that something was away."""
    evaluate_every_updates: int = 20
    evaluation_episodes: int = 20
    save_every_updates: int = 10
    """Updates between two checkpoints."""
    keep: int = 4
    """Checkpoints that are kept."""
    beat_seconds: float = 0.5
    """Time between two signs of life; 5 s by default outside of the demo."""
    lease_seconds: float = 3.0
    """Silence after which a member is lost; 30 s by default outside of the demo."""
    limit_seconds: float = 600.0
    """Time after which a run that has not ended is stopped and has failed."""
    hyperparameters: Hyperparameters = field(default_factory=Hyperparameters)

    @property
    def enough_samples(self) -> int:
        """Samples that make a batch: one of every actor but one, so that an actor that is away holds up nobody."""
        return max(1, self.actors - 1)

    @property
    def save_every_steps(self) -> int:
        """Environment steps between two checkpoints."""
        return self.save_every_updates * self.actors * self.environments * self.rollout_steps

    @property
    def timing(self) -> Timing:
        """Timing of the leases."""
        return Timing(beat_seconds=self.beat_seconds, lease_seconds=self.lease_seconds)


def plan(*, seed: int, quick: bool, seconds: float | None) -> Settings:
    """
    Return the settings that a user's options ask for.

    Args:
        seed: Of everything random.
        quick: Show the mechanisms, do not wait until the policy is good.
        seconds: About how long both runs may take; only the number of updates follows from it, which is what ends them.
    """
    settings = Settings(seed=seed)
    if quick:
        settings = replace(
            settings,
            updates=QUICK_UPDATES,
            target_return=None,
            save_every_updates=5,
            beat_seconds=0.25,
            lease_seconds=2.0,
            evaluation_episodes=4,
        )
    if seconds is not None:
        settings = replace(settings, updates=max(_FEWEST_UPDATES, round(FULL_UPDATES * seconds / FULL_SECONDS)))
    return settings


def write_settings(settings: Settings, path: Path) -> None:
    """Write settings for the processes of a run to read."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(settings), indent=2) + b"\n")


def read_settings(path: Path) -> Settings:
    """Read what `write_settings` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=Settings)
