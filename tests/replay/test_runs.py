"""Replay buffers in whole runs: several of them, of every shape, coded, damaged."""

import numpy as np
import pytest

import perdure
from perdure.errors import CorruptionError
from perdure.inspection import RunView
from perdure.replay import RingBuffer, RingComponent

COLUMNS = {
    "obs": (np.uint8, (4, 16, 16)),
    "hidden": (np.float32, (2, 8)),
    "episode": (np.int64, ()),
    "reward": (np.float32, ()),
    "terminated": (np.bool_, ()),
}


def ring(seed=0, count=0, *, n_envs=2, capacity=80):
    """A buffer of recurrent experience, with the state of the network and the number of the episode beside it."""
    buffer = RingBuffer(capacity, COLUMNS, n_envs=n_envs, rng=seed)
    rng = np.random.default_rng(seed)
    for step in range(count):
        buffer.add(
            obs=np.full((n_envs, 4, 16, 16), rng.integers(256), np.uint8),
            hidden=rng.standard_normal((n_envs, 2, 8)).astype(np.float32),
            episode=np.full(n_envs, step // 7),
            reward=rng.standard_normal(n_envs).astype(np.float32),
            terminated=np.full(n_envs, step % 7 == 6),
        )
    return buffer


def open_run(root, **tracked):
    """A run of the given objects, restored."""
    run = perdure.open(root, run="r", save=None, keep=perdure.Last(3), budget=None, quiet=True)
    run.track(**tracked)
    run.restore()
    return run


def same(one, other):
    """Two buffers must hold the same and draw the same."""
    assert one.state == other.state
    for name, array in one.columns.items():
        assert np.array_equal(array, other.columns[name]), name
    batches = [buffer.sample_sequences(5, 6) for buffer in (one, other)]
    assert np.array_equal(batches[0].indices, batches[1].indices)
    assert all(np.array_equal(batches[0][name], batches[1][name]) for name in COLUMNS)
    assert np.array_equal(batches[0].is_valid, batches[1].is_valid)
    episodes = [[(e.environment, e.slots.tolist(), e.begins, e.ends) for e in b.episodes()] for b in (one, other)]
    assert episodes[0] == episodes[1]


@pytest.mark.parametrize("codec", ["raw", "auto"])
def test_many_buffers_in_one_run(tmp_path, codec):
    """Buffers of agents and of a population each have a folder of their own, and come back each as it was."""
    names = {"agents": {"red": {"replay": 50}, "blue": {"replay": 0}}, "population": {"0": {"replay": 7}}}
    flat = {f"{a}/{b}/replay": inner["replay"] for a, group in names.items() for b, inner in group.items()}
    buffers = {name: ring(seed, count) for seed, (name, count) in enumerate(flat.items())}
    with perdure.open(tmp_path, run="r", save=None, quiet=True) as run:
        run.track({name: RingComponent(buffer, codec=codec) for name, buffer in buffers.items()})
        run.restore()
        run.save().wait()
    folders = {path.parent for path in (tmp_path / "r" / "latest").resolve().rglob("buffer_header.json")}
    assert {str(folder.relative_to((tmp_path / "r" / "latest").resolve())) for folder in folders} == {
        "agents/red/buffer/replay",
        "agents/blue/buffer/replay",
        "population/0/buffer/replay",
    }
    fresh = {name: ring(9) for name in buffers}
    with perdure.open(tmp_path, run="r", save=None, quiet=True) as run:
        run.track({name: RingComponent(buffer, codec=codec) for name, buffer in fresh.items()})
        run.restore()
        for name, buffer in buffers.items():
            if len(buffer):
                same(fresh[name], buffer)
            else:
                assert len(fresh[name]) == 0


def test_coded_checkpoints_of_a_run_are_small_and_share_their_segments(tmp_path):
    """A run whose buffer is coded saves, resumes and saves again; what did not change is the same file."""
    buffer = ring(1, 35)
    with open_run(tmp_path, replay=RingComponent(buffer, codec="auto", wide_bytes=16 * 1024, narrow_bytes=512)) as run:
        run.save().wait()
        first = {p.name: p.stat() for p in (tmp_path / "r" / "latest" / "buffer" / "replay").iterdir()}
    wide = sum(status.st_size for name, status in first.items() if name.startswith("segment"))
    assert wide < 35 * 2 * 1024 / 3
    back = ring(1)
    with open_run(tmp_path, replay=RingComponent(back, codec="auto", wide_bytes=16 * 1024, narrow_bytes=512)) as run:
        same(back, buffer)
        row = {name: np.zeros((2, *shape), dtype) for name, (dtype, shape) in COLUMNS.items()}
        back.add(**row)
        run.save().wait()
        second = {p.name: p.stat().st_ino for p in (tmp_path / "r" / "latest" / "buffer" / "replay").iterdir()}
    shared = {name for name, inode in second.items() if name in first and first[name].st_ino == inode}
    assert len({name for name in first if name.startswith("segment")} - shared) == 1


def test_verify_names_the_transitions_and_a_run_can_go_on_without_them(tmp_path):
    """A damaged segment is named with its transitions, refused by default, and left out on request."""
    with open_run(tmp_path, replay=RingComponent(ring(1, 50), narrow_bytes=512)) as run:
        run.save().wait()
    path = (tmp_path / "r" / "latest").resolve() / "buffer" / "replay" / "narrow-000001.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    (check,) = RunView(tmp_path, "r").verify().checkpoints
    (problem,) = check.problems
    assert problem.kind == "replay.damaged"
    assert "transitions " in problem.message
    assert "damaged='drop'" in problem.hint
    with pytest.raises(CorruptionError, match="transitions "):
        perdure_restore(tmp_path, RingComponent(ring(1), narrow_bytes=512))
    back = ring(1)
    report = perdure_restore(tmp_path, RingComponent(back, narrow_bytes=512, damaged="drop"))
    assert any("went on without transitions" in component.note for component in report.components)
    assert 0 < len(back) < 80


def perdure_restore(root, component):
    """Restore the newest checkpoint of the run by name, so that a damaged one is not put aside."""
    with perdure.open(root, run="r", save=None, resume="latest", quiet=True) as run:
        run.track(replay=component)
        return run.restore()
