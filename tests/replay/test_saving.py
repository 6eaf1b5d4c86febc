"""What a save of a ring promises."""

import json
import threading

import numpy as np
import pytest
from safetensors.numpy import load_file

from perdure.core.component import LinkPart, PartsComponent
from perdure.core.ring import PAGE_BYTES, RingState
from perdure.core.tensorfile import header_bytes, parse_header
from perdure.errors import InvalidInputError, PerdureError
from perdure.replay import Journal, Prioritized, RingComponent, component_for
from tests.replay.harness import STEM


def restored(small, source, **settings):
    """A fresh ring brought to a checkpoint."""
    ring = small.ring(**settings)
    component = small.component(ring)
    component.check_parts(source)
    component.restore_parts(source)
    component.verification and component.verification.finish()
    return ring


def test_a_ring_is_a_component(small):
    """A RingBuffer becomes a parts component by itself; other values do not."""
    component = component_for(small.ring())
    assert isinstance(component, PartsComponent)
    assert component_for({"a": 1}) is None
    assert component_for(np.zeros(3)) is None


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 49, 50, 51, 57, 100, 123, 777])
def test_any_fill_comes_back(small, shop, count):
    """Empty, half full, full and wrapped rings come back with the same rows, positions and counts."""
    ring = small.ring()
    small.add(ring, count)
    again = restored(small, shop.save(small.component(ring)))
    assert again.state == ring.state
    assert small.numbers(again) == small.numbers(ring) == list(range(max(0, count - 50), count))


def test_segments_are_plain_safetensors_files(small, shop):
    """Any safetensors reader opens a segment and finds the rows under their columns' names."""
    ring = small.ring()
    small.add(ring, 60)
    source = shop.save(small.component(ring))
    tensors = load_file(source.path("segment-000001.safetensors"))
    assert tensors["obs"].shape == (8, 1, 1024)
    assert np.array_equal(tensors["next_obs"], ring.columns["next_obs"][8:16])
    narrow = load_file(source.path("narrow-000002.safetensors"))
    assert np.array_equal(narrow["reward"], ring.columns["reward"][20:30])


def test_wide_columns_begin_at_pages(small, shop):
    """The data of every wide column of every segment, full or not, begins at a multiple of 4096."""
    ring = small.ring()
    small.add(ring, 61)
    source = shop.save(small.component(ring))
    names = [path.name for path in source.path("").iterdir() if path.name.startswith("segment")]
    assert len(names) == 7
    for name in names:
        content = source.path(name).read_bytes()
        length = header_bytes(content[:8], len(content), name)
        for placed in parse_header(content[8 : 8 + length], len(content), name):
            assert placed.spec.name.startswith(".padding") or placed.offset_bytes % PAGE_BYTES == 0


def test_the_header_says_where_the_ring_stands(small, shop):
    """The header is JSON with the positions, counts, columns and segment table of the format."""
    ring = small.ring()
    small.add(ring, 57)
    source = shop.save(small.component(ring))
    header = json.loads(source.path("buffer_header.json").read_bytes())
    stands = {"schema_version": 1, "capacity": 50, "head_position": 7, "tail_position": 7, "total_count": 57}
    assert {key: header[key] for key in stands} == stands
    assert header["segments"][0].keys() == {"group", "segment", "file", "held", "used"}
    assert header["groups"][0]["columns"][0] == {"name": "obs", "dtype": "uint8", "shape": [1, 1024]}


def test_unchanged_segments_are_the_same_files(small, shop):
    """A segment in which nothing was written is a hard link to the last checkpoint's file."""
    ring, component = small.ring(), None
    component = small.component(ring)
    small.add(ring, 50)
    first = shop.save(component)
    small.add(ring, 3)
    second = shop.save(component)
    inodes = [{p.name: p.stat().st_ino for p in s.path("").iterdir()} for s in (first, second)]
    shared = {name for name in inodes[0] if inodes[0][name] == inodes[1].get(name)}
    assert shared == {f"segment-{n:06d}.safetensors" for n in range(1, 7)} | {
        f"narrow-{n:06d}.safetensors" for n in range(1, 5)
    }
    assert first.path("segment-000000.safetensors").samefile(second.path("segment-000000-older.safetensors"))
    assert small.numbers(restored(small, second)) == list(range(3, 53))
    assert small.numbers(restored(small, first)) == list(range(50)), "the first checkpoint is what it was"


