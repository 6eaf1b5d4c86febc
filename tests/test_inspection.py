"""Looking at runs from outside, and cleaning them up."""

import itertools
import json
import os
import shutil
import sqlite3
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from perdure.cluster.control import Control
from perdure.cluster.identity import boot_clock
from perdure.core.retention import Best, EverySteps, KeepPolicy, Last
from perdure.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    NothingRestorableError,
    StoreError,
)
from perdure.files.door import Files
from perdure.inspection import Document, Level, RunView, keep_text, parse_keep, run_names, runs
from perdure.inspection.documents import age_seconds, plain
from perdure.inspection.presence import members_seen
from perdure.store.store import Store
from perdure.supervise.claims import exclusive
from tests.cli.stores import NOW, MadeRun, at, damage, make_run, rewrite_manifest, tree

MODEL = "model/policy.safetensors"
SEGMENT = "buffer/segment-000000.safetensors"


def view(root, name="ppo", files=None):
    return RunView(root, name, files=files, wall_seconds=lambda: NOW)


class ReadOnlyFiles(Files):
    """Refuses everything that changes a file system."""


def _refuse(*_arguments, **_options):
    raise AssertionError("something was about to be changed")


for _name in (
    "open_new", "write", "truncate", "sync", "append", "make_directory", "sync_directory", "rename", "link", "symlink",
    "unlink", "remove_directory",
):  # fmt: skip
    setattr(ReadOnlyFiles, _name, _refuse)


# Listing


def test_sizes_count_a_shared_file_once(tmp_path):
    """A hard link counts where it appeared first, so new bytes add up to what the disk holds."""
    make_run(tmp_path)

    listing = view(tmp_path).listing()

    assert [3000, 2000, 1000] == [each.global_step for each in listing.checkpoints]
    new, old = listing.checkpoints[0], listing.checkpoints[-1]
    assert 4096 == new.shared_bytes
    assert new.size_bytes == new.new_bytes + new.shared_bytes
    assert 0 == old.shared_bytes
    assert listing.size_bytes == sum(each.new_bytes for each in listing.checkpoints)
    assert listing.logical_bytes - listing.size_bytes == 2 * 4096


def test_a_listing_says_why_each_checkpoint_is_kept(tmp_path):
    """The run's recorded policy, pins and restores in progress are the reasons; without one a clean-up would remove."""
    run = make_run(tmp_path, steps=(1, 2, 3, 4))
    run.record_keep("last:1")
    run.store.pin(run.store.checkpoints()[-1], "first")
    run.store.replace_json("restoring.step-000000000002-02020202", {"checkpoint": run.ids[1], "attempts": 1})

    kept = [each.kept_by for each in view(tmp_path).checkpoints()]

    assert ["last 1/1, newest", "", "in use", "pin:first"] == kept


def test_without_a_policy_everything_is_kept(tmp_path):
    """A run that records no policy loses nothing."""
    make_run(tmp_path)
    assert all("no policy" in each.kept_by for each in view(tmp_path).checkpoints())


@pytest.mark.parametrize(
    "hurt",
    [
        lambda directory: (directory / MODEL).unlink(),
        lambda directory: (directory / MODEL).write_bytes(b""),
        lambda directory: ((directory / MODEL).unlink(), (directory / MODEL).mkdir()),
    ],
    ids=["missing", "truncated", "not a file"],
)
def test_a_listing_notices_files_that_are_not_there(tmp_path, hurt):
    """A file that is gone or of another length makes its checkpoint one that does not restore; the others still do."""
    run = make_run(tmp_path)
    hurt(run.store.checkpoints()[0].directory)

    listing = view(tmp_path).listing()

    assert [False, True, True] == [each.restores for each in listing.checkpoints]
    assert listing.checkpoints[1] == listing.restorable
    assert not listing.is_whole


def test_a_damaged_manifest_is_listed_beside_the_rest(tmp_path):
    """A directory whose manifest is damaged is no checkpoint and is named with the reason."""
    run = make_run(tmp_path)
    damage(run.store.checkpoints()[1].directory / "manifest.json", 100)

    listing = view(tmp_path).listing()

    assert [3000, 1000] == [each.global_step for each in listing.checkpoints]
    (found,) = listing.damaged_directories
    assert "step-000000002000-02020202" == found.directory
    assert "manifest.malformed" == found.problem.kind


class GoneMeanwhile(Files):
    """Removes a directory behind the reader's back when it first looks inside."""

    def __init__(self, directory):
        self._directory = directory

    def status(self, path):
        if self._directory is not None and self._directory in path.parents:
            shutil.rmtree(self._directory)
            self._directory = None
        return super().status(path)


