"""Documentation that runs, resolves, and says what the source says."""

import ast
import inspect
import os
import re
import shlex
import signal
import subprocess
import sys
import warnings
from contextlib import contextmanager

import pytest
import torch

import perdure
from perdure import errors
from perdure.capture.environments.traits import KNOWN
from perdure.cli.catalogue import SUMMARIES
from perdure.cli.exits import Exit
from perdure.core import manifest
from perdure.core.names import Section
from perdure.core.tensorfile import ELEMENT_BYTES
from perdure.store import layout
from perdure.supervise.config import read_config
from tests.docs.pages import (
    PAGES,
    ROOT,
    anchors_of,
    blocks_of,
    codes_of,
    links_of,
    name_of,
    prose_of,
    rows_of,
    text_of,
)
from tests.waiting import wait_until

SOURCES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "src").rglob("*.py")}
TUTORIAL = "docs/tutorials/first-run.md"
RUNNABLE, CONTINUED = ("python", "runnable"), ("python", "continued")


def runnable(page):
    return [block for block in blocks_of(page.read_text(encoding="utf-8")) if block.words in (RUNNABLE, CONTINUED)]


# That it runs


@pytest.fixture
def one_thread(monkeypatch):
    """Give trainings one thread: networks this small only wait for further ones, above all on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page)], ids=name_of)
def test_runnable_blocks_run(page, tmp_path, monkeypatch):
    """The blocks of a page that are marked so run in order, without a warning but that of the budget."""
    monkeypatch.chdir(tmp_path)
    namespace = {}
    with warnings.catch_warnings():
        # Trainings this small spend more than their share on syncs, whatever the disk.
        warnings.simplefilter("ignore", perdure.SaveBudgetWarning)
        for block in runnable(page):
            if block.words == RUNNABLE:
                namespace = {"__name__": page.stem}
            code = compile("\n" * (block.line - 1) + block.text, name_of(page), "exec", dont_inherit=True)
            exec(code, namespace)


@pytest.mark.process
@pytest.mark.usefixtures("one_thread")
def test_the_tutorial_comes_to_what_it_promises(tmp_path):
    """The tutorial's script, killed and started again, ends with the same weights as one that was left alone."""
    (script,) = (block.text for block in blocks_of(text_of(TUTORIAL)) if "file=train.py" in block.words)
    assert "run.loop(0, 400)" in script
    shorter = script.replace("run.loop(0, 400)", "run.loop(0, 60)")
    whole, hurt = tmp_path / "whole", tmp_path / "hurt"
    for folder in (whole, hurt):
        folder.mkdir()
        (folder / "train.py").write_text(shorter, encoding="utf-8")
    with training(whole) as process:
        expected = finished(process)

    snapshots = hurt / "runs" / "cartpole" / "snapshots"
    with training(hurt) as process:
        wait_until(lambda: snapshots.is_dir() and any(snapshots.iterdir()), 60, process)
    assert process.returncode == -signal.SIGKILL

    with training(hurt) as process:
        assert finished(process) == expected


