"""What happens to a run that loses a segment of its replay buffer: real processes, from the damage to going on."""

import json
import subprocess
import sys

import numpy as np
import pytest

import perdure
from perdure.errors import CorruptionError, NothingRestorableError
from perdure.inspection import RunView
from perdure.replay import RingComponent
from perdure.replay.header import decode_header, encode_header
from tests.replay.test_runs import ring

TRAINING = """
import sys
import numpy as np
import perdure
from perdure.replay import RingBuffer, RingComponent, Roles

columns = {"obs": (np.uint8, (4096,)), "at": (np.int64, ()), "truncated": (np.bool_, ())}
buffer = RingBuffer(400, columns, rng=0)
weights = np.zeros(3)
with perdure.open("runs", run="r", save=None, keep=perdure.Last(3), budget=None, quiet=True) as run:
    run.track(weights=weights, replay=RingComponent(buffer, wide_bytes=64 * 1024, narrow_bytes=512))
    counters = run.counters(global_step=0)
    report = run.restore()
    print(counters.global_step, weights[0], len(buffer), report.grade.value)
    while counters.global_step < int(sys.argv[1]):
        counters.global_step += 1
        weights += 1
        buffer.add(obs=np.zeros(4096, np.uint8), at=counters.global_step, truncated=False)
        assert (buffer.sample(8)["at"] <= counters.global_step).all()
        if counters.global_step % 50 == 0:
            run.save().wait()
"""


def run_python(tmp_path, *words):
    """Run the interpreter to its end."""
    return subprocess.run(
        [sys.executable, *words], cwd=tmp_path, check=False, timeout=60, capture_output=True, text=True
    )


def flip(path):
    """Change one bit in place, under every name that the file has."""
    with path.open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)[0]
        file.seek(-1, 2)
        file.write(bytes([last ^ 1]))


