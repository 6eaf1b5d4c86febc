"""The verbs by which one comes to trust a run: ``verify --level load``, ``repair``, ``migrate``, ``key``, ``scrub``."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
import pytest
import torch

import perdure
from perdure.cli.scrub import Pace, parse_amount
from perdure.cluster.control import Control
from perdure.core import manifest as manifest_module
from perdure.core.manifest import decode_manifest
from perdure.errors import FormatError, InvalidInputError
from perdure.files.door import Files
from perdure.replay import RingComponent
from perdure.store.keyfile import KEY_FILE_VARIABLE
from perdure.store.store import Store
from tests.cli.stores import damage, make_run, tree
from tests.waiting import wait_until


@pytest.fixture
def run(root):
    """A run as a program makes it, of three checkpoints whose model never changes."""
    return make_run_of_equal_models(root)


def make_run_of_equal_models(root):
    model = {"w": [1.0, 2.0]}
    with perdure.open(root, run="ppo", save=None, keep=None, quiet=True) as opened:
        opened.track(model=model)
        counters = opened.counters(global_step=0)
        for step in (1, 2, 3):
            counters.global_step = step
            opened.save().wait()
    return root / "ppo"


def snapshots(run):
    return sorted(path for path in (run / "snapshots").iterdir())


# verify --level load


def test_a_checkpoint_can_be_taken_apart(cli, run):
    """At the deepest level every component is read as a restore reads it."""
    ended = cli("verify", "--level", "load")
    assert 0 == ended.code
    assert "(level load)" in ended.lines[-1]


def test_what_hashes_right_and_is_no_component_is_found_when_it_is_loaded(cli, root):
    """A file can be the one that was committed and still not be what its component needs."""
    made = make_run(root, "odd", steps=(1,))
    assert 0 == cli("verify", "odd").code
    ended = cli("verify", "odd", "--level", "load", "--json")
    assert 4 == ended.code
    assert ["policy", "replay"] == ended.document["checkpoints"][0]["damaged_components"]
    assert made.ids[0] == ended.document["checkpoints"][0]["id"]


# repair


def test_nothing_to_repair_is_said(cli, run):
    """A whole run is left alone, and no yes is needed."""
    ended = cli("repair")
    assert (0, "nothing to repair: 3 checkpoints, all whole") == (ended.code, ended.lines[-1])


def test_a_damaged_file_is_replaced_by_an_equal_one_of_another_checkpoint(cli, root):
    """The plan names the copy; after it the run is whole, and the copy is shared and not doubled."""
    run = make_run_of_equal_models(root)
    newest = snapshots(run)[-1]
    damage(newest / "state" / "model.json", offset=3)

    plan = cli("repair", "--dry-run")
    assert 3 == plan.code
    assert "mend" in plan.lines[0]
    assert any("state/model.json  from" in line for line in plan.lines)
    assert 3 == cli("verify").code

    done = cli("repair", "--yes", "--json")
    assert (0, [newest.name]) == (done.code, done.document["mended"])
    assert 0 == cli("verify", "--level", "load").code
    assert (newest / "state" / "model.json").stat().st_nlink > 1
    assert [] == list((run / "staging").iterdir())
    assert "repaired" in cli("events").out


@pytest.mark.parametrize(
    "how", ["flip", "truncate", "remove", "directory", "link", "folder", "manifest", "no manifest"]
)
def test_every_damage_is_mended_from_a_backup(cli, root, tmp_path, how):
    """Whatever was done to a checkpoint, a copy of the run elsewhere makes it what it was, byte for byte."""
    run = make_run_of_equal_models(root)
    shutil.copytree(run, tmp_path / "backup" / "ppo", symlinks=True)
    before = contents(run)
    for directory in snapshots(run):
        wreck(directory, how, tmp_path)
    assert 4 == cli("verify", "--level", "hash").code

    ended = cli("repair", "--from", str(tmp_path / "backup"), "--yes")

    assert (0, 0) == (ended.code, cli("verify", "--level", "load").code), ended.out + ended.err
    assert before == contents(run)
    assert [] == list((run / "staging").iterdir())
    assert not (tmp_path / "outside").exists() or [] == list((tmp_path / "outside").iterdir())


def contents(run):
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in (run / "snapshots").rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def wreck(directory, how, tmp_path):
    file = directory / "meta.json"
    match how:
        case "flip":
            damage(file)
        case "truncate":
            os.truncate(file, 3)
        case "remove":
            file.unlink()
        case "directory":
            file.unlink()
            file.mkdir()
            (file / "x").write_text("x")
        case "link":
            file.unlink()
            file.symlink_to("/etc/hostname")
        case "folder":
            (tmp_path / "outside").mkdir(exist_ok=True)
            shutil.rmtree(directory / "state")
            (directory / "state").symlink_to(tmp_path / "outside")
        case "manifest":
            damage(directory / "manifest.json", offset=200)
        case "no manifest":
            (directory / "manifest.json").unlink()


def test_what_has_no_copy_is_put_aside_and_nothing_is_lost(cli, root):
    """A checkpoint that cannot be mended goes to quarantine as it lies, and the next start uses the one before."""
    run = make_run_of_equal_models(root)
    newest = snapshots(run)[-1]
    damage(newest / "meta.json")
    left = sorted(path.name for path in newest.iterdir())

    ended = cli("repair", "--yes", "--json")

    assert 3 == ended.code
    aside = ended.document["put_aside"][newest.name]
    assert left == sorted(path.name for path in Path(aside).iterdir())
    assert 0 == cli("verify").code
    assert not newest.exists()


def test_what_is_as_it_was_committed_is_left_alone(cli, root):
    """A checkpoint whose files have the right digests is never put aside, even if it cannot be taken apart."""
    made = make_run(root, "odd", steps=(1, 2))
    assert 4 == cli("verify", "odd", "--level", "load").code
    ended = cli("repair", "odd", "--yes")
    assert (0, "nothing to repair: 2 checkpoints, all whole") == (ended.code, ended.lines[-1])
    assert 2 == len(made.store.checkpoints())


def put_all_aside(run):
    store = Store(run, Files(), lambda: uuid.uuid4().hex)
    for checkpoint in store.checkpoints():
        store.quarantine(checkpoint.directory, "the disk was away", "2026-01-01T00:00:00Z")
    return store


def test_what_was_put_aside_for_nothing_comes_back(cli, run):
    """Where all are in quarantine a repair brings the newest back, says why it was there, and a run goes on from it."""
    store = put_all_aside(run)
    assert "every checkpoint there was is in quarantine" in cli("status").out
    assert "was put aside because: the disk was away" in cli("repair", "--dry-run").out
    assert [] == store.checkpoints()
    ended = cli("repair", "--yes", "--json")
    (name,) = ended.document["brought_back"]
    assert ["bring back"] == [row["action"] for row in ended.document["rows"]]
    assert [name] == [checkpoint.directory.name for checkpoint in store.checkpoints()]
    assert 2 == len(store.quarantined())
    assert f"snapshots/{name}" == store.latest()
    assert "nothing to repair: 1 checkpoint, all whole" in cli("repair").out
    with perdure.open(run.parent, run="ppo", save=None, quiet=True) as again:
        again.track(model={"w": [0.0, 0.0]})
        counters = again.counters(global_step=0)
        again.restore()
        assert 3 == counters.global_step


def test_what_was_put_aside_stays_where_another_can_be_restored(cli, run):
    """A start has gone on from an older checkpoint: what it passed over is not brought back behind it."""
    store = Store(run, Files(), lambda: uuid.uuid4().hex)
    store.quarantine(snapshots(run)[-1], "its weights are not finite", "2026-01-01T00:00:00Z")
    assert "nothing to repair: 2 checkpoints, all whole" in cli("repair", "--yes").out
    assert 2 == len(store.checkpoints())


def test_what_cannot_be_read_does_not_come_back(cli, root):
    """Right bytes that make no component are no reason to try again."""
    made = make_run(root, "odd", steps=(1,))
    made.store.quarantine(snapshots(root / "odd")[0], "it is malformed", "2026-01-01T00:00:00Z")
    assert "nothing to repair" in cli("repair", "odd", "--yes").out
    assert [] == made.store.checkpoints()


@pytest.mark.process
@pytest.mark.parametrize("verb", [["verify", "--level", "load"], ["repair", "--dry-run"], ["scrub"]])
def test_no_library_of_the_program_is_needed(root, verb):
    """In a process of its own, without torch, what torch has written is whole; so are pickles and files of others."""
    policy = torch.nn.Linear(3, 2)
    with perdure.open(root, run="ppo", save=None, quiet=True) as run:
        run.track(
            policy=policy, optimizer=torch.optim.Adam(policy.parameters()), odd=perdure.Pickled({1}), own=Theirs()
        )
        run.save().wait()

    ended = subprocess.run(
        [sys.executable, "-m", "perdure", *verb, "ppo", "--store", str(root), "--json"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert 0 == ended.returncode, ended.stdout + ended.stderr
    document = json.loads(ended.stdout)
    assert [] == document.get("rows", [])
    assert all(check["restores"] for check in document.get("checkpoints", []))


class Theirs:
    """A component with a file of its own form."""

    kind, section, grade = "theirs", perdure.Section.STATE, perdure.Grade.EXACT

    def capture_parts(self, stem):
        return perdure.PartsCapture((perdure.ContentPart(f"{stem}/own.bin", 3, lambda: [memoryview(b"own")]),))

    def check_parts(self, source):
        pass

    def restore_parts(self, source):
        return ""

    def check(self):
        pass


@pytest.mark.parametrize("codec", ["raw", "auto"])
def test_a_segment_of_a_replay_buffer_is_mended(cli, root, tmp_path, codec):
    """A damaged segment that checkpoints share is replaced in each of them, and the rows come back to the bit."""
    rows = np.random.default_rng(0).integers(0, 9, (40, 6)).astype(np.float32)

    def opened():
        buffer = perdure.RingBuffer(64, {"row": (np.float32, (6,))})
        run = perdure.open(root, run="ppo", save=None, keep=None, quiet=True)
        run.track(replay=RingComponent(buffer, codec=codec))
        return run, buffer

    run, buffer = opened()
    for row in rows:
        buffer.add(row=row)
    for _ in range(2):
        run.save().wait()
    run.close()
    shutil.copytree(root / "ppo", tmp_path / "backup", symlinks=True)
    segments = sorted((root / "ppo" / "snapshots").glob("*/buffer/replay/*-0*.safetensors"))
    for segment in segments:
        damage(segment, offset=segment.stat().st_size - 3)

    assert 4 == cli("verify").code
    ended = cli("repair", "--from", str(tmp_path / "backup"), "--yes")
    assert (0, 0) == (ended.code, cli("verify", "--level", "load").code), ended.out + ended.err

    run, buffer = opened()
    with run:
        assert () == run.restore().skipped
        assert np.array_equal(rows, buffer.columns["row"][:40, 0])


def test_a_copy_that_is_damaged_itself_is_not_used(cli, root, tmp_path):
    """A backup is read and compared before it is believed."""
    run = make_run_of_equal_models(root)
    shutil.copytree(run, tmp_path / "backup", symlinks=True)
    newest = snapshots(run)[-1]
    for place in (newest, snapshots(tmp_path / "backup")[-1]):
        damage(place / "meta.json")
    ended = cli("repair", "--from", str(tmp_path / "backup"), "--dry-run", "--json")
    assert [["meta.json"]] == [row["lost"] for row in ended.document["rows"]]


@pytest.mark.parametrize("verb", ["repair", "migrate"])
def test_without_a_terminal_a_yes_is_needed(cli, root, verb, tmp_path, monkeypatch):
    """After the plan it is refused as a usage error, and nothing is changed."""
    run = make_run_of_equal_models(root)
    damage(snapshots(run)[-1] / "meta.json")
    cli("key", str(tmp_path / "key"))
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(tmp_path / "key"))
    if verb == "repair":
        assert 0 == cli("migrate", "--sign", "--yes").code
    before = tree(run)
    ended = cli(verb, "--json", *(["--sign"] if verb == "migrate" else []))
    assert (2, "plan.unconfirmed") == (ended.code, ended.error["kind"])
    assert before == tree(run)


@pytest.mark.parametrize("words", [["repair"], ["migrate", "--sign"]])
def test_a_run_that_trains_is_left_alone(cli, root, words, tmp_path, monkeypatch):
    """While a writer is alive the verb names it and ends with the status for that."""
    run = make_run_of_equal_models(root)
    damage(snapshots(run)[-1] / "meta.json")
    cli("key", str(tmp_path / "key"))
    if words[0] == "migrate":
        monkeypatch.setenv(KEY_FILE_VARIABLE, str(tmp_path / "key"))
    before = contents(run)
    with Control(run).acquire("here:1"):
        ended = cli(*words, "--yes", "--json")
    assert (11, "run.at-work", "here:1") == (ended.code, ended.error["kind"], ended.error["owner"])
    assert before == contents(run)


def test_a_place_that_does_not_hold_the_run_is_named(cli, run, tmp_path):
    """A wrong backup directory is an error and no empty search."""
    ended = cli("repair", "--from", str(tmp_path), "--json")
    assert (10, "run.not-found") == (ended.code, ended.error["kind"])


# key, and signed runs


def test_a_key_file_is_private_and_rotates(cli, tmp_path):
    """A new key comes first, older ones stay, and the secret is never printed."""
    path = tmp_path / "key"
    first, second = cli("key", str(path), "--id", "a"), cli("key", str(path), "--id", "b", "--json")
    assert (0, ["b", "a"]) == (first.code, second.document["keys"])
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    secrets = [line.split()[1] for line in path.read_text().splitlines()]
    assert 2 == len(set(secrets))
    assert not any(secret in first.out + first.err + second.out for secret in secrets)
    again = cli("key", str(path), "--id", "a", "--json")
    assert (1, "keys.exists") == (again.code, again.error["kind"])
    nowhere = cli("key", str(tmp_path / "none" / "key"), "--json")
    assert (10, "keys.no-directory") == (nowhere.code, nowhere.error["kind"])


def test_a_key_file_that_others_may_read_is_refused(cli, run, tmp_path, monkeypatch):
    """A secret that everybody on the machine can read is none."""
    cli("key", str(tmp_path / "key"))
    (tmp_path / "key").chmod(0o644)
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(tmp_path / "key"))
    assert "keys.exposed" == cli("ls", "--json").error["kind"]
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(tmp_path / "none"))
    assert "keys.not-found" == cli("ls", "--json").error["kind"]


def test_a_signed_run_goes_on_and_a_forged_checkpoint_is_passed_over(cli, root, tmp_path, monkeypatch):
    """With a key set everything is signed; what somebody changed and sealed anew is put aside at the next start."""
    cli("key", str(tmp_path / "key"), "--id", "k")
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(tmp_path / "key"))
    run = make_run_of_equal_models(root)
    newest = snapshots(run)[-1]
    from perdure.core.sealing import seal, unseal

    path = newest / "manifest.json"
    path.write_bytes(seal(unseal(path.read_bytes()).replace(b'"reason"', b'"unreason"')))
    assert "signature" in cli("verify", "--json").out

    with perdure.open(root, run="ppo", save=None, keep=None, quiet=True) as opened:
        opened.track(model={"w": [0.0, 0.0]})
        report = opened.restore()
    assert report.checkpoint is not None
    assert report.checkpoint != newest.name
    assert 1 == len(list((run / "quarantine").glob("step-*.json")))


def test_a_run_from_before_the_key_is_refused_until_somebody_vouches_for_it(cli, root, tmp_path, monkeypatch):
    """Nothing is put aside; `migrate --sign` makes it usable, and a second key takes over the same way."""
    run = make_run_of_equal_models(root)
    before = {path.name for path in snapshots(run)}
    cli("key", str(tmp_path / "key"), "--id", "a")
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(tmp_path / "key"))
    with pytest.raises(FormatError, match="not signed"), perdure.open(root, run="ppo", save=None, quiet=True) as opened:
        opened.track(model={"w": [0.0, 0.0]})
        opened.restore()
    assert before == {path.name for path in snapshots(run)}

    plan = cli("migrate", "--dry-run")
    assert (3, True) == (plan.code, "--sign" in plan.out)
    assert 0 == cli("migrate", "--sign", "--yes").code
    assert 0 == cli("verify", "--level", "load").code

    cli("key", str(tmp_path / "key"), "--id", "b")
    assert ["a"] * 3 == [row["key"] for row in cli("migrate", "--dry-run", "--json").document["rows"]]
    assert 0 == cli("migrate", "--yes").code
    assert ["b"] * 3 == [row["key"] for row in cli("migrate", "--json").document["rows"]]


def test_signing_does_not_vouch_for_a_forged_manifest(cli, root, tmp_path, monkeypatch):
    """What names a known key must be signed with it, whatever else is trusted."""
    cli("key", str(tmp_path / "key"), "--id", "k")
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(tmp_path / "key"))
    run = make_run_of_equal_models(root)
    from perdure.core.sealing import seal, unseal

    path = snapshots(run)[-1] / "manifest.json"
    path.write_bytes(seal(unseal(path.read_bytes()).replace(b'"reason"', b'"unreason"')))
    ended = cli("migrate", "--sign", "--yes")
    assert 3 == ended.code
    assert "refuse" in ended.out


# migrate


def _to_version_2(document):
    document["algorithm"] = document.pop("algorithm_in_version_1", "from version 1")
    return document


def test_an_older_schema_is_read_and_can_be_rewritten(cli, root, monkeypatch):
    """Reading migrates on the fly; the verb writes the new form, once."""
    run = make_run_of_equal_models(root)
    monkeypatch.setattr(manifest_module, "SCHEMA_VERSION", 2)
    monkeypatch.setattr("perdure.inspection.renewal.SCHEMA_VERSION", 2)
    decode = manifest_module.decode_manifest
    monkeypatch.setattr(
        "perdure.store.store.decode_manifest",
        lambda content, path, keys: decode(content, path, keys, {1: _to_version_2}),
    )
    assert 0 == cli("ls").code
    assert {"from version 1"} == {
        cli("show", each.name[-8:], "--json").document["algorithm"] for each in snapshots(run)
    }
    assert [1] * 3 == [row["schema_version"] for row in cli("migrate", "--dry-run", "--json").document["rows"]]
    ended = cli("migrate", "--yes", "--json")
    assert (0, 3) == (ended.code, len(ended.document["renewed"]))
    assert b'"schema_version": 2' in (snapshots(run)[0] / "manifest.json").read_bytes()
    assert [] == cli("migrate", "--yes", "--json").document["renewed"]


def test_a_newer_schema_is_refused_and_left_alone(cli, root):
    """The plan says so, and the status tells that not all is well."""
    run = make_run_of_equal_models(root)
    path = snapshots(run)[-1] / "manifest.json"
    document = json.loads(path.read_bytes())
    from perdure.core.sealing import seal

    document.pop("seal")
    document["schema_version"] = 99
    path.write_bytes(seal(json.dumps(document, indent=1).encode()))
    ended = cli("migrate", "--yes", "--json")
    assert 3 == ended.code
    assert ["newer" in row["why"] for row in ended.document["rows"]] == [False, False, True]
    with pytest.raises(FormatError):
        decode_manifest(path.read_bytes(), "m")


# scrub


def test_a_scrub_finds_damage_once_and_records_it(cli, run):
    """It exits like a verify, prints the damage and adds it to the run's history."""
    assert 0 == cli("scrub").code
    damage(snapshots(run)[-1] / "meta.json")
    ended = cli("scrub", "--rate", "1GiB")
    assert 3 == ended.code
    assert "damaged" in ended.lines[0]
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert ["damage-found"] == [each["event"] for each in events if each.get("by") == "scrub"]


