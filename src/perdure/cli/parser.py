"""From words to a verb and its arguments, and the help that goes with it."""

from __future__ import annotations

import argparse
import difflib
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from perdure.cli.catalogue import GROUPS, SUMMARIES, load_verb
from perdure.cli.exits import MEANINGS, SIGNALLED, Exit
from perdure.cli.verb import Argument, Verb, argument
from perdure.errors import InvalidInputError

STORE_VARIABLE = "PERDURE_STORE"
DEFAULT_STORE = "runs"
TAGLINE = "perdure: checkpoints for reinforcement learning that survive what happens."
SELECTION_WORDS = (
    "latest, latest~2 (the second before it), @100000 (the newest at or before that step), "
    "four or more digits of an id, the name of a pin"
)
_ALWAYS = (Exit.OK, Exit.FAILURE, Exit.USAGE)
_WIDTH = 100

COMMON = (
    argument("-s", "--store", metavar="DIR", help=f"directory of runs; {STORE_VARIABLE}, or else {DEFAULT_STORE!r}"),
    argument("--json", action="store_true", help="print one JSON document, and errors as one JSON object"),
    argument("-q", "--quiet", action="store_true", help="print the bare result, such as ids, and no messages"),
    argument("-v", "--verbose", action="store_true", help="print more, such as full ids and times"),
    argument("--color", metavar="WHEN", choices=("auto", "always", "never"), help="auto, always or never"),
    argument("-h", "--help", action="store_true", help="print this"),
)
"""Arguments that every verb takes, before or behind its name."""

_HELP = {"-h", "--help"}
_VALUED = {name for each in COMMON if "action" not in each.settings for name in each.names}


class _Parser(argparse.ArgumentParser):
    """Says what is wrong by raising, so that it can be said in JSON as well."""

    def error(self, message: str) -> NoReturn:
        raise InvalidInputError(f"cannot use this command line: {message}", kind="usage", hint=f"`{self.prog} --help`")


def split_command(words: Sequence[str]) -> tuple[list[str], tuple[str, ...] | None]:
    """Split a command line at the first ``--``: perdure's own words, and a command that it is to run."""
    if "--" not in words:
        return list(words), None
    position = words.index("--")
    return list(words[:position]), tuple(words[position + 1 :])


def parse(
    words: Sequence[str], command: Sequence[str] | None = None, load: Callable[[str], Verb] = load_verb
) -> tuple[str | None, Verb | None, argparse.Namespace]:
    """
    Parse perdure's own words.

    Args:
        words: Them.
        command: What stood behind ``--``, if that was there.
        load: Gives the verb of a name that is in the catalogue.

    Returns:
        Name of the verb and the verb, both None if there is none, and its arguments with those of `COMMON`.

    Raises:
        InvalidInputError: Kind ``usage``.
    """
    position = _verb_position(words)
    if position is None:
        return None, None, _parser("perdure", COMMON).parse_args(words)
    name = words[position]
    if name not in SUMMARIES:
        raise _no_verb(name)
    verb = load(name)
    rest = [*words[:position], *words[position + 1 :]]
    if _HELP & set(rest):  # it is asked for where the rest need not make sense
        return name, verb, _parser(name, COMMON).parse_args(["--help"])
    parser = _parser(f"perdure {name}", (*verb.arguments, *COMMON))
    if command is not None and not verb.takes_command:
        parser.error("nothing can stand behind --; only `perdure run` takes a command there")
    return name, verb, parser.parse_args(rest)


def _verb_position(words: Sequence[str]) -> int | None:
    """Return where the verb is: the first word that is neither an option nor the value of one."""
    before = ""
    for position, word in enumerate(words):
        if not word.startswith("-") and before not in _VALUED:
            return position
        before = word
    return None


