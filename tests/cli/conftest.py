"""Calling the command line in this process."""

import json
from dataclasses import dataclass

import pytest

from perdure.cli import main


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def document(self):
        """Standard output as the one JSON document that it is."""
        return json.loads(self.out)

    @property
    def error(self):
        """Standard error as the one JSON object that it is."""
        return json.loads(self.err)

    @property
    def lines(self):
        return self.out.splitlines()


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A store, and a working directory beside it: ``runs`` is the store's default name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


@pytest.fixture
def cli(capsys, root):
    """Run one command line on the store."""

    def call(*words):
        code = main(words)
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    return call