def test_what_a_writer_removes_meanwhile_is_no_damage(tmp_path):
    """A checkpoint that goes between the scan and the look is left out, of listings and of checks."""
    run = make_run(tmp_path)
    oldest = run.store.checkpoints()[-1].directory

    listing = view(tmp_path, files=GoneMeanwhile(oldest)).listing()
    report = view(tmp_path, files=GoneMeanwhile(run.store.checkpoints()[-1].directory)).verify()

    assert listing.is_whole
    assert 2 == len(listing.checkpoints)
    assert report.is_whole
    assert 1 == len(report.checkpoints)


def test_showing_a_checkpoint_gives_what_is_in_it(tmp_path):
    """Components come with the size of their files, and meta.json as it was saved."""
    make_run(tmp_path)

    detail = view(tmp_path).show("latest~1")

    assert 2000 == detail.checkpoint.global_step
    assert {"policy": 5, "replay": 4096} == {each.name: each.size_bytes for each in detail.components}
    assert 2000 == detail.meta["counters"]["global_step"]
    assert {MODEL, SEGMENT, "meta.json"} == {each.path for each in detail.files}


def test_showing_a_checkpoint_survives_a_damaged_meta_file(tmp_path):
    """What meta.json held is unknown then, and everything else is still shown."""
    run = make_run(tmp_path)
    damage(run.store.checkpoints()[0].directory / "meta.json")

    assert view(tmp_path).show().meta is None


@pytest.mark.parametrize("word", ["nope", "latest~9", "@1", "ffff"])
def test_a_selection_that_means_nothing_is_not_found(tmp_path, word):
    """A word that selects no checkpoint is a NotFoundError."""
    make_run(tmp_path)
    with pytest.raises(NotFoundError) as caught:
        view(tmp_path).show(word)
    assert "checkpoint.not-found" == caught.value.kind


# Finding runs


def test_only_runs_are_listed(tmp_path):
    """Files, other directories and links to runs are none of our business."""
    make_run(tmp_path, "ppo")
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "plots").mkdir()
    (tmp_path / "again").symlink_to(tmp_path / "ppo")

    assert ["ppo"] == run_names(Files(), tmp_path)


def test_a_misspelt_run_is_suggested(tmp_path):
    """The hint names the run that was probably meant."""
    make_run(tmp_path, "ppo-ant")
    with pytest.raises(NotFoundError) as caught:
        view(tmp_path, "ppo-amt")
    assert "run.not-found" == caught.value.kind
    assert "'ppo-ant'" in caught.value.hint


@pytest.mark.parametrize("name", ["../ppo", "..", "", "a/b", "-x"])
def test_a_name_cannot_leave_the_store(tmp_path, name):
    """A run's name that is a path is refused, whatever lies there."""
    make_run(tmp_path, "ppo")
    inner = tmp_path / "inner"
    inner.mkdir()
    with pytest.raises(InvalidInputError):
        view(inner, name)


def test_a_missing_store_is_not_found(tmp_path):
    """There is no store where there is no directory."""
    with pytest.raises(NotFoundError) as caught:
        runs(tmp_path / "nowhere")
    assert "store.not-found" == caught.value.kind


def test_a_file_is_no_store(tmp_path):
    """A file where the store should be is a StoreError that says so."""
    (tmp_path / "runs").write_text("x")
    with pytest.raises(StoreError) as caught:
        runs(tmp_path / "runs")
    assert "store.not-a-directory" == caught.value.kind


class ForbiddenFiles(Files):
    """Lets nobody list a directory."""

    def names(self, path):
        raise PermissionError(13, "Permission denied", str(path))


def test_an_unreadable_store_is_a_store_error(tmp_path):
    """A store that may not be read says so, with what to do."""
    make_run(tmp_path)
    with pytest.raises(StoreError) as caught:
        runs(tmp_path, files=ForbiddenFiles())
    assert "store.forbidden" == caught.value.kind
    assert caught.value.hint


def test_a_run_of_a_newer_schema_is_refused(tmp_path):
    """Nothing is guessed about what a newer perdure has written."""
    run = make_run(tmp_path)
    run.store.replace_json("run.json", {**run.store.identity(), "schema_version": 99})
    with pytest.raises(FormatError):
        view(tmp_path)


