"""What all tests share."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")


def pytest_configure(config):
    """
    Put the tests' directories on a memory file system where there is one.

    Thousands of tests sync thousands of files, and what they prove is what is asked of the file system, not how fast a
    disk is. The tests that need a real disk make one, cut it from power and throw it away.
    """
    if config.option.basetemp is None and os.access(MEMORY, os.W_OK) and not os.environ.get("PERDURE_TEST_ON_DISK"):
        config.option.basetemp = tempfile.mkdtemp(prefix="perdure-tests-", dir=MEMORY)
        config.add_cleanup(lambda: shutil.rmtree(config.option.basetemp, ignore_errors=True))


@pytest.fixture(autouse=True)
def no_surroundings(monkeypatch):
    """Tests see no PERDURE_* settings of whoever runs them, but for how hard to test, and try no environment out."""
    for name in list(os.environ):
        if name.startswith("PERDURE_") and not name.startswith("PERDURE_TEST_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PERDURE_PROBE", "never")


@pytest.fixture
def trials(monkeypatch, tmp_path):
    """A machine on which no environment has been tried out, and trials are waited for; gives its cache."""
    monkeypatch.setenv("PERDURE_PROBE", "120")
    monkeypatch.setenv("PERDURE_CACHE", str(tmp_path / "cache"))
    from perdure.capture.environments import certificates, proofs

    monkeypatch.setattr(certificates.CERTIFICATES, "_found", {})
    proofs.PROOFS._attempts.clear()
    yield tmp_path / "cache"
    proofs.PROOFS._attempts.clear()
