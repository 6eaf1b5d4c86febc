"""
The page docs/reference/cli.md, made from what the parser is made from.

    python -m perdure.cli.reference > docs/reference/cli.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence

from perdure.cli.catalogue import GROUPS, load_verb
from perdure.cli.exits import MEANINGS, SIGNALLED, Exit
from perdure.cli.parser import COMMON, SELECTION_WORDS, exits_of, synopsis, title_of
from perdure.cli.verb import Argument, Verb

_INTRODUCTION = """# Command line

`perdure VERB [ARGUMENTS]`, or `python -m perdure` in its place.
The same text is in `perdure --help` and `perdure VERB --help`.

Results go to standard output, messages and progress to standard error.
The verbs that look, `verify` and `scrub` only read: they take no lease and can be used beside a training at any time.
"""

_CLOSING = """An unknown code other than 0 must be taken for a failure.
The documents of `--json`, errors included, are described in [JSON output](json.md).
The variables are described in [Environment variables](environment.md).
"""


def reference() -> str:
    """Return the page."""
    parts = [_INTRODUCTION, "## Arguments of every verb", _arguments(COMMON), _words()]
    for group, verbs in GROUPS.items():
        parts.append(f"## Verbs: {group}")
        parts += [_verb(name, summary) for name, summary in verbs.items()]
    parts += ["## Exit codes", _exits([*((str(code.value), MEANINGS[code]) for code in Exit), ("128 + n", SIGNALLED)])]
    parts.append(_CLOSING)
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _words() -> str:
    return f"A run is its name, or its directory.\nA checkpoint is chosen by {SELECTION_WORDS}."


def _verb(name: str, summary: str) -> str:
    verb = load_verb(name)
    parts = [f"### {name}", f"{summary[0].upper()}{summary[1:]}.", f"```text\n{synopsis(name, verb)}\n```"]
    parts.append("\n".join(_sentences(verb)))
    if verb.arguments:
        parts.append(_arguments(verb.arguments))
    if verb.examples:
        parts.append("```console\n" + "\n".join(verb.examples) + "\n```")
    parts.append("Exit codes: " + ", ".join(str(code.value) for code in exits_of(verb)) + ".")
    return "\n\n".join(parts)


def _sentences(verb: Verb) -> Iterator[str]:
    """Give each sentence a line of its own, so that a change of one shows as that."""
    *first, last = verb.description.split(". ")
    yield from (f"{sentence}." for sentence in first)
    yield last


def _arguments(arguments: Sequence[Argument]) -> str:
    return _table(("argument", "meaning"), ((f"`{title_of(each)}`", each.help) for each in arguments))


def _exits(rows: Iterable[tuple[str, str]]) -> str:
    return _table(("code", "meaning"), rows)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    sys.stdout.write(reference())
