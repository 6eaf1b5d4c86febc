"""TorchRL under perdure, around the rows of the matrix: trainers, buffers in other states, refusals, what bites."""

import sys

import pytest

pytest.importorskip("tensordict", reason="the extra torchrl is not installed")

import numpy as np
import torch
from matrix.life import CutError, Life
from matrix.states import compare, flatten
from tensordict import TensorDict

import perdure
from perdure.errors import IncompatibleError, InvalidInputError

pytestmark = pytest.mark.filterwarnings("ignore")  # of TorchRL, about TorchRL
STEPS = 640


@pytest.fixture(scope="module")
def rows():
    import matrix.rows.torchrl

    torch.set_num_threads(1)
    return matrix.rows.torchrl


def live(rows, make, store, *, seed=1, end_step=0):
    life = Life(store, seed=seed, steps=STEPS, save_steps=100, end="cut" if end_step else "", end_step=end_step)
    try:
        return flatten(rows.training(make)(life)), life.report
    except CutError:
        return None


def test_a_forgotten_collector_shows(rows, tmp_path, monkeypatch):
    """The comparison is not blind: without what the collector carries, a resumed training ends elsewhere."""
    make = rows.dqn(rows.LazyTensorStorage)
    expected, _ = live(rows, make, None)
    named = rows.Parts.named
    monkeypatch.setattr(
        rows.Parts, "named", lambda parts: {name: part for name, part in named(parts).items() if name != "collector"}
    )
    live(rows, make, tmp_path, end_step=230)
    ended, report = live(rows, make, tmp_path, seed=2)

    assert report["step"] > 0
    assert any(place.startswith("/parameters") for place in compare(expected, ended).places)


def test_a_trainer_resumes_exactly(rows, tmp_path):
    """A `Trainer` cut at a step ends with the nets, moments, buffer, scheduler and counts of one that never was."""
    expected = train_with_trainer(rows, tmp_path / "whole")
    with pytest.raises(CutError):
        train_with_trainer(rows, tmp_path / "cut", end_step=230)
    ended = train_with_trainer(rows, tmp_path / "cut", seed=2)

    assert compare(expected, ended).places == ()


def train_with_trainer(rows, store, *, seed=1, end_step=0):
    from torchrl.trainers import LRSchedulerHook, ReplayBufferTrainer, Trainer

    life = Life(store, seed=seed, steps=STEPS, save_steps=100, end="cut" if end_step else "", end_step=end_step)
    rows.seed_streams(seed)
    parts = rows.dqn(rows.LazyTensorStorage)(life)
    rows._count(parts, life)
    scheduler = torch.optim.lr_scheduler.LinearLR(parts.optimizer, 1.0, 0.1, 50)
    trainer = Trainer(
        collector=parts.collector, total_frames=STEPS, frame_skip=1, optim_steps_per_batch=2, loss_module=parts.loss,
        optimizer=parts.optimizer, progress_bar=False,
    )  # fmt: skip
    ReplayBufferTrainer(parts.replay).register(trainer)
    LRSchedulerHook(scheduler).register(trainer)
    with life.open() as run:
        perdure.torchrl.Checkpointing(run).register(trainer)
        trainer.train()
        assert run.report.grade is perdure.Grade.EXACT
    state = dict(parts.state())
    del state["environment"]
    return flatten({**state, "trainer": dict(trainer._get_state()), "scheduler": scheduler.state_dict()})


def rows_of(count, start=0):
    values = torch.arange(start, start + count)
    nested = {"reward": values.float()[:, None], "done": torch.zeros(count, 1, dtype=torch.bool)}
    return TensorDict({"observation": values[:, None].repeat(1, 3).float(), "next": nested}, [count])


def buffer(storage=None, **options):
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(50) if storage is None else storage, batch_size=8, **options
    )


def save_and_restore(store, saved, fresh):
    with perdure.open(store, run="r", quiet=True) as run:
        perdure.torchrl.track(run, replay=saved)
        run.save().wait()
    with perdure.open(store, run="r", quiet=True) as run:
        perdure.torchrl.track(run, replay=fresh)
        run.restore()


@pytest.mark.parametrize("written", [0, 30, 70])
def test_a_buffer_that_was_never_written_to_takes_a_checkpoint(rows, tmp_path, written):
    """A fresh buffer gets the arrays of the checkpoint without an example, empty, part-filled or gone round."""
    saved, fresh = buffer(), buffer()
    for start in range(0, written, 10):
        saved.extend(rows_of(10, start))
    save_and_restore(tmp_path, saved, fresh)

    assert len(fresh) == len(saved)
    if written:
        assert flatten(dict(fresh[:].items(True, True))).keys() == flatten(dict(saved[:].items(True, True))).keys()
        assert torch.equal(fresh[:]["observation"], saved[:]["observation"])
        for replay in (saved, fresh):
            replay.extend(rows_of(7, 500))
        assert torch.equal(fresh[:]["next", "reward"], saved[:]["next", "reward"])


