"""Which descriptors a test has left open."""

import os
from contextlib import suppress
from pathlib import Path


def open_beneath(directory: Path) -> int:
    """
    How many descriptors are open of a directory and what lies in it.

    Not those of the whole process: what earlier tests have left to the garbage collection comes and goes meanwhile.
    """
    count = 0
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208 - asked so often that a Path for each would cost
        with suppress(OSError):  # that of the listing itself is closed already
            target = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - no Path here, either
            count += target == str(directory) or target.startswith(f"{directory}/")
    return count
