"""Copies beside training: whole or torn, never mixed, and optimizers wait for them."""

import ctypes
import json
import random
import threading
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import perdure
from perdure.capture import copying
from perdure.capture.arrays import Destination
from perdure.capture.gate import Gate
from perdure.capture.witness import PROVABLE_BYTES, Witness, provable_addresses, witness_of
from perdure.errors import DeadlineError, InvalidInputError
from perdure.store.store import Store

WIDTH = 512


class Net(nn.Module):
    """A network with everything mutable: large parameters, running statistics, and a target that follows."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        return self.body(x)


def make(seed=0):
    torch.manual_seed(seed)
    net, target = Net(), Net()
    optimizer = torch.optim.Adam(net.parameters())
    step(net, optimizer)
    return net, target, optimizer


def step(net, optimizer):
    optimizer.zero_grad()
    net(torch.randn(4, WIDTH)).square().mean().backward()
    optimizer.step()


def opened(tmp_path, net, target, optimizer, copy="beside", **options):
    options = {"save": None, "budget": None, "quiet": True, "keep": None, **options}
    run = perdure.open(tmp_path, run="t", copy=copy, **options)
    run.track(net=net, target=target, optimizer=optimizer)
    run.restore()
    return run


def frozen(net, target, optimizer):
    moments = [v.clone() for state in optimizer.state.values() for v in state.values()]
    return [
        *(v.clone() for v in net.state_dict().values()),
        *(v.clone() for v in target.state_dict().values()),
        *moments,
    ]


def restored(tmp_path):
    net, target, optimizer = make(seed=9)
    opened(tmp_path, net, target, optimizer).close()
    return frozen(net, target, optimizer)


def same(ones, others):
    return all(torch.equal(one, other) for one, other in zip(ones, others, strict=True))


@pytest.fixture
def held(monkeypatch):
    """Copies beside training that begin only when they are let go."""
    go_on = threading.Event()
    real = copying.copy_witnessed

    def copy(moves):
        assert go_on.wait(30)
        real(moves)

    monkeypatch.setattr("perdure.capture.gate.copy_witnessed", copy)
    yield go_on
    go_on.set()


def test_everything_may_change_but_what_the_gate_guards(tmp_path, held):
    """While parameters and moments are still to be copied, all else is mutated, and the checkpoint is of the save."""
    net, target, optimizer = make()
    run = opened(tmp_path, net, target, optimizer)
    expected = frozen(net, target, optimizer)
    handle = run.save()
    assert not handle.captured.is_set()
    with torch.no_grad():
        for value in target.state_dict().values():
            value.mul_(0)  # a target network belongs to no optimizer
    net(torch.randn(8, WIDTH))  # running statistics move in a forward pass
    optimizer.param_groups[0]["lr"] = 99.0
    torch.manual_seed(1234)
    held.set()
    handle.wait()
    run.close()

    assert same(expected, restored(tmp_path))


def test_an_optimizer_steps_only_when_it_has_been_copied(tmp_path, held):
    """The step of a tracked optimizer waits for the copy and the checkpoint holds the values from before it."""
    net, target, optimizer = make()
    run = opened(tmp_path, net, target, optimizer)
    expected = frozen(net, target, optimizer)
    handle = run.save()
    stepping = threading.Thread(target=step, args=(net, optimizer))
    stepping.start()
    stepping.join(0.2)
    assert stepping.is_alive()
    held.set()
    stepping.join(30)
    handle.wait()
    run.close()

    assert same(expected, restored(tmp_path))
    assert not same(expected, frozen(net, target, optimizer))


def write_in_place(parameter):
    with torch.no_grad():
        parameter[0, 0] += 1


def write_through_data(parameter):
    parameter.data.mul_(1.5)


def write_through_numpy(parameter):
    parameter.detach().numpy()[:] += 1


@pytest.mark.parametrize("write", [write_in_place, write_through_data, write_through_numpy])
def test_a_torn_capture_is_redone_and_never_written(tmp_path, held, write):
    """Parameters written to while they are copied make no checkpoint; the next boundary saves, copying first."""
    net, target, optimizer = make()
    run = opened(tmp_path, net, target, optimizer, save=perdure.Every(steps=1))
    seen = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for item in run.loop(0, 3):
            if item == 1:
                write(net.body[0].weight)
                held.set()
                run._saver.drain(30)
            seen.append(frozen(net, target, optimizer))
    run.close()
    events = [json.loads(line) for line in (tmp_path / "t" / "events.jsonl").read_text().splitlines()]

    assert ["capture.torn"] == [event["kind"] for event in events if event["event"] == "save-failed"]
    assert [2, 3] == [event["step"] for event in events if event["event"] == "saved"]
    assert any(
        "capture is torn" in str(each.message) or "cannot use this capture" in str(each.message) for each in told
    )
    assert same(seen[-1], restored(tmp_path))


def test_what_has_been_torn_once_is_copied_before(tmp_path, held):
    """After a torn capture nothing is copied beside training any more."""
    net, target, optimizer = make()
    run = opened(tmp_path, net, target, optimizer)
    handle = run.save()
    write_in_place(net.body[0].weight)
    held.set()
    with pytest.raises(InvalidInputError, match="was written to"):
        handle.wait()
    with pytest.warns(perdure.SaveFailedWarning):
        again = run.save()

    assert again.captured.is_set()
    again.wait()
    run.close()


def test_swapped_memory_is_not_mixed_in(tmp_path, held):
    """A parameter that is given other memory after the save is saved as it was, or the capture is torn."""
    net, target, optimizer = make()
    run = opened(tmp_path, net, target, optimizer)
    expected = frozen(net, target, optimizer)
    handle = run.save()
    net.body[0].weight.data = torch.zeros(WIDTH, WIDTH)
    held.set()
    handle.wait()
    run.close()

    assert same(expected, restored(tmp_path))


def test_replaced_moments_are_noticed(tmp_path, held):
    """A moment whose memory is replaced while it is copied makes the capture a torn one."""
    net, target, optimizer = make()
    run = opened(tmp_path, net, target, optimizer)
    handle = run.save()
    optimizer.state[net.body[0].weight]["exp_avg"].data = torch.zeros(WIDTH, WIDTH)
    held.set()
    with pytest.raises(InvalidInputError, match=r"memory of .* was replaced"):
        handle.wait()
    with pytest.warns(perdure.SaveFailedWarning):
        run._surface()
    run.close()


def test_copying_before_is_the_default(tmp_path):
    """Without being asked for, nothing is left to be copied when a save returns."""
    net, target, optimizer = make()
    with opened(tmp_path, net, target, optimizer, copy="before") as run:
        assert run.save().captured.is_set()


@pytest.mark.parametrize(
    ("tensor", "provable"),
    [
        (torch.zeros(WIDTH, WIDTH), True),
        (torch.zeros(PROVABLE_BYTES // 4 - 1), False),
        (torch.zeros(WIDTH, WIDTH).t(), False),
        (torch.zeros(WIDTH, WIDTH).share_memory_(), False),
        (torch.zeros(WIDTH, 2 * WIDTH)[:, ::2], False),
    ],
    ids=["dense", "small", "transposed", "shared", "strided"],
)
def test_only_what_can_be_proven_is_copied_late(tensor, provable):
    """Small, strided and shared tensors are copied before a save returns."""
    assert is_provable(tensor) is provable


def is_provable(tensor):
    return witness_of("x", tensor, {tensor.data_ptr()}) is not None


def test_only_what_is_guarded_is_copied_late():
    """A tensor that no watched optimizer has is copied before a save returns, whatever could be proven of it."""
    tensor, other = torch.zeros(WIDTH, WIDTH), torch.zeros(WIDTH, WIDTH)

    assert witness_of("x", tensor, set(provable_addresses([other]))) is None
    assert witness_of("x", tensor, set(provable_addresses([other, tensor]))) is not None


@pytest.mark.parametrize("copy", ["before", "beside"])
@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (lambda optimizer, weight: optimizer.state[weight].update(exp_avg=torch.eye(WIDTH).to_sparse()), "sparse"),
        (lambda optimizer, _: optimizer.add_param_group({"params": [nn.Parameter(torch.eye(9).to_sparse())]}), ""),
        (lambda optimizer, _: optimizer.add_param_group({"params": list(nn.LazyLinear(2).parameters())}), ""),
    ],
    ids=["sparse-moment", "sparse-parameter", "lazy-parameter"],
)
def test_what_has_no_memory_of_its_own_is_refused_by_name_or_does_not_matter(tmp_path, copy, spoil, what):
    """A sparse moment is refused as such however copies are made; parameters that no state belongs to are no matter."""
    net, target, optimizer = make()
    run = opened(tmp_path, net, target, optimizer, copy=copy)
    spoil(optimizer, net.body[0].weight)
    if what:
        with pytest.raises(InvalidInputError, match=f"'state.0.exp_avg': it is a {what} tensor"):
            run.save()
    else:
        run.save().wait()
    run.close()


def test_inference_tensors_are_copied_before():
    """A tensor without a version counter is never proven."""
    with torch.inference_mode():
        tensor = torch.zeros(WIDTH, WIDTH)

    assert not is_provable(tensor)


def test_not_a_number_is_no_contradiction():
    """A tensor of values that differ from themselves is still the same tensor."""
    tensor = torch.full((WIDTH, WIDTH), float("nan"))

    assert "" == Witness("x", tensor).contradiction()


def clip(tensor):
    tensor.data.clamp_(-2, 2)


def write_a_few_columns(tensor):
    tensor.data[:, 100:120] += 1


def decay(tensor):
    tensor.data.mul_(0.99)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("write", [clip, write_a_few_columns, decay])
def test_back_doors_that_change_part_of_a_tensor_are_noticed(write, dtype):
    """Writes that torch does not count are seen by what they did to one element in twenty, or to the last bits."""
    torch.manual_seed(0)
    tensor = torch.randn(256, 512).to(dtype)
    witness = Witness("x", tensor)
    write(tensor)

    assert "'x' was written to behind torch's back" == witness.contradiction()


def test_a_copy_that_never_ends_is_named(monkeypatch, held):
    """An optimizer does not wait for ever: the error names the copier."""
    monkeypatch.setattr("perdure.capture.gate.GATE_DEADLINE_SECONDS", 0.01)
    net, _, optimizer = make()
    gate = Gate()
    gate.watch(optimizer)
    copying_ = gate.begin()
    weight = net.body[0].weight
    copying_.copy([copying.Move("w", Destination(memoryview(bytearray(weight.nbytes)), weight), weight)])
    copying_.finish().start()
    with pytest.raises(DeadlineError) as caught:
        optimizer.step()

    assert "the copier's thread" == caught.value.holder
    held.set()
    optimizer.step()
    gate.close()


def test_the_interpreter_is_free_while_memory_is_copied():
    """The call that copies gives up the interpreter's lock."""
    assert not ctypes.memmove.__class__.__name__.startswith("PyDLL")
    assert ctypes.memmove._flags_ & 4 == 0  # FUNCFLAG_PYTHONAPI would keep the lock


