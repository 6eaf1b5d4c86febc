"""Loops with Lightning Fabric and Accelerate: what these wrap is captured through its own state."""

import pytest
import torch

import perdure

STEPS = 1_100


def plain(net, optimizer, scheduler):
    return net, optimizer, scheduler, lambda loss: loss.backward()


def fabric(net, optimizer, scheduler):
    module = pytest.importorskip("lightning_fabric", reason="lightning-fabric is not installed")
    made = module.Fabric(accelerator="cpu", devices=1)
    made.launch()
    net, optimizer = made.setup(net, optimizer)
    return net, optimizer, scheduler, made.backward


def accelerate(net, optimizer, scheduler):
    module = pytest.importorskip("accelerate", reason="accelerate is not installed")
    made = module.Accelerator(cpu=True)
    return *made.prepare(net, optimizer, scheduler), made.backward


def train(store, wrap, stop_at=None, seed=0):
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    bare = net, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.9)
    net, optimizer, scheduler, backward = wrap(*bare)
    losses = []
    run = perdure.open(store, run="wrapped", save=perdure.Every(steps=50), budget=None, quiet=True)
    try:
        run.track(net=net, optimizer=optimizer, scheduler=scheduler, losses=losses)
        for step in run.loop(0, STEPS):
            if step == stop_at:
                return None
            x = torch.randn(8, 3)
            loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
            optimizer.zero_grad()
            backward(loss)
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
        return losses, [value.numpy().tobytes() for value in bare[0].state_dict().values()], run.report.grade
    finally:
        run.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("wrap", [fabric, accelerate])
def test_wrapped_objects_resume_exactly(wrap, tmp_path):
    """A wrapped training that was left goes on with the losses and weights of a plain one that never was."""
    expected, weights, _ = train(tmp_path / "plain", plain)
    train(tmp_path / "wrapped", wrap, stop_at=80)
    ended, resumed_weights, grade = train(tmp_path / "wrapped", wrap, seed=1)

    assert expected == ended
    assert weights == resumed_weights
    assert grade is perdure.Grade.EXACT
