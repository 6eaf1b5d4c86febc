"""How much is tried: ``quick`` in a working session, ``ci`` in every build, ``soak`` by hand (PERDURE_TEST_PROFILE)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NoReturn

import pytest


@dataclass(frozen=True, slots=True)
class Profile:
    """Numbers of cases, by tier."""

    name: str
    machine_examples: int
    """Sequences of acts that the state machine tries."""
    fuzz_examples: int
    """Hostile inputs of each kind."""
    cuts: int
    """Power cuts on each file system."""
    kills: int
    """Kills of a process that uses the store, and as many of one that uses a whole run."""
    stride: int
    """Every how many kill points of a family a power cut is tried."""


PROFILES = {
    "quick": Profile("quick", machine_examples=40, fuzz_examples=200, cuts=300, kills=250, stride=4),
    "ci": Profile("ci", machine_examples=150, fuzz_examples=2_000, cuts=1_000, kills=1_000, stride=1),
    "soak": Profile(
        "soak",
        machine_examples=4_000,
        fuzz_examples=100_000,
        cuts=25_000,
        kills=20_000,
        stride=1,
    ),
}


def current_profile() -> Profile:
    """The profile asked for, or that of the place."""
    default = "ci" if is_ci() else "quick"
    return PROFILES[os.environ.get("PERDURE_TEST_PROFILE", default)]


def is_ci() -> bool:
    """Whether nothing may be skipped."""
    return os.environ.get("CI", "").lower() in ("1", "true", "yes")


def skip_or_fail(reason: str) -> NoReturn:
    """Skip a test that cannot run here, loudly; where everything must be there, fail instead."""
    if is_ci():
        pytest.fail(f"{reason}, and under CI nothing may be skipped")
    pytest.skip(f"NOT PROVEN HERE: {reason}")
