"""The set-up of the tests brings the frameworks that promises are made of."""

import os
import sys
from importlib.util import find_spec

import pytest

FRAMEWORKS = ["accelerate", "lightning_fabric", "pettingzoo", "sb3_contrib", "stable_baselines3", "torchrl"]
if sys.version_info >= (3, 11):
    FRAMEWORKS.append("tianshou")


@pytest.mark.parametrize("package", FRAMEWORKS)
def test_frameworks_are_installed(package):
    """Under CI a framework that is missing is a failure; elsewhere it is said."""
    if find_spec(package) is None and os.environ.get("CI") != "true":
        pytest.skip(f"{package} is not installed, so nothing of it is proven here")
    assert find_spec(package) is not None
