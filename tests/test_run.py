"""The handle of a run: tracking, looping, saving, resuming, and refusing."""

import json
import os
import signal
import threading
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import perdure
from perdure import Best, Every, Last, OnImprovement, RingBuffer
from perdure.core.sealing import seal
from perdure.errors import (
    AlreadyExistsError,
    CorruptionError,
    FormatError,
    IncompatibleError,
    InvalidInputError,
    LeaseHeldError,
    NotFoundError,
    NothingRestorableError,
    StoppedError,
    StoreError,
)
from perdure.files.door import Files
from perdure.replay import Recent, RingComponent
from tests.training import Training


def opened(tmp_path, **options):
    return perdure.open(tmp_path, **{"run": "t", "quiet": True, "budget": None, **options})


def snapshots(tmp_path, run="t"):
    return sorted((tmp_path / run / "snapshots").iterdir())


def events(tmp_path, name, run="t"):
    lines = (tmp_path / run / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == name]


# Resuming


@pytest.mark.parametrize("stop_at", [1, 4, 9])
def test_a_stopped_run_continues_bit_for_bit(tmp_path, stop_at):
    """A training that was left and started again ends where one that was never left ends, to the bit."""
    unhurt = Training()
    unhurt.run(tmp_path / "a", until=12)
    Training().run(tmp_path / "b", until=12, stop_at=stop_at)
    resumed = Training(seed=99)
    resumed.run(tmp_path / "b", until=12)

    assert unhurt.state() == resumed.state()


def test_a_finished_run_does_nothing_again(tmp_path):
    """Running the command of a finished run once more trains no further and keeps its state."""
    first = Training()
    first.run(tmp_path, until=5)
    again = Training(seed=99)
    again.run(tmp_path, until=5)

    assert first.state() == again.state()


def test_every_start_is_a_new_generation(tmp_path):
    """Each start of a run works in a higher generation, fresh or restored."""
    seen = [Training().run(tmp_path, until=n).generation for n in (2, 4, 6)]

    assert [1, 2, 3] == seen


def test_restored_state_is_not_shared_with_the_next_restore(tmp_path):
    """Restoring one checkpoint twice gives the same moments both times, whatever was trained in between."""
    Training().run(tmp_path, until=3)
    states = []
    for _ in range(2):
        training = Training(seed=5)
        with opened(tmp_path, save=None, resume="@3") as run:
            training.track(run)
            run.counters(global_step=0)
            run.restore()
            states.append(training.state())
            training.step()

    assert states[0] == states[1]


def test_the_report_says_what_was_lost(tmp_path):
    """Steps that had been logged beyond the checkpoint are counted as lost, once."""

    def log(run, i):
        run.metric("loss", i)

    Training().run(tmp_path, until=20, stop_at=9, on_step=log, save=Every(steps=4))
    with opened(tmp_path) as run:
        training = Training()
        training.track(run)
        run.counters(global_step=0)
        report = run.restore()

    assert (8, 1) == (report.step, report.steps_lost)
    assert {"net", "optimizer", "scheduler", "rng_data", "history", "rng", "probes"} == {
        c.name for c in report.components
    }
    assert perdure.Grade.EXACT == report.grade


def test_nested_loops_continue_inside(tmp_path):
    """An inner loop that was left continues at its own item, and begins anew with the next outer one."""

    def walk(limit):
        seen = []
        run = opened(tmp_path, save=Every(steps=1))
        try:
            count = run.counters(global_step=0)
            for i in run.loop(0, 3, name="outer"):
                for j in run.loop(0, 3, name="inner"):
                    seen.append((i, j))
                    count.global_step += 1
                    run._saver.drain(30)
                    if len(seen) == limit:
                        return seen
        finally:
            run.close()
        return seen

    first, second = walk(5), walk(99)

    assert [(i, j) for i in range(3) for j in range(3)] == first[:-1] + second


def test_a_changed_config_is_reported(tmp_path):
    """A setting that differs from the saved one is a note in the report."""
    with opened(tmp_path, config={"rate": 1}) as run:
        run.save()
    with opened(tmp_path, config={"rate": 2}) as run:
        assert "config rate: 1 -> 2" in run.report.notes


