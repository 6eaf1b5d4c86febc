"""What coded segments promise: the same rows in fewer bytes, decoded before anybody sees or overwrites them."""

import re
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from perdure.core.coding import CODINGS, RAW, Coding
from perdure.core.ring import Column
from perdure.errors import CorruptionError, MissingDependencyError
from perdure.files.reading import allocate
from perdure.replay import Prioritized, Recent, RingBuffer, RingComponent
from perdure.replay.coding import CodedFile, encode_rows
from perdure.replay.loading import Loader
from perdure.replay.packing import installed_packings, pack, unpack
from perdure.replay.trials import choose_codings
from tests.replay.harness import STEM

SECONDS = 30
SIDE = 16
COLUMNS = {
    "obs": (np.uint8, (4, SIDE, SIDE)),
    "next_obs": (np.uint8, (4, SIDE, SIDE)),
    "noise": (np.uint8, (1024,)),
    "reward": (np.float32, ()),
}


def frame(number):
    """A picture of noise, the same for the same number."""
    return np.random.default_rng(number).integers(0, 256, (SIDE, SIDE), np.uint8)


def row(number, *, is_noisy=False):
    """One transition of a stack that moves on by a frame a step."""
    frames = [frame(number + shift) for shift in range(5)]
    noise = np.random.default_rng(10_000 + number).integers(0, 256, 1024, np.uint8)
    stack = np.random.default_rng(number).integers(0, 256, (5, SIDE, SIDE), np.uint8) if is_noisy else np.stack(frames)
    return {"obs": stack[:4], "next_obs": stack[1:], "noise": noise, "reward": np.float32(number)}


def filled(count, capacity=64, **settings):
    """A ring of stacked frames."""
    ring = RingBuffer(capacity, COLUMNS, rng=1)
    for number in range(count):
        ring.add(**row(number, **settings))
    return ring


def component(ring, **settings):
    """A component that codes, with segments of 16 rows; every coding is taken to be as fast as every other."""
    settings.setdefault("codec", "auto")
    return RingComponent(ring, wide_bytes=16 * 3 * 1024, narrow_bytes=400, clock_seconds=lambda: 0.0, **settings)


def check_rows(ring, numbers):
    """The ring must hold these rows."""
    state = ring.state
    slots = [slot for span in state.spans for slot in range(*span)]
    assert [int(ring.columns["reward"][slot, 0]) for slot in slots] == list(numbers)
    for slot, number in zip(slots, numbers, strict=True):
        for name, expected in row(number).items():
            assert np.array_equal(ring.columns[name][slot, 0], expected), (name, number)


@pytest.fixture
def saved(shop):
    """A coded checkpoint of a ring that went round: rows 26 to 89, the head within a segment."""
    return shop.save(component(filled(90)))


# Files


@pytest.mark.parametrize("text", sorted(CODINGS))
@pytest.mark.parametrize("shape", [(1, 4, 6, 5), (2, 6, 5, 4), (3, 40), (2, 3, 4, 5, 6)])
def test_every_coding_gives_the_rows_back(text, shape):
    """Whatever the shape and the rows that are asked for, what was encoded is decoded to the last bit."""
    coding = CODINGS[text]
    if coding.frames == "trailing" and len(shape) < 4:
        pytest.skip("needs a picture")
    rows = np.random.default_rng(3).integers(0, 3, (7, *shape)).astype(np.float32)
    columns = [Column("a", "float32", shape), Column("b", "float32", shape)]
    arrays = {"a": rows, "b": np.ascontiguousarray(rows[::-1])}
    coded = encode_rows(columns, arrays, {"a": coding, "b": coding})
    image = allocate(coded.total_bytes)
    coded.write_into(image)
    file = CodedFile(image, 7, "x")
    for start, stop in ((0, 7), (2, 5), (6, 7), (3, 3)):
        for column in columns:
            target = np.zeros((stop - start, *shape), np.float32)
            file.read(column, (start, stop), target)
            assert np.array_equal(target, arrays[column.name][start:stop])


def test_frames_are_kept_once_for_all_columns():
    """A next observation costs the numbers of its frames only, for both places of the stack."""
    stacks = np.stack([np.stack([frame(t + shift) for shift in range(5)]) for t in range(20)])[:, None]
    for text, arrays in (
        ("leading", {"obs": stacks[:, :, :4], "next_obs": stacks[:, :, 1:]}),
        ("trailing", {n: np.moveaxis(stacks[:, :, o : o + 4], 2, -1) for n, o in (("obs", 0), ("next_obs", 1))}),
    ):
        columns = [Column(name, "uint8", array.shape[1:]) for name, array in arrays.items()]
        if text == "trailing":
            # A frame is the last two dimensions once the stack has been moved before them.
            assert columns[0].shape == (1, SIDE, SIDE, 4)
        coded = encode_rows(columns, arrays, dict.fromkeys(arrays, CODINGS[text]))
        assert coded.total_bytes < 24 * SIDE * SIDE + 2 * 20 * 4 * 4 + 1024


