"""Arenas: what nobody changes is copied into one once, and never taken to be there when it is not."""

import numpy as np
import pytest
import torch

import perdure
from perdure.capture import arena
from perdure.capture.arena import Image
from perdure.capture.snapshot import load_tensors
from perdure.store.store import Store


@pytest.fixture
def copies(monkeypatch):
    """Names of the arrays of each copy; one fails if the list begins with None."""
    made = []
    real = arena.copy_now

    def copy(moves):
        if made[:1] == [None]:
            made.clear()
            raise MemoryError
        made.append([move.name for move in moves])
        real(moves)

    monkeypatch.setattr(arena, "copy_now", copy)
    return made


def content(image):
    return {name: stored.memory.tolist() for name, stored in load_tensors(image.content, "x").items()}


def test_the_same_arrays_are_copied_once(copies):
    """An image is filled again only with other arrays, or after a copy that failed."""
    ones, twos = {"a": np.ones(3, np.uint8)}, {"a": np.full(3, 2, np.uint8)}
    image = Image(ones, None)
    image.fill(ones)
    image.fill(dict(ones))
    assert [["a"]] == copies

    copies.insert(0, None)
    with pytest.raises(MemoryError):
        image.fill(twos)
    image.fill(ones)
    image.fill(twos)
    assert [["a"], ["a"]] == copies
    assert {"a": [2, 2, 2]} == content(image)


def test_scalars_are_copied_each_time(copies):
    """A scalar of NumPy's, which cannot be referred to without being held, is never taken to be there already."""
    ones = {"a": np.float64(1)}
    image = Image(ones, None)
    image.fill(ones)
    image.fill(ones)

    assert [["a"], ["a"]] == copies


def test_what_is_handed_over_is_in_every_checkpoint(tmp_path, monkeypatch):
    """Examples and generators are right in each of several saves in a row, one of which fails before it is written."""
    real, commits = Store.commit, []

    def commit(self, *words):
        commits.append(None)
        if len(commits) == 2:
            raise perdure.PerdureError("no", kind="test.refused")
        return real(self, *words)

    monkeypatch.setattr(Store, "commit", commit)
    net = torch.nn.Linear(3, 2)
    run = perdure.open(tmp_path, run="t", save=None, budget=None, quiet=True, keep=None, on_failed_save="warn")
    run.track(net=net)
    draws = []
    for number in range(6):
        net(torch.full((4, 3), float(number)))
        handle = run._saver.save(perdure.core.manifest.Cut(number, "call"), "asked", {}, wait_for_arena_seconds=30)
        draws.append(torch.rand(1).item())
        run._saver.drain(30)
        assert (number == 1) == (handle.error is not None)

    generator = torch.Generator()
    for checkpoint in run._store.checkpoints():
        step = checkpoint.manifest.global_step
        example = load_tensors(run._store.read(checkpoint, "state/probes.safetensors"), "x")["net:"]
        assert [0.0] * 12 == np.frombuffer(example.memory, np.float32).tolist()
        state = load_tensors(run._store.read(checkpoint, "rng/rng.safetensors"), "x")["torch"]
        generator.set_state(torch.frombuffer(bytearray(state.memory), dtype=torch.uint8))
        assert draws[step] == torch.rand(1, generator=generator).item()
    assert 5 == len(run._store.checkpoints())
    run.close()