# Words for resuming


def test_must_refuses_an_empty_run(tmp_path):
    """With resume='must' a run without checkpoints is an error that says how to go on."""
    with opened(tmp_path, resume="must") as run, pytest.raises(NothingRestorableError) as caught:
        run.restore()

    assert 13 == caught.value.exit_code
    assert "resume='never'" in caught.value.hint


def test_never_starts_fresh_beside_what_is_there(tmp_path):
    """With resume='never' nothing is restored, nothing is removed, and the fresh checkpoint is the newest."""
    Training().run(tmp_path, until=3, keep=None)
    fresh = Training(seed=7).run(tmp_path, until=1, keep=None, resume="never")

    assert fresh.report.checkpoint is None
    assert 4 == len(snapshots(tmp_path))
    with opened(tmp_path, accept="*") as run:
        assert 1 == run.report.step


@pytest.mark.parametrize(("word", "step"), [("latest", 5), ("latest~2", 3), ("@4", 4), ("@2", 2), ("first", 1)])
def test_selectors_pick_a_checkpoint(tmp_path, word, step):
    """A resume word picks by recency, step, id or pin."""
    Training().run(tmp_path, until=5, keep=None, on_step=lambda run, i: None)
    with opened(tmp_path, accept="*", save=None) as run:
        run.pin("first", "@1")
    with opened(tmp_path, accept="*", resume=word, save=None) as run:
        assert step == run.report.step


def test_an_unknown_selector_names_a_near_miss(tmp_path):
    """A word that means no checkpoint is refused, with the nearest one that does."""
    Training().run(tmp_path, until=2)
    with opened(tmp_path, resume="latset") as run, pytest.raises(NotFoundError, match="did you mean 'latest'"):
        run.restore()


# Refusing


def test_missing_and_unknown_components_are_refused_by_name(tmp_path):
    """A checkpoint that lacks a component or has an unknown one is refused unless the difference is accepted."""
    Training().run(tmp_path, until=2)
    extra = nn.Linear(2, 2)
    with opened(tmp_path) as run:
        run.track(net=Training().net, extra=extra)
        with pytest.raises(IncompatibleError, match="has no extra; nothing tracks its history, optimizer"):
            run.restore()
    with opened(tmp_path, accept=["extra", "history", "optimizer", "rng_data", "scheduler"]) as run:
        run.track(net=Training().net, extra=extra)
        statuses = {component.name: component.status for component in run.restore().components}

    assert ("loaded", "missing", "unknown") == (statuses["net"], statuses["extra"], statuses["history"])


def test_a_changed_network_is_refused_before_anything_changes(tmp_path):
    """A network of another shape is refused by key, and no live object has been touched."""
    Training().run(tmp_path, until=2)
    wider = Training(hidden=9, seed=3)
    before = wider.state()
    with opened(tmp_path) as run:
        wider.track(run)
        run.counters(global_step=0)
        with pytest.raises(
            IncompatibleError, match=r"shape of '0.weight' is \(8, 3\) in the checkpoint and \(9, 3\) here"
        ):
            run.restore()

    assert before == wider.state()


def test_a_missing_key_is_named(tmp_path):
    """A network with another set of keys is refused with the keys of both sides."""
    with opened(tmp_path) as run:
        run.track(net=nn.Linear(2, 2))
        run.save()
    with opened(tmp_path) as run:
        run.track(net=nn.Linear(2, 2, bias=False))
        with pytest.raises(IncompatibleError, match=r"1 are not in the object \(bias\)"):
            run.restore()


def test_an_optimizer_that_does_not_fit_is_refused(tmp_path):
    """An optimizer over other parameters, or of another class, is refused."""
    net = nn.Linear(2, 2)
    with opened(tmp_path) as run:
        run.track(net=net, optimizer=torch.optim.Adam(net.parameters()))
        run.save()
    with opened(tmp_path) as run:
        run.track(net=net, optimizer=torch.optim.Adam([net.weight]))
        with pytest.raises(IncompatibleError, match=r"groups have \[2\] parameters in the checkpoint, \[1\] here"):
            run.restore()
    with opened(tmp_path) as run:
        run.track(net=net, optimizer=torch.optim.SGD(net.parameters()))
        with pytest.raises(
            IncompatibleError, match=r"torch.optimizer.Adam in the checkpoint and a torch.optimizer.SGD"
        ):
            run.restore()


