"""
Keep policies as text: ``last:3 | best:eval/return:2:max | every:1000000``.

One form for the command line, for what a run records about itself, and for JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from perdure.core.retention import AnyKeep, Best, EverySteps, KeepPolicy, Last
from perdure.errors import InvalidInputError

FORMS = "last:COUNT, best:METRIC[:COUNT[:max|min]] and every:STEPS, joined with |"


def parse_keep(text: str) -> KeepPolicy:
    """
    Read a policy.

    Raises:
        InvalidInputError: Kind ``policy.invalid``.
    """
    policies = tuple(_parse_one(part.strip()) for part in text.split("|"))
    return policies[0] if len(policies) == 1 else AnyKeep(policies)


def keep_text(policy: KeepPolicy) -> str:
    """
    Write a policy so that `parse_keep` gives an equal one.

    Raises:
        InvalidInputError: Kind ``policy.invalid``: it is not one of perdure's own, and cannot be written down.
    """
    if isinstance(policy, Last):
        return f"last:{policy.count}"
    if isinstance(policy, Best):
        return f"best:{policy.metric}:{policy.count}:{policy.mode}"
    if isinstance(policy, EverySteps):
        return f"every:{policy.steps}"
    if isinstance(policy, AnyKeep):
        return " | ".join(keep_text(each) for each in policy.policies)
    raise InvalidInputError(
        f"cannot write down a {type(policy).__name__}: only {FORMS} have a text form", kind="policy.invalid"
    )


def _parse_one(text: str) -> KeepPolicy:
    word, _, rest = text.partition(":")
    try:
        return _PARSERS[word](rest)
    except (KeyError, ValueError) as error:
        why = error.message if isinstance(error, InvalidInputError) else "it is not one"
        raise InvalidInputError(
            f"cannot read keep policy {text!r}: {why}", kind="policy.invalid", hint=f"write {FORMS}", field="keep"
        ) from error


def _parse_best(text: str) -> Best:
    metric, *rest = text.split(":")
    if not metric or len(rest) > 2:
        raise ValueError(text)
    count = int(rest[0]) if rest else 1
    return Best(metric, count, rest[1]) if len(rest) == 2 else Best(metric, count)


_PARSERS: Mapping[str, Callable[[str], KeepPolicy]] = MappingProxyType(
    {"last": lambda text: Last(int(text)), "best": _parse_best, "every": lambda text: EverySteps(int(text))}
)