def test_coded_files_are_plain_safetensors(saved):
    """Any safetensors reader finds the frames and their numbers, and puts the rows together by indexing."""
    tensors = load_file(saved.path("segment-000000.safetensors"))
    (pool,) = (name for name in tensors if name.startswith(".frames"))
    frames = tensors[pool]
    numbers = tensors["obs"]
    assert numbers.dtype == np.uint32
    assert frames.ndim == 2
    rows = frames[numbers].reshape(-1, 1, 4, SIDE, SIDE)
    assert np.array_equal(rows[0, 0], row(64)["obs"])


@pytest.mark.parametrize("text", ["raw", "leading", "trailing", *(f"trailing+{name}" for name in installed_packings())])
def test_the_program_of_the_documentation_reads_it(shop, monkeypatch, text):
    """Who has safetensors and the page about the format gets every column back without perdure."""
    codings = {"obs": CODINGS[text], "flat": CODINGS[text.replace("trailing", "leading")]}
    monkeypatch.setattr("perdure.replay.writing.choose_codings", lambda *_: codings)
    ring = RingBuffer(40, {"obs": (np.float32, (5, 6, 4)), "flat": (np.uint8, (512,)), "reward": (np.float32, ())})
    rng = np.random.default_rng(4)
    frames = rng.integers(0, 2, (3, 5, 6, 4))
    for number in range(60):
        flat = np.full(512, number // 8, np.uint8)
        ring.add(obs=frames[number % 3], flat=flat, reward=np.float32(number))
    saved = shop.save(RingComponent(ring, codec="auto", wide_bytes=16 * 1024, narrow_bytes=200))
    assert b'"coded":true' in saved.path("buffer_header.json").read_bytes() or text == "raw"
    (program,) = re.findall(r"```python\n(.*?)```", Path("docs/format/buffer.md").read_text(), re.DOTALL)
    names = {}
    exec(program, names)
    order = [slot for span in ring.state.spans for slot in range(*span)]
    for name, array in ring.columns.items():
        assert np.array_equal(names["read_rows"](saved.path(""), name), array[order]), name


def malformed(**changes):
    """A coded file some of whose tensors or metadata were changed by a writer with other ideas."""
    from perdure.core.tensorfile import TensorSpec, plan_layout

    tensors = {
        "obs": ("U32", np.zeros((4, 4), np.uint32)),
        ".frames-256": ("U8", np.zeros((1, 256), np.uint8)),
    } | changes.pop("tensors", {})
    metadata = {"obs": "leading", ".frames-256": "1"} | changes.pop("metadata", {})
    specs = [TensorSpec(name, dtype, array.shape) for name, (dtype, array) in tensors.items()]
    layout = plan_layout(specs, metadata)
    content = bytearray(layout.total_bytes)
    content[: len(layout.prefix)] = layout.prefix
    for placed in layout.tensors:
        data = tensors[placed.spec.name][1].tobytes()
        content[placed.offset_bytes : placed.offset_bytes + len(data)] = data
    return memoryview(content)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"metadata": {"obs": "wavelets"}}, "unknown way"),
        ({"metadata": {"obs": "leading+zstd"}}, "no tensor"),
        ({"metadata": {"obs": "zstd"}}, "should come out|no zstd"),
        ({"metadata": {"obs": "lz4"}}, "should come out|no lz4"),
        ({"metadata": {"obs": "raw"}}, "should come out"),
        ({"metadata": {".frames-256": "-1"}}, "states"),
        ({"metadata": {".frames-256": "99999999999"}}, "states"),
        ({"metadata": {".frames-256": "2"}}, "should come out"),
        ({"tensors": {"obs": ("U32", np.full((4, 4), 7, np.uint32))}}, "not there"),
        ({"tensors": {"obs": ("U32", np.zeros((4, 3), np.uint32))}}, "another form"),
        ({"tensors": {"obs": ("I32", np.zeros((4, 4), np.int32))}}, "another form"),
    ],
)
def test_a_coded_file_that_makes_no_sense_is_refused(changes, match):
    """Unknown codings, wrong lengths and numbers of frames that are not there end in an error, never in a crash."""
    column = Column("obs", "uint8", (1, 4, SIDE, SIDE))
    file = CodedFile(malformed(**changes), 4, "x")
    with pytest.raises(ValueError, match=match):
        file.read(column, (0, 4), np.zeros((4, *column.shape), np.uint8))


