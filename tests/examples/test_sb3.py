"""The example of Stable-Baselines3: the same command again, and a larger total."""

import importlib.util
import sys
from pathlib import Path

import pytest

pytest.importorskip("stable_baselines3")

EXAMPLE = Path(__file__).parents[2] / "examples" / "sb3.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("sb3_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.filterwarnings("ignore::perdure.SaveBudgetWarning")  # a training this small, on a busy machine
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_the_same_command_goes_on(algorithm, example, tmp_path):
    """A finished run trains no further; with a larger total it goes on, and its evaluations have no gap."""

    def train(steps):
        settings = example.Settings(
            algorithm=algorithm, envs=2, steps=steps, save_steps=512, eval_steps=512, store=str(tmp_path)
        )
        return example.train(settings)

    model, evaluation = train(1_024)
    again, evaluated = train(1_024)
    longer, last = train(2_048)

    assert (1_024, 1_024, 2_048) == (model.num_timesteps, again.num_timesteps, longer.num_timesteps)
    assert evaluation.evaluations_timesteps == evaluated.evaluations_timesteps == [512, 1_024]
    assert [512, 1_024, 1_536, 2_048] == last.evaluations_timesteps
    assert evaluation.evaluations_results == last.evaluations_results[:2]
