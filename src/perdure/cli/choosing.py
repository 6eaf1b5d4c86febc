"""Which run, and which checkpoint of it, the words of a command line mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from perdure.cli.verb import Context
from perdure.errors import InvalidInputError, NotFoundError
from perdure.files.door import Files
from perdure.inspection import RunView, run_names

RUN_VARIABLE = "PERDURE_RUN"


def choose_run(context: Context, word: str | None) -> RunView:
    """
    Return the run that a word means: a name, a run's directory, or without a word the one run that it can be.

    Raises:
        NotFoundError: There is no such run.
        InvalidInputError: Kind ``run.ambiguous``: there are several, and no word.
    """
    if word is not None and "/" in word:
        directory = Path(word)
        return RunView(directory.parent, directory.name)
    return RunView(context.store, word or _only_run(context.store, context.environ))


def choose(context: Context, words: Sequence[str]) -> tuple[RunView, str | None]:
    """
    Return the run and the selection word that ``[RUN] [CKPT]`` mean.

    A single word is a run if there is one of that name, and otherwise chooses a checkpoint of the run that goes
    without saying.
    """
    if len(words) > 2:
        raise InvalidInputError(
            f"cannot make sense of {' '.join(words)!r}: at most a run and a checkpoint are expected", kind="usage"
        )
    if len(words) != 1:
        return choose_run(context, words[0] if words else None), (words[1] if words else None)
    (word,) = words
    names = run_names(Files(), context.store) if "/" not in word else [word]
    if word in names or not (context.environ.get(RUN_VARIABLE) or len(names) == 1):
        return choose_run(context, word), None
    return choose_run(context, None), word


def _only_run(store: Path, environ: Mapping[str, str]) -> str:
    if given := environ.get(RUN_VARIABLE):
        return given
    names = run_names(Files(), store)
    if len(names) == 1:
        return names[0]
    if not names:
        raise NotFoundError(
            f"cannot find a run: store {store} has none yet",
            kind="run.not-found",
            hint="--store or PERDURE_STORE names another directory; `perdure demo` makes a run to look at",
        )
    raise InvalidInputError(
        f"cannot tell which run is meant: store {store} has {len(names)}",
        kind="run.ambiguous",
        hint=f"name one of {', '.join(names[:8])}{' and more' if len(names) > 8 else ''} (`perdure runs`)",
        field="run",
    )
