"""
Run a benchmark: ``python -m benchmarks NAME [--json] [--quick]``.

Each benchmark is a module of this package with ``run(quick: bool) -> dict``. Its document comes last on standard
output; figures are ratios, with the raw numbers beside them.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
from pathlib import Path
from typing import Any

HELPERS = {"measure"}


def names() -> list[str]:
    """The benchmarks that there are."""
    found = (module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
    return sorted(name for name in found if not name.startswith("_") and name not in HELPERS)


def show(document: dict[str, Any]) -> None:
    """Print a document for people."""
    print(f"{document['benchmark']}: {json.dumps(document.get('machine', {}))}")
    for figure in document["figures"]:
        verdict = {True: "holds", False: "misses", None: ""}[figure["holds"]]
        value = "-" if figure["value"] is None else f"{figure['value']:.3g}"
        print(f"  {figure['id']:<34} {value:>10}  {figure['target']:<10} {verdict}")


def main() -> int:
    """Run what was asked for; 1 if a figure misses its target."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=[*names(), "all"])
    parser.add_argument("--json", action="store_true", help="print one JSON document per benchmark")
    parser.add_argument("--quick", action="store_true", help="smaller sizes and fewer rounds")
    arguments = parser.parse_args()
    missed = False
    for name in names() if arguments.name == "all" else [arguments.name]:
        document = importlib.import_module(f"benchmarks.{name}").run(arguments.quick)
        if arguments.json:
            print(json.dumps(document))
        else:
            show(document)
        sys.stdout.flush()
        missed = missed or any(figure["holds"] is False for figure in document["figures"])
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
