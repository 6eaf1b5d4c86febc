"""Where the demo puts its report, and what it leaves alone."""

import json
from types import SimpleNamespace

import pytest

from perdure.demo.main import check_directory, clear, publish, run_demo, tidy
from perdure.errors import InvalidInputError, LeaseHeldError
from perdure.supervise.claims import exclusive
from tests.demo.story import report


def options(out):
    """What a user may ask for."""
    return SimpleNamespace(
        seed=0, seconds=None, quick=True, out=str(out), keep=False, json=True, quiet=True, color=None
    )


@pytest.fixture
def finished(tmp_path):
    """A directory as a demo leaves it before it tidies up."""
    for name in ("disturbed", "undisturbed"):
        logs = tmp_path / "runs" / name / "logs"
        logs.mkdir(parents=True)
        (logs / "learner.log").write_text("said\n", encoding="utf-8")
        (tmp_path / f"{name}.toml").write_text("", encoding="utf-8")
    return tmp_path


def test_a_directory_with_something_else_in_it_is_refused(tmp_path):
    """The demo clears the directory of its report, so it takes none that holds anything but a report."""
    (tmp_path / "thesis.tex").write_text("precious", encoding="utf-8")
    with pytest.raises(InvalidInputError, match=r"thesis\.tex is there") as caught:
        run_demo(options(tmp_path))
    assert caught.value.kind == "demo.directory-in-use"
    assert (tmp_path / "thesis.tex").read_text(encoding="utf-8") == "precious"


def test_a_file_in_the_way_is_refused(tmp_path):
    """A file where the directory should be is an error, and stays."""
    (tmp_path / "report").write_text("precious", encoding="utf-8")
    with pytest.raises(InvalidInputError, match="a file is there"):
        run_demo(options(tmp_path / "report"))


def test_two_demos_cannot_share_a_directory(tmp_path):
    """A second demo is turned away while the first one writes."""
    with exclusive(tmp_path), pytest.raises(LeaseHeldError):
        run_demo(options(tmp_path))


def test_an_earlier_report_makes_room(finished):
    """A former demo's files are removed, because its runs would be resumed."""
    check_directory(finished)
    clear(finished)
    assert list(finished.iterdir()) == []


def test_nothing_at_all_is_fine(tmp_path):
    """A directory that does not exist yet is as good as an empty one."""
    check_directory(tmp_path / "new")
    clear(tmp_path / "new")


@pytest.mark.parametrize("keeps_runs", [True, False])
def test_logs_outlive_the_runs(finished, keeps_runs):
    """The processes' output stays in logs/ whether or not the runs themselves are kept."""
    tidy(finished, keeps_runs=keeps_runs)
    for name in ("disturbed", "undisturbed"):
        assert (finished / "logs" / name / "learner.log").read_text(encoding="utf-8") == "said\n"
    assert keeps_runs == (finished / "runs").exists()


def test_the_printed_document_is_the_written_one(tmp_path, capsys):
    """With --json standard output is one document and nothing else, the same as in report.json."""
    publish(report(), tmp_path, as_json=True)
    printed = capsys.readouterr().out
    assert json.loads(printed)["plot"] == str(tmp_path / "learning-curve.png")
    assert printed == (tmp_path / "report.json").read_text(encoding="utf-8")
    assert (tmp_path / "learning-curve.png").is_file()


def test_people_get_a_table(tmp_path, capsys):
    """Without --json the table is printed, whole lines even where no terminal tells its width."""
    publish(report(), tmp_path, as_json=False)
    assert "learner killed, newest checkpoint deleted" in capsys.readouterr().out
