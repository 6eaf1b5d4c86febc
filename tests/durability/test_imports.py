"""No way for data to become code: what perdure's own modules may not import or call."""

from __future__ import annotations

from pathlib import Path

import pytest

import perdure
from tests.durability.imports import dangers_below, find_dangers

ALLOWED = {
    "capture/pickles.py": "pickles that are asked for by name, at save and at load",
    "capture/environments/copies.py": "a copy of an environment, from this process to one that it has just started",
}
"""Reason, by module."""


def test_no_module_can_turn_data_into_code():
    """No module of perdure imports pickle or the like, evaluates strings or goes through a shell."""
    found = dangers_below(Path(perdure.__file__).parent)
    assert [danger for danger in found if danger.partition(":")[0] not in ALLOWED] == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from marshal import loads",
        "def f():\n    import dill as d",
        "eval('1')",
        "exec(text)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "socket.recv_pyobj()",
        "subprocess.run('ls', shell=True)",
        "os.system('ls')",
        "np.load(path, allow_pickle=True)",
    ],
)
def test_the_lint_finds(source):
    """Each forbidden form is found."""
    assert list(find_dangers(source))


@pytest.mark.parametrize(
    "source", ["import json", "model.eval()", "re.compile('x')", "torch.load(p, weights_only=True)"]
)
def test_the_lint_spares(source):
    """What only looks like a forbidden form is not found."""
    assert not list(find_dangers(source))