def test_runs_are_summarised_newest_first(tmp_path):
    """A run without a checkpoint comes last, and one that cannot be read is listed with the reason."""
    make_run(tmp_path, "old").commit(5000, ago=30.0)
    make_run(tmp_path, "new").commit(7000, ago=10.0)
    MadeRun(tmp_path, "empty")
    newer = make_run(tmp_path, "future")
    rewrite_manifest(newer.store.checkpoints()[0].directory, schema_version=99)

    found = {each.run: each for each in runs(tmp_path, wall_seconds=lambda: NOW)}

    assert ["new", "old", "empty", "future"] == list(found)
    assert (7000, 10.0, "stopped") == (found["new"].global_step, found["new"].age_seconds, found["new"].state)
    assert ("empty", None) == (found["empty"].state, found["empty"].id)
    assert ("unreadable", "manifest.newer-schema") == (found["future"].state, found["future"].error.kind)


# Verifying


def swap_folder(directory):
    """Put a link in the place of a folder, with the same files behind it."""
    (directory / "model").rename(directory.parents[1] / "elsewhere")
    (directory / "model").symlink_to(directory.parents[1] / "elsewhere")


@pytest.mark.parametrize(
    ("hurt", "noticed_at"),
    [
        (lambda directory: damage(directory / "manifest.json", 60), Level.META),
        (lambda directory: (directory / "manifest.json").unlink(), Level.META),
        (lambda directory: (directory / MODEL).unlink(), Level.SIZES),
        (lambda directory: (directory / MODEL).write_bytes(b"longer than before"), Level.SIZES),
        (swap_folder, Level.SIZES),
        (lambda directory: damage(directory / MODEL), Level.HASH),
        (lambda directory: damage(directory / SEGMENT, 4095), Level.HASH),
        (lambda directory: damage(directory / "meta.json"), Level.HASH),
    ],
    ids=["manifest", "no manifest", "missing", "longer", "link", "model bit", "segment bit", "meta bit"],
)
def test_each_level_notices_what_it_looks_for(tmp_path, hurt, noticed_at):
    """Damage is noticed at its level and at every deeper one, and nothing is noticed above it."""
    run = make_run(tmp_path)
    hurt(run.store.checkpoints()[1].directory)

    order = [Level.META, Level.SIZES, Level.HASH]
    for level in order:
        report = view(tmp_path).verify(level=level)
        assert (order.index(level) < order.index(noticed_at)) == report.is_whole, level
        assert report.restores


def test_a_report_names_what_is_damaged(tmp_path):
    """A damaged file is named with its component, and the others restore."""
    run = make_run(tmp_path)
    damage(run.store.checkpoints()[0].directory / MODEL)

    report = view(tmp_path).verify()

    newest, *others = report.checkpoints
    assert (False, ("policy",)) == (newest.restores, newest.damaged_components)
    assert newest.problems[0].path.endswith(MODEL)
    assert all(check.restores for check in others)


class CountingFiles(Files):
    """Counts the bytes that are read."""

    read_bytes = 0

    def read_into(self, descriptor, buffer, offset_bytes):
        count = super().read_into(descriptor, buffer, offset_bytes)
        self.read_bytes += count
        return count


def test_a_shared_file_is_read_once(tmp_path):
    """Verifying reads what the disk holds, not what the checkpoints would hold without sharing."""
    make_run(tmp_path)
    files = CountingFiles()
    progress = []

    report = view(tmp_path, files=files).verify(on_progress=lambda done, total: progress.append((done, total)))

    manifests = sum(path.stat().st_size for path in tmp_path.rglob("manifest.json"))
    identity = 2 * (tmp_path / "ppo" / "run.json").stat().st_size
    assert 7 == report.files_checked
    assert report.bytes_checked <= files.read_bytes <= report.bytes_checked + manifests + identity
    assert (report.bytes_checked, report.bytes_checked) == progress[-1]


def test_one_checkpoint_can_be_verified_alone(tmp_path):
    """Damage elsewhere does not matter to it."""
    run = make_run(tmp_path)
    damage(run.store.checkpoints()[0].directory / MODEL)

    assert view(tmp_path).verify("latest~1").is_whole
    assert not view(tmp_path).verify("latest").restores


def test_a_run_without_checkpoints_has_nothing_to_verify(tmp_path):
    """It is a NothingRestorableError, not a success."""
    MadeRun(tmp_path, "ppo")
    with pytest.raises(NothingRestorableError):
        view(tmp_path).verify()


