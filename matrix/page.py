"""The results as people read them: one line each, and the tables of ``docs/matrix.md``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matrix.not_saved import NOT_SAVED

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = DOCS / "matrix.json"
PAGE = DOCS / "matrix.md"
BEGIN, END = "<!-- results: written by `make matrix` -->", "<!-- end of results -->"
_HEAD = (
    "| algorithm | environment | grade | stop | cut | twice | kill | other number | "
    "resumed in | first step after | own save and load |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def line_of(row: dict[str, Any]) -> str:
    """One result for a terminal."""
    verdict = "holds " if row["holds"] else "BREAKS"
    trials = " ".join(f"{each['trial']}:{_cell(each)}" for each in row["outcomes"])
    own = "" if row["own"] is None else f" own:{_own(row['own'])}"
    trouble = "".join(
        f"\n    {each['trial']}: {each['grade']} {each['note']}" for each in row["outcomes"] if not each["holds"]
    )
    problems = "".join(f"\n    {problem}" for problem in row["problems"])
    name = f"{row['framework']} / {row['algorithm']} / {row['environment']}"
    return f"{verdict} {name} {trials}{own} ({row['seconds']:.0f} s){trouble}{problems}"


def write(rows: list[dict[str, Any]]) -> None:
    """Put results into ``docs/matrix.json``, in the place of older ones of the same rows, and renew the page."""
    known = {_key(row): row for row in read()}
    known.update({_key(row): row for row in rows})
    text = json.dumps([known[key] for key in sorted(known)], indent=1, sort_keys=True)
    RESULTS.write_text(f"{text}\n")
    PAGE.write_text(renewed(PAGE.read_text(), read()))


def read() -> list[dict[str, Any]]:
    """The results as they were last written."""
    found: list[dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    return found


def renewed(page: str, rows: list[dict[str, Any]]) -> str:
    """The page with its tables made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n\n".join([f"{before}{BEGIN}", *sections(rows), f"{END}{after}"])


def sections(rows: list[dict[str, Any]]) -> list[str]:
    """A section for each framework: its rows, what is saved and what is not."""
    frameworks = sorted({row["framework"] for row in rows})
    return [_section(name, [row for row in rows if row["framework"] == name]) for name in frameworks]


def _section(name: str, rows: list[dict[str, Any]]) -> str:
    lines = [f"### {name}", "", _versions(rows), "", _HEAD, *map(_line, rows), "", "Saved:", ""]
    lines += [f"- {component}" for component in sorted({each for row in rows for each in row["components"]})]
    lost = NOT_SAVED.get(name, {})
    if lost:
        lines += ["", "Not saved:", "", *(f"- {what}: {why}" for what, why in lost.items())]
    return "\n".join(lines)


def _versions(rows: list[dict[str, Any]]) -> str:
    found = sorted({f"{package} {version}" for row in rows for package, version in row["versions"].items()})
    return f"With {', '.join(found)}."


def _line(row: dict[str, Any]) -> str:
    by_trial = {outcome["trial"]: outcome for outcome in row["outcomes"]}
    trials = [_cell(by_trial.get(trial)) for trial in ("stop", "cut", "twice", "kill", "number")]
    seconds = [each["restore_seconds"] for each in row["outcomes"] if each["restore_seconds"] is not None]
    restore = f"{max(seconds):.2f} s" if seconds else "-"
    grade = row["grade"] if row["holds"] else "**broken**"
    cells = [row["algorithm"], row["environment"], grade, *trials, restore, _first_step(row), _own(row["own"])]
    return f"| {' | '.join(cells)} |"


def _first_step(row: dict[str, Any]) -> str:
    """The longest way of ours to the first step, beside the framework's own."""
    ours = [each["first_step_seconds"] for each in row["outcomes"] if each["resumed_at"] and each["first_step_seconds"]]
    own = (row["own"] or {}).get("first_step_seconds")
    if not ours:
        return "-"
    return f"{max(ours):.2f} s" if own is None else f"{max(ours):.2f} s, own {own:.2f} s"


def _cell(outcome: dict[str, Any] | None) -> str:
    if outcome is None:
        return "-"
    if outcome["bits"] is None:
        return str(outcome["result"])
    return "same" if outcome["bits"] == 0 else f"{outcome['bits']:,} bits"


def _own(own: dict[str, Any] | None) -> str:
    if own is None:
        return "-"
    if "error" in own:
        return f"fails: {own['error']}"
    return "same" if own["bits"] == 0 else f"{own['bits']:,} bits, {own['relative_l2']:.1%} of the weights' length"


def _key(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["framework"], row["algorithm"], row["environment"]
