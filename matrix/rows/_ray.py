"""A Ray of one's own: on this machine alone, small, and gone afterwards."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray
from ray._private import ray_constants

_STORE_BYTES = 128 * 2**20
"""Ray would take a third of the memory for objects, and these trainings have small ones."""
_PREFIX = "perdure-ray-"
_SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}
"""Ray tells nobody that it runs, and listens on the loopback device only. Its processes inherit this."""


@contextmanager
def ray_running() -> Iterator[None]:
    """Have a Ray of one's own; what it leaves on the disk is removed, that of killed processes by the next one."""
    warnings.simplefilter("ignore")  # what Ray says of itself is not what is tried here
    logging.getLogger("ray").setLevel(logging.ERROR)
    os.environ.update(_SETTINGS)
    ray_constants.ENABLE_RAY_CLUSTER = False  # it has read the settings when it was imported
    _remove_what_was_left()
    folder = Path(tempfile.gettempdir(), f"{_PREFIX}{os.getpid()}")
    ray.init(
        "local",
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=_STORE_BYTES,
        _temp_dir=str(folder),
        _system_config={"prestart_worker_first_driver": False},
    )
    try:
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def _remove_what_was_left() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if not Path("/proc", folder.name.removeprefix(_PREFIX)).exists():
            shutil.rmtree(folder, ignore_errors=True)