class BrokenDisk(Files):
    """Fails to read one file, as a disk with a bad sector does."""

    def __init__(self, name):
        self._name = name
        self._bad = set()

    def open_beneath(self, root, relative):
        descriptor, size = super().open_beneath(root, relative)
        (self._bad.add if relative == self._name else self._bad.discard)(descriptor)
        return descriptor, size

    def read_into(self, descriptor, buffer, offset_bytes):
        if descriptor in self._bad:
            raise OSError(5, "Input/output error")
        return super().read_into(descriptor, buffer, offset_bytes)


def test_a_bad_sector_is_damage_of_its_file(tmp_path):
    """A file that cannot be read is a problem of its checkpoint, and the check goes on."""
    make_run(tmp_path)

    report = view(tmp_path, files=BrokenDisk(MODEL)).verify()

    assert 3 == len(report.checkpoints)
    assert {"store.broken"} == {problem.kind for check in report.checkpoints for problem in check.problems}


# Status


def test_the_status_of_a_healthy_run_has_no_problem(tmp_path):
    """It says what a restart would resume from."""
    run = make_run(tmp_path)
    run.event("restored", step=2000, seconds=3.1)

    status = view(tmp_path).status()

    assert ("stopped", ()) == (status.state, status.problems)
    assert 3000 == status.restorable.global_step
    assert 60.0 == status.restorable.age_seconds
    assert 3.1 == status.restore_seconds
    assert status.at_risk_seconds is None
    assert not status.is_lost


def test_the_status_of_a_damaged_run_falls_back(tmp_path):
    """The newest that is whole is what a restart would use, and the damage is a problem."""
    run = make_run(tmp_path)
    (run.store.checkpoints()[0].directory / MODEL).unlink()
    (run.store.checkpoints()[1].directory / "manifest.json").unlink()

    status = view(tmp_path).status()

    assert 1000 == status.restorable.global_step
    assert 2 == len(status.problems)
    assert not status.is_lost


def test_a_run_whose_checkpoints_are_all_bad_is_lost(tmp_path):
    """Nothing can be restored, whether the checkpoints are damaged or in quarantine."""
    run = make_run(tmp_path, steps=(1,))
    (run.store.checkpoints()[0].directory / MODEL).unlink()
    assert view(tmp_path).status().is_lost

    run.store.quarantine(run.store.checkpoints()[0].directory, "bad", at())
    status = view(tmp_path).status()
    assert status.is_lost
    assert ("bad",) == tuple(note["reason"] for note in status.quarantined)


def test_a_restore_that_died_is_a_problem(tmp_path):
    """The marker that is left says which checkpoint it was, how often, and where."""
    run = make_run(tmp_path)
    run.store.replace_json("restoring.step-000000003000-03030303", {"checkpoint": run.ids[-1], "attempts": 2})
    run.store.replace_json("progress.json", {"checkpoint": run.ids[-1], "step": "models"})

    status = view(tmp_path).status()

    assert "interrupted" == status.state
    assert "03030303" in status.problems[0]
    assert "2 times" in status.problems[0]
    assert "models" in status.problems[0]


def test_failing_saves_are_a_problem_until_one_works(tmp_path):
    """The last saves failed, and why, unless a later one worked."""
    run = make_run(tmp_path)
    run.event("save-failed", step=4000, kind="store.failed")
    run.event("save-failed", step=5000, kind="store.full")

    assert ("the last 2 saves failed (store.full)",) == view(tmp_path).status().problems
    run.event("saved", step=6000)
    assert () == view(tmp_path).status().problems


@pytest.mark.parametrize(
    ("tail", "problems"),
    [
        ([], ("learner has failed 2 times without a save: SIGKILL (store.full)",)),
        (
            [{"event": "run-ended", "exit_code": 20}],
            (
                "the supervised run ended with status 20",
                "learner has failed 2 times without a save: SIGKILL (store.full)",
            ),
        ),
        ([{"event": "saved"}], ()),
        ([{"event": "run-ended", "exit_code": 75}], ()),
        ([{"event": "run-supervised"}], ()),
    ],
)
def test_a_member_that_fails_without_progress_is_a_problem(tmp_path, tail, problems):
    """A process that dies again and again is named with the reason, until a save, a new start or a good end."""
    run = make_run(tmp_path)
    run.event("run-supervised")
    run.event("member-fault", member="learner", reason="exit code 1")
    run.event("member-fault", member="actor", reason="SIGTERM")
    run.event("member-fault", member="learner", reason="SIGKILL", note="store.full")
    for event in tail:
        run.event(**event)

    assert problems == view(tmp_path).status().problems


class NearlyFull(Files):
    """Has hardly any space left."""

    def free_bytes(self, path):
        return 10