def test_nothing_is_tracked_twice(tmp_path):
    """One object under two names, or one name for two objects, is refused."""
    net = nn.Linear(1, 1)
    with opened(tmp_path) as run:
        run.track(net=net)
        with pytest.raises(InvalidInputError, match="the same object is tracked as 'net'"):
            run.track(other=net)
        with pytest.raises(InvalidInputError, match="the name is tracked already"):
            run.track(net=nn.Linear(1, 1))


@pytest.mark.parametrize("value", [3, "text", object(), lambda: None])
def test_what_cannot_be_saved_is_refused_by_type(tmp_path, value):
    """An object that nothing is known about is refused when it is tracked, not when it is saved."""
    with opened(tmp_path) as run, pytest.raises(InvalidInputError, match="cannot track 'x'"):
        run.track(x=value)


def test_tracking_after_the_restore_is_refused(tmp_path):
    """What is tracked too late to be restored is refused."""
    with opened(tmp_path) as run:
        run.restore()
        with pytest.raises(InvalidInputError, match="restored already"):
            run.track(net=nn.Linear(1, 1))


@pytest.mark.parametrize("name", ["../x", "a//b", ".hidden", "", "a b", "x" * 300, "/abs", "rng"])
def test_names_cannot_leave_their_place(tmp_path, name):
    """A component name that could reach outside its folder, or is reserved, is refused."""
    with opened(tmp_path) as run, pytest.raises(InvalidInputError):
        run.track({name: nn.Linear(1, 1)})


def test_nested_names_make_groups(tmp_path):
    """Nested dictionaries and slashes name components of agents and populations, each with files of its own."""
    nets = {"red": {"policy": nn.Linear(1, 1)}, "blue": {"policy": nn.Linear(1, 1)}}
    with opened(tmp_path) as run:
        run.track(agents=nets)
        run.track({"population/7/optimizer": torch.optim.SGD(nets["red"]["policy"].parameters(), lr=0.1)})
        run.save().wait()
    (snapshot,) = snapshots(tmp_path)

    assert (snapshot / "agents/red/model/policy.safetensors").is_file()
    assert (snapshot / "population/7/optimizer/optimizer.json").is_file()


# Damage


def damage(path, kind):
    if kind == "missing":
        path.unlink()
    elif kind == "truncated":
        path.write_bytes(path.read_bytes()[:-1])
    elif kind == "flipped":
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("kind", ["missing", "truncated", "flipped", "zeroed"])
@pytest.mark.parametrize(
    "name",
    [
        "manifest.json",
        "meta.json",
        "model/net.safetensors",
        "optimizer/optimizer.json",
        "optimizer/optimizer.safetensors",
        "scheduler/scheduler.json",
        "rng/rng.safetensors",
        "state/history.json",
    ],
)
def test_a_damaged_newest_checkpoint_is_put_aside(tmp_path, kind, name):
    """Whatever is wrong with the newest checkpoint, the one before it is used and the damaged one kept aside."""
    Training().run(tmp_path, until=3, keep=None)
    newest = snapshots(tmp_path)[-1]
    damage(newest / name, kind)
    resumed = Training(seed=9).run(tmp_path, until=3, keep=None)

    assert 2 == resumed.report.step
    assert [newest.name] == [skip.name for skip in resumed.report.skipped]
    assert newest.name in {path.name[: len(newest.name)] for path in (tmp_path / "t" / "quarantine").iterdir()}
    assert 1 == len(events(tmp_path, "quarantined"))


def test_nothing_is_started_afresh_over_damage(tmp_path):
    """If every checkpoint is damaged the run refuses to begin from nothing by itself."""
    Training().run(tmp_path, until=3, keep=None)
    for snapshot in snapshots(tmp_path):
        damage(snapshot / "model/net.safetensors", "flipped")
    with opened(tmp_path, accept="*") as run:
        run.track(net=Training().net)
        with pytest.raises(NothingRestorableError, match="none of 3 can be used"):
            run.restore()


