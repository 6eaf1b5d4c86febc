"""A program that lacks what a checkpoint was made with is told so; the checkpoint is whole, and stays where it is."""

import subprocess
import sys

import numpy as np
import pytest

import perdure
from perdure.errors import IncompatibleError, MissingDependencyError

BEGIN = """
import sys
import numpy as np
import torch
import perdure
torch.manual_seed(7)
with perdure.open(sys.argv[1], run="run", save=None, quiet=True) as run:
    run.track(weights=np.arange(3.0))
    run.restore()
    run.save().wait()
print(torch.rand(1).item())
"""
GO_ON = """
import sys
import numpy as np
import perdure
weights = np.zeros(3)
with perdure.open(sys.argv[1], run="run", save=None, quiet=True) as run:
    run.track(weights=weights)
    assert "torch" not in sys.modules
    run.restore()
assert weights.tolist() == [0, 1, 2]
import torch
print(torch.rand(1).item())
"""


def python(script, *arguments):
    """What a program prints."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def saved(directory, **tracked):
    with perdure.open(directory, run="run", save=None, quiet=True) as run:
        run.track(tracked)
        run.restore()
        run.save().wait()
    return sorted(path.name for path in (directory / "run" / "snapshots").iterdir())


def open_run(directory, **tracked):
    run = perdure.open(directory, run="run", save=None, quiet=True)
    run.track(tracked)
    return run


@pytest.mark.process
def test_a_library_that_is_not_imported_yet_is_imported(tmp_path):
    """A program that had torch loaded goes on in one that has not: its generator's stream is the same."""
    assert python(BEGIN, tmp_path) == python(GO_ON, tmp_path)


def test_a_library_that_is_not_installed_is_named(tmp_path, monkeypatch):
    """Without torch its arrays cannot be made: that is said, with what to install, and nothing goes to quarantine."""
    torch = pytest.importorskip("torch")
    before = saved(tmp_path, weights={"w": torch.arange(3.0)})
    monkeypatch.setitem(sys.modules, "torch", None)
    run = open_run(tmp_path, weights={"w": np.zeros(3)})
    with run, pytest.raises(MissingDependencyError, match="cannot restore arrays of torch") as caught:
        run.restore()
    assert (caught.value.kind, caught.value.extra) == ("dependency.missing", "torch")
    assert sorted(path.name for path in (tmp_path / "run" / "snapshots").iterdir()) == before


def test_wide_types_of_jax_are_refused_and_not_narrowed(tmp_path):
    """A float64 array of JAX is not restored as float32: the error names the switch, and the checkpoint stays."""
    jax = pytest.importorskip("jax")
    from perdure.jax import Pytree

    with jax.enable_x64(True):
        before = saved(tmp_path, state=Pytree({"w": jax.numpy.arange(3.0)}))
    run = open_run(tmp_path, state=Pytree({"w": jax.numpy.zeros(3)}))
    with run, pytest.raises(IncompatibleError, match="cannot restore a JAX array of type float64") as caught:
        run.restore()
    assert caught.value.kind == "array.wide-types"
    assert "jax_enable_x64" in caught.value.hint
    assert sorted(path.name for path in (tmp_path / "run" / "snapshots").iterdir()) == before
