"""The short form of the matrix: a few of its rows, in processes of their own, killed and resumed."""

import pytest
from matrix.processes import Server
from matrix.row import load, module_names
from matrix.runner import Runner

FRAMEWORKS = {module: framework for module in module_names() if (framework := load(module)) is not None}
ROWS = [(module, row.name) for module, framework in FRAMEWORKS.items() for row in framework.rows if row.in_suite]


@pytest.fixture(scope="module")
def server():
    return Server(sorted({module for module, _ in ROWS}), deadline_seconds=240)


@pytest.mark.process
@pytest.mark.timeout(600)  # three lives, each of which may take as long as the server lets it
@pytest.mark.parametrize(("module", "name"), ROWS, ids=[f"{FRAMEWORKS[module].name} / {name}" for module, name in ROWS])
def test_a_killed_training_ends_bit_identical(module, name, server, tmp_path):
    """A training that gets SIGKILL and is started again ends, 1,000 steps later, where one without perdure ends."""
    framework = FRAMEWORKS[module]
    result = Runner(module, framework, server, tmp_path).run(framework.row(name), ["kill"], with_own=False)

    assert () == result.problems
    (outcome,) = result.outcomes
    assert (0, "exact", "") == (outcome.bits, outcome.grade, outcome.note)
    assert outcome.steps_after >= 1_000
