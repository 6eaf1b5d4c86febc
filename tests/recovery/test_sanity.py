"""The sanity check: it finds what is wrong with restored objects, and nothing where nothing is wrong."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from perdure.capture.numbers import GlobalGenerators
from perdure.capture.probes import Probes, generator_versions, learning_rates, next_draws
from perdure.recovery.sanity import failures


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 2))


def check(module, *, batch=None, optimizer=None, recorded=None, notes=None):
    probes = Probes()
    probes.watch("net", module)
    module(torch.ones(3, 4) if batch is None else batch)
    optimizers = {"optimizer": optimizer} if optimizer else {}
    noted = [] if notes is None else notes
    found = failures({"net": module}, optimizers, probes.examples, recorded or {}, noted.append)
    assert notes is not None or noted == []
    return found


def test_a_healthy_network_passes():
    """A network that works passes, and its random streams are where they were."""
    module = net()
    state = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)["state"]["pos"]
    optimizer = torch.optim.Adam(module.parameters())
    torch.manual_seed(3)
    before = torch.get_rng_state()
    module.eval()

    assert [] == check(
        module, optimizer=optimizer, recorded={"learning_rates": learning_rates({"optimizer": optimizer})}
    )
    assert torch.equal(before, torch.get_rng_state())
    assert state[1] == random.getstate()


@pytest.mark.parametrize("batch", [torch.ones(4), torch.ones(1, 4), torch.ones(200, 4)], ids=["vector", "one", "many"])
def test_examples_are_kept_whole(batch):
    """Inputs with and without a batch dimension are tried as they came."""
    assert [] == check(net(), batch=batch)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float8_e5m2, torch.float8_e4m3fn]
)
def test_values_of_every_type_are_judged(dtype: torch.dtype):
    """Finite values are, however small the type and large their sum; one that is not is found among them."""
    module = nn.Identity()
    module.scale = nn.Parameter(torch.full((64,), 2e37 if dtype.itemsize > 1 else 256.0).to(dtype))
    assert check(module) == []
    module.scale.data[5] = float("nan")
    assert check(module) == ["net has values that are not finite in scale"]


def test_values_that_are_not_finite_are_found():
    """A parameter that is not finite is named."""
    module = net()
    with torch.no_grad():
        module[3].bias[1] = float("inf")

    assert ["net has values that are not finite in 3.bias"] == check(module)


def test_outputs_that_overflow_are_found():
    """Finite parameters whose output is not finite are found by running forward."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(3e38)

    assert "not finite on an input" in check(module)[0]


def test_a_step_that_explodes_is_found():
    """A learning rate by which one step moves the parameters beyond their own size is found."""
    module = net()
    optimizer = torch.optim.SGD(module.parameters(), lr=1e9)

    assert any("times its size" in failure for failure in check(module, optimizer=optimizer))


def test_a_large_but_healthy_value_network_passes():
    """A value network that rightly gives large values is not taken for one that diverges."""
    module = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1))
    with torch.no_grad():
        module[2].bias.fill_(500.0)

    assert [] == check(module, optimizer=torch.optim.Adam(module.parameters(), lr=1e-3))


def test_another_learning_rate_is_found():
    """A learning rate that is not the recorded one is found, with both."""
    module = net()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.5)

    assert ["learning rate of optimizer is [0.5], [0.1] was recorded"] == check(
        module, optimizer=optimizer, recorded={"learning_rates": {"optimizer": [0.1]}}
    )


@pytest.mark.parametrize("name", ["python", "numpy", "torch"])
def test_another_next_draw_is_found(name):
    """A generator whose next draw is not the recorded one is found."""
    module = net().eval()
    recorded = next_draws(GlobalGenerators().capture())
    {"python": random.random, "numpy": np.random.random, "torch": lambda: torch.rand(())}[name]()

    assert [f"the next draw of the {name} generator"] == [
        failure[: failure.index(" is ")] for failure in check(module, recorded={"next_draws": recorded})
    ]