def test_a_save_writes_what_changed_and_at_most_one_segment_more(small, shop):
    """Over many saves of a ring that goes round, bytes written stay within 1.05 of the changes and one segment."""
    ring = small.ring(capacity=400)
    component = RingComponent(ring, wide_bytes=64 * 2048, narrow_bytes=320)
    rng = np.random.default_rng(1)
    row_bytes, segment_bytes = 2048 + 5, 64 * (2048 + 5)
    shop.save(component)
    for _ in range(40):
        count = int(rng.integers(0, 150))
        small.add(ring, count)
        source = shop.save(component)
        # Headers are padded to a page for mapping: one page of a 16 MiB segment, much of these tiny ones.
        headers = sum(4096 for path in shop.written_paths if "segment" in path or "narrow" in path)
        table = source.files[f"{STEM}/buffer_header.json"].bytes
        assert shop.written_bytes - headers - table <= 1.05 * count * row_bytes + segment_bytes + 4096


def test_a_save_of_nothing_new_writes_the_header_only(small, shop):
    """Saving twice without a change links every segment."""
    ring = small.ring()
    component = small.component(ring)
    small.add(ring, 77)
    shop.save(component)
    shop.save(component)
    assert shop.written_paths == [f"{STEM}/buffer_header.json"]


def test_what_was_restored_is_linked_by_the_next_save(small, shop):
    """After a restore the segments are known to be committed: only what changes from there on is written."""
    ring = small.ring()
    small.add(ring, 70)
    source = shop.save(small.component(ring))
    again = small.ring()
    component = small.component(again)
    component.restore_parts(source)
    small.add(again, 2)
    shop.save(component)
    assert {path.rpartition("/")[2] for path in shop.written_paths} == {
        "segment-000002.safetensors", "narrow-000002.safetensors", "buffer_header.json",
    }  # fmt: skip


def test_a_checkpoint_holds_nothing_newer_than_its_cut(small, shop):
    """Rows added after the capture and before the write are in no file of the checkpoint."""
    ring = small.ring()
    component = small.component(ring)
    small.add(ring, 60)
    capture = component.capture_parts(STEM)
    small.add(ring, 33)
    source = shop.commit(capture)
    assert small.numbers(restored(small, source)) == list(range(10, 60))
    rewards = [load_file(path)["reward"] for path in source.path("").glob("narrow-*")]
    assert max(float(values.max()) for values in rewards) == 59.0


def test_several_pending_captures_each_hold_their_moment(small, shop):
    """Captures taken before earlier ones are written come out right, even when the ring went round in between."""
    ring = small.ring()
    component = small.component(ring)
    small.add(ring, 20)
    captures = []
    for count in (5, 40, 130):
        captures.append((component.capture_parts(STEM), small.numbers(ring)))
        small.add(ring, count)
    for capture, expected in captures:
        assert small.numbers(restored(small, shop.commit(capture))) == expected
    assert ring.journal.is_idle
    assert small.numbers(restored(small, shop.save(component))) == small.numbers(ring)


def test_an_aborted_capture_loses_nothing(small, shop):
    """What a save that was given up would have written, the next one writes."""
    ring = small.ring()
    component = small.component(ring)
    small.add(ring, 50)
    shop.save(component)
    small.add(ring, 20)
    component.capture_parts(STEM).on_aborted()
    small.add(ring, 1)
    source = shop.save(component)
    assert ring.journal.is_idle
    assert small.numbers(restored(small, source)) == list(range(21, 71))


def test_a_capture_that_failed_half_way_can_be_aborted(small, shop):
    """A writer that dies after some files leaves nothing pending."""
    ring = small.ring()
    component = small.component(ring)
    small.add(ring, 50)
    capture = component.capture_parts(STEM)
    for _ in capture.parts[0].chunks():
        pass
    capture.on_aborted()
    assert ring.journal.is_idle
    assert small.numbers(restored(small, shop.save(component))) == list(range(50))


def test_a_capture_copies_no_rows(small, monkeypatch):
    """Taking a capture reads no row of the ring: its time does not depend on how much the ring holds."""
    ring = small.ring()
    component = small.component(ring)
    small.add(ring, 60)

    class Untouchable(np.ndarray):
        def __getitem__(self, key):
            raise AssertionError("a row was read")

    monkeypatch.setattr(type(ring), "columns", {n: a.view(Untouchable) for n, a in ring.columns.items()})
    capture = component.capture_parts(STEM)
    assert ring.journal.kept_bytes == 0
    capture.on_aborted()


