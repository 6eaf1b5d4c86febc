"""The verbs that change something: ``gc`` and ``pin``."""

import pytest

from tests.cli.stores import MadeRun, damage, make_run
from tests.cli.terminal import Terminal


def left(run):
    return [checkpoint.manifest.global_step for checkpoint in run.store.checkpoints()]


def test_a_plan_alone_removes_nothing(cli, root):
    """The plan has a row with a reason for every checkpoint, and says what would come free."""
    run = make_run(root)

    ended = cli("gc", "--keep", "last:1", "--dry-run")

    assert 0 == ended.code
    assert ["03030303", "3,000", "keep", "last"] == [ended.lines[1].split()[i] for i in (0, 1, 5, 6)]
    assert ended.lines[2].endswith("remove  no rule keeps it")
    assert "to remove: 2 checkpoints of 3, 126 B come free (keep last:1)" == ended.lines[-1]
    assert [3000, 2000, 1000] == left(run)
    document = cli("gc", "--keep", "last:1", "--dry-run", "--json").document
    assert (True, []) == (document["dry_run"], document["removed"])
    assert ["keep", "remove", "remove"] == [row["action"] for row in document["rows"]]


def test_without_a_terminal_a_clean_up_needs_a_yes(cli, root):
    """It is refused as a usage error, after the plan, and removes nothing."""
    run = make_run(root)

    ended, as_json = cli("gc", "--keep", "last:1"), cli("gc", "--keep", "last:1", "--json")

    assert 2 == ended.code
    assert "to remove: 2 checkpoints" in ended.out
    assert "--yes" in ended.err
    assert (2, "", "plan.unconfirmed") == (as_json.code, as_json.out, as_json.error["kind"])
    assert [3000, 2000, 1000] == left(run)


def test_a_clean_up_says_what_it_removed(cli, root):
    """Several policies are joined, and the document names what went."""
    run = MadeRun(root, "ppo")
    for step, value in ((1, 5.0), (2, 9.0), (3, 1.0), (4, 2.0)):
        run.commit(step, metrics={"eval/return": value})

    ended = cli("gc", "--keep", "last:1", "--keep", "best:eval/return", "--yes")

    assert (0, "removed 2 checkpoints of run ppo") == (ended.code, ended.lines[-1])
    assert [4, 2] == left(run)
    document = cli("gc", "--keep", "last:1", "-y", "--json").document
    assert ([run.ids[1]], {}, False) == (document["removed"], document["spared"], document["dry_run"])
    run.commit(5)
    assert f"{run.ids[3]}\n" == cli("gc", "--keep", "last:1", "-qy").out


def test_a_clean_up_with_nothing_to_do_needs_no_yes(cli, root):
    """The run's own policy keeps everything, or there is none and that is said."""
    run = make_run(root)
    ended = cli("gc")
    assert (0, "nothing to remove: all 3 checkpoints stay") == (ended.code, ended.lines[-1])
    assert "records no keep policy" in ended.err
    run.record_keep("last:5")
    assert "" == cli("gc").err


def test_a_damaged_newest_checkpoint_keeps_the_one_before(cli, root):
    """The newest is verified before anything goes."""
    run = make_run(root)
    damage(run.store.checkpoints()[0].directory / "model/policy.safetensors")

    ended = cli("gc", "--keep", "last:1", "--yes")

    assert "newest whole" in ended.lines[2]
    assert [3000, 2000] == left(run)


@pytest.mark.process
@pytest.mark.parametrize(("reply", "code", "steps"), [("y", 0, [3000]), ("", 1, [3000, 2000, 1000])])
def test_at_a_terminal_a_person_is_asked(root, reply, code, steps):
    """Only a yes removes anything, and the plan has been seen before."""
    run = make_run(root)
    terminal = Terminal("gc", "--keep", "last:1", "--color", "never")

    terminal.read_until("remove 2 checkpoints? [y/N] ")
    terminal.type(reply)
    assert code == terminal.end()
    assert "no rule keeps it" in terminal.text.partition("[y/N]")[0]
    assert steps == left(run)


def test_pins_are_set_listed_and_removed(cli, root):
    """Each step says what it did, to people and to scripts."""
    run = make_run(root)

    assert (0, "pinned 01010101 as v1\n") == (cli("pin", "@1000", "v1").code, cli("pin", "@1000", "v1").out)
    assert {"schema": 1, "run": "ppo", "name": "v2", "checkpoint": run.ids[2]} == cli(
        "pin", "ppo", "latest", "v2", "--json"
    ).document
    assert ["PIN", "ID", "STEP"] == cli("pin").lines[0].split()
    assert ["v1", "01010101", "1,000"] == cli("pin").lines[1].split()
    assert "2 pins in run ppo" == cli("pin", "ppo").lines[-1]
    assert {"v1": run.ids[0], "v2": run.ids[2]} == cli("pin", "--json").document["pins"]
    assert "v1\nv2\n" == cli("pin", "-q").out
    assert "removed pin v1 of 01010101\n" == cli("pin", "--remove", "v1").out
    assert cli("pin", "ppo", "--remove", "v2", "--json").document["removed"]
    assert {} == run.store.pins()


def test_a_pin_that_cannot_be_is_refused(cli, root):
    """A name that is taken or could leave its folder, a checkpoint or a pin that is not there."""
    make_run(root)
    cli("pin", "latest", "v1")

    assert (1, "pin.exists") == ((taken := cli("pin", "@1000", "v1", "--json")).code, taken.error["kind"])
    assert (2, "name.invalid") == ((bad := cli("pin", "latest", "../x", "--json")).code, bad.error["kind"])
    assert (10, "checkpoint.not-found") == ((gone := cli("pin", "nope", "v2", "--json")).code, gone.error["kind"])
    assert (10, "pin.not-found") == ((none := cli("pin", "--remove", "v9", "--json")).code, none.error["kind"])
