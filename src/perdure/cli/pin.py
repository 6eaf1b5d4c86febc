"""``perdure pin``."""

from __future__ import annotations

from argparse import Namespace

from perdure.cli.choosing import choose_run
from perdure.cli.exits import Exit
from perdure.cli.text import count_text
from perdure.cli.verb import Context, Verb, argument
from perdure.core.manifest import short_id
from perdure.errors import InvalidInputError
from perdure.inspection import RunView


def _execute(arguments: Namespace, context: Context) -> int:
    words = arguments.words
    if len(words) > (1 if arguments.remove is not None else 3):
        raise InvalidInputError(
            f"cannot make sense of {' '.join(words)!r}: expected [RUN] CKPT NAME, [RUN] --remove NAME, or [RUN]",
            kind="usage",
            hint="`perdure pin --help`",
        )
    has_run = len(words) in (1, 3)
    view = choose_run(context, words[0] if has_run else None)
    if arguments.remove is not None:
        return _remove(view, arguments.remove, context)
    if len(words) < 2:
        return _list(view, context)
    selector, name = words[-2:]
    pinned = view.pin(selector, name)
    context.output.document({"run": view.run, "name": name, "checkpoint": pinned})
    context.output.line(pinned if context.output.manner.quiet else f"pinned {short_id(pinned)} as {name}")
    return Exit.OK


def _remove(view: RunView, name: str, context: Context) -> int:
    pinned = view.pins().get(name)
    view.unpin(name)
    context.output.document({"run": view.run, "name": name, "checkpoint": pinned, "removed": True})
    if not context.output.manner.quiet:
        context.output.line(f"removed pin {name}" + (f" of {short_id(pinned)}" if pinned else ""))
    return Exit.OK


def _list(view: RunView, context: Context) -> int:
    pins = view.pins()
    steps = {checkpoint.id: f"{checkpoint.global_step:,}" for checkpoint in view.checkpoints()}
    output = context.output
    output.document({"run": view.run, "pins": pins})
    if output.manner.quiet:
        for name in pins:
            output.line(name)
        return Exit.OK
    if pins:
        output.table(
            ("PIN", "ID", ">STEP"),
            [(name, short_id(pinned), steps.get(pinned, "gone")) for name, pinned in sorted(pins.items())],
        )
    output.line(f"{count_text(len(pins), 'pin')} in run {view.run}")
    return Exit.OK


VERB = Verb(
    description=(
        "Protect a checkpoint from every clean-up, under a name that also selects it; with --remove take the "
        "protection away, and without a checkpoint list the pins."
    ),
    arguments=(
        argument(
            "words",
            nargs="*",
            metavar="[RUN] [CKPT NAME]",
            help="the run, the checkpoint, and the pin's name; without RUN as in `perdure ls`",
        ),
        argument("--remove", metavar="NAME", help="remove the pin of that name"),
    ),
    exits=(Exit.NOT_FOUND,),
    execute=_execute,
    examples=("perdure pin ppo-ant latest paper-v1", "perdure pin ppo-ant --remove paper-v1", "perdure pin ppo-ant"),
)
