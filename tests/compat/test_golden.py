"""Golden runs: what any released version has written is read, restored and continued by this one."""

import json
import shutil

import pytest

import perdure
from perdure.core.manifest import NO_KEYS, SCHEMA_VERSION, decode_manifest, encode_manifest
from perdure.files.door import Files
from perdure.inspection import Level, RunView
from perdure.store.keyfile import KEY_FILE_VARIABLE, read_keys
from tests.compat.golden import HERE, KEY_FILE, Program

VERSIONS = sorted(path.name for path in HERE.glob("v*"))


@pytest.fixture(params=["golden", "signed"])
def name(request, monkeypatch, tmp_path):
    """An unsigned run, and a signed one with its key set."""
    if request.param == "signed":
        shutil.copy(KEY_FILE, tmp_path / "key")
        (tmp_path / "key").chmod(0o600)  # version control keeps no modes
        monkeypatch.setenv(KEY_FILE_VARIABLE, str(tmp_path / "key"))
    return request.param


@pytest.mark.parametrize("version", VERSIONS)
def test_a_golden_run_restores_to_the_last_bit_and_goes_on(version, name, tmp_path):
    """A program built anew comes to the state that was saved, of every kind of component, and can save again."""
    shutil.copytree(HERE / version, tmp_path / version, symlinks=True)
    program = Program(99)
    with perdure.open(tmp_path / version, run=name, save=None, keep=None, quiet=True) as run:
        counters = program.track(run)
        report = run.restore()
        assert 11 == counters.global_step
        assert json.loads((HERE / version / "expected.json").read_text()) == program.state(counters)
        assert not report.skipped
        run.save().wait()
    assert RunView(tmp_path / version, name).verify(level=Level.LOAD).is_whole


@pytest.mark.parametrize("version", VERSIONS)
def test_a_golden_run_is_whole(version, name):
    """Every byte of what is committed is the one that was written, and can be taken apart."""
    assert RunView(HERE / version, name).verify(level=Level.LOAD).is_whole


def test_the_form_of_a_manifest_has_not_changed(name, tmp_path):
    """Encoding what was decoded gives the committed bytes: a change of form needs a new schema version."""
    keys = read_keys(Files(), tmp_path / "key") if name == "signed" else NO_KEYS
    for path in (HERE / f"v{SCHEMA_VERSION}" / name / "snapshots").glob("*/manifest.json"):
        content = path.read_bytes()
        assert content == encode_manifest(decode_manifest(content, str(path), keys), keys)


def test_there_is_a_golden_run_of_this_version():
    """Who raises the schema version adds a golden run."""
    assert f"v{SCHEMA_VERSION}" in VERSIONS