def test_mutable_arrays_are_copied_at_once(small, shop):
    """Priorities are those of the capture, whatever happens to them before the write."""
    ring = small.ring(prioritized=Prioritized(alpha=1.0, epsilon=0.0))
    component = small.component(ring)
    small.add(ring, 30)
    ring.update_priorities(np.arange(30), np.arange(30) + 1.0)
    capture = component.capture_parts(STEM)
    ring.update_priorities(np.arange(30), np.full(30, 99.0))
    again = restored(small, shop.commit(capture), prioritized=Prioritized(alpha=1.0, epsilon=0.0))
    assert again.mutable["priority"].ravel()[:30].tolist() == list(range(1, 31))
    assert again.mutable["largest_priority"].tolist() == [30.0]


def test_sampling_continues_exactly(small, shop):
    """After a restore the same batches are drawn as without it, by priority as well."""
    for settings in ({}, {"prioritized": Prioritized()}, {"n_envs": 2}):
        ring = small.ring(**settings)
        small.add(ring, 44)
        if settings.get("prioritized"):
            ring.update_priorities(ring.sample(32).indices, np.linspace(0, 5, 32))
        source = shop.save(small.component(ring))
        again = restored(small, source, rng=99, **settings)
        for _ in range(3):
            one, other = ring.sample(16, n_step=3), again.sample(16, n_step=3)
            assert np.array_equal(one.indices, other.indices)
            assert np.array_equal(one.weights, other.weights)
            assert all(np.array_equal(one[name], other[name]) for name in one.columns)


def test_keeping_the_recent_saves_no_more(small, shop):
    """With keep_recent only the newest transitions are saved, and segments without any of them are left out."""
    ring = small.ring()
    component = small.component(ring, keep_recent=12)
    for count, expected in ((30, range(18, 30)), (45, range(63, 75)), (2, range(65, 77))):
        small.add(ring, count)
        source = shop.save(component)
        assert small.numbers(restored(small, source)) == list(expected)
        assert len([path for path in source.files if "segment" in path]) <= 3


def test_edits_in_place_are_saved(small, shop):
    """Rows that are announced as changed in place are written again, and pending captures keep the old ones."""
    ring = small.ring()
    component = small.component(ring)
    small.add(ring, 50)
    shop.save(component)
    pending = component.capture_parts(STEM)
    small.add(ring, 1)
    full = component.capture_parts(STEM)
    with ring.journal.lock:
        ring.journal.before_edit(ring.columns, 20, 2)
        ring.columns["reward"][20:22] = -1
    assert small.numbers(restored(small, shop.commit(pending))) == list(range(50))
    assert small.numbers(restored(small, shop.commit(full))) == list(range(1, 51))
    edited = restored(small, shop.save(component))
    assert edited.columns["reward"][19:23, 0].tolist() == [19, -1, -1, 22]
    shop.save(component)
    assert shop.written_paths == [f"{STEM}/buffer_header.json"]


def test_files_of_a_commit_are_never_written_again(small, shop):
    """Training on, saving on and restoring change no byte of an earlier checkpoint."""
    ring = small.ring()
    component = small.component(ring)
    small.add(ring, 60)
    source = shop.save(component)
    before = {path: path.read_bytes() for path in source.path("").iterdir()}
    again = small.ring()
    other = small.component(again)
    other.restore_parts(source)
    other.verification.finish()
    small.add(ring, 60)
    small.add(again, 60)
    shop.save(component)
    shop.save(other)
    assert {path: path.read_bytes() for path in source.path("").iterdir()} == before


def test_actors_may_add_while_the_writer_copies(small, shop):
    """With threads adding and sampling all the time, every checkpoint is a moment of the ring, untorn."""
    ring = small.ring(capacity=64)
    component = small.component(ring)
    small.add(ring, 64)
    stop = threading.Event()
    failures = []

    def add():
        while not stop.is_set():
            small.add(ring, 1)

    def sample():
        while not stop.is_set():
            batch = ring.sample(8)
            if not np.array_equal(batch["next_obs"], batch["obs"] + np.uint8(1)):
                failures.append(batch)

    threads = [threading.Thread(target=target) for target in (add, sample)]
    for thread in threads:
        thread.start()
    try:
        sources = []
        for _ in range(6):
            captures = [component.capture_parts(STEM), component.capture_parts(STEM)]
            sources.extend(shop.commit(capture) for capture in captures)
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert not failures
    for source in sources:
        again = restored(small, source, capacity=64)
        numbers = small.numbers(again)
        assert numbers == list(range(again.total_count - 64, again.total_count))


