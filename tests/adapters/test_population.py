"""Populations: members take over what others have learned, and keep their own hyperparameters."""

import copy

import numpy as np
import pytest
import torch

import perdure
from perdure.errors import IncompatibleError, NotFoundError
from perdure.population import Population

RATES = {"0": 1e-2, "1": 3e-3, "2": 1e-3}
ROUNDS = 40
STEPS_A_ROUND = 25


def member(seed, rate=1e-3, hidden=8):
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(3, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 1))
    optimizer = torch.optim.Adam(net.parameters(), rate)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10_000, 0.5)
    return {"net": net, "optimizer": optimizer, "scheduler": scheduler, "rng": np.random.default_rng(seed)}


def set_rate(objects, values):
    for group in objects["optimizer"].param_groups:
        group["lr"] = values["lr"]


def make():
    members = {name: member(index) for index, name in enumerate(RATES)}
    return members, Population(members, {name: {"lr": rate} for name, rate in RATES.items()}, set_rate)


def learn(objects):
    x = torch.tensor(objects["rng"].normal(size=(8, 3)), dtype=torch.float32)
    loss = (objects["net"](x) - x.sum(1, keepdim=True)).pow(2).mean()
    objects["optimizer"].zero_grad()
    loss.backward()
    objects["optimizer"].step()
    return loss.item()


def bits(objects):
    state = {**objects["net"].state_dict()}
    for index, moments in objects["optimizer"].state_dict()["state"].items():
        state.update({f"{index}.{name}": value for name, value in moments.items()})
    return {name: value.numpy().tobytes() for name, value in state.items()}, objects["rng"].bit_generator.state


def rate_of(objects):
    return objects["optimizer"].param_groups[0]["lr"]


def train(store, *, stop_after=None):
    """Train the members, with an exploit and a perturbation each fifth round; leave without a word after a round."""
    members, population = make()
    scores = dict.fromkeys(members, 0.0)
    run = perdure.open(store, run="pbt", save=perdure.Every(steps=1), budget=None, quiet=True)
    try:
        population.track(run)
        run.track(scores=scores, rng_perturbation=(rng := np.random.default_rng(0)))
        for round_ in run.loop(0, ROUNDS):
            if round_ == stop_after:
                return None
            for name, objects in members.items():
                scores[name] = sum(learn(objects) for _ in range(STEPS_A_ROUND))
            if round_ % 5 == 4:
                best, worst = min(scores, key=scores.get), max(scores, key=scores.get)
                population.exploit(best, worst)
                rate = population.hyperparameters(worst)["lr"]
                population.set(worst, lr=rate * float(rng.choice([0.8, 1.25])))
            run._saver.drain(30)
        rates = {name: population.hyperparameters(name)["lr"] for name in members}
        return [bits(objects) for objects in members.values()], rates, scores, run.report
    finally:
        run.close()


def test_a_population_resumes_exactly(tmp_path):
    """A population cut between two rounds ends with the nets, moments, rates and scores of one that never was."""
    *expected, _ = train(tmp_path / "whole")
    train(tmp_path / "cut", stop_after=17)
    *ended, report = train(tmp_path / "cut")

    assert expected == ended
    assert report.step == 17
    assert report.grade is perdure.Grade.EXACT


def test_an_override_wins_over_the_checkpoint(tmp_path):
    """A rate that the program sets is in effect after a restore, though the optimizer's state brings another one."""
    train(tmp_path, stop_after=17)
    members, population = make()
    with perdure.open(tmp_path, run="pbt", accept=["scores", "rng_perturbation"], quiet=True) as run:
        population.track(run)
        population.restore(run, {"1": {"lr": 0.5}})

    assert rate_of(members["1"]) == 0.5
    assert population.hyperparameters("1") == {"lr": 0.5}
    assert rate_of(members["0"]) != 0.5


def test_exploit_copies_what_was_learned_and_nothing_else():
    """The target gets the source's nets and moments, in place and as copies; its rate and its stream stay its own."""
    members, population = make()
    learn(members["0"])
    stream = copy.deepcopy(members["2"]["rng"].bit_generator.state)
    population.exploit("0", "2")

    assert bits(members["0"])[0] == bits(members["2"])[0]
    assert rate_of(members["2"]) == RATES["2"]
    assert members["2"]["rng"].bit_generator.state == stream
    taken = bits(members["0"])
    learn(members["2"])
    assert bits(members["0"]) == taken


def test_exploit_of_another_shape_changes_nothing():
    """A source that does not fit is refused before anything of the target has changed."""
    members = {"0": member(0), "1": member(1, hidden=4)}
    population = Population(members, {name: {"lr": 1e-3} for name in members}, set_rate)
    before = bits(members["1"])
    with pytest.raises(IncompatibleError):
        population.exploit("0", "1")

    assert bits(members["1"]) == before


def test_exploit_from_another_run_pins_its_source(tmp_path, monkeypatch):
    """A checkpoint of another process's run outlives that run's retention while it is read, and only while it is."""
    directory = tmp_path / "owner"
    owner, _ = make()
    learn(owner["0"])
    learned = bits(owner["0"])[0]
    run = perdure.open(tmp_path, run="owner", keep=perdure.Last(1), quiet=True)
    run.track({name: part for name, part in owner["0"].items() if name != "rng"})
    run.save().wait()
    (source,) = (each.name for each in (directory / "snapshots").iterdir())
    read = perdure.adapters.population._read
    left = []

    def read_late(*arguments):
        for _ in range(3):
            learn(owner["0"])
            run.save().wait()
        left.append({each.name for each in (directory / "snapshots").iterdir()})
        return read(*arguments)

    monkeypatch.setattr(perdure.adapters.population, "_read", read_late)
    members, population = make()
    population.exploit_checkpoint(directory, "2")
    run.save().wait()
    run.close()

    assert all(source in names for names in left)
    assert len(left) == 3
    assert source not in {each.name for each in (directory / "snapshots").iterdir()}
    assert rate_of(members["2"]) == RATES["2"]
    assert bits(members["2"])[0] == learned


def test_unknown_members_and_parts_are_named():
    """What does not exist is an error that lists what does."""
    _, population = make()
    with pytest.raises(NotFoundError, match="the population has 0, 1, 2"):
        population.exploit("9", "0")
    with pytest.raises(NotFoundError, match="no such object"):
        population.exploit("0", "1", parts=["critic"])
