"""Hostile input: whoever can write into a run can damage it, but not run code, get out of it or use up memory."""

from __future__ import annotations

import json
import os
import resource
import stat
import subprocess
import sys
from collections import deque
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.core.component import ContentPart
from perdure.core.manifest import Manifest, decode_manifest, encode_manifest
from perdure.core.sealing import seal
from perdure.core.tensorfile import MAXIMUM_HEADER_BYTES, TensorSpec, header_bytes, parse_header, plan_layout
from perdure.core.tree import flatten, unflatten
from perdure.errors import CorruptionError, FormatError, InvalidInputError, PerdureError
from perdure.files.door import Files
from perdure.files.publish import remove_tree
from perdure.store.layout import MANIFEST_FILE
from perdure.testing.scenario import Scenario
from tests.durability.damage import keep
from tests.durability.effort import current_profile

fuzzed = settings(
    max_examples=current_profile().fuzz_examples,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)

HUGE = st.sampled_from([2**53, 2**63, 2**64, 10**30, -1, -(2**63), 1e308, float("inf"), float("nan")])
SCALARS = st.none() | st.booleans() | st.integers() | HUGE | st.floats() | st.text(max_size=12)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)
PATHS = st.sampled_from(
    [
        "../x",
        "/etc/passwd",
        "a/../../x",
        "a//b",
        ".",
        "",
        "a/.hidden",
        "a\0b",
        "a\nb",
        "é",
        "a" * 300,
        "/".join("a" * 40),
    ]
) | st.text(max_size=20)


def _manifest() -> dict:
    scenario_like = Manifest(
        run="run",
        id="0" * 32,
        global_step=1,
        generation=1,
        sequence=1,
        cut={"global_step": 1, "boundary": "loop"},
        reason="x",
        created_at="2026-01-01T00:00:00Z",
    )
    return json.loads(encode_manifest(scenario_like))


def _sealed(document: dict) -> bytes:
    document = {key: value for key, value in document.items() if key != "seal"}
    return seal(json.dumps(document, indent=1).encode())


def _decode(content: bytes) -> Manifest | None:
    try:
        return decode_manifest(content, "manifest.json")
    except (CorruptionError, FormatError):
        return None


@fuzzed
@given(st.binary(max_size=400))
def test_bytes_that_nobody_sealed_are_no_manifest(content):
    """Any bytes are either refused with one of two errors, or they are a sealed manifest."""
    assert _decode(content) is None


@fuzzed
@given(st.dictionaries(st.sampled_from(sorted(_manifest())) | st.text(max_size=8), JSON, min_size=1, max_size=4))
def test_a_sealed_manifest_with_impossible_values_is_refused_or_harmless(changes):
    """Whatever a forger seals: what is accepted names nothing outside and holds numbers that every part can hold."""
    manifest = _decode(_sealed({**_manifest(), **changes}))
    if manifest is not None:
        assert all(0 <= number < 2**53 for number in (manifest.global_step, *manifest.order))
        assert encode_manifest(manifest)


@fuzzed
@given(PATHS, st.integers() | HUGE, st.text(max_size=70) | st.just("blake3:" + "0" * 64))
def test_a_path_in_a_manifest_never_leads_outside(path, size, digest):
    """A file's path in an accepted manifest, joined to any directory, stays below it."""
    manifest = _decode(_sealed({**_manifest(), "files": [{"path": path, "bytes": size, "digest": digest}]}))
    for entry in manifest.files if manifest else ():
        assert os.path.normpath(f"/base/{entry.path}") == f"/base/{entry.path}"
        assert entry.path.isprintable()
        assert 0 <= entry.bytes <= 2**50


@fuzzed
@given(st.binary(max_size=300) | JSON.map(lambda value: json.dumps(value).encode()), st.integers(0, 2**40))
def test_any_tensor_header_is_refused_or_describes_the_file_exactly(header, file_bytes):
    """An accepted header's tensors lie one behind the other from its end to the end of the file."""
    try:
        placed = parse_header(header, file_bytes, "x.safetensors")
    except CorruptionError:
        return
    position = 8 + len(header)
    for tensor in placed:
        assert tensor.offset_bytes == position
        position += tensor.spec.size_bytes
    assert position == file_bytes


@fuzzed
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=6),
        st.fixed_dictionaries(
            {
                "dtype": st.sampled_from(["F32", "U8", "BOOL", "X9"]),
                "shape": st.lists(st.integers(-2, 5) | st.sampled_from([2**47, 2**63, True]), max_size=3),
                "data_offsets": st.lists(st.integers(-4, 200), min_size=1, max_size=3),
            }
        ),
        max_size=3,
    ),
    st.integers(0, 400),
)
def test_a_tensor_header_that_lies_about_sizes_is_refused(header, extra):
    """Overlaps, gaps, negative and impossible shapes never reach a reader as tensors."""
    content = json.dumps(header).encode()
    try:
        placed = parse_header(content, 8 + len(content) + extra, "x.safetensors")
    except CorruptionError:
        return
    assert sum(tensor.spec.size_bytes for tensor in placed) == extra