def test_the_next_draw_is_the_one_that_comes():
    """What is recorded as the next draw is what the generators then give."""
    expected = next_draws(GlobalGenerators().capture())

    assert expected == {
        "python": random.random(),
        "numpy": float(np.random.random_sample()),
        "torch": float(torch.rand((), dtype=torch.float64)),
    }


def test_draws_of_another_version_are_not_compared():
    """A library may make other numbers of the same state in another version; that is no damage."""
    module = net().eval()
    recorded = {"next_draws": next_draws(GlobalGenerators().capture()) | {"numpy": 2.0}}
    assert len(check(module, recorded={**recorded, "drawn_with": generator_versions()})) == 1
    assert [] == check(module, recorded={**recorded, "drawn_with": {**generator_versions(), "numpy": "1.0"}})


def test_infinities_of_masks_are_nothing_wrong():
    """Buffers and frozen parameters that hold infinities, and outputs of masked actions, are what a program meant."""

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 3)
            self.register_buffer("causal", torch.full((3, 3), float("-inf")).triu(1))
            self.bound = nn.Parameter(torch.tensor([float("inf")]), requires_grad=False)

        def forward(self, x):
            return self.inner(x) + self.causal[0]

    module = Masked()
    assert not torch.isfinite(module(torch.ones(3, 4))).all()
    assert [] == check(module, optimizer=torch.optim.Adam(module.parameters()))


@pytest.mark.parametrize("gain", [1e-6, 1.0])
def test_large_inputs_and_tiny_heads_pass(gain):
    """Observations in the tens of thousands and a last layer near zero are not taken for an explosion under Adam."""
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    with torch.no_grad():
        module[2].weight.mul_(gain)
        module[2].bias.zero_()
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    assert [] == check(module, batch=torch.full((3, 4), 3e4), optimizer=optimizer)
    assert [] == check(module[2], batch=torch.full((3, 8), 3e4), optimizer=optimizer)


def test_a_module_that_cannot_be_tried_out_is_a_note():
    """What fails on its own input or cannot be copied is the business of the program: that is said, not judged."""
    probes = Probes()
    module = net()
    probes.watch("net", module)
    module(torch.ones(3, 4))
    notes = []
    changed = nn.Sequential(nn.Flatten(0), nn.Linear(4, 2))
    assert [] == failures({"net": changed}, {}, {"net:": probes.examples["net:"]}, {}, notes.append)
    assert "net: could not be tried out: RuntimeError" in notes[0]

    class Remembers(nn.Linear):
        def forward(self, x):
            self.last = super().forward(x)
            return self.last

    notes = []
    assert [] == check(Remembers(4, 2), notes=notes)
    assert "could not be tried out" in notes[0]


def test_a_step_that_cannot_be_taken_is_a_note():
    """A gradient that cannot be had, such as that of a recurrent net of cuDNN in eval mode, stops no restore."""

    class OneWay(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x * 2

        @staticmethod
        def backward(*_):
            raise RuntimeError("backward can only be called in training mode")

    class Recurrent(nn.Linear):
        def forward(self, x):
            return OneWay.apply(super().forward(x))

    notes = []
    assert [] == check(Recurrent(4, 2), notes=notes)
    assert ["net: could not be tried out: RuntimeError: backward can only be called in training mode"] == notes


def test_what_is_called_with_keywords_is_left_alone():
    """A part that needs more than its one input is not tried with less."""

    class Recurrent(nn.Linear):
        def forward(self, x, *, hidden):
            return super().forward(x) + hidden

    probes = Probes()
    module = Recurrent(4, 2)
    probes.watch("net", module)
    module(torch.ones(3, 4), hidden=torch.ones(2))
    assert {} == probes.examples


def test_large_inputs_are_left_alone():
    """Inputs that are too large to keep are not kept, and the hook goes away by itself."""
    probes = Probes()
    module = nn.Identity()
    probes.watch("net", module)
    for _ in range(100):
        module(torch.zeros(600, 600))

    assert {} == probes.examples
    assert not module._forward_pre_hooks
