"""Who a process is and what time it is, as far as leases care."""

from __future__ import annotations

import os
import secrets
import time
from functools import cache
from pathlib import Path

from perdure.core.leases import Incarnation

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_clock() -> float:
    """
    Seconds since the machine booted, including those that it slept.

    CLOCK_MONOTONIC stands still while a machine is suspended, so a holder that reads it wakes up believing in a lease
    that ended long ago.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@cache
def boot_id() -> str:
    """The kernel's name for the time since the last boot, 32 hexadecimal digits."""
    return _BOOT_ID.read_text(encoding="ascii").strip().replace("-", "")


def new_incarnation() -> Incarnation:
    """Name a life that begins now in this process."""
    born = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return Incarnation(boot_id(), os.getpid(), born, secrets.token_hex(4))