def test_a_nearly_full_disk_is_a_problem(tmp_path):
    """There is no room for two more saves like the last one."""
    make_run(tmp_path)
    (problem,) = view(tmp_path, files=NearlyFull()).status().problems
    assert "nearly full" in problem


def test_a_living_writer_is_seen(tmp_path):
    """While a process holds the writer's lease the run is training, and what came since the last save is at risk."""
    run = make_run(tmp_path)
    with Control(run.directory).acquire("here:1", floor=4):
        status = view(tmp_path).status()
    after = view(tmp_path).status()

    assert ("training", "here:1", 5) == (status.state, status.writer.owner, status.generation)
    assert 60.0 == status.at_risk_seconds
    assert 30 > status.writer.silent_seconds
    assert ("stopped", None, 5) == (after.state, after.writer, after.generation)


def test_a_frozen_writer_is_silent(tmp_path):
    """A writer that holds its lock and gives no sign of life is a problem."""
    run = make_run(tmp_path)
    with Control(run.directory, clock=lambda: boot_clock() - 100).acquire("here:1"):
        status = view(tmp_path).status()

    assert "silent" == status.state
    assert "here:1 has been silent for 100 s" in status.problems[0]


def test_a_writer_that_restores_is_restoring(tmp_path):
    """The marker of a restore is no problem while its process lives."""
    run = make_run(tmp_path)
    run.store.replace_json("restoring.step-000000003000-03030303", {"checkpoint": run.ids[-1], "attempts": 1})
    with Control(run.directory).acquire("here:1"):
        status = view(tmp_path).status()

    assert ("restoring", ()) == (status.state, status.problems)


def test_a_control_database_that_cannot_be_read_hides_a_writer(tmp_path):
    """Then a writer may be there, and everything that one would need is left alone."""
    run = make_run(tmp_path)
    (run.directory / "control.db").write_bytes(b"not a database, but long enough to be looked at" * 10)

    status = view(tmp_path).status()
    plan = view(tmp_path).plan_gc(Last(1))

    assert "control database" in status.problems[0]
    assert "may be linked to" == plan.rows[1].why


def test_an_interrupted_commit_is_left_to_the_next_start(tmp_path):
    """A journal that a killed writer left is not rolled back by a look, which then knows less and says so."""
    run = make_run(tmp_path)
    Control(run.directory).mint(0, "first")
    database = run.directory / "control.db"
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO generations VALUES (?, ?)", [(n, "x" * 200) for n in range(10, 4000)])
        crashed = {name: (run.directory / name).read_bytes() for name in ("control.db", "control.db-journal")}
        connection.execute("ROLLBACK")
    for name, content in crashed.items():
        (run.directory / name).write_bytes(content)
    before = tree(tmp_path)

    (problem,) = view(tmp_path).status().problems

    assert "a commit was interrupted" in problem
    assert before == tree(tmp_path)
    assert 1 == Control(run.directory).generation()


def test_the_members_of_a_supervised_run_are_those_of_its_events(tmp_path):
    """They are shown while the supervisor lives, since its last start."""
    run = make_run(tmp_path)
    run.event("member-started", member="gone", role="gone")
    run.event("run-supervised")
    run.event("member-started", member="learner", role="learner")
    run.event("member-fault", member="learner", role="learner", reason="SIGKILL")
    with exclusive(run.directory):
        status = view(tmp_path).status()

    assert ("restarting", str(os.getpid())) == (status.state, status.supervisor_pid)
    assert [("learner", "down", 1)] == [(each.member, each.state, each.faults) for each in status.members]
    assert () == view(tmp_path).status().members


@pytest.mark.parametrize(
    ("events", "state", "faults"),
    [
        (["member-started"], "alive", 0),
        (["member-started", "member-fault", "member-waiting"], "waits to restart", 1),
        (["member-started", "member-fault", "member-waiting", "member-started"], "alive", 1),
        (["member-started", "member-fault", "member-gave-up"], "given up", 1),
        (["member-started", "member-done"], "done", 0),
        (["member-joined", "member-lost"], "lost", 0),
        (["member-started", "unheard-of"], "alive", 0),
    ],
)
def test_a_members_state_is_that_of_its_last_event(events, state, faults):
    """Events that are not known change nothing."""
    (seen,) = members_seen([{"event": name, "member": "a", "role": "actor"} for name in events])
    assert (state, faults, "actor") == (seen.state, seen.faults, seen.role)


# Reading only


