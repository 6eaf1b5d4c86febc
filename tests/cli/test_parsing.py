"""From words to verbs: what is understood, what is suggested, what is loaded."""

import subprocess
import sys
from pathlib import Path

import pytest

import perdure
from perdure.cli.catalogue import SUMMARIES, load_verb
from perdure.cli.exits import MEANINGS, Exit
from perdure.cli.parser import COMMON, exits_of, split_command, verb_help
from perdure.cli.reference import reference
from tests.cli.stores import make_run
from tests.docs.pages import text_of


def test_options_may_stand_before_or_behind_the_verb(cli, root):
    """Where the store and the form of the output are said does not matter."""
    make_run(root.parent / "other")

    before, behind = cli("--store", "other", "--json", "ls"), cli("ls", "--json", "-s", "other")

    assert before.code == behind.code == 0
    assert [each["id"] for each in before.document["checkpoints"]] == [
        each["id"] for each in behind.document["checkpoints"]
    ]


def test_the_store_comes_from_the_environment(cli, root, monkeypatch):
    """PERDURE_STORE names the store, and --store wins over it."""
    make_run(root, "here")
    make_run(root.parent / "other", "there")
    monkeypatch.setenv("PERDURE_STORE", "other")

    assert "there\n" == cli("runs", "-q").out
    assert "here\n" == cli("runs", "-q", "-s", "runs").out


def test_a_misspelt_verb_is_suggested(cli):
    """The hint says which verb was probably meant."""
    ended = cli("verfy")
    assert Exit.USAGE == ended.code
    assert "perdure: cannot verfy: there is no such verb\nhint: did you mean `perdure verify`?\n" == ended.err


@pytest.mark.parametrize(
    "words",
    [
        ("ls", "--jsn"),
        ("--nonsense",),
        ("ls", "a", "b"),
        ("show", "a", "b", "c"),
        ("pin", "a", "b", "c", "d"),
        ("pin", "--remove", "x", "a", "b"),
        ("verify", "--level", "deep"),
        ("events", "--last", "many"),
        ("events", "--last", "-1"),
        ("ls", "--color", "sometimes"),
        ("ls", "--store"),
        ("ls", "--", "echo"),
        ("ls", "--js"),
        ("gc", "--keep", "often"),
    ],
)
def test_words_that_mean_nothing_are_refused(cli, root, words):
    """A command line that cannot be used ends with 2 and says why, in JSON where JSON was asked for."""
    make_run(root)
    plain, as_json = cli(*words), cli("--json", *words)

    assert (Exit.USAGE, "") == (plain.code, plain.out)
    assert plain.err.startswith("perdure: cannot ")
    assert (Exit.USAGE, "") == (as_json.code, as_json.out)
    assert (1, 2, "InvalidInputError") == tuple(as_json.error[key] for key in ("schema", "exit_code", "type"))


def test_a_command_begins_behind_the_first_dashes():
    """Its own dashes are its own business."""
    assert (["run", "--json"], ("x", "--", "-y")) == split_command(["run", "--json", "--", "x", "--", "-y"])
    assert (["ls"], None) == split_command(["ls"])


def test_without_a_verb_there_is_help(cli):
    """It is the result where it was asked for, and a complaint where it was not."""
    asked, unasked = cli("--help"), cli()

    assert (Exit.OK, "") == (asked.code, asked.err)
    assert (Exit.USAGE, "", asked.out) == (unasked.code, unasked.out, unasked.err)
    assert all(f"  {name} " in asked.out for name in SUMMARIES)
    assert all(f"{code.value:>5}  {MEANINGS[code]}" in asked.out for code in Exit)


@pytest.mark.parametrize("name", SUMMARIES)
def test_every_verb_explains_itself(cli, name):
    """Help names each argument, and ends with the exit codes that the verb can end with."""
    verb = load_verb(name)

    ended = cli(name, "anything", "--at-all", "-h")

    assert (Exit.OK, verb_help(name, verb)) == (ended.code, ended.out)
    for each in (*verb.arguments, *COMMON):
        assert each.names[-1] in ended.out or str(each.settings["metavar"]) in ended.out
    assert [f"{code.value:>5}" for code in exits_of(verb)] == [
        line[2:7] for line in ended.out.partition("exit status\n")[2].splitlines()
    ]
    assert all(len(line) <= 100 for line in ended.out.splitlines())


def test_the_reference_is_what_the_parser_says():
    """docs/reference/cli.md is up to date; `python -m perdure.cli.reference` writes it."""
    assert reference() == text_of("docs/reference/cli.md")


def test_the_version_is_told(cli):
    """With it come those of Python and of what is installed beside it."""
    ended = cli("version", "--json")
    assert {"schema", "perdure", "python", "platform", "packages"} == set(ended.document)
    assert f"{ended.document['perdure']}\n" == cli("version", "-q").out


LOADED = """
import sys, types
package = types.ModuleType("perdure")
package.__path__ = [{path!r}]
sys.modules["perdure"] = package

from perdure.cli import main
main({words!r})
print(*sorted(sys.modules), file=sys.stderr)
"""
"""The command line without the package's own ``__init__``, whose imports are another matter."""

FRAMEWORKS = {"torch", "gymnasium", "zmq", "ray", "matplotlib", "psutil"}
SLOW = {"numpy", "msgspec", "rich", "sqlite3", "asyncio"}


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "unwanted"),
    [
        (["version"], FRAMEWORKS | SLOW),
        (["--help"], FRAMEWORKS | SLOW),
        (["runs"], FRAMEWORKS | {"rich"}),
        (["status", "ppo"], FRAMEWORKS | {"rich"}),
        (["verify", "ppo"], FRAMEWORKS),
        (["run"], FRAMEWORKS | {"rich"}),
        (["demo", "--help"], FRAMEWORKS),
    ],
)
def test_a_verb_loads_only_what_it_needs(root, words, unwanted):
    """No verb that looks at a run imports a framework, and a version is told with nothing but Python's own modules."""
    make_run(root)
    program = LOADED.format(path=str(Path(perdure.__file__).parent), words=words)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert set() == unwanted & set(ended.stderr.splitlines()[-1].split())
