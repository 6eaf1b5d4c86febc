"""The program: one verb, from its words to its exit code."""

from __future__ import annotations

import os
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable, Sequence

from perdure.cli.catalogue import load_verb
from perdure.cli.exits import Exit
from perdure.cli.output import Manner, Output
from perdure.cli.parser import general_help, parse, split_command, store_path, verb_help
from perdure.cli.verb import Context, Verb
from perdure.errors import InternalError, PerdureError, StoreError


def main(argv: Sequence[str] | None = None, load: Callable[[str], Verb] = load_verb) -> int:
    """
    Run one command line.

    Args:
        argv: The words behind ``perdure``; by default those of this process.
        load: Gives the verb of a name that is in the catalogue.

    Returns:
        The exit code; see `perdure.cli.exits`.
    """
    words, command = split_command(sys.argv[1:] if argv is None else argv)
    # Until the words have been understood, errors are printed as they seem to ask for.
    output = Output(sys.stdout, sys.stderr, Manner(json="--json" in words), os.environ)
    try:
        name, verb, arguments = parse(words, command, load)
        output = Output(sys.stdout, sys.stderr, _manner(arguments), os.environ)
        code = _execute(name, verb, arguments, Context(store_path(arguments, os.environ), output, os.environ, command))
        output.flush()
    except PerdureError as error:
        output.error(error)
        return error.exit_code
    except KeyboardInterrupt:
        output.note("interrupted")
        return Exit.INTERRUPTED
    except BrokenPipeError:
        output.abandon()
        return Exit.PIPE_CLOSED
    except OSError as error:
        output.error(_unforeseen_os_error(error))
        output.abandon()
        return Exit.FAILURE
    except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the user gets a sentence and a code
        output.error(_internal(error, verbose=output.manner.verbose))
        return Exit.FAILURE
    return code


def _manner(arguments: Namespace) -> Manner:
    return Manner(arguments.json, arguments.quiet, arguments.verbose, arguments.color or "auto")


def _execute(name: str | None, verb: Verb | None, arguments: Namespace, context: Context) -> int:
    if name is None or verb is None:
        # Asked for, it is the result; otherwise it is a complaint.
        (sys.stdout if arguments.help else sys.stderr).write(general_help())
        return Exit.OK if arguments.help else Exit.USAGE
    if arguments.help:
        sys.stdout.write(verb_help(name, verb))
        return Exit.OK
    return verb.execute(arguments, context)


def _unforeseen_os_error(error: OSError) -> PerdureError:
    return StoreError(
        f"cannot finish: {error.strerror or error}{f' ({error.filename})' if error.filename else ''}",
        kind="store.failed",
        hint="if this is where the output goes, it is full or broken; otherwise look at the file system",
        path=str(error.filename or ""),
    )


def _internal(error: Exception, *, verbose: bool) -> PerdureError:
    if verbose:
        traceback.print_exception(error, file=sys.stderr)
    return InternalError(
        f"cannot finish: {type(error).__name__}: {error}",
        kind="internal",
        hint="this is a bug in perdure; report it with the output of the same command and --verbose",
    )