def test_looking_changes_nothing(tmp_path):
    """No look at a run changes a file, a time or a directory, healthy or not."""
    run = make_run(tmp_path)
    run.record_keep("last:1")
    run.event("saved", step=1)
    damage(run.store.checkpoints()[1].directory / MODEL)
    (run.directory / "staging" / "step-000000009000-09090909").mkdir()
    with Control(run.directory).acquire("here:1"), exclusive(run.directory):
        before = tree(tmp_path)

        runs(tmp_path, files=ReadOnlyFiles())
        looker = view(tmp_path, files=ReadOnlyFiles())
        looker.listing()
        looker.show()
        looker.verify()
        looker.events()
        looker.status()
        looker.plan_gc(Last(1))
        looker.pins()

        assert before == tree(tmp_path)


def test_values_are_strict_json(tmp_path):
    """Every document becomes JSON without numbers that JSON does not have."""
    run = make_run(tmp_path)
    damage(run.store.checkpoints()[0].directory / "manifest.json", 90)
    looker = view(tmp_path)
    for document in (
        looker.listing(),
        looker.show(),
        looker.verify(),
        looker.status(),
        looker.plan_gc(),
        *runs(tmp_path),
    ):
        assert isinstance(document, Document)
        json.loads(json.dumps(document.to_json(), allow_nan=False))
    assert {"x": None, "y": [1.5, None]} == plain({"x": float("nan"), "y": (1.5, float("inf"))})


@pytest.mark.parametrize(
    ("text", "age"),
    [
        (at(90), 90.0),
        (at(-5), 0.0),
        ("2027-01-15T08:00:00+00:00", 0.0),
        ("2027-01-15T07:59:00", None),
        ("yesterday", None),
        (None, None),
    ],
)
def test_ages_are_of_times_that_are_times(text, age):
    """A time without a zone, or none at all, has no age; a time to come has age 0."""
    assert age == age_seconds(text, NOW)


# Keep policies as text

POLICIES = st.one_of(
    st.builds(Last, st.integers(1, 99)),
    st.builds(EverySteps, st.integers(1, 10**9)),
    st.builds(Best, st.sampled_from(["return", "eval/return"]), st.integers(1, 9), st.sampled_from(["max", "min"])),
)


@given(st.lists(POLICIES, min_size=1, max_size=4))
def test_a_policy_survives_being_written_down(policies):
    """Reading what was written gives a policy that means the same."""
    joined = policies[0]
    for each in policies[1:]:
        joined = joined | each
    assert keep_text(joined) == keep_text(parse_keep(keep_text(joined)))
    assert policies[0] == parse_keep(keep_text(policies[0]))


@pytest.mark.parametrize(
    "text", ["", "last", "last:x", "last:0", "best", "best:a:b", "best:a:1:up", "often:3", "last:1|"]
)
def test_what_is_no_policy_is_refused(text):
    """The error says which forms there are."""
    with pytest.raises(InvalidInputError) as caught:
        parse_keep(text)
    assert "last:COUNT" in caught.value.hint


def test_a_policy_of_ones_own_has_no_text():
    """It cannot be written down, and says so."""

    class Mine(KeepPolicy):
        pass

    with pytest.raises(InvalidInputError):
        keep_text(Mine())


# Cleaning up


def steps(root):
    return [each.global_step for each in view(root).checkpoints()]


def test_a_plan_gives_every_checkpoint_a_reason(tmp_path):
    """What goes has no rule that keeps it, and what its removal frees does not count shared files."""
    make_run(tmp_path)

    plan = view(tmp_path).plan_gc(Last(1))

    assert [("keep", "last 1/1, newest"), ("remove", "no rule keeps it"), ("remove", "no rule keeps it")] == [
        (row.action, row.why) for row in plan.rows
    ]
    assert [2000, 1000] == [row.global_step for row in plan.removed]
    assert 4096 > plan.freed_bytes > 0
    assert "last:1" == plan.policy
    assert [3000, 2000, 1000] == steps(tmp_path)


def test_a_shared_file_comes_free_with_its_last_name(tmp_path):
    """A file that only removed checkpoints share counts once, and one that a stranger links to does not."""
    run = make_run(tmp_path, steps=(1, 2))
    run._previous = None
    run.commit(3, segment=b"other" * 100)

    assert 4096 < view(tmp_path).plan_gc(Last(1)).freed_bytes < 2 * 4096
    os.link(run.store.checkpoints()[-1].directory / SEGMENT, tmp_path / "fork")
    assert view(tmp_path).plan_gc(Last(1)).freed_bytes < 4096


