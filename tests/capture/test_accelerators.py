"""Copies from accelerators: ordered by events alone, and whole in the worst order that these allow."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

import perdure
from perdure.capture import copying
from perdure.errors import InvalidInputError
from perdure.files.reading import allocate
from tests.capture.accelerator import Accelerator, Stream, Torch

SIZE = 64 * 1024


@pytest.fixture(params=[False, True], ids=["copies-late", "copies-early"])
def device(request, monkeypatch):
    """A device, in each of its two worst orders."""
    present_devices(monkeypatch)
    return Accelerator(copies_first=request.param)


def present_devices(monkeypatch):
    for module in ("copying", "gate"):
        monkeypatch.setattr(f"perdure.capture.{module}.loaded_torch", Torch)
    monkeypatch.setattr("perdure.capture.arena.allocate_pinned", allocate)  # there is no device to pin memory for


class Program:
    """A network on a device, its statistics perhaps on another, with a moment for its weight; trained by kernels."""

    def __init__(self, device, tmp_path, copy, other=None):
        self.net = nn.Module()
        self.net.weight = nn.Parameter(device.tensor(torch.zeros(SIZE)))
        self.net.register_buffer("mean", (other or device).tensor(torch.zeros(SIZE)))
        self.optimizer = torch.optim.SGD([self.net.weight], lr=1.0)
        self.optimizer.state[self.net.weight] = {"moment": device.tensor(torch.zeros(SIZE))}
        self.run = perdure.open(tmp_path, run="t", save=None, budget=None, quiet=True, keep=None, copy=copy)
        self.run.track(net=self.net, optimizer=self.optimizer)
        self.run.restore()

    def write(self, value, *tensors):
        for tensor in tensors:
            tensor.place.launch(tensor, lambda memory: memory.fill(value))

    def forward(self, value):
        self.write(value, self.net.mean)

    def step(self, value):
        for hook in self.optimizer._optimizer_step_pre_hooks.values():
            hook(self.optimizer, (), {})
        self.write(value, self.net.weight, self.optimizer.state[self.net.weight]["moment"])

    def saved(self):
        """What the newest checkpoint has of each tensor: the one value that fills it, or all of them."""
        latest = self.run.directory / "latest"
        arrays = {
            **load_file(latest / "model/net.safetensors"),
            **load_file(latest / "optimizer/optimizer.safetensors"),
        }
        return {name: sorted(set(np.unique(values).tolist())) for name, values in arrays.items()}


def save_in_the_middle(device, tmp_path, copy, other=None):
    """Train, save, and go on before anything of that has happened on the device."""
    program = Program(device, tmp_path, copy, other)
    for each in {device, other or device}:
        each.may_run.clear()
    program.forward(1.0)
    program.step(2.0)
    handle = program.run.save()
    program.forward(3.0)
    program.step(4.0)
    program.forward(5.0)
    for each in {device, other or device}:
        each.may_run.set()
    handle.wait()
    return program


WHOLE = {"weight": [2.0], "mean": [1.0], "state.0.moment": [2.0]}


@pytest.mark.parametrize("copy", ["before", "beside"])
def test_a_save_is_of_the_moment_at_which_it_was_asked_for(device, tmp_path, copy):
    """What was queued before a save is in it and what is queued later is not, though the host waits for nothing."""
    program = save_in_the_middle(device, tmp_path, copy)

    assert WHOLE == program.saved()
    program.run.close()


@pytest.mark.parametrize("copy", ["before", "beside"])
def test_a_program_may_have_a_stream_of_its_own(device, tmp_path, copy):
    """Copies are ordered with the stream that the program queues on, whichever that is."""
    with device.make_stream():
        program = save_in_the_middle(device, tmp_path, copy)

    assert WHOLE == program.saved()
    program.run.close()


@pytest.mark.parametrize("copy", ["before", "beside"])
@pytest.mark.parametrize("other_copies_first", [False, True])
def test_tensors_on_several_devices(device, tmp_path, copy, other_copies_first):
    """One component may lie on two devices: each copies its own, in its own time."""
    other = Accelerator(copies_first=other_copies_first)
    program = save_in_the_middle(device, tmp_path, copy, other)

    assert WHOLE == program.saved()
    program.run.close()


@pytest.mark.parametrize("copy", ["before", "beside"])
def test_saves_in_a_row_do_not_mix(device, tmp_path, copy):
    """Two saves of which neither has been copied when the other is asked for are of two moments."""
    program = Program(device, tmp_path, copy)
    handles = []
    for value in (1.0, 2.0, 3.0, 4.0):
        program.step(value)
        handles.append(program.run.save())
    for handle in handles:
        handle.wait()
    snapshots = sorted(program.run.directory.glob("snapshots/*/model/net.safetensors"))
    values = sorted(float(load_file(path)["weight"][0]) for path in snapshots)

    assert [1.0, 2.0, 3.0, 4.0] == values
    program.run.close()


def test_a_write_before_the_optimizers_step_makes_the_capture_a_torn_one(device, tmp_path):
    """A kernel that changes a parameter while it may still be copied is noticed, and nothing is written."""
    program = Program(device, tmp_path, "beside")
    program.step(2.0)
    handle = program.run.save()
    program.write(9.0, program.net.weight)
    with pytest.raises(InvalidInputError, match="'weight' was written to"):
        handle.wait()
    with pytest.warns(perdure.SaveFailedWarning):
        program.run.save().wait()

    assert [9.0] == program.saved()["weight"]
    program.run.close()


def nothing(*_):
    """What a bug leaves out."""


@pytest.mark.parametrize("copy", ["before", "beside"])
@pytest.mark.parametrize(
    ("where", "what"),
    [(Stream, "wait_stream"), (copying.DeviceCopies, "hold_back"), (copying.DeviceCopies, "complete")],
    ids=["copies wait for the program", "the program waits for copies", "the writer waits for copies"],
)
def test_the_device_notices_each_event_that_is_left_out(tmp_path, monkeypatch, copy, where, what):
    """Without any one of the three waits, a checkpoint is wrong in one of the two orders at least."""
    present_devices(monkeypatch)
    monkeypatch.setattr(where, what, nothing)
    found = []
    for copies_first in (False, True):
        program = save_in_the_middle(Accelerator(copies_first=copies_first), tmp_path / str(copies_first), copy)
        found.append(program.saved())
        program.run.close()

    assert [WHOLE, WHOLE] != found
