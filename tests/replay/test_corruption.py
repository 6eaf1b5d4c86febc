"""Damage of every kind is noticed, names the transitions, and never reaches a checkpoint."""

import threading

import numpy as np
import pytest

from perdure.core.manifest import FileEntry
from perdure.errors import CorruptionError, PerdureError
from perdure.replay import restoring
from perdure.replay.verification import Verification
from tests.replay.harness import STEM, source_of

SECONDS = 30


@pytest.fixture
def saved(small, shop):
    """A checkpoint of a full ring: rows 10 to 59, with two files for the segment of the head."""
    ring = small.ring()
    component = small.component(ring)
    small.add(ring, 50)
    shop.save(component)
    small.add(ring, 10)
    return shop.save(component)


def flip(path, position):
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    # A new file: the old one is linked from other checkpoints.
    path.unlink()
    path.write_bytes(content)


DAMAGES = {
    "flipped bit in the data": lambda s: flip(s.path("segment-000003.safetensors"), 9000),
    "flipped bit in the header": lambda s: flip(s.path("segment-000003.safetensors"), 30),
    "flipped bit in the older part": lambda s: flip(s.path("segment-000001-older.safetensors"), -1),
    "flipped bit in a narrow file": lambda s: flip(s.path("narrow-000002.safetensors"), 4100),
    "truncated": lambda s: truncate(s.path("segment-000003.safetensors"), 5000),
    "longer": lambda s: truncate(s.path("segment-000003.safetensors"), 90_000),
    "removed": lambda s: s.path("segment-000003.safetensors").unlink(),
    "swapped": lambda s: swap(s.path("segment-000003.safetensors"), s.path("segment-000004.safetensors")),
    "header damaged": lambda s: flip(s.path("buffer_header.json"), 40),
    "header removed": lambda s: s.path("buffer_header.json").unlink(),
}


def truncate(path, size):
    """Give a file another length."""
    content = path.read_bytes().ljust(size, b"\0")[:size]
    path.unlink()
    path.write_bytes(content)


def swap(one, other):
    """Exchange two files."""
    contents = one.read_bytes(), other.read_bytes()
    for path, content in zip((other, one), contents, strict=True):
        path.unlink()
        path.write_bytes(content)


@pytest.mark.parametrize("settings", [{}, {"verify": "eager"}, {"verify": "first-touch"}, {"load": "read"}])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_noticed_before_it_can_do_harm(small, saved, damage, settings):
    """Whatever is damaged, the restore, the next sample of it or the next save raises; nothing is committed."""
    DAMAGES[damage](saved)
    ring = small.ring()
    component = small.component(ring, **settings)
    with pytest.raises(CorruptionError) as caught:
        component.check_parts(saved)
        component.restore_parts(saved)
        if settings.get("verify") != "first-touch":
            with pytest.raises(CorruptionError):
                component.verification.finish(SECONDS)
            with pytest.raises(CorruptionError):
                component.capture_parts(STEM)
        ring.sample(500)
    assert caught.value.kind in ("replay.damaged", "file.damaged", "replay.malformed")
    if "header" not in damage or "flipped" in damage:
        assert "transitions" in caught.value.message


def test_the_transitions_are_named(small, saved):
    """The error says which transitions, counted from the first one ever added, are gone."""
    DAMAGES["flipped bit in the data"](saved)
    with pytest.raises(CorruptionError, match="transitions 24 to 31 of 60"):
        small.component(small.ring(), verify="eager").restore_parts(saved)


def test_every_flipped_byte_is_noticed(small, saved):
    """Flipping any byte of a segment changes its digest."""
    component = small.component(small.ring(), verify="eager")
    path = saved.path("segment-000003.safetensors")
    for position in np.random.default_rng(1).integers(0, path.stat().st_size, 25).tolist():
        flip(path, position)
        with pytest.raises(CorruptionError):
            component.restore_parts(saved)
        flip(path, position)
    component.restore_parts(saved)


def test_first_touch_serves_whole_segments_and_refuses_the_others(small, saved):
    """With verify='first-touch' a damaged segment does not keep samples of others from being drawn."""
    DAMAGES["flipped bit in the data"](saved)
    ring = small.ring()
    component = small.component(ring, verify="first-touch")
    component.restore_parts(saved)
    ring._read(np.array([0, 8, 40]))
    with pytest.raises(CorruptionError, match="transitions 24 to 31"):
        ring._read(np.array([0, 25]))


