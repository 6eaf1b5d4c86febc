"""Tests that need root and real file systems: skipped loudly where that cannot be had, a failure where it must be."""

import os
import subprocess
from contextlib import contextmanager

import pytest


def needs_root():
    """Skip, or fail under CI, unless file systems can be mounted."""
    if os.geteuid() == 0:
        return
    if os.environ.get("CI") == "true":
        pytest.fail("this test needs root, and under CI it must run")
    pytest.skip("NOT RUN: this test mounts a file system, which needs root")


@contextmanager
def memory_file_system(path, options):
    """A file system of its own at ``path``, such as one of a few megabytes."""
    needs_root()
    path.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "perdure-test", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)