@pytest.mark.parametrize("trick", ["missing", "dangling", "stale", "escaping"])
def test_latest_is_never_trusted(tmp_path, trick):
    """Whatever `latest` says, the newest checkpoint is found from manifests."""
    Training().run(tmp_path, until=3, keep=None)
    latest = tmp_path / "t" / "latest"
    latest.unlink()
    if trick != "missing":
        target = {"dangling": "snapshots/gone", "stale": f"snapshots/{snapshots(tmp_path)[0].name}", "escaping": "/etc"}
        latest.symlink_to(target[trick])
    with opened(tmp_path, accept="*") as run:
        assert 3 == run.report.step


def test_a_deleted_newest_checkpoint_is_no_loss_but_steps(tmp_path):
    """If the newest checkpoint is deleted the one before it is used and the steps between are counted as lost."""
    Training().run(tmp_path, until=3, keep=None)
    for path in sorted(snapshots(tmp_path)[-1].rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    snapshots(tmp_path)[-1].rmdir()
    with opened(tmp_path, accept="*") as run:
        assert (2, 1) == (run.report.step, run.report.steps_lost)


def test_a_checkpoint_that_fails_its_sanity_check_is_put_aside(tmp_path):
    """Weights that are not finite are never trained on: the checkpoint before is used."""

    def poison(run, i):
        if i == 2:
            with torch.no_grad():
                run.poisoned[0].weight[0, 0] = float("nan")

    training = Training()

    def step(run, i):
        run.poisoned = training.net
        poison(run, i)

    training.run(tmp_path, until=3, keep=None, on_step=step)
    resumed = Training(seed=4).run(tmp_path, until=2, keep=None)

    assert 2 == resumed.report.step
    assert "not finite in 0.weight" in resumed.report.skipped[0].reason


def test_where_every_checkpoint_fails_its_sanity_check_all_stay(tmp_path):
    """If none passes the fault may be the program's: the start is refused with the reason, and nothing is put aside."""

    def poison(run, i):
        with torch.no_grad():
            training.net[0].weight[0, 0] = float("nan")

    training = Training()
    training.run(tmp_path, until=3, keep=None, on_step=poison)
    before = snapshots(tmp_path)
    with pytest.raises(NothingRestorableError, match=r"none of 3 can be used .*not finite in 0\.weight"):
        Training(seed=4).run(tmp_path, until=4, keep=None)
    assert before == snapshots(tmp_path)


def test_a_file_in_the_way_is_named(tmp_path):
    """A file where the run directory should be is an error that names it."""
    (tmp_path / "t").write_text("")
    with pytest.raises(StoreError, match="a file is in the way") as caught:
        opened(tmp_path)

    assert "store.not-a-directory" == caught.value.kind


def test_a_newer_run_directory_is_refused(tmp_path):
    """A run directory of a newer schema is refused with what to do, and left as it is."""
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "run.json").write_bytes(seal(b'{\n "schema_version": 99\n}\n'))
    with pytest.raises(FormatError, match="schema is version 99") as caught:
        opened(tmp_path)

    assert "upgrade perdure" == caught.value.hint


# Saving


def test_a_save_is_captured_before_it_returns(tmp_path):
    """What changes after `save` has returned is not in the checkpoint."""
    net = nn.Linear(4, 4)
    with opened(tmp_path) as run:
        run.track(net=net)
        expected = net.weight.detach().clone()
        handle = run.save()
        with torch.no_grad():
            net.weight.zero_()
        handle.wait("committed")

        assert handle.captured.is_set()
    other = nn.Linear(4, 4)
    with opened(tmp_path) as run:
        run.track(net=other)
        run.restore()

    assert torch.equal(expected, other.weight)


def test_a_save_costs_the_same_however_many_checkpoints_are_kept(tmp_path, monkeypatch):
    """A run that keeps everything reads none of it when it saves."""
    with opened(tmp_path, save=None, keep=None) as run:
        run.track(value=np.zeros(3))
        run.save().wait()
        read = []
        monkeypatch.setattr(type(run._store), "read_manifest", lambda store, directory: read.append(directory))
        for _ in range(3):
            run.save().wait()
        run._saver.drain(30)
        monkeypatch.undo()

        assert not read
        assert 4 == len(snapshots(tmp_path))