def test_nothing_is_committed_while_in_doubt(small, shop, saved, monkeypatch):
    """A save that was captured before the damage was found does not become a checkpoint."""
    DAMAGES["flipped bit in the data"](saved)
    may_look = threading.Event()
    find = restoring.find_damage

    def find_later(*arguments):
        assert may_look.wait(SECONDS)
        return find(*arguments)

    monkeypatch.setattr(restoring, "find_damage", find_later)
    ring = small.ring()
    component = small.component(ring)
    component.restore_parts(saved)
    small.add(ring, 1)
    ring.sample(5)
    capture = component.capture_parts(STEM)
    may_look.set()
    with pytest.raises(CorruptionError):
        shop.write(capture)
    capture.on_aborted()
    with pytest.raises(CorruptionError):
        component.check()
    with pytest.raises(CorruptionError):
        ring.sample(5)


def test_a_stuck_disk_ends_in_an_error(small, saved, monkeypatch):
    """Waiting for the verification to finish gives up when nothing moves."""
    released = threading.Event()
    monkeypatch.setattr(restoring, "find_damage", lambda *arguments: released.wait(SECONDS) and None)
    component = small.component(small.ring())
    component.restore_parts(saved)
    with pytest.raises(PerdureError) as caught:
        component.verification.finish(0.01)
    assert caught.value.kind == "replay.verification-stuck"
    released.set()
    component.verification.stop()


def test_an_unexpected_failure_behind_is_not_lost(small, saved, monkeypatch):
    """Whatever goes wrong in the verifying thread is raised at the next boundary."""
    monkeypatch.setattr(restoring, "find_damage", lambda *arguments: 1 / 0)
    component = small.component(small.ring())
    component.restore_parts(saved)
    with pytest.raises(PerdureError, match="division by zero"):
        component.verification.finish(SECONDS)


def test_another_restore_forgets_the_damage_of_the_last(small, shop, saved):
    """Restoring a whole checkpoint after a damaged one leaves nothing to complain about."""
    ring = small.ring()
    component = small.component(ring)
    small.add(ring, 5)
    whole = shop.save(component)
    DAMAGES["flipped bit in the data"](saved)
    component.restore_parts(saved)
    with pytest.raises(CorruptionError):
        component.verification.finish(SECONDS)
    component.restore_parts(whole)
    component.verification.finish(SECONDS)
    assert small.numbers(ring) == list(range(5))
    shop.save(component)


@pytest.mark.parametrize(
    ("damage", "lost"),
    [
        ("flipped bit in the data", range(24, 32)),
        ("removed", range(24, 32)),
        ("truncated", range(24, 32)),
        ("swapped", range(24, 40)),
        ("flipped bit in the older part", range(10, 16)),
        ("flipped bit in a narrow file", range(20, 30)),
    ],
)
def test_going_on_without_lost_transitions(small, shop, saved, damage, lost):
    """With damaged='drop' all whole rows come back in order, and the note names what is gone."""
    DAMAGES[damage](saved)
    ring = small.ring()
    component = small.component(ring, damaged="drop")
    component.check_parts(saved)
    note = component.restore_parts(saved)
    expected = [number for number in range(10, 60) if number not in lost]
    assert small.numbers(ring) == expected
    assert f"went on without transitions {max(10, lost[0])}" in note
    small.add(ring, 4)
    again = small.ring()
    small.component(again, verify="eager").restore_parts(shop.save(component))
    assert small.numbers(again) == [*expected, 60, 61, 62, 63][-50:]


def test_dropped_rows_end_their_episodes(shop):
    """Where rows are missing, the episode is marked truncated, so that no n-step return goes over the gap."""
    from perdure.replay import RingBuffer, RingComponent

    columns = {"obs": (np.uint8, (2048,)), "reward": (np.float32, ()), "truncated": (np.bool_, ())}

    def make():
        ring = RingBuffer(40, columns, rng=1)
        return ring, RingComponent(ring, wide_bytes=8 * 2048, narrow_bytes=1000, damaged="drop")

    ring, component = make()
    for number in range(30):
        ring.add(obs=np.full(2048, number, np.uint8), reward=number, truncated=False)
    source = shop.save(component)
    flip(source.path("segment-000001.safetensors"), 5000)
    again, other = make()
    other.restore_parts(source)
    assert len(again) == 22
    assert again.columns["truncated"][:22, 0].nonzero()[0].tolist() == [7]


def test_a_manifest_that_contradicts_the_header_is_corruption(small, saved):
    """A segment whose listed length cannot be that of its rows, or that is not listed, is refused."""
    path = f"{STEM}/segment-000003.safetensors"
    shorter = source_of(saved.directory, saved.files | {path: FileEntry(path, 5, saved.files[path].digest)})
    missing = source_of(saved.directory, {p: entry for p, entry in saved.files.items() if p != path})
    for source in (shorter, missing):
        with pytest.raises(CorruptionError) as caught:
            small.component(small.ring()).check_parts(source)
        assert caught.value.kind == "replay.malformed"


def test_verification_of_nothing_is_complete(saved):
    """With nothing in doubt there is nothing to wait for."""
    nothing = Verification([])
    nothing.finish(0.01)
    nothing.check()
    assert nothing.is_complete