@pytest.mark.parametrize("packing", installed_packings())
def test_packings_say_how_long_they_are_before_they_are_unpacked(packing):
    """Unpacking takes no more memory than was asked for, and refuses what is no packing."""
    packed = pack(packing, np.zeros(100_000, np.uint8))
    assert len(packed) < 1000
    assert np.array_equal(unpack(packing, packed, 100_000), np.zeros(100_000, np.uint8))
    for content, size in ((packed, 99_999), (packed[:-3], 100_000), (np.arange(64, dtype=np.uint8), 100_000)):
        with pytest.raises(ValueError, match=packing):
            unpack(packing, content, size)


# Choosing


def test_what_repeats_is_coded_and_noise_is_not():
    """Stacked frames are taken apart, in whichever place the stack is, and noise is left as it is."""
    stacks = np.stack([np.stack([frame(t + shift) for shift in range(5)]) for t in range(20)])[:, None]
    arrays = {
        "obs": np.ascontiguousarray(stacks[:, :, :4]),
        "next_obs": np.ascontiguousarray(stacks[:, :, 1:]),
        "behind": np.ascontiguousarray(np.moveaxis(stacks[:, :, :4], 2, -1)),
        "noise": np.random.default_rng(1).integers(0, 256, (20, 1, 500), np.uint8),
    }
    columns = [Column(name, "uint8", array.shape[1:]) for name, array in arrays.items()]
    chosen = choose_codings(columns, arrays, installed_packings(), lambda: 0.0)
    assert chosen["obs"].frames == chosen["next_obs"].frames == "leading"
    assert chosen["noise"] == RAW
    alone = choose_codings(columns[2:], arrays, (), lambda: 0.0)
    assert alone["behind"] == Coding("trailing")


def test_slow_codings_are_not_taken():
    """A coding whose trial takes too long for its bytes is left out, however much it saves."""
    ticks = iter(range(1000))
    rows = {"obs": np.zeros((20, 1, 500), np.uint8)}
    assert choose_codings([Column("obs", "uint8", (1, 500))], rows, ("zstd",), lambda: float(next(ticks))) == {
        "obs": RAW
    }


# Saves and restores


@pytest.mark.parametrize("count", [0, 3, 20, 64, 65, 90, 200])
def test_any_fill_comes_back_from_coded_segments(shop, count):
    """Empty, half full, full and wrapped rings come back with the same rows, positions and counts."""
    source = shop.save(component(filled(count)))
    ring = filled(0)
    component(ring).restore_parts(source)
    assert ring.total_count == count
    check_rows(ring, range(max(0, count - 64), count))


@pytest.mark.parametrize(
    "settings", [{}, {"verify": "first-touch"}, {"verify": "eager"}, {"load": "read"}, {"damaged": "drop"}]
)
def test_every_way_decodes_the_same_rows(saved, settings):
    """Decoded behind, at first touch or before use, by whoever codes or does not, the rows are the same."""
    for codec in ("auto", "raw"):
        ring = filled(0)
        component(ring, codec=codec, **settings).restore_parts(saved)
        check_rows(ring, range(26, 90))


def test_coding_saves_what_repeats(shop):
    """Coded segments of stacked frames take a fraction of the rows' bytes; those of noise take what rows take."""
    plain = sum(file.bytes for file in shop.save(component(filled(64), codec="raw")).files.values())
    noisy = sum(file.bytes for file in shop.save(component(filled(64, is_noisy=True))).files.values())
    coded = sum(file.bytes for file in shop.save(component(filled(64))).files.values())
    assert coded < plain * 2 / 3  # a third of the bytes is noise
    assert noisy > plain * 0.95


def test_segments_that_do_not_get_smaller_are_mapped(shop):
    """Where nothing repeats, files hold plain rows, and a restore maps them as ever."""
    ring = filled(64, is_noisy=True)
    source = shop.save(component(ring))
    back = filled(0)
    assert "coded" not in (note := component(back).restore_parts(source)), note
    assert note.startswith("mapped")


def test_coded_segments_are_linked_by_the_next_save(shop, saved):
    """After a restore only what changes is written again; the rest is linked, coded as it is."""
    ring = filled(0)
    again = component(ring)
    again.restore_parts(saved)
    ring.add(**row(90))
    source = shop.save(again)
    assert {path for path in shop.written_paths if "/segment" in path} == {f"{STEM}/segment-000001.safetensors"}
    back = filled(0)
    component(back).restore_parts(source)
    check_rows(back, range(27, 91))