class SlowFiles(Files):
    """A file system whose syncs wait until they are let go."""

    def __init__(self):
        self.go_on = threading.Event()

    def sync(self, descriptor):
        assert self.go_on.wait(30)
        super().sync(descriptor)


class FullFiles(Files):
    """A file system that is full while ``is_full``."""

    is_full = False

    def write(self, descriptor, data):
        if self.is_full:
            raise OSError(28, "No space left on device")
        return super().write(descriptor, data)


def with_files(run, files):
    run._store.files = files
    return run


def test_training_never_waits_for_the_disk(tmp_path):
    """While both buffers are being written, further saves are skipped and counted, and training goes on."""
    files = SlowFiles()
    with opened(tmp_path, save=Every(steps=1)) as run:
        count = run.counters(global_step=0)
        run.restore()
        with_files(run, files)
        for _ in run.loop(0, 6):
            count.global_step += 1
            if count.global_step == 6:
                assert 3 == run.statistics().skipped
                files.go_on.set()

        assert 6 == json.loads((snapshots(tmp_path)[-1] / "meta.json").read_text())["counters"]["global_step"]


def test_a_failed_save_is_loud_and_training_goes_on(tmp_path):
    """A full disk costs the save, not the run: it warns, leaves nothing behind, and the next save works."""
    files = FullFiles()
    with opened(tmp_path, save=Every(steps=1), keep=None) as run:
        count = run.counters(global_step=0)
        run.restore()
        with_files(run, files)
        with pytest.warns(perdure.SaveFailedWarning, match="No space left"):
            for i in run.loop(0, 4):
                count.global_step += 1
                files.is_full = i == 1
                run._saver.drain(10)

    assert [] == list((tmp_path / "t" / "staging").iterdir())
    assert 3 == len(snapshots(tmp_path))
    assert 1 == len(events(tmp_path, "save-failed"))


def test_a_failed_save_can_end_training(tmp_path):
    """With on_failed_save='raise' the error of a background save comes out of the loop."""
    files = FullFiles()
    run = opened(tmp_path, save=Every(steps=1), on_failed_save="raise")
    count = run.counters(global_step=0)
    run.restore()
    with_files(run, files)
    files.is_full = True
    with pytest.raises(StoreError, match="No space left"):
        for _ in run.loop(0, 4):
            count.global_step += 1
            run._saver.drain(10)
    run.close()


def test_the_last_save_must_succeed(tmp_path):
    """A run whose final save fails does not end as if all were well."""
    files = FullFiles()
    run = opened(tmp_path, save=None)
    run.restore()
    with_files(run, files)
    files.is_full = True
    with pytest.raises(StoreError, match="No space left"):
        list(run.loop(0, 2))
    run.close()


def test_saving_too_often_for_its_budget_is_told_once_it_stretches(tmp_path):
    """If saves cost more than their share of the time the interval stretches, and a warning says so."""
    with opened(tmp_path, save=Every(steps=1), budget=0.001) as run:
        count = run.counters(global_step=0)
        with pytest.warns(perdure.SaveBudgetWarning, match="times as long"):
            for _ in run.loop(0, 200):
                count.global_step += 1
                run._saver.drain(10)

        assert run.statistics().stretch > 1
        assert run.statistics().saved < 100


def test_improvement_triggers_and_best_is_kept(tmp_path):
    """A better metric saves at once, and the best checkpoint outlives newer ones."""
    values = [1.0, 5.0, 3.0, 2.0]
    with opened(
        tmp_path, save=OnImprovement("eval/return") | Every(steps=2), keep=Last(1) | Best("eval/return")
    ) as run:
        count = run.counters(global_step=0)
        for i in run.loop(0, 4):
            count.global_step += 1
            run.metric("eval/return", values[i])
            run._saver.drain(10)

    manifests = [json.loads((path / "manifest.json").read_text()) for path in snapshots(tmp_path)]
    assert [(2, 5.0), (4, 2.0)] == [(m["global_step"], m["metrics"]["eval/return"]) for m in manifests]


