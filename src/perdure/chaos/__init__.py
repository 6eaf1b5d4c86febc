"""
Faults as values, planned as values, and done to real processes and real files.

A `Fault` says what goes wrong. A `Schedule` says when, in terms of what the run does and not of the clock, so that a
slow machine sees the same story as a fast one. An `Injector` does it.
"""

from perdure.chaos.faults import DeleteNewestCheckpoint, Fault, Freeze, Kill, Thaw
from perdure.chaos.injector import Injection, Injector
from perdure.chaos.schedule import Died, Lost, Moment, Planned, Reached, Schedule

__all__ = [
    "DeleteNewestCheckpoint",
    "Died",
    "Fault",
    "Freeze",
    "Injection",
    "Injector",
    "Kill",
    "Lost",
    "Moment",
    "Planned",
    "Reached",
    "Schedule",
    "Thaw",
]