@contextmanager
def training(folder):
    """Run the tutorial's script in a folder, and kill it at the end of the block if it is still there."""
    process = subprocess.Popen(
        [sys.executable, "train.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def finished(process):
    """Wait for a training to end well; the last line that it printed."""
    output, messages = process.communicate(timeout=120)
    assert process.returncode == 0, messages
    return output.splitlines()[-1]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_configurations_are_read(page, tmp_path):
    """Every perdure.toml that a page shows is one."""
    for block in blocks_of(page.read_text(encoding="utf-8")):
        if block.words == ("toml",):
            path = tmp_path / "perdure.toml"
            path.write_text(block.text, encoding="utf-8")
            assert read_config(path).roles


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_exist(page):
    """Every perdure command that a page shows has a verb that there is."""
    text = page.read_text(encoding="utf-8")
    shown = [
        line
        for block in blocks_of(text)
        if block.words in (("console",), ("bash",))
        for line in block.text.splitlines()
    ]
    commands = [line.removeprefix("$ ") for line in shown] + sorted(codes_of(text))
    for command in commands:
        if re.match(r"perdure( |$)", command):
            verb = next((word for word in shlex.split(command, comments=True)[1:] if not word.startswith("-")), None)
            is_placeholder = verb is not None and verb.isupper()
            assert verb is None or is_placeholder or verb in SUMMARIES, command


# That it resolves


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_resolve(page):
    """Every link within the repository leads to a file, and to a heading where it names one."""
    for link in links_of(page.read_text(encoding="utf-8")):
        if re.match(r"https://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target.read_text(encoding="utf-8")), link


def test_every_page_is_reached():
    """Every page of the documentation can be reached from its contents."""
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page not in PAGES:
            continue
        reached.add(page)
        links = links_of(page.read_text(encoding="utf-8"))
        waiting += [
            (page.parent / link.partition("#")[0]).resolve() for link in links if "://" not in link and link[0] != "#"
        ]
    assert not [name_of(page) for page in PAGES if page not in reached]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pages_name_no_machine(page):
    """No page mentions a path of somebody's machine, and each has one title."""
    text = page.read_text(encoding="utf-8")
    assert not re.findall(r"(?<![\w.])/(?:home|root|work|Users|mnt|media|scratch|private|tmp|opt)/\S*", text)
    assert len(re.findall(r"^# ", prose_of(text), re.MULTILINE)) == 1


# That it says what the source says


def kinds_in_source():
    """Every kind of an error in the source, and the classes that it is raised as, as far as the source says so."""
    found = {}
    for tree in SOURCES.values():
        raised = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and called(node).endswith("Error")]
        given = [(called(node), keyword.value) for node in raised for keyword in node.keywords if keyword.arg == "kind"]
        for name, value in given:
            if isinstance(value, ast.Constant):
                found.setdefault(value.value, set()).add(name)
        if any(isinstance(value, ast.Name) for _, value in given):
            # The kind is looked up: every kind of the module's tables can come out.
            tables = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
            texts = [node.value for table in tables for node in ast.walk(table) if isinstance(node, ast.Constant)]
            for text in texts:
                if isinstance(text, str) and re.fullmatch(r"[a-z]+\.[a-z-]+", text):
                    found.setdefault(text, set())
    return found


def called(node):
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def test_every_kind_of_error_is_documented():
    """The reference lists exactly the kinds that the source can raise, each under the class that it raises."""
    rows = [[cell.strip("`") for cell in row] for row in rows_of(text_of("docs/reference/errors.md")) if len(row) == 4]
    documented = {row[0]: row[1] for row in rows if row[1] in errors.__all__}
    source = kinds_in_source()

    assert sorted(documented) == sorted(source)
    assert {kind: documented[kind] for kind, classes in source.items() if classes - {documented[kind]}} == {}
    assert all(row[2] and row[3] for row in rows)


def test_every_class_of_error_is_documented():
    """The reference says of each class of errors its exit code, whether to retry, and its fields."""
    rows = {row[0].strip("`"): row for row in rows_of(text_of("docs/reference/errors.md")) if len(row) == 6}
    for name in errors.__all__:
        cls, row = getattr(errors, name), rows[name]
        assert row[2:4] == [str(cls.exit_code), "yes" if cls.retryable else "no"], name
        assert re.findall(r"`(\w+)`", row[5]) == list(cls.field_names), name
        bases = [base.__name__ for base in cls.__bases__ if base not in (errors.PerdureError, Exception)]
        assert row[1].strip("`") == "".join(bases), name


def test_every_exit_code_is_documented():
    """The reference lists every exit code of the command line and of errors."""
    rows = {row[0] for row in rows_of(text_of("docs/reference/errors.md"))}
    codes = {code.value for code in Exit} | {getattr(errors, name).exit_code for name in errors.__all__}
    assert {str(code) for code in codes} <= rows


def test_every_environment_variable_is_documented():
    """The reference lists exactly the variables that the source, the tests and the make targets read or set."""
    used = {
        node.value
        for tree in SOURCES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"PERDURE_[A-Z_]+", node.value)
    }
    used |= set(re.findall(r"\bPERDURE_[A-Z_]+", text_of("Makefile")))
    codes = codes_of(text_of("docs/reference/environment.md"))
    assert {code for code in codes if re.fullmatch(r"PERDURE_[A-Z_]+", code)} == used


def test_every_public_name_is_documented():
    """The reference of the API names everything that is public, each public member of a run included."""
    codes = codes_of(text_of("docs/reference/api.md"))
    text = prose_of(text_of("docs/reference/api.md"))
    members = {f"Run.{name}" for name, _ in inspect.getmembers(perdure.Run) if not name.startswith("_")}
    names = {name for name in perdure.__all__ if name != "__version__"} | members
    assert not sorted(name for name in names if not re.search(rf"\b{re.escape(name)}\b", text))
    assert "perdure.__version__" in codes


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("docs/format/manifest.md", [field for each in (manifest.Manifest, manifest.Cut, manifest.Origin,
         manifest.ComponentEntry, manifest.FileEntry) for field in each.__struct_fields__]),
        ("docs/format/tree.md", ELEMENT_BYTES),
        ("docs/format/run-directory.md", [section.value for section in Section]),
    ],
)  # fmt: skip
def test_the_format_is_documented(page, names):
    """The format's pages name every field, element type and section."""
    assert not set(names) - codes_of(text_of(page))


def test_forms_of_state_trees_are_documented():
    """The format's page on state trees names every form that an encoder can write."""
    source = text_of("src/perdure/core/tree.py")
    forms = set(re.findall(r'"(\$[a-z]+)"', source))
    assert forms
    assert forms == set(re.findall(r'"(\$[a-z]+)"', text_of("docs/format/tree.md")))


def test_names_in_a_run_directory_are_documented(tmp_path):
    """The format's page on the run directory explains whatever a run leaves in it."""
    text = text_of("docs/format/run-directory.md")
    for until in (1, 2):
        with perdure.open(tmp_path, run="t", quiet=True, budget=None) as run:
            run.counters(global_step=0)
            for _ in run.loop(0, until):
                run.metric("m", 1.0)
            run.pin(f"pin-{until}")
    left = [path.name.split("step-")[0] for path in run.directory.iterdir()]
    constants = [value for name, value in vars(layout).items() if name.isupper() and isinstance(value, str)]
    assert not [name for name in [*left, *constants] if name not in text]


def test_events_are_documented():
    """The format's page on the run directory names every event that the source writes down."""
    source = "".join(path.read_text(encoding="utf-8") for path in SOURCES)
    events = set(re.findall(r'(?:_event|_emit|_tell)\(\s*"([a-z-]+)"', source)) | set(
        re.findall(r'"event": "([a-z-]+)"', source)
    )
    assert events
    assert not events - codes_of(text_of("docs/format/run-directory.md"))


def test_kinds_of_components_are_documented():
    """The matrix names every kind of component and every class of environments whose state is known."""
    codes = codes_of(text_of("docs/matrix.md"))
    kinds = {
        node.value.value
        for path, tree in SOURCES.items()
        if path.parent.name in {"capture", "replay"}
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id == "kind"
    }
    abstract = {"Env", "VectorEnv", "Wrapper", "VectorWrapper", "Space"}
    environments = {name for name in KNOWN if name not in abstract and "." not in name}
    assert kinds
    assert not (kinds | environments) - codes