def test_pins_outlive_retention(tmp_path):
    """A pinned checkpoint is kept whatever the policy says, and its name cannot be given away."""
    Training().run(
        tmp_path, until=6, keep=Last(1), on_step=lambda run, i: i == 2 and run.save().wait() and run.pin("mine")
    )
    with opened(tmp_path, accept="*") as run:
        with pytest.raises(AlreadyExistsError, match="the name pins"):
            run.pin("mine")
        run.restore()

    assert [3, 6] == [int(path.name.split("-")[1]) for path in snapshots(tmp_path)]


# Stopping


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_stops_between_two_items(tmp_path, number):
    """The first signal saves at the next boundary, commits, and leaves with status 75; the same command continues."""
    before = signal.getsignal(number)

    def send(run, i):
        if i == 3:
            os.kill(os.getpid(), number)
            assert run.should_stop

    with pytest.raises(StoppedError) as caught:
        Training().run(tmp_path, until=9, on_step=send, save=None)
    resumed = Training().run(tmp_path, until=9, save=None)

    assert (75, signal.Signals(number).name, 4) == (caught.value.code, caught.value.signal, caught.value.step)
    assert 4 == resumed.report.step
    assert before is signal.getsignal(number)


def test_a_stop_without_time_for_a_save_begins_none_and_says_so(tmp_path, monkeypatch):
    """If a save takes longer than is left before the kill, the run ends on what is committed, and both are told."""
    monkeypatch.setenv("PERDURE_GRACE_SECONDS", "1e-9")

    def send(run, i):
        if i == 3:
            run.save().wait()
        if i == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(StoppedError, match="is not saved") as caught:
        Training().run(tmp_path, until=9, on_step=send, save=None)
    monkeypatch.delenv("PERDURE_GRACE_SECONDS")
    resumed = Training().run(tmp_path, until=9, save=None)

    assert 75 == caught.value.code
    assert resumed.report.step < 5
    (event,) = [
        json.loads(line) for line in next(tmp_path.rglob("events.jsonl")).read_text().splitlines() if "unsaved" in line
    ]
    assert event["remaining_seconds"] < event["expected_seconds"]


@pytest.mark.parametrize("text", ["soon", "-1", "0", "nan"])
def test_a_grace_that_is_no_time_is_refused(tmp_path, monkeypatch, text):
    """The error names the variable."""
    monkeypatch.setenv("PERDURE_GRACE_SECONDS", text)
    with pytest.raises(InvalidInputError, match="PERDURE_GRACE_SECONDS"):
        perdure.open(tmp_path, run="r", quiet=True)


def test_an_item_that_waits_can_stop_before_it_has_done_anything(tmp_path):
    """A stop in the middle of an item saves what came before it, and the item is begun anew."""

    def walk():
        seen = []
        run = opened(tmp_path, save=None)
        try:
            count = run.counters(global_step=0)
            for i in run.loop(0, 4):
                if i == 2 and run.generation == 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                run.stop_if_asked()
                seen.append(i)
                count.global_step += 1
        finally:
            run.close()
            assert len(seen) == count.global_step - (2 if run.generation == 2 else 0)
        return seen

    with pytest.raises(StoppedError) as caught:
        walk()

    assert 2 == caught.value.step
    assert [2, 3] == walk()


def test_two_writers_are_refused(tmp_path):
    """While one process trains a run another one is refused, with who holds it."""
    with opened(tmp_path) as first:
        first.restore()
        second = opened(tmp_path)
        with pytest.raises(LeaseHeldError, match=str(os.getpid())) as caught:
            second.restore()
        second.close()

    assert 11 == caught.value.exit_code
    assert caught.value.retryable


# Auditing


