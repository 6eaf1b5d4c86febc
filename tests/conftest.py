"""What all tests share."""

import os

import pytest


@pytest.fixture(autouse=True)
def no_surroundings(monkeypatch):
    """Tests see no PERDURE_* settings of whoever runs them, but for the search profile."""
    for name in list(os.environ):
        if name.startswith("PERDURE_") and name != "PERDURE_TEST_PROFILE":
            monkeypatch.delenv(name)