def test_rows_added_before_their_segment_was_decoded_stay(saved):
    """Decoding never brings back what the ring has overwritten since the restore."""
    ring = filled(0)
    component(ring).restore_parts(saved)
    for number in range(90, 140):
        ring.add(**row(number))
    check_rows(ring, range(76, 140))


def test_a_capture_holds_its_moment_though_another_restore_came(shop, saved):
    """What a pending capture needs of a restore is decoded for it, also when something else has been restored since."""
    ring = filled(0)
    kept = component(ring)
    kept.restore_parts(saved)
    with ring.journal.lock:
        ring.journal.before_edit(kept._restored, 0, 64)
    capture = kept.capture_parts(STEM)
    kept.restore_parts(saved)
    source = shop.commit(capture)
    back = filled(0)
    component(back).restore_parts(source)
    check_rows(back, range(26, 90))


def test_a_restore_returns_before_everything_is_decoded(saved, monkeypatch):
    """Training may begin while segments are still being decoded; who needs their rows waits for them."""
    may_decode = threading.Event()
    decode = Loader.decode
    first = []

    def decode_later(self, task):
        if first:
            assert may_decode.wait(SECONDS)
        first.append(task)
        decode(self, task)

    monkeypatch.setattr(Loader, "decode", decode_later)
    ring = filled(0)
    restored = component(ring)
    note = restored.restore_parts(saved)
    assert "decoded in the background" in note
    restored.check()
    assert not restored.verification.has_all_rows
    assert ring.state.size == 64
    may_decode.set()
    check_rows(ring, range(26, 90))
    assert restored.verification.has_all_rows
    assert len(first) == len({task.doubt.entry.path for task in first})


def test_trimming_and_priorities_go_with_coded_segments(shop, saved):
    """A trimmed restore decodes what it needs, and another capacity gets the newest rows."""
    ring = filled(0)
    component(ring, restore=Recent(10)).restore_parts(saved)
    check_rows(ring, range(80, 90))
    smaller = RingBuffer(20, COLUMNS, rng=1)
    component(smaller).restore_parts(saved)
    check_rows(smaller, range(70, 90))
    ranked = RingBuffer(64, COLUMNS, rng=1, prioritized=Prioritized())
    for number in range(30):
        ranked.add(**row(number))
    source = shop.save(component(ranked))
    back = RingBuffer(64, COLUMNS, rng=2, prioritized=Prioritized())
    component(back).restore_parts(source)
    assert np.array_equal(back.sample(20)["reward"], ranked.sample(20)["reward"])


# Damage


@pytest.mark.parametrize("settings", [{}, {"verify": "first-touch"}, {"verify": "eager"}, {"load": "read"}])
@pytest.mark.parametrize("kind", ["flipped", "removed", "truncated"])
def test_a_damaged_coded_segment_is_never_served(shop, saved, settings, kind):
    """Damage of a coded file raises before a row of it is seen, and nothing is committed."""
    path = saved.path("segment-000003.safetensors")
    content = path.read_bytes()
    path.unlink()
    if kind != "removed":
        path.write_bytes(content[:-1] if kind == "truncated" else content[:-1] + bytes([content[-1] ^ 1]))
    ring = filled(0)
    restored = component(ring, **settings)
    with pytest.raises(CorruptionError, match="transitions 48 to 63 of 90"):
        restored.restore_parts(saved)
        ring.sample(64 * 8)
    with pytest.raises(CorruptionError):
        restored.restore_parts(saved)
        shop.write(restored.capture_parts(STEM))


def test_going_on_without_a_damaged_coded_segment(saved):
    """With damaged='drop' the other rows come back."""
    path = saved.path("segment-000003.safetensors")
    path.write_bytes(path.read_bytes()[:-1])
    ring = filled(0)
    note = component(ring, damaged="drop").restore_parts(saved)
    assert "went on without transitions 48 to 63 of 90" in note
    check_rows(ring, [*range(26, 48), *range(64, 90)])


def test_a_missing_decoder_is_named_at_once(shop, monkeypatch):
    """A checkpoint that is packed with something that is not installed is refused before the ring is touched."""
    monkeypatch.setattr("perdure.replay.component.installed_packings", lambda: ("zstd",))
    ring = RingBuffer(64, {"obs": (np.uint8, (1024,))})
    ring.add_batch(obs=np.zeros((50, 1024), np.uint8))
    saved = shop.save(component(ring))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    back = RingBuffer(64, {"obs": (np.uint8, (1024,))})
    with pytest.raises(MissingDependencyError, match="zstandard is not installed") as caught:
        component(back).restore_parts(saved)
    assert "perdure[codec]" in caught.value.hint
    assert len(back) == 0