def mutate_storage(tensor):
    tensor.untyped_storage().resize_(0)


def mutate_place(tensor):
    tensor.data = torch.zeros_like(tensor)


def mutate_through_numpy(tensor):
    tensor.detach().numpy()[...] = 7


def mutate_through_memory(tensor):
    ctypes.memset(tensor.data_ptr(), 1, tensor.nbytes)


@pytest.mark.parametrize("mutate", [mutate_storage, mutate_place, mutate_through_numpy, mutate_through_memory])
def test_everything_may_change_once_a_save_has_returned(tmp_path, monkeypatch, mutate):
    """With copies made before, whatever is done to whatever is tracked while a save is written is not in it."""
    held = threading.Event()
    real = Store.commit
    monkeypatch.setattr(Store, "commit", lambda *words: held.wait(30) and real(*words))
    net, target, optimizer = make()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    array, generator = np.arange(10_000.0), np.random.default_rng(3)
    view = torch.from_numpy(array)
    run = perdure.open(tmp_path, run="t", save=None, budget=None, quiet=True)
    parts = {"net": net, "target": target, "optimizer": optimizer, "scheduler": scheduler}
    run.track(**parts, array=array, generator=generator)
    loose = run.locals(nested={"list": [1, {"array": np.ones(3)}], "tensor": torch.ones(3)})
    count = run.counters(global_step=5, note=["a"])
    run.restore()
    expected = frozen(net, target, optimizer)
    draws = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    next_draw = generator.bit_generator.state["state"]["state"]
    handle = run.save()
    moments = [value for state in optimizer.state.values() for value in state.values()]
    with torch.no_grad():
        for tensor in (*net.state_dict().values(), *target.state_dict().values(), *moments):
            mutate(tensor)
    optimizer.param_groups[0]["lr"] = 99.0
    scheduler.last_epoch = 77
    view.mul_(0)  # the array, by another name
    loose.nested["list"][1]["array"][:] = 9
    loose.nested["list"].append("late")
    loose.nested["tensor"].zero_()
    count.global_step, count.note = 6, [*count.note, "b"]
    generator.random()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    held.set()
    handle.wait()
    run.close()

    net, target, optimizer = make(seed=9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    array, generator = np.zeros(10_000), np.random.default_rng(4)
    with perdure.open(tmp_path, run="t", quiet=True) as run:
        run.track(net=net, target=target, optimizer=optimizer, scheduler=scheduler, array=array, generator=generator)
        loose = run.locals(nested={})
        count = run.counters(global_step=0, note=[])
        run.restore()

        assert same(expected, frozen(net, target, optimizer))
        assert (optimizer.param_groups[0]["lr"], scheduler.last_epoch) == (1e-3, 0)
        assert np.array_equal(np.arange(10_000.0), array)
        assert next_draw == generator.bit_generator.state["state"]["state"]
        assert "[1, {'array': array([1., 1., 1.])}]" == str(loose.nested["list"])
        assert torch.equal(torch.ones(3), loose.nested["tensor"])
        assert (5, ["a"]) == (count.global_step, count.note)
        assert random.getstate() == draws[0]
        assert np.array_equal(np.random.get_state()[1], draws[1])
        assert torch.equal(torch.get_rng_state(), draws[2])


def test_a_storage_that_is_resized_after_the_copy_makes_it_torn():
    """Memory that was taken away from a tensor is noticed by its place, without a look at where it was."""
    tensor = torch.zeros(WIDTH, WIDTH)
    witness = Witness("x", tensor)
    tensor.untyped_storage().resize_(0)

    assert "the memory of 'x' was replaced" == witness.contradiction()
