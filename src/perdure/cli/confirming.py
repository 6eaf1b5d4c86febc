"""Asking before something is changed that cannot be taken back with another command."""

from __future__ import annotations

from perdure.cli.verb import Context, argument
from perdure.errors import InvalidInputError

DRY_RUN = argument("--dry-run", action="store_true", help="print the plan and stop")
YES = argument("-y", "--yes", action="store_true", help="do not ask")


def is_confirmed(context: Context, deed: str, whom: str) -> bool:
    """
    Ask on a terminal whether a plan that was shown is to be carried out.

    Args:
        context: Of the command.
        deed: What would be done, such as ``remove 3 checkpoints``.
        whom: To what, such as ``run ppo-ant``.

    Raises:
        InvalidInputError: Kind ``plan.unconfirmed``: there is no terminal to ask at.
    """
    if context.output.can_ask:
        return context.output.ask(f"{deed}?")
    raise InvalidInputError(
        f"cannot {deed} of {whom} unasked: there is no terminal to ask at",
        kind="plan.unconfirmed",
        hint="say --yes, or --dry-run to see the plan alone",
        field="--yes",
    )