TAGS = ("$array", "$tuple", "$map", "$int", "$float", "$bytes", "$deque", "$call", "$")
TREES = st.recursive(
    SCALARS | st.sampled_from(["w", "numpy"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(TAGS), inner, min_size=1, max_size=1)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
)


@fuzzed
@given(TREES)
def test_any_structure_is_refused_or_gives_plain_values(structure):
    """A component's structure, however forged, makes only plain containers, numbers, strings and its arrays."""
    arrays = {"w": np.arange(3)}
    try:
        tree = unflatten(structure, arrays, lambda array, kind: array)
    except CorruptionError:
        return
    waiting = [tree]
    while waiting:
        value = waiting.pop()
        assert type(value) in (dict, list, tuple, deque, int, float, bool, str, bytes, type(None), np.ndarray)
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else []


@fuzzed
@given(TREES)
def test_whatever_can_be_stored_comes_back_as_it_was(value):
    """A tree of plain values survives the way through JSON, types and all; what would not is refused."""
    try:
        flat = flatten(value, lambda leaf: None)
    except InvalidInputError:
        return
    restored = unflatten(json.loads(json.dumps(flat.structure)), {}, lambda array, kind: array)
    assert repr(restored) == repr(value)


@pytest.mark.parametrize("depth", [67, 1_000, 200_000])
def test_deep_nesting_is_refused(depth):
    """Nesting beyond any use is an error and no crash, in manifests, headers and structures."""
    nested = b"[" * depth + b"]" * depth
    with pytest.raises(CorruptionError):
        decode_manifest(seal(b'{\n "schema_version": 1, "components": ' + nested + b"}"), "manifest.json")
    with pytest.raises(CorruptionError):
        parse_header(b'{"a":' + nested + b"}", 10**9, "x")
    structure: object = 1
    for _ in range(min(depth, 900)):
        structure = [structure]
    with pytest.raises(CorruptionError):
        unflatten(structure, {}, lambda array, kind: array)


BOMBS = {
    "a header of many empty objects": 'b"{" + b",".join(b\'"%x":{}\' % i for i in range(8_000_000)) + b"}"',
    "a header of lists": 'b\'{"a":[\' + b",".join([b"[]"] * 33_000_000) + b"]}"',
    "a header of lengths": 'b\'{"a":{"dtype":"U8","data_offsets":[0,0],"shape":[\''
    ' + b",".join([b"9"] * 49_000_000) + b"]}}"',
    "a header of names": 'b"{" + b",".join(b\'"%x":0\' % i for i in range(8_000_000)) + b"}"',
    "a header of many tensors": 'b\'{\' + b\',\'.join(b\'"%x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}\' % i'
    " for i in range(500_000)) + b'}'",
}


@pytest.mark.process
@pytest.mark.parametrize("name", sorted(BOMBS))
def test_a_header_bomb_stays_within_bounds(tmp_path, name):
    """The worst header below the cap is read or refused within 512 MiB."""
    bomb = tmp_path / "bomb"
    program = f"open({str(bomb)!r}, 'wb').write({BOMBS[name]})"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    assert 0.25 * MAXIMUM_HEADER_BYTES < bomb.stat().st_size <= MAXIMUM_HEADER_BYTES
    # In a process that has built nothing: memory that was in use before would hide what is used now.
    program = f"""
import resource
from contextlib import suppress
from perdure.core.tensorfile import parse_header
from perdure.errors import CorruptionError
header = open({str(bomb)!r}, "rb").read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with suppress(CorruptionError):
    parse_header(header, len(header) + 8, "bomb")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120)
    assert int(ended.stdout) <= 512


@pytest.mark.parametrize("length", [2**63, MAXIMUM_HEADER_BYTES + 1, 1_000])
def test_a_header_longer_than_the_file_or_the_cap_is_refused_unread(length):
    """The length in the first eight bytes is checked before anything is read or parsed."""
    with pytest.raises(CorruptionError):
        header_bytes(length.to_bytes(8, "little"), 500 if length == 1_000 else 2**62, "x")


def test_a_manifest_beyond_the_cap_is_refused_unread(tmp_path):
    """A manifest of more than 4 MiB is damage, and its bytes are not even read."""
    kept = keep(tmp_path)
    manifest = kept.newer.directory / MANIFEST_FILE
    with manifest.open("ab") as stream:
        stream.truncate(2**40)
    found, broken = kept.store.scan()
    assert [checkpoint.manifest.id for checkpoint in found] == [kept.older.manifest.id]
    assert "at most" in broken[0].error.message


def _fifo(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def _device(path: Path, outside: Path) -> None:
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero: reading it never ends


def _link(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


def _directory(path: Path, outside: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("swap", [_fifo, _device, _link, _directory])
@pytest.mark.parametrize("name", ["meta.json", "model/policy.safetensors", MANIFEST_FILE])
def test_what_is_no_regular_file_is_never_read(tmp_path, swap, name):
    """A pipe, a device, a link or a directory in the place of a file is damage; nothing waits, nothing is followed."""
    kept = keep(tmp_path)
    path = kept.newer.directory / name
    outside = tmp_path / "outside"
    path.rename(outside)
    try:
        swap(path, outside)
    except PermissionError:
        pytest.skip("only root makes device nodes")
    found, broken = kept.store.scan()
    if name == MANIFEST_FILE:
        assert len(found) == len(broken) == 1
        return
    with pytest.raises(CorruptionError):
        kept.store.read(kept.newer, name)
    assert [problem.path for problem in kept.store.verify(kept.newer, digests=False)] == [str(path)]


def test_a_link_swapped_in_for_a_folder_is_not_followed(tmp_path):
    """A folder of a checkpoint that has become a link to an identical one elsewhere is damage."""
    kept = keep(tmp_path)
    folder = kept.newer.directory / "model"
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptionError):
        kept.store.read(kept.newer, "model/policy.safetensors")


def test_a_checkpoint_that_is_a_link_is_none(tmp_path):
    """A name under snapshots/ that leads elsewhere is damage, whatever it leads to."""
    kept = keep(tmp_path)
    kept.newer.directory.rename(tmp_path / "elsewhere")
    kept.newer.directory.symlink_to(tmp_path / "elsewhere")
    found, broken = kept.store.scan()
    assert [checkpoint.manifest.id for checkpoint in found] == [kept.older.manifest.id]
    assert len(broken) == 1


def test_clean_up_removes_links_and_not_what_they_lead_to(tmp_path):
    """A link in staging, or inside what is removed, costs nothing outside."""
    kept = keep(tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    (tmp_path / "run" / "staging" / "link").symlink_to(outside)
    (tmp_path / "run" / "staging" / "file").write_text("x")
    (kept.older.directory / "link").symlink_to(outside)
    assert kept.store.remove_leftovers() == 2
    kept.store.remove(kept.older)
    remove_tree(Files(), tmp_path / "nothing")
    assert (outside / "precious").read_text() == "x"


class Bait:
    """Unpickling this leaves a mark."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


def test_a_pickle_in_the_place_of_any_file_never_runs(tmp_path):
    """Pickled code lies in every file of a run; looking, reading, verifying and cleaning up never run it."""
    import pickle

    kept = keep(tmp_path)
    kept.store.pin(kept.newer, "good")
    kept.store.replace_json("progress.json", {"value": "x"})
    bait = pickle.dumps(Bait(tmp_path / "ran"))
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(files) > 10
    for path in files:
        path.write_bytes(bait)
    scenario = Scenario(tmp_path / "run", Files(), lambda _: None, "baited", generation=9)
    for act in (kept.store.scan, kept.store.pins, kept.store.quarantined, kept.store.identity, scenario.start):
        try:
            act()
        except PerdureError:
            continue
    for checkpoint in (kept.newer, kept.older):
        assert len(kept.store.verify(checkpoint, digests=True)) == len(checkpoint.manifest.files)
    for content in (bait, bait[:-1] + b"\0"):
        for decode in (lambda data: decode_manifest(data, "x"), lambda data: parse_header(data, 10**6, "x")):
            with pytest.raises(CorruptionError):
                decode(content)
    assert not (tmp_path / "ran").exists()


def test_everything_is_private(tmp_path):
    """Files are 0600 and directories 0700, whatever the umask allows."""
    before = os.umask(0)
    try:
        kept = keep(tmp_path)
        kept.store.pin(kept.newer, "good")
        kept.store.events.append({"event": "x"})
        kept.store.quarantine(kept.older.directory, "x", "now")
    finally:
        os.umask(before)
    for path in [tmp_path / "run", *(tmp_path / "run").rglob("*")]:
        if not path.is_symlink():
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("name", ["../x", "/x", "a/../x", "", "a//b", ".x", "a\0", "a/" * 20 + "a"])
def test_a_part_can_only_be_written_below_the_checkpoint(tmp_path, name):
    """A component that asks for a file elsewhere gets an error, and nothing is visible or left over."""
    kept = keep(tmp_path)
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    draft = Manifest(**{**{f: getattr(kept.newer.manifest, f) for f in Manifest.__struct_fields__}, "id": "f" * 32})
    with pytest.raises(PerdureError):
        kept.store.commit(draft, [ContentPart(name, 1, lambda: [memoryview(b"x")])], _unguarded)
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before


def _unguarded():
    from contextlib import nullcontext

    return nullcontext()


def test_a_layout_is_read_back_as_it_was_planned():
    """What `plan_layout` writes, `parse_header` reads; the bounds leave legal files alone."""
    layout = plan_layout([TensorSpec("a", "F32", (2, 3)), TensorSpec("b", "BOOL", ()), TensorSpec("c", "I64", (0,))])
    length = header_bytes(layout.prefix[:8], layout.total_bytes, "x")
    assert parse_header(layout.prefix[8 : 8 + length], layout.total_bytes, "x") == layout.tensors
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 0