class FrameworkRing:
    """A framework's own arrays: nothing tells before a row is overwritten."""

    announces_writes = False
    rows_per_write = 1
    begins_at_zero = True
    refuses_to_move = ""
    n_envs = 1
    random_state = None

    def __init__(self, capacity):
        self.observations = np.zeros((capacity, 1, 4096), np.uint8)
        self.pos, self.full, self.count = 0, False, 0
        self.journal = Journal()

    columns = property(lambda self: {"observations": self.observations})
    mutable = property(lambda self: {})

    @property
    def state(self):
        capacity = len(self.observations)
        return RingState(capacity, self.pos, capacity if self.full else self.pos, self.count)

    def watch_reads(self, watch):
        return False

    def adopt(self, content):
        self.observations = content.columns["observations"]
        self.pos, self.full = content.state.head_position, content.state.size == content.state.capacity
        self.count = content.state.total_count

    def add(self, count):
        """Add rows as a framework does, telling nobody."""
        for _ in range(count):
            self.observations[self.pos] = self.count % 251
            self.count += 1
            self.pos = (self.pos + 1) % len(self.observations)
            self.full = self.full or self.pos == 0


def framework_component(ring, **settings):
    """A component of four-row segments."""
    return RingComponent(ring, wide_bytes=4 * 4096, **settings)


@pytest.mark.parametrize("count", [0, 5, 32, 50])
def test_a_frameworks_arrays_are_a_ring(shop, count):
    """Arrays of a framework with a position and a full flag are saved by what changed, and restored into it."""
    ring = FrameworkRing(32)
    component = component_for(ring)
    assert component is not None
    component = framework_component(ring)
    ring.add(count)
    shop.save(component)
    ring.add(3)
    source = shop.save(component)
    assert len([path for path in shop.written_paths if "segment" in path]) <= 2
    again = FrameworkRing(32)
    other = framework_component(again)
    other.restore_parts(source)
    assert again.state == ring.state
    assert np.array_equal(again.observations, ring.observations)


def test_a_frameworks_arrays_are_decoded_before_it_gets_them(shop):
    """A ring that does not tell what it reads gets coded segments decoded before the restore returns."""
    ring = FrameworkRing(32)
    ring.add(20)
    source = shop.save(framework_component(ring, codec="auto", clock_seconds=lambda: 0.0))
    fresh = FrameworkRing(32)
    restored = framework_component(fresh)
    note = restored.restore_parts(source)
    assert "read and verified" in note
    assert restored.verification.has_all_rows
    assert np.array_equal(fresh.observations[:20], ring.observations[:20])


def test_a_framework_that_overtakes_the_writer_is_not_saved_torn(shop):
    """Rows ahead of the head are kept in advance; a ring that goes further before the copy makes the save fail."""
    ring = FrameworkRing(32)
    component = framework_component(ring)
    component._guard_rows = 6
    ring.add(40)
    expected = ring.observations.copy()
    capture = component.capture_parts(STEM)
    ring.add(5)
    source = shop.commit(capture)
    again = FrameworkRing(32)
    framework_component(again).restore_parts(source)
    assert np.array_equal(again.observations, expected), "within the rows kept in advance all is well"
    ring.add(32)
    capture = component.capture_parts(STEM)
    ring.add(20)
    with pytest.raises(PerdureError, match="rows were written before its segments were copied"):
        shop.write(capture)
    capture.on_aborted()
    assert component._guard_rows == 12, "the next save keeps more"


def test_a_frameworks_ring_cannot_verify_at_first_touch():
    """Where samples are handed out unseen, first-touch verification is refused instead of promised."""
    with pytest.raises(InvalidInputError) as caught:
        framework_component(FrameworkRing(8), verify="first-touch")
    assert caught.value.kind == "replay.unwatched-ring"
    with pytest.raises(InvalidInputError, match="background, first-touch, eager"):
        framework_component(FrameworkRing(8), verify="never")


def test_linked_files_name_the_last_commit(small, shop):
    """Links always go to the newest committed checkpoint, so older ones may be removed."""
    ring = small.ring()
    component = small.component(ring)
    small.add(ring, 50)
    for _ in range(3):
        source = shop.save(component)
        small.add(ring, 1)
    links = [part for part in component.capture_parts(STEM).parts if isinstance(part, LinkPart)]
    assert links
    assert {part.source.parents[2] for part in links} == {source.directory}
