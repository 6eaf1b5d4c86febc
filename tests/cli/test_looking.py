"""The verbs that look: what they print, and how they end."""

import pytest

from perdure.cluster.control import Control
from perdure.supervise.claims import exclusive
from tests.cli.stores import MadeRun, damage, make_run, rewrite_manifest

MODEL = "model/policy.safetensors"


def newest(run):
    return run.store.checkpoints()[0].directory


# Choosing a run


def test_the_only_run_goes_without_saying(cli, root):
    """Verbs find it, and a single word is then a checkpoint of it."""
    make_run(root)

    assert cli("ls").out == cli("ls", "ppo").out == cli("ls", str(root / "ppo")).out
    assert "checkpoint 0202" in cli("show", "latest~1").out
    assert cli("show", "ppo").out == cli("show").out == cli("show", "ppo", "latest").out


def test_one_of_several_runs_has_to_be_named(cli, root):
    """The hint lists them; PERDURE_RUN names one as well."""
    make_run(root, "a")
    make_run(root, "b")

    ended = cli("ls")

    assert 2 == ended.code
    assert "hint: name one of a, b (`perdure runs`)\n" in ended.err


def test_the_environment_names_the_run(cli, root, monkeypatch):
    """A name on the command line wins over it."""
    make_run(root, "a")
    make_run(root, "b", steps=(7,))
    monkeypatch.setenv("PERDURE_RUN", "b")

    assert "run b" in cli("show").out
    assert "run b" in cli("show", "@7").out
    assert "run a" in cli("show", "a").out


@pytest.mark.parametrize("verb", ["ls", "show", "verify", "events", "status", "gc", "pin"])
def test_a_run_that_is_not_there_is_not_found(cli, root, verb):
    """Every verb ends with 10 and suggests what was probably meant."""
    make_run(root, "ppo-ant")
    make_run(root, "dqn")

    ended = cli(verb, "ppo-amt")

    assert (10, "") == (ended.code, ended.out)
    assert "hint: did you mean 'ppo-ant'?\n" in ended.err


@pytest.mark.parametrize("verb", ["runs", "ls", "show", "verify", "events", "status", "gc", "pin"])
def test_a_store_that_is_not_there_is_not_found(cli, verb):
    """The hint says how to name another one."""
    ended = cli(verb, "--store", "nowhere", "--json")
    assert (10, "") == (ended.code, ended.out)
    assert "store.not-found" == ended.error["kind"]
    assert "PERDURE_STORE" in ended.error["hint"]


@pytest.mark.parametrize("verb", ["runs", "ls", "status", "verify"])
def test_a_file_where_the_store_should_be_is_a_failure(cli, root, verb):
    """It is said that a file is in the way."""
    (root / "file").write_text("x")
    ended = cli(verb, "--store", str(root / "file"))
    assert (1, "") == (ended.code, ended.out)
    assert "it is a file" in ended.err


def test_a_file_where_the_run_should_be_is_not_found(cli, root):
    """A file is no run, whatever its name."""
    (root / "ppo").write_text("x")
    assert 10 == cli("ls", "ppo").code


def test_a_file_where_the_snapshots_should_be_is_a_failure(cli, root):
    """The run is there, and its directory of checkpoints is not one."""
    run = MadeRun(root, "ppo")
    run.store.snapshots.rmdir()
    run.store.snapshots.write_text("x")
    ended = cli("ls", "ppo")
    assert (1, "") == (ended.code, ended.out)
    assert "snapshots" in ended.err


def test_a_newer_schema_is_refused_by_name(cli, root):
    """A run that a newer perdure wrote ends every look with 1 and the advice to upgrade; others are listed still."""
    run = make_run(root, "future")
    make_run(root, "ppo")
    rewrite_manifest(newest(run), schema_version=99)

    ended = cli("ls", "future", "--json")
    listed = cli("runs", "--json")

    assert (1, "manifest.newer-schema") == (ended.code, ended.error["kind"])
    assert "upgrade" in ended.error["hint"]
    assert 3 == listed.code
    assert {"future": "unreadable", "ppo": "stopped"} == {
        each["run"]: each["state"] for each in listed.document["runs"]
    }


def test_an_empty_store_is_no_failure(cli):
    """There is nothing to list yet, and for a verb that needs a run there is none."""
    assert (0, "no runs in runs yet\n") == (cli("runs").code, cli("runs").out)
    assert [] == cli("runs", "--json").document["runs"]
    ended = cli("ls")
    assert 10 == ended.code
    assert "store runs has none yet" in ended.err