def test_rows_that_are_changed_in_place_are_saved_again(rows, tmp_path):
    """A change of stored rows that does not go through the writer is noticed, and is in the next checkpoint."""
    saved, fresh = buffer(), buffer()
    saved.extend(rows_of(50))
    with perdure.open(tmp_path, run="r", quiet=True) as run:
        perdure.torchrl.track(run, replay=saved)
        run.save().wait()
        saved._storage._apply_conditional_patch(torch.tensor([3]), {"observation": torch.full((1, 3), -1.0)})
        saved._storage.set(torch.tensor([9, 4]), rows_of(2, 900), set_cursor=False)
        run.save().wait()
    with perdure.open(tmp_path, run="r", quiet=True) as run:
        perdure.torchrl.track(run, replay=fresh)
        run.restore()

    assert fresh[3]["observation"].tolist() == [-1.0] * 3
    assert torch.equal(fresh[:]["observation"], saved[:]["observation"])


def test_what_cannot_be_a_ring_is_refused(rows):
    """Storages of objects and writers of another order are refused when they are tracked, with what to use."""
    from torchrl.data import ListStorage, TensorDictMaxValueWriter

    from perdure.adapters._torchrl_replay import StorageRing

    for replay in (buffer(ListStorage(10)), buffer(writer=TensorDictMaxValueWriter(rank_key="key"))):
        with pytest.raises(InvalidInputError, match="cannot save this replay buffer") as caught:
            StorageRing(replay)
        assert "LazyTensorStorage" in caught.value.hint


def test_another_environment_is_refused(rows, tmp_path):
    """A checkpoint does not go into a collector whose environment has other transforms; nothing has changed then."""
    from torchrl.collectors import Collector
    from torchrl.envs import GymEnv, StepCounter, TransformedEnv

    def collector(transform):
        env = GymEnv("CartPole-v1")
        return Collector(TransformedEnv(env, StepCounter()) if transform else env, frames_per_batch=10, total_frames=20)

    for transform in (True, False):
        with perdure.open(tmp_path, run="r", quiet=True) as run:
            made = collector(transform)
            perdure.torchrl.track(run, collector=made)
            if transform:
                assert sum(len(batch) for batch in perdure.torchrl.collect(run, made)) == 20
            else:
                with pytest.raises(IncompatibleError, match="collector's environment"):
                    run.restore()


def test_an_unknown_environment_begins_anew_and_says_so(rows, tmp_path):
    """An environment whose state nobody knows makes the collector statistical, and its episodes begin anew."""
    from torchrl.collectors import Collector
    from torchrl.testing.mocking_classes import ContinuousActionVecMockEnv

    notes = []
    for _ in range(2):
        with perdure.open(tmp_path, run="r", quiet=True) as run:
            made = Collector(ContinuousActionVecMockEnv(), frames_per_batch=10, total_frames=20)
            perdure.torchrl.track(run, collector=made)
            for _ in perdure.torchrl.collect(run, made):
                pass
            notes = [component.note for component in run.report.components if component.name == "collector"]
            grade = run.report.grade

    assert grade is perdure.Grade.STATISTICAL
    assert "episodes begin anew" in notes[0]
    assert made._frames == 20


def test_numpy_is_not_drawn_from(rows, tmp_path):
    """Tracking, saving and restoring draw nothing from the program's streams."""
    replay = buffer()
    replay.extend(rows_of(20))
    before = np.random.get_state()[1].tobytes(), torch.get_rng_state().tolist()
    with perdure.open(tmp_path, run="r", quiet=True) as run:
        perdure.torchrl.track(run, replay=replay)
        run.save().wait()

    assert (np.random.get_state()[1].tobytes(), torch.get_rng_state().tolist()) == before


def test_another_version_is_named(rows, tmp_path, monkeypatch):
    """A resume under another version of TorchRL goes on if everything fits, and the report says what has changed."""
    make = rows.dqn(rows.LazyTensorStorage)
    live(rows, make, tmp_path, end_step=230)
    monkeypatch.setattr(sys.modules["torchrl"], "__version__", "99.0")
    _, report = live(rows, make, tmp_path, seed=2)

    assert any("torchrl was" in note and "is 99.0" in note for note in report["notes"])


def test_another_algorithm_is_refused(rows, tmp_path, monkeypatch):
    """A checkpoint of one loss does not go into a training with another one, even if all tensors would fit."""

    class AnotherLoss(rows.ClipPPOLoss):
        """Descends something else."""

    live(rows, rows.ppo, tmp_path, end_step=230)
    monkeypatch.setattr(rows, "ClipPPOLoss", AnotherLoss)
    with pytest.raises(IncompatibleError, match=r"torchrl\.ClipPPOLoss.*torchrl\.AnotherLoss"):
        live(rows, rows.ppo, tmp_path, seed=2)


def test_other_spaces_are_refused(rows, tmp_path):
    """A collector of a cart pole does not go on in another environment, and has not changed when it is refused."""
    from torchrl.collectors import Collector
    from torchrl.envs import GymEnv

    for name in ("CartPole-v1", "Acrobot-v1"):
        with perdure.open(tmp_path, run="r", quiet=True) as run:
            made = Collector(GymEnv(name), frames_per_batch=10, total_frames=20)
            perdure.torchrl.track(run, collector=made)
            if name == "CartPole-v1":
                assert sum(len(batch) for batch in perdure.torchrl.collect(run, made)) == 20
            else:
                with pytest.raises(IncompatibleError):
                    run.restore()
                assert made._frames == 0