def test_forgotten_state_earns_one_warning(tmp_path):
    """Modules, optimizers, generators and large arrays in reach of the loop that nothing tracks are named once."""
    net, forgotten, rng, big, small = (
        nn.Linear(2, 2),
        nn.Linear(2, 2),
        np.random.default_rng(),
        np.zeros(200_000),
        np.zeros(3),
    )
    part = net.weight
    with opened(tmp_path) as run, pytest.warns(perdure.UntrackedStateWarning) as caught:
        run.track(net=net)
        for _ in run.loop(0, 3):
            pass

    assert 1 == len(caught)
    assert "not saved: big, forgotten, rng;" in str(caught[0].message)
    assert part is not None
    assert small is not None


def test_a_complete_script_earns_no_warning(tmp_path):
    """Nothing is said when everything is tracked."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Training().run(tmp_path, until=3)


# Forking


def test_a_fork_begins_where_the_other_run_stood(tmp_path):
    """A fork continues from the chosen checkpoint under its own name and leaves the other run alone."""
    Training().run(tmp_path, until=3, keep=None)
    before = snapshots(tmp_path)
    perdure.fork(tmp_path, run="t", to="u", at="@2")
    forked = Training(seed=8)
    run = forked.run(tmp_path, until=3, run="u")
    unhurt = Training()
    unhurt.run(tmp_path / "x", until=3)

    assert 2 == run.report.step
    assert unhurt.state() == forked.state()
    assert before == snapshots(tmp_path)
    manifest = json.loads((snapshots(tmp_path, "u")[-1] / "manifest.json").read_text())
    assert "t" == manifest["origin"]["run"]
    with pytest.raises(AlreadyExistsError):
        perdure.fork(tmp_path, run="t", to="u")
    with pytest.raises(NotFoundError):
        perdure.fork(tmp_path, run="nothing", to="v")


# Loops, metrics and names


def test_two_loops_of_one_name_are_refused(tmp_path):
    """Loops that would share one position, nested or one after the other, are refused."""
    with opened(tmp_path) as run, pytest.raises(InvalidInputError, match="share one position"):
        for _ in run.loop(0, 2):
            for _ in run.loop(0, 2):
                pass
    with opened(tmp_path, resume="never") as run:
        list(run.loop(0, 2))
        with pytest.raises(InvalidInputError, match="share one position"):
            list(run.loop(0, 2))


def test_metrics_that_are_not_finite_survive_a_resume(tmp_path):
    """A metric that is not a number is saved as null, and the resumed run saves again."""
    with opened(tmp_path) as run:
        run.metric("loss", float("nan"))
        run.save()
    with opened(tmp_path) as run:
        run.restore()
        run.save().wait()

    assert [None] == [json.loads(line)["value"] for line in (tmp_path / "t" / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", ["rng", "probes", "locals"])
def test_names_of_our_own_components_are_reserved(tmp_path, name):
    """A user's object cannot take the place of one of perdure's own components."""
    with opened(tmp_path) as run, pytest.raises(InvalidInputError, match="perdure's own"):
        run.track({name: nn.Linear(1, 1)})


def test_a_wrong_environment_is_refused_before_anything_changes(tmp_path):
    """An environment of another kind is refused while the network still has its own weights."""
    with opened(tmp_path) as run:
        run.track(net=nn.Linear(2, 2), env=gym.make("CartPole-v1"))
        run.save()
    net = nn.Linear(2, 2)
    before = net.weight.detach().clone()
    with opened(tmp_path) as run:
        run.track(net=net, env=gym.make("Acrobot-v1"))
        with pytest.raises(IncompatibleError):
            run.restore()

    assert torch.equal(before, net.weight)


# Replay


def ring(rows=0):
    buffer = RingBuffer(40, {"obs": (np.float64, (70_000,)), "reward": (np.float64, ())}, rng=1)
    for i in range(rows):
        buffer.add(obs=np.full(70_000, float(i)), reward=float(i))
    return buffer


def test_damage_found_behind_a_restore_puts_the_checkpoint_aside(tmp_path):
    """A replay segment that turns out to be damaged ends the run, and the next start uses the checkpoint before."""
    buffer = ring(5)
    with opened(tmp_path, save=None, keep=None) as run:
        run.track(replay=buffer)
        count = run.counters(global_step=1)
        run.save().wait()
        buffer.add(obs=np.full(70_000, 9.0), reward=9.0)
        count.global_step = 2
        run.save().wait()
    segment = max(
        (snapshots(tmp_path)[-1] / "buffer" / "replay").glob("segment-*"), key=lambda path: path.stat().st_mtime
    )
    content = bytearray(segment.read_bytes())
    content[-5] ^= 1
    segment.unlink()
    segment.write_bytes(content)
    with pytest.raises(CorruptionError), opened(tmp_path, save=None, keep=None) as run:
        run.track(replay=ring())
        run.counters(global_step=0)
        run.restore()
        while True:
            run.boundary()
    with opened(tmp_path, save=None) as run:
        run.track(replay=ring())
        run.counters(global_step=0)

        assert 1 == run.restore().step


def test_retention_spares_what_a_waiting_save_links_to(tmp_path):
    """With two saves under way and one to keep, the second still finds the files that it shares."""
    buffer = ring(30)
    files = SlowFiles()
    with opened(tmp_path, save=None, keep=Last(1)) as run:
        run.track(replay=buffer)
        files.go_on.set()
        with_files(run, files)
        run.save().wait()
        files.go_on.clear()
        first, second = run.save(), run.save()
        files.go_on.set()
        first.wait()
        second.wait()

    assert 1 == len(snapshots(tmp_path))


@pytest.mark.parametrize(("newest", "grade"), [(5, "exact"), (3, "statistical")])
def test_a_restore_of_less_than_was_saved_is_not_called_exact(newest, grade, tmp_path):
    """The grade of a restore that was asked to bring back fewer rows is statistical, whatever the checkpoint's is."""
    with opened(tmp_path) as run:
        run.track(replay=ring(5))
        run.save().wait()
    with opened(tmp_path) as run:
        run.track(replay=RingComponent(ring(), restore=Recent(newest)))

        assert grade == run.restore().grade.value


