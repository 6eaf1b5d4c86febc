"""Words that pick a checkpoint: ``latest``, ``latest~2``, ``@100000``, an id prefix or a pin's name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

from perdure.core.manifest import Manifest, short_id
from perdure.errors import InvalidInputError, NotFoundError

_LATEST = re.compile(r"latest(?:~(\d{1,6}))?")
_STEP = re.compile(r"@([\d_,]+)")
_ID = re.compile(r"[0-9a-f]{4,32}")


def select(selector: str, checkpoints: Sequence[Manifest], pins: Mapping[str, str]) -> Manifest:
    """
    Find the checkpoint that a selector means.

    Args:
        selector: ``latest``; ``latest~N``, the Nth before it; ``@STEP``, the newest at or before an environment step;
            ``pin:NAME`` or a pin's bare name; or at least four hex digits that begin exactly one id.
        checkpoints: Committed ones, in any order.
        pins: Checkpoint ids by pin name.

    Raises:
        NotFoundError: Kind ``checkpoint.not-found``.
        InvalidInputError: Kind ``checkpoint.ambiguous``.
    """
    ordered = sorted(checkpoints, key=lambda checkpoint: checkpoint.order, reverse=True)
    if match := _LATEST.fullmatch(selector):
        back = int(match[1] or 0)
        if back < len(ordered):
            return ordered[back]
        raise _not_found(selector, f"there are {len(ordered)} checkpoints")
    if match := _STEP.fullmatch(selector):
        step = int(re.sub(r"\D", "", match[1]) or 0)
        found = next((checkpoint for checkpoint in ordered if checkpoint.global_step <= step), None)
        if found is None:
            raise _not_found(selector, f"there is none at or before step {step:,}")
        return found
    wanted = pins.get(selector.removeprefix("pin:"), selector)
    if _ID.fullmatch(wanted):
        matches = [checkpoint for checkpoint in ordered if checkpoint.id.startswith(wanted)]
        if len(matches) > 1:
            raise InvalidInputError(
                f"cannot tell which checkpoint {selector!r} means: {', '.join(short_id(m) for m in matches[:5])}",
                kind="checkpoint.ambiguous",
                hint="give more digits",
                field="selector",
            )
        if matches:
            return matches[0]
    words = ["latest", *pins, *(short_id(checkpoint) for checkpoint in ordered)]
    near = difflib.get_close_matches(selector, words, 1)
    raise _not_found(selector, f"did you mean {near[0]!r}?" if near else "no id, pin or step of that name")


def _not_found(selector: str, why: str) -> NotFoundError:
    return NotFoundError(
        f"cannot find checkpoint {selector!r}: {why}",
        kind="checkpoint.not-found",
        hint="`perdure ls` lists what there is; words are latest, latest~N, @STEP, an id or a pin",
        name=selector,
    )