@pytest.mark.process
def test_a_scrub_that_goes_on_finds_later_damage_and_ends_when_it_is_interrupted(run, root):
    """With --every it looks again and again; a SIGINT ends it with the status for that."""
    command = [sys.executable, "-m", "perdure", "scrub", "ppo", "--store", str(root), "--every", "1s", "--json"]
    events = run / "events.jsonl"
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        damage(snapshots(run)[-1] / "meta.json")
        wait_until(lambda: "damage-found" in events.read_text(), 60, process)
        damage(snapshots(run)[0] / "meta.json")
        wait_until(lambda: events.read_text().count("damage-found") == 2, 60, process)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert 130 == process.returncode


def test_a_pace_waits_for_what_is_not_yet_due():
    """Reading is never ahead of the rate, and a slow disk is not slowed further."""
    now, slept = [0.0], []
    pace = Pace(100.0, lambda: now[0], slept.append)
    pace.keep(50, 1000)
    now[0] = 3.0
    pace.keep(100, 1000)
    pace.keep(400, 1000)
    assert [0.5, 1.0] == slept


@pytest.mark.parametrize("text", ["", "0MiB", "5", "MiB", "5 MB", "-1MiB", "1.2.3MiB"])
def test_an_amount_without_a_unit_is_refused(text):
    """Numbers need their unit, and to be more than nothing."""
    with pytest.raises(InvalidInputError):
        parse_amount(text, {"MiB": 2**20}, "--rate")
    assert 1.5 * 2**20 == parse_amount("1.5MiB", {"MiB": 2**20}, "--rate")
