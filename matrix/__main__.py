"""Run the matrix: ``python -m matrix [--json] [--write] [PATTERN ...]``."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from matrix.page import line_of, write
from matrix.processes import Server
from matrix.row import Framework, load, module_names
from matrix.runner import Runner
from matrix.trials import TRIALS

MEMORY = "/dev/shm"  # noqa: S108 - what is proven here is exactness, and a disk would only make it slower


def results(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Run the rows that are wanted, one after the other."""
    frameworks = {name: framework for name in module_names() if (framework := load(name)) is not None}
    modules = {
        name: framework
        for name, framework in frameworks.items()
        if any(is_wanted(framework, row.name, arguments.patterns) for row in framework.rows)
    }
    server = Server(list(modules))
    with tempfile.TemporaryDirectory(
        prefix="perdure-matrix-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None
    ) as where:
        for module, framework in modules.items():
            runner = Runner(module, framework, server, Path(where) / framework.name, arguments.seed)
            for row in framework.rows:
                if is_wanted(framework, row.name, arguments.patterns):
                    yield runner.run(row, arguments.trial or None).to_json()


def is_wanted(framework: Framework, row: str, patterns: list[str]) -> bool:
    """Whether a row matches one of the patterns; all do if there is none."""
    name = f"{framework.name} / {row}"
    return not patterns or any(fnmatch(name, pattern) or pattern in name for pattern in patterns)


def main() -> int:
    """Run; 1 if a row does not hold what it promises."""
    parser = argparse.ArgumentParser(prog="python -m matrix", description=__doc__)
    parser.add_argument("patterns", nargs="*", help="rows whose 'framework / algorithm / environment' has this in it")
    parser.add_argument("--trial", action="append", choices=list(TRIALS), help="only this trial; may be repeated")
    parser.add_argument("--seed", type=int, default=0, help="decides where trainings are interrupted")
    parser.add_argument("--json", action="store_true", help="one JSON document, last on standard output")
    parser.add_argument("--write", action="store_true", help="put the rows into docs/matrix.json and docs/matrix.md")
    parser.add_argument("--list", action="store_true", help="name the rows and run none")
    arguments = parser.parse_args()
    if arguments.list:
        for framework in filter(None, map(load, module_names())):
            print("\n".join(f"{framework.name} / {row.name}" for row in framework.rows))
        return 0
    # Environments that need a trial get all the time for it, however busy the machine is.
    os.environ.setdefault("PERDURE_PROBE", "120")
    rows = []
    for result in results(arguments):
        print(line_of(result), file=sys.stderr, flush=True)
        rows.append(result)
        if arguments.write:
            write([result])
    if arguments.json:
        print(json.dumps({"matrix": 1, "rows": rows}))
    return int(not all(row["holds"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