def test_a_clean_up_removes_what_was_planned_and_records_it(tmp_path):
    """What is left is whole, and the run's history says what went."""
    run = make_run(tmp_path)
    looker = view(tmp_path)

    result = looker.execute(looker.plan_gc(Last(1)))

    assert (run.ids[0], run.ids[1]) == result.removed
    assert [3000] == steps(tmp_path)
    assert looker.verify().is_whole
    assert [("removed", 1000), ("removed", 2000)] == [(each["event"], each["step"]) for each in looker.events()]
    assert [] == list((run.directory / "staging").iterdir())


def test_the_recorded_policy_is_the_default(tmp_path):
    """Without a policy given, the run's own is used; without that one, nothing is removed."""
    run = make_run(tmp_path)
    assert () == view(tmp_path).plan_gc().removed
    run.record_keep("last:2")
    assert [1000] == [row.global_step for row in view(tmp_path).plan_gc().removed]


def test_nothing_goes_before_the_newest_is_known_to_be_whole(tmp_path):
    """If the newest is damaged the newest whole one stays as well; if none is whole everything stays."""
    run = make_run(tmp_path)
    damage(run.store.checkpoints()[0].directory / MODEL)

    plan = view(tmp_path).plan_gc(Last(1))
    assert "newest whole" == plan.rows[1].why
    assert [1000] == [row.global_step for row in plan.removed]

    for checkpoint in run.store.checkpoints()[1:]:
        damage(checkpoint.directory / MODEL)
    assert () == view(tmp_path).plan_gc(Last(1)).removed


def test_what_is_being_restored_or_pinned_stays(tmp_path):
    """Neither a marker nor a pin is overruled by a policy."""
    run = make_run(tmp_path, steps=(1, 2, 3, 4))
    run.store.replace_json("restoring.step-000000000002-02020202", {"checkpoint": run.ids[1], "attempts": 1})
    run.store.pin(run.store.checkpoints()[3], "first")

    assert [3] == [row.global_step for row in view(tmp_path).plan_gc(Last(1)).removed]


def test_what_comes_into_use_after_the_plan_is_spared(tmp_path):
    """A pin or a restore between plan and execution wins; what the writer removed itself is no error."""
    run = make_run(tmp_path, steps=(1, 2, 3, 4))
    looker = view(tmp_path)
    plan = looker.plan_gc(Last(1))
    looker.pin("@1", "keep-me")
    run.store.replace_json("restoring.step-000000000002-02020202", {"checkpoint": run.ids[1], "attempts": 1})
    shutil.rmtree(run.store.checkpoints()[1].directory)

    result = looker.execute(plan)

    assert () == result.removed
    assert ["pinned as keep-me", "a restore of it has begun", "already gone"] == list(result.spared.values())
    assert [4, 2, 1] == steps(tmp_path)


def test_a_plan_whose_survivors_are_gone_is_outdated(tmp_path):
    """Carrying it out could remove the last checkpoint, so it is refused."""
    run = make_run(tmp_path)
    looker = view(tmp_path)
    plan = looker.plan_gc(Last(1))
    run.store.quarantine(run.store.checkpoints()[0].directory, "bad", at())

    with pytest.raises(ConflictError):
        looker.execute(plan)
    assert [2000, 1000] == steps(tmp_path)


def test_a_save_in_flight_keeps_what_it_links_to(tmp_path):
    """Beside a living writer the one before the newest stays: a save that was captured earlier may link to it."""
    run = make_run(tmp_path, steps=(1, 2))
    linked_to = run._previous
    with Control(run.directory).acquire("here:1"):
        run.commit(3)
        looker = view(tmp_path)
        looker.execute(looker.plan_gc(Last(1)))
        run._previous = linked_to
        run.commit(4)

    assert [4, 3, 2] == steps(tmp_path)
    assert view(tmp_path).verify().is_whole


class FailingFiles(Files):
    """Fails at the nth call that changes something, and at every later one, as after a crash."""

    def __init__(self, allowed):
        self.left = allowed

    def _spend(self):
        self.left -= 1
        if self.left < 0:
            raise OSError(5, "Input/output error")

    def rename(self, source, target):
        self._spend()
        super().rename(source, target)

    def sync_directory(self, path):
        self._spend()
        super().sync_directory(path)

    def unlink(self, path):
        self._spend()
        super().unlink(path)

    def remove_directory(self, path):
        self._spend()
        super().remove_directory(path)