def test_a_run_without_checkpoints_is_looked_at_as_well(cli, root):
    """Looking is no failure; having nothing to verify or to show is."""
    MadeRun(root, "ppo")
    assert (0, "run ppo has no checkpoint yet\n") == (cli("ls").code, cli("ls").out)
    assert [] == cli("ls", "--json").document["checkpoints"]
    assert 0 == cli("status").code
    assert 0 == cli("gc").code
    assert 10 == cli("show").code
    assert 13 == cli("verify").code


# What is printed


def test_checkpoints_are_listed_newest_first(cli, root):
    """Ids are short, steps are grouped, and a footer has the totals."""
    run = make_run(root, steps=(1_000_000, 12_582_912))
    run.record_keep("last:1")

    head, first, second, footer = cli("ls").lines

    assert ["ID", "STEP", "AGE", "SIZE", "NEW", "KEPT", "BY", "GRADE"] == head.split()
    assert first.startswith("02020202  12,582,912 ")
    assert first.endswith("last 1/1            exact")
    assert second.endswith("gc would remove it  exact")
    assert footer.startswith("2 checkpoints, 4.1 KiB on disk (8.1 KiB logical), newest committed ")


def test_quiet_lists_are_bare_and_verbose_ones_full(cli, root):
    """Quiet prints ids alone; verbose prints whole ids, times, reasons and metrics."""
    run = MadeRun(root, "ppo")
    run.commit(1, metrics={"eval/return": 0.5})

    assert f"{run.ids[0]}\n" == cli("ls", "-q").out
    verbose = cli("ls", "-v").lines[1]
    assert verbose.startswith(run.ids[0])
    assert "every-steps  eval/return 0.5" in verbose


def test_a_checkpoint_is_shown_with_its_parts(cli, root):
    """Facts first, components next, files on request."""
    make_run(root)
    ended = cli("show", "--files")
    assert 0 == ended.code
    for text in ("step       3,000", "parent     02020202", "counters   global_step 3,000", "torch.module", "blake3:"):
        assert text in ended.out
    assert "2 components, 3 files, 4.1 KiB" == ended.lines[-1]


def test_a_damaged_checkpoint_is_shown_and_said_to_be(cli, root):
    """It ends with 4, because what was asked for cannot be restored."""
    run = make_run(root)
    (newest(run) / MODEL).unlink()
    ended = cli("show")
    assert 4 == ended.code
    assert f"damaged    {MODEL}: it is missing" in ended.out


def test_a_store_of_runs_is_listed_with_its_troubles(cli, root):
    """A run with problems shows the first of them, and the command ends with 3."""
    make_run(root, "well")
    (newest(make_run(root, "hurt")) / MODEL).unlink()
    MadeRun(root, "new")

    ended = cli("runs")

    assert 3 == ended.code
    rows = {line.split()[0]: line for line in ended.lines}
    assert "2,000" in rows["hurt"]
    assert "it is missing" in rows["hurt"]
    assert "empty" in rows["new"]
    assert ended.lines[-1].startswith("3 runs, ")


def test_events_are_printed_oldest_first(cli, root):
    """The last few are shown, or all, or those of a kind; what was skipped is spelled out."""
    run = MadeRun(root, "ppo")
    for step in range(30):
        run.event("saved", step=step, checkpoint="a" * 32, bytes=2048, write_seconds=0.5)
    run.event("restored", step=9, skipped=[{"name": "step-1", "reason": "bad"}], seconds=0.1, components=[1, 2])

    assert "20 of 31 events" == cli("events").lines[-1]
    assert "31 events" == cli("events", "-n", "0").lines[-1]
    only = cli("events", "--only", "rest")
    assert "1 event" == only.lines[-1]
    assert "skipped step-1 (bad), took 100ms, 2 components" in only.out
    assert "aaaaaaaa, 2.0 KiB, write 500ms" in cli("events", "-n", "2").out
    assert [28, 29, 9] == [each["step"] for each in cli("events", "-n", "3", "--json").document["events"]]


