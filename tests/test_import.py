"""What importing perdure costs, and what its surface is."""

import subprocess
import sys

import pytest

import perdure

HEAVY = ("torch", "gymnasium", "ray", "jax", "matplotlib", "zmq", "psutil", "stable_baselines3", "rich", "starlette")


@pytest.mark.process
@pytest.mark.parametrize("module", ["perdure", "perdure.replay", "perdure.inspection", "perdure.cli", "perdure.chaos"])
def test_importing_loads_no_framework(module):
    """Actors, command lines and scripts that do not use a framework do not pay for it."""
    script = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)

    assert "[]" == done.stdout.strip()


def test_the_surface_is_what_it_says():
    """Every public name exists and has a docstring, and there are few of them."""
    assert sorted(perdure.__all__) == perdure.__all__
    assert len(perdure.__all__) <= 30
    for name in perdure.__all__:
        assert getattr(perdure, name) is not None
        assert name.startswith("__") or getattr(perdure, name).__doc__, name
