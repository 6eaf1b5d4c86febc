"""``perdure doctor``."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

from perdure.capture.environments.certificates import Certificate, cache_directory, keep
from perdure.capture.environments.probe import DEFAULT_STEPS, Maker, probe
from perdure.cli.exits import Exit
from perdure.cli.progress import progress
from perdure.cli.text import Word, count_text
from perdure.cli.verb import Context, Verb, argument
from perdure.errors import InvalidInputError
from perdure.extras import require
from perdure.files.door import Files

MEANINGS = {
    "E0": "exact: its state is captured",
    "E1": "exact: its running episode is lived again",
    "E2": "not exact: the first outcome after a restore may differ",
    "E3": "reset: a restore begins a new episode, with a seed of its own",
    "E4": "unknown: what is captured is not all",
}
_EXITS = {"E0": Exit.OK, "E1": Exit.OK, "E2": Exit.DEGRADED, "E3": Exit.DEGRADED, "E4": Exit.DAMAGED}


def _execute(arguments: Namespace, context: Context) -> int:
    require("gymnasium", extra="gym")
    maker = Maker(arguments.env, _arguments(arguments.arguments))
    with progress(context.output, f"probing {arguments.env}"):
        certificate = probe(maker, steps=arguments.steps)
    keep(certificate, Files(), cache_directory())
    context.output.document({**certificate.to_json(), "meaning": MEANINGS[certificate.level]})
    _print(certificate, context)
    return _EXITS[certificate.level]


def _arguments(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidInputError(
            f"cannot use --arguments {text!r}: it is no JSON object",
            kind="environment.arguments",
            hint="""write it as --arguments '{"gravity": -5.0}'""",
            field="arguments",
        )
    return found


def _print(certificate: Certificate, context: Context) -> None:
    output = context.output
    if output.manner.quiet:
        output.line(certificate.level)
        return
    is_exact = certificate.level in ("E0", "E1")
    output.line(Word(certificate.level, "green" if is_exact else "red"), f"  {MEANINGS[certificate.level]}")
    if certificate.reason:
        output.line(f"  because {certificate.reason}")
    if certificate.steps:
        output.line(f"  {count_text(certificate.steps, 'step')} compared, in a process that had never seen it")
    output.line(f"  {' > '.join(name.rpartition('.')[2] for name in certificate.subject.stack)}")
    output.line("  " + ", ".join(f"{name} {version}" for name, version in certificate.subject.versions.items()))
    if not is_exact:
        output.note("register_environment makes it known; then probe again")


VERB = Verb(
    description=(
        "Find out, by trying, how exactly an environment can be captured. One process lives it and captures it at "
        "several moments; another one restores each capture and takes the same actions. The result is kept on this "
        "machine for that id, its arguments, wrappers and versions, and runs name it in their manifests: an "
        "environment that fails is reset and never called exact."
    ),
    arguments=(
        argument(
            "--env",
            required=True,
            metavar="ID",
            help="an id of Gymnasium, or module:function for an environment with its wrappers, single or vector",
        ),
        argument("--arguments", default="{}", metavar="JSON", help="arguments of the environment, as a JSON object"),
        argument(
            "--steps",
            type=int,
            default=DEFAULT_STEPS,
            metavar="N",
            help=f"steps to live before the last capture; {DEFAULT_STEPS} by default",
        ),
    ),
    exits=(Exit.DEGRADED, Exit.DAMAGED),
    execute=_execute,
    examples=("perdure doctor --env CartPole-v1", "perdure doctor --env my_package.training:make_env"),
)