@pytest.mark.parametrize("value", [float("-inf"), float("inf"), -3, 2**70, 0.1, "text", None, True, (1, 2), [1, "a"]])
def test_a_counter_comes_back_as_it_was(tmp_path, value):
    """Counters keep type and value, also where JSON has no form for them, as for the best return so far of -inf."""
    for given in (value, None):
        with perdure.open(tmp_path, run="r", save=None, quiet=True) as run:
            counters = run.counters(best=given)
            run.restore()
            assert (counters.best, type(counters.best)) == (value, type(value))
            run.save().wait()


def test_a_counter_of_numpy_becomes_a_plain_number(tmp_path):
    """A count that NumPy has added up is saved as the number that it is."""
    for given in (np.int64(3), 0):
        with perdure.open(tmp_path, run="r", save=None, quiet=True) as run:
            counters = run.counters(episodes=given)
            run.restore()
            assert counters.episodes == 3
            run.save().wait()


def test_a_counter_that_is_an_array_is_refused_by_name(tmp_path):
    """Counters hold numbers and text; the error says where arrays go."""
    with perdure.open(tmp_path, run="r", save=None, quiet=True) as run:
        run.counters(seen=np.zeros(3))
        run.restore()
        with pytest.raises(InvalidInputError, match="counter 'seen'") as caught:
            run.save()
    assert caught.value.kind == "counters.array"
    assert "run.locals" in caught.value.hint


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_a_metric_that_is_not_finite_comes_back(tmp_path, value):
    """A diverged loss is a fact of the run, and stays what it was."""
    with perdure.open(tmp_path, run="r", save=None, quiet=True) as run:
        run.restore()
        run.metric("loss", value)
        run.save().wait()
    with perdure.open(tmp_path, run="r", save=None, quiet=True) as run:
        run.restore()
        assert repr(run._tracked.metrics["loss"]) == repr(value)


def test_settings_are_kept_as_plain_values_and_compared_as_such(tmp_path):
    """Settings that JSON has no form for are kept as text; a resume with the same ones reports no difference."""
    config = {"rate": np.float32(0.5), "sizes": (64, 64), "where": tmp_path, "steps": 10**6}
    for _ in range(2):
        with perdure.open(tmp_path, run="r", config=config, save=None, quiet=True) as run:
            report = run.restore()
            run.save().wait()
    assert not [note for note in report.notes if "config" in note]