def test_a_clean_up_that_dies_leaves_each_checkpoint_whole_or_gone(tmp_path):
    """Wherever it dies, what is left verifies, the newest is there, and the next start clears what is left over."""
    for allowed in range(200):
        root = tmp_path / str(allowed)
        run = make_run(root)
        files = FailingFiles(allowed)
        looker = view(root, files=files)
        plan = looker.plan_gc(Last(1))
        try:
            looker.execute(plan)
        except StoreError:
            assert 3000 == steps(root)[0]
            assert view(root).verify().is_whole
            Store(run.directory, Files(), lambda: "0" * 32).remove_leftovers()
        else:
            break
    else:
        raise AssertionError("the clean-up never got through")
    assert allowed > 10


def test_a_pin_protects_and_selects(tmp_path):
    """A pinned checkpoint is found by the pin's name, and the name is taken."""
    run = make_run(tmp_path)
    looker = view(tmp_path)

    assert run.ids[0] == looker.pin("@1000", "first")

    assert run.ids[0] == looker.show("first").checkpoint.id
    assert ("first",) == looker.checkpoints()[-1].pins
    with pytest.raises(AlreadyExistsError):
        looker.pin("latest", "first")
    looker.unpin("first")
    assert {} == looker.pins()
    with pytest.raises(NotFoundError):
        looker.unpin("first")


class GoneAfterPinning(Files):
    """Removes a checkpoint just as it is being pinned."""

    def __init__(self, directory):
        self._directory = directory

    def rename(self, source, target):
        super().rename(source, target)
        if target.parent.name == "pins":
            shutil.rmtree(self._directory)


def test_a_pin_that_came_too_late_is_taken_back(tmp_path):
    """Pinning what a clean-up removes at this moment fails, and leaves no pin of nothing."""
    run = make_run(tmp_path)
    looker = view(tmp_path, files=GoneAfterPinning(run.store.checkpoints()[-1].directory))

    with pytest.raises(NotFoundError):
        looker.pin("@1000", "first")
    assert {} == looker.pins()


class Keeping(RuleBasedStateMachine):
    """Saves, pins, restores and clean-ups in any order, against what must never go."""

    def __init__(self, root):
        super().__init__()
        self.root = root
        self.run = MadeRun(self.root, "ppo")
        self.pinned = {}
        self.restoring = {}

    @property
    def view(self):
        return view(self.root)

    @rule(metric=st.integers(0, 5))
    def save(self, metric):
        self.run.commit(10 * (len(self.run.ids) + 1), metrics={"return": float(metric)})

    @precondition(lambda self: self.run.ids)
    @rule(back=st.integers(0, 3), name=st.sampled_from("abc"))
    def pin(self, back, name):
        present = self.view.checkpoints()
        chosen = present[min(back, len(present) - 1)]
        if name not in self.pinned:
            self.pinned[name] = self.view.pin(chosen.id, name)

    @precondition(lambda self: self.pinned)
    @rule()
    def unpin(self):
        self.view.unpin(self.pinned.popitem()[0])

    @precondition(lambda self: self.run.ids)
    @rule(back=st.integers(0, 3))
    def begin_restore(self, back):
        present = self.view.checkpoints()
        chosen = present[min(back, len(present) - 1)]
        self.restoring[chosen.directory.name] = chosen.id
        self.run.store.replace_json(f"restoring.{chosen.directory.name}", {"checkpoint": chosen.id, "attempts": 1})

    @precondition(lambda self: self.restoring)
    @rule()
    def end_restore(self):
        self.run.store.remove_file(f"restoring.{self.restoring.popitem()[0]}")

    @rule(policies=st.lists(POLICIES, min_size=1, max_size=2))
    def clean_up(self, policies):
        policy = parse_keep(" | ".join(keep_text(each) for each in policies))
        planned = self.view.plan_gc(policy)
        self.view.execute(planned)
        left = {each.id for each in self.view.checkpoints()}
        assert left == {row.id for row in planned.rows if row.action == "keep"}

    @invariant()
    def what_must_stay_is_there_and_whole(self):
        if not self.run.ids:
            return
        present = {each.id for each in self.view.checkpoints()}
        assert {self.run.ids[-1], *self.pinned.values(), *self.restoring.values()} <= present
        assert self.view.verify().is_whole

    def teardown(self):
        shutil.rmtree(self.root)


def test_what_must_stay_stays_whatever_happens(tmp_path):
    """No order of saves, pins, restores and clean-ups loses the newest, a pinned or a restoring checkpoint."""
    numbers = itertools.count()

    def machine():
        return Keeping(tmp_path / str(next(numbers)))

    run_state_machine_as_test(machine, settings=settings(max_examples=15, stateful_step_count=12, deadline=None))
