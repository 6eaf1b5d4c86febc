"""Reading ahead: large files come side by side, whole and verified, whatever order they are taken in."""

import random
from contextlib import nullcontext

import pytest

from perdure.capture.snapshot import content_part
from perdure.core.manifest import Cut, Manifest
from perdure.errors import CorruptionError
from perdure.files.door import Files
from perdure.files.writing import THREAD_THRESHOLD_BYTES
from perdure.recovery.reading import Reading
from perdure.store.store import Store
from perdure.testing.scenario import CREATED_AT, numbered_ids

SIZES = {
    "meta.json": 17,
    "model/a.safetensors": THREAD_THRESHOLD_BYTES,
    "model/b.safetensors": THREAD_THRESHOLD_BYTES + 1,
}


def nobody(done_bytes: int, total_bytes: int) -> None:
    """Waits."""


def content(path: str) -> bytes:
    return random.Random(path).randbytes(SIZES[path])


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "run", Files(), numbered_ids("reading"))
    store.create("run", CREATED_AT)
    return store


@pytest.fixture
def checkpoint(store):
    draft = Manifest(
        run="run", id=store.new_id(), global_step=1, generation=1, sequence=1, parent=None, cut=Cut(1, "call"),
        reason="asked", created_at=CREATED_AT,
    )  # fmt: skip
    return store.commit(draft, [content_part(path, content(path)) for path in SIZES], nullcontext)


@pytest.mark.parametrize("order", [list(SIZES), list(reversed(SIZES))])
def test_every_file_is_handed_out_as_it_was_saved(store, checkpoint, order):
    """Small and large files have their bytes, in whatever order they are asked for, and whoever waits hears of it."""
    told = []
    with Reading(store, checkpoint, SIZES, lambda *counts: told.append(counts)) as reading:
        assert all(reading.take(path) == content(path) for path in order)
    assert told == sorted(told)
    assert told[-1] == (sum(SIZES.values()), sum(SIZES.values()))


def test_damage_is_named_when_its_file_is_taken(store, checkpoint):
    """A damaged large file is an error for whoever takes it, and for nobody before."""
    damaged = checkpoint.directory / "model/b.safetensors"
    damaged.write_bytes(bytes(SIZES["model/b.safetensors"]))
    with Reading(store, checkpoint, SIZES, nobody) as reading:
        assert reading.take("model/a.safetensors") == content("model/a.safetensors")
        with pytest.raises(CorruptionError, match=r"b\.safetensors"):
            reading.take("model/b.safetensors")


def test_what_nobody_takes_is_given_up(store, checkpoint):
    """An error on the way ends the reading; nothing goes on reading behind it."""
    with pytest.raises(ZeroDivisionError), Reading(store, checkpoint, SIZES, nobody):
        raise ZeroDivisionError