@pytest.mark.process
def test_a_damaged_segment_that_all_checkpoints_share_does_not_end_the_run(tmp_path):
    """One start fails and names the transitions, the next refuses to begin anew, a repair brings all else back."""

    def train(steps):
        return run_python(tmp_path, "-c", TRAINING, str(steps))

    def cli(*words):
        return run_python(tmp_path, "-m", "perdure", *words)

    assert train(150).returncode == 0
    flip(tmp_path / "runs" / "r" / "latest" / "buffer" / "replay" / "segment-000000.safetensors")
    seen = cli("verify", "r")
    assert seen.returncode == 4
    assert seen.stdout.count("which holds transitions 0 to 15 of") == 3

    hurt = train(200)
    assert hurt.returncode != 0
    assert "transitions 0 to 15 of 150" in hurt.stderr
    assert "perdure repair --without-lost" in hurt.stderr
    refused = train(200)
    assert "run.nothing-restorable" in refused.stderr or "every checkpoint is in quarantine" in refused.stderr
    assert "perdure repair" in refused.stderr

    plan = cli("repair", "r", "--dry-run")
    assert "say --without-lost" in plan.stderr
    done = cli("repair", "r", "--without-lost", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [row["action"] for row in document["rows"]] == ["go on without"]
    assert len(document["gone_on"]) == 1
    assert cli("verify", "r", "--level", "load").returncode == 0

    back = train(200)
    assert back.returncode == 0, back.stderr
    assert back.stdout.split() == ["150", "150.0", "134", "statistical"]
    again = train(200)
    assert again.stdout.split() == ["200", "200.0", "184", "exact"]


def damaged_run(root, files, *, count=50):
    """A run of one checkpoint, with some files of its buffer damaged."""
    buffer = ring(1, count)
    with perdure.open(root, run="r", save=None, budget=None, quiet=True) as run:
        run.track(replay=RingComponent(buffer, wide_bytes=16 * 1024, narrow_bytes=512))
        run.restore()
        run.save().wait()
    folder = (root / "r" / "latest").resolve() / "buffer" / "replay"
    for name in files:
        flip(folder / name)
    return buffer, folder


def restored(root, **choices):
    """A new buffer, and the report of its restore."""
    back = ring(9)
    with perdure.open(root, run="r", save=None, quiet=True) as run:
        run.track(replay=RingComponent(back, wide_bytes=16 * 1024, narrow_bytes=512, **choices))
        return back, run.restore()


def repair(root):
    """Go on without what is lost."""
    view = RunView(root, "r")
    return view.execute_repair(view.plan_repair(without_lost=True))


def test_what_is_left_after_losses_comes_back_in_order_and_again(tmp_path):
    """Rows of neither group's lost segments come back, nothing else; a second loss adds to the first."""
    buffer, folder = damaged_run(tmp_path, ["segment-000001.safetensors", "narrow-000002.safetensors"])
    header = decode_header((folder / "buffer_header.json").read_bytes(), "h")
    lost = {name: header.pieces[name, number][0].used for name, number in (("segment", 1), ("narrow", 2))}
    (name,) = repair(tmp_path).gone_on.values()
    back, report = restored(tmp_path)
    (note,) = (component.note for component in report.components if component.name == "replay")
    assert "transitions that a repair has given up" in note

    def left(spans):
        slots = [slot for span in buffer.state.spans for slot in range(*span)]
        kept = [slot for slot in slots if not any(start <= slot < stop for start, stop in spans)]
        return buffer.columns["reward"][kept]

    wanted = left(lost.values())
    assert back.state.size == len(wanted)
    assert np.array_equal(back.columns["reward"][: back.state.size], wanted)

    flip(tmp_path / "r" / "snapshots" / name / "buffer" / "replay" / "segment-000000.safetensors")
    repair(tmp_path)
    back, _ = restored(tmp_path)
    wanted = left([*lost.values(), header.pieces["segment", 0][0].used])
    assert np.array_equal(back.columns["reward"][: back.state.size], wanted)


def test_going_on_shares_whole_files_and_keeps_the_damaged_checkpoint(tmp_path):
    """The new checkpoint takes the space of a header and a manifest; the old one lies in quarantine as it was."""
    _, folder = damaged_run(tmp_path, ["segment-000001.safetensors"])
    names = {path.name for path in folder.iterdir()}
    (name,) = repair(tmp_path).gone_on.values()
    (aside,) = (tmp_path / "r" / "quarantine").glob("*/buffer/replay")
    assert names == {path.name for path in aside.iterdir()}
    for path in (tmp_path / "r" / "snapshots" / name / "buffer" / "replay").glob("*.safetensors"):
        assert path.samefile(aside / path.name)


def test_what_more_is_lost_is_not_gone_on_without(tmp_path):
    """A checkpoint that has lost its networks or its buffer's header as well is put aside, however much one wishes."""
    for number, file in enumerate(("buffer/replay/buffer_header.json", "meta.json")):
        root = tmp_path / str(number)
        _, folder = damaged_run(root, ["segment-000001.safetensors"])
        flip(folder.parents[1] / file)
        result = repair(root)
        assert (len(result.put_aside), len(result.gone_on)) == (1, 0)
        assert RunView(root, "r").plan_repair(without_lost=True).rows == ()


def test_what_was_put_aside_stays_there_once_the_run_has_gone_on(tmp_path):
    """A repair brings nothing back that is older than what a later life has saved."""
    damaged_run(tmp_path, ["segment-000001.safetensors"])
    with pytest.raises(NothingRestorableError):
        restored(tmp_path, verify="eager")
    with perdure.open(tmp_path, run="r", save=None, resume="never", quiet=True) as run:
        run.track(replay=RingComponent(ring(3, 20)))
        run.restore()
        run.save().wait()
    assert RunView(tmp_path, "r").plan_repair(without_lost=True).rows == ()


def test_a_header_says_what_is_lost(tmp_path):
    """Rows that no file has are damage, unless the header names them as lost."""
    _, folder = damaged_run(tmp_path, [])
    header = decode_header((folder / "buffer_header.json").read_bytes(), "h")
    less = header.without(["segment-000001.safetensors"])
    assert decode_header(encode_header(less), "h") == less
    silent = encode_header(less).replace(b'"lost":', b'"lots":')
    with pytest.raises(CorruptionError, match="in no file"):
        decode_header(silent, "h")