def store_path(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Path:
    """Return the store: the option, else the environment, else ``runs``."""
    return Path(arguments.store or environ.get(STORE_VARIABLE) or DEFAULT_STORE)


def _parser(prog: str, arguments: Sequence[Argument]) -> _Parser:
    parser = _Parser(prog=prog, usage=argparse.SUPPRESS, allow_abbrev=False, add_help=False)
    for each in arguments:
        parser.add_argument(*each.names, help=each.help, **each.settings)
    return parser


def _no_verb(word: str) -> InvalidInputError:
    near = difflib.get_close_matches(word, SUMMARIES, 1)
    return InvalidInputError(
        f"cannot {word}: there is no such verb",
        kind="usage.unknown-verb",
        hint=f"did you mean `perdure {near[0]}`?" if near else "`perdure --help` lists what there is",
        field="verb",
    )


def general_help() -> str:
    """Return what ``perdure --help`` prints."""
    parts = ["usage: perdure VERB [ARGUMENTS]", TAGLINE]
    parts += [f"{group}\n{_columns(verbs)}" for group, verbs in GROUPS.items()]
    parts.append(f"every verb takes\n{_columns(_helps(COMMON))}")
    parts.append(f"a checkpoint is chosen by\n{_indented(SELECTION_WORDS)}")
    parts.append(f"exit status\n{_exit_columns(tuple(Exit))}\n  128+n  {SIGNALLED}")
    return "\n\n".join(parts) + "\n"


def verb_help(name: str, verb: Verb) -> str:
    """Return what ``perdure VERB --help`` prints."""
    parts = [f"usage: {synopsis(name, verb)}", textwrap.fill(verb.description, _WIDTH)]
    parts.append(_columns(_helps(verb.arguments)))
    parts.append(f"every verb takes\n{_columns(_helps(COMMON))}")
    if any("CKPT" in str(each.settings.get("metavar")) for each in verb.arguments):
        parts.append(f"a checkpoint is chosen by\n{_indented(SELECTION_WORDS)}")
    if verb.examples:
        parts.append("examples\n" + "\n".join(f"  {example}" for example in verb.examples))
    parts.append(f"exit status\n{_exit_columns(exits_of(verb))}")
    return "\n\n".join(part for part in parts if part) + "\n"


def exits_of(verb: Verb) -> tuple[Exit, ...]:
    """Return every code that a verb can end with, ascending."""
    return tuple(sorted({*_ALWAYS, *verb.exits, Exit.INTERRUPTED, Exit.PIPE_CLOSED}))


def synopsis(name: str, verb: Verb) -> str:
    """Return a verb's command line in one line."""
    words = ["perdure", name, *(_synopsis_of(each) for each in verb.arguments)]
    return " ".join([*words, "[-- COMMAND …]"] if verb.takes_command else words)


def _synopsis_of(each: Argument) -> str:
    shown = str(each.settings.get("metavar", ""))
    if not each.names[0].startswith("-"):
        return f"[{shown}]" if each.settings.get("nargs") == "?" else shown
    return f"[{each.names[-1]} {shown}]" if shown else f"[{each.names[-1]}]"


def title_of(each: Argument) -> str:
    """Return an argument as help names it."""
    shown = str(each.settings.get("metavar", ""))
    if not each.names[0].startswith("-"):
        return shown
    return ", ".join(each.names) + (f" {shown}" if shown else "")


def _helps(arguments: Sequence[Argument]) -> dict[str, str]:
    return {title_of(each): each.help for each in arguments}


def _columns(texts: Mapping[str, str]) -> str:
    width = max((len(title) for title in texts), default=0)
    return "\n".join(
        textwrap.fill(text, _WIDTH, initial_indent=f"  {title:<{width}}  ", subsequent_indent=" " * (width + 4))
        for title, text in texts.items()
    )


def _exit_columns(codes: Sequence[Exit]) -> str:
    return "\n".join(f"  {code.value:>5}  {MEANINGS[code]}" for code in codes)


def _indented(text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent="  ", subsequent_indent="  ")
