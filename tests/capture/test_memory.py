"""Memory of captures: planned, limited, reused, and never growing."""

import gc
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import perdure
from perdure.capture.arena import Arena
from perdure.core.memory import MemoryPlan, plan_memory
from perdure.errors import InvalidInputError

MEGABYTE = 1024 * 1024


@pytest.mark.parametrize(
    ("available", "limit", "arenas"),
    [(None, None, 2), (200, None, 2), (199, None, 1), (100, None, 1), (1000, 199, 1), (1000, 200, 2), (150, 1000, 1)],
)
def test_arenas_are_planned_by_what_there_is(available, limit, arenas):
    """Two captures are kept in memory where there is room, one where there is less."""
    plan = plan_memory(100, available, limit)

    assert MemoryPlan(100, available, limit, arenas) == plan
    assert 100 * arenas == plan.needed_bytes
    assert plan.arena_limit_bytes is None or plan.arena_limit_bytes >= 100


@pytest.mark.parametrize(("available", "limit"), [(99, None), (1000, 99), (99, 1000)])
def test_no_room_for_one_capture_is_refused(available, limit):
    """A state of which there is no room for a copy is refused with both numbers."""
    with pytest.raises(InvalidInputError, match="takes 100 bytes of memory and there is room for 99"):
        plan_memory(100, available, limit)


def test_preflight_counts_what_training_will_come_to(tmp_path):
    """Before the first step two moments are counted for each parameter, after it what there is."""
    net = nn.Linear(256, 256, bias=False)
    optimizer = torch.optim.Adam(net.parameters())
    with perdure.open(tmp_path, run="t", quiet=True) as run:
        run.track(net=net, optimizer=optimizer, extra=np.zeros(1000))
        before = run.preflight()
        net(torch.ones(1, 256)).sum().backward()
        optimizer.step()
        after = run.preflight()

    assert 3 * 4 * 256**2 + 8000 == before.state_bytes
    assert abs(after.state_bytes - before.state_bytes) < 100
    assert 2 * before.state_bytes == before.needed_bytes


def test_room_for_one_capture_is_told_and_used(tmp_path):
    """With memory for one capture only a run warns, and still saves what it can."""
    value = np.zeros(MEGABYTE, np.uint8)
    run = perdure.open(tmp_path, run="t", quiet=True, save=None, budget=None, memory_bytes=MEGABYTE + 64 * 1024)
    run.track(value=value)
    with pytest.warns(perdure.SaveBudgetWarning, match="memory for one capture"):
        run.restore()
    run.save().wait()
    run.save().wait()

    assert run.statistics().arena_bytes <= MEGABYTE + 64 * 1024
    run.close()


def test_a_limit_that_is_too_small_is_refused_before_training(tmp_path):
    """A run that could not save once within its limit does not begin."""
    run = perdure.open(tmp_path, run="t", quiet=True, save=None, memory_bytes=1000)
    run.track(value=np.zeros(MEGABYTE, np.uint8))
    with pytest.raises(InvalidInputError, match="room for 1,000") as caught:
        run.restore()
    run.close()

    assert "memory.too-small" == caught.value.kind


def test_the_limit_is_hard():
    """An arena allocates nothing beyond its limit, whatever grows, and can be used again for what fits."""
    arena = Arena(limit_bytes=64 * 1024)
    arena.image("a", {"x": np.zeros(32 * 1024, np.uint8)})
    with pytest.raises(InvalidInputError, match="left of the limit"):
        arena.image("b", {"x": np.zeros(32 * 1024, np.uint8)})
    with pytest.raises(InvalidInputError):
        arena.image("a", {"x": np.zeros(128 * 1024, np.uint8)})
    arena.image("a", {"x": np.zeros(40 * 1024, np.uint8)})

    assert arena.size_bytes <= 64 * 1024


def test_a_component_that_changes_its_shape_is_saved_as_it_is(tmp_path):
    """Shapes, types and storage may change between saves; each checkpoint has what there was, and old memory goes."""
    net = nn.Linear(512, 512)
    values = {"x": np.zeros(3)}
    with perdure.open(tmp_path, run="t", quiet=True, save=None, budget=None, keep=None) as run:
        run.track(net=net)
        loose = run.locals(value=np.zeros(2 * MEGABYTE, np.uint8))
        run.restore()
        for value in (np.arange(5.0), torch.ones(2, 2), np.arange(3, dtype=np.int8), values, None):
            loose.value = value
            net.weight.data = torch.full((512, 512), float(len(str(value))))  # other storage each time
            run.save().wait()
        run.save().wait()

        assert run.statistics().arena_bytes < 2 * (512 * 513 * 4 + 64 * 1024)
    with perdure.open(tmp_path, run="t", quiet=True, resume="latest~2") as run:
        run.track(net=net)
        loose = run.locals(value=None)
        run.restore()

    assert np.array_equal(np.zeros(3), loose.value["x"])


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_a_thousand_saves_take_no_more_memory_than_ten(tmp_path):
    """Memory, threads and descriptors do not grow from save to save."""
    net = nn.Linear(64, 64)
    run = perdure.open(tmp_path, run="t", quiet=True, save=None, budget=None, keep=perdure.Last(1))
    run.track(net=net)
    run.restore()
    run._store.files.sync = lambda _: None  # what a disk does is not what is measured

    def measure(count):
        for _ in range(count):
            run.save().wait()
        run._saver.drain(60)  # the clean-up behind the last save may have a folder open
        gc.collect()
        return resident_bytes(), run.statistics().arena_bytes, len(list(Path("/proc/self/fd").iterdir()))

    resident, arenas, descriptors = measure(100)
    resident_after, arenas_after, descriptors_after = measure(900)
    run.close()

    assert arenas == arenas_after
    assert descriptors == descriptors_after
    assert resident_after - resident < 2 * MEGABYTE


def test_memory_of_the_group_leaves_out_its_cache():
    """What is available is less than the machine has and more than nothing."""
    available = perdure.surroundings.Surroundings().available_memory_bytes()
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")

    assert 0 < available <= total


def test_decisions_about_the_interval_are_events(tmp_path):
    """A changed interval is in the log with the cost and the rate that it was chosen by."""
    with perdure.open(tmp_path, run="t", quiet=True, save=perdure.Adaptive(), budget=None) as run:
        run.track(value=np.zeros(1000))
        run.save().wait()
    lines = (tmp_path / "t" / "events.jsonl").read_text().splitlines()
    changed = [event for event in map(json.loads, lines) if event["event"] == "interval-changed"]

    assert changed[0]["interval_seconds"] > 0
    assert changed[0]["cost_seconds"] > 0
    assert changed[0]["bytes_per_second"] > 0


def test_decisions_about_the_memory_tiers_interval_are_events_too(tmp_path, monkeypatch):
    """An interval of the memory tier that saving has lengthened is in the log, and says of which tier it is."""
    monkeypatch.setenv("PERDURE_MEMORY", str(tmp_path / "memory"))
    (tmp_path / "memory").mkdir()
    ram = perdure.Every(seconds=1e-9)
    with perdure.open(tmp_path, run="t", quiet=True, save=None, ram=ram, budget=1e-6) as run:
        run.track(value=np.zeros(1000))
        run.restore()
        run.boundary()
        run._saver.drain(30)
    lines = (tmp_path / "t" / "events.jsonl").read_text().splitlines()
    changed = [event for event in map(json.loads, lines) if event["event"] == "interval-changed"]

    assert [("ram", True)] == [(event["tier"], event["stretch"] > 1) for event in changed]