def test_events_of_anybody_are_harmless(cli, root):
    """A line that is torn is skipped, and one that carries escapes or the wrong types is printed all the same."""
    run = MadeRun(root, "ppo")
    run.event("sa\x1b[2Jved", step="x", bytes="many", skipped=[3], write_seconds="long", checkpoint=4, at=5)
    with (run.directory / "events.jsonl").open("ab") as log:
        log.write(b'{"event": "torn')

    ended = cli("events")

    assert 0 == ended.code
    assert "\x1b" not in ended.out
    assert "1 event" == ended.lines[-1]


# Status


def test_the_status_says_what_a_restart_would_use(cli, root):
    """Nothing is wrong, so the first line is the state and the next what would be resumed."""
    make_run(root)
    ended = cli("status")
    assert 0 == ended.code
    assert "ppo  stopped" == ended.lines[0]
    assert ended.lines[1].startswith("  resumes     03030303 at step 3,000, saved ")
    assert "stopped\n" == cli("status", "-q").out


def test_the_status_of_a_living_run_says_what_is_at_risk(cli, root):
    """The writer is named, with the age of its last sign of life."""
    run = make_run(root)
    with Control(run.directory).acquire("here:17"):
        ended = cli("status")
    assert "ppo  training" == ended.lines[0]
    assert "  at risk     " in ended.out
    assert "  writer      here:17, generation 1, last sign of life 0s ago" in ended.out


def test_the_status_says_first_what_is_wrong(cli, root):
    """A damaged newest checkpoint is a problem with an older one to resume from: 3. Without one it is a loss: 4."""
    run = make_run(root, steps=(1000, 2000))
    (newest(run) / MODEL).write_bytes(b"")

    ended = cli("status")
    assert 3 == ended.code
    assert (
        ended.lines[1] == f"  problem     checkpoint 02020202 is damaged: {MODEL}: it has 0 bytes and 5 were committed"
    )
    assert "resumes     01010101" in ended.lines[2]
    assert "next: perdure verify ppo" in ended.err

    (run.store.checkpoints()[1].directory / "manifest.json").unlink()
    lost = cli("status")
    assert 4 == lost.code
    assert "resumes     nothing: no checkpoint can be restored" in lost.out


def test_the_status_lists_members_and_what_was_put_aside(cli, root):
    """Members come in a table while a supervisor lives, quarantine with the reasons."""
    run = make_run(root)
    run.event("member-started", member="actor-1", role="actor")
    run.store.quarantine(newest(run), "it killed the process twice", "2027-01-01T00:00:00Z")
    with exclusive(run.directory):
        ended = cli("status")
    assert "put aside   step-000000003000-03030303 at 2027-01-01T00:00:00Z: it killed the process twice" in ended.out
    assert ["actor-1", "actor", "alive"] == next(line for line in ended.lines if "actor-1" in line).split()[:3]


# Verify


def test_whole_checkpoints_verify(cli, root):
    """One line says how much was read."""
    make_run(root)
    ended = cli("verify")
    assert (0, "") == (ended.code, ended.err)
    assert ended.out.startswith("all whole: 3 manifests, 7 files, 4.2 KiB in ")
    assert "" == cli("verify", "-q").out


def test_damage_is_named_with_what_still_restores(cli, root):
    """It ends with 3 while anything of what was checked restores, and with 4 when nothing does."""
    run = make_run(root, steps=(1000, 2000))
    damage(newest(run) / MODEL)

    ended = cli("verify")
    assert 3 == ended.code
    assert f"damaged  02020202: {MODEL}: its bytes are not those that were committed" == ended.lines[0]
    assert "02020202  step 2,000  does not restore: 1 bad file of policy" in ended.lines
    assert "01010101  step 1,000  restores" in ended.lines

    assert 0 == cli("verify", "@1000").code
    assert 4 == cli("verify", "latest").code
    assert 0 == cli("verify", "latest", "--level", "sizes").code
    damage(run.store.checkpoints()[1].directory / MODEL)
    assert 4 == cli("verify").code


def test_a_damaged_manifest_is_found_by_every_level(cli, root):
    """The directory is named, and the rest restores."""
    run = make_run(root)
    damage(newest(run) / "manifest.json", 50)
    for level in ("meta", "sizes", "hash"):
        ended = cli("verify", "--level", level, "--json")
        assert 3 == ended.code
        assert "step-000000003000-03030303" == ended.document["damaged_directories"][0]["directory"]
    listed = cli("ls")
    assert 3 == listed.code
    assert "damaged  snapshots/step-000000003000-03030303/manifest.json: " in listed.out.replace(
        "cannot read manifest ", ""
    )
