"""Gymnasium: ``NewWorld(gymnasium.make("BipedalWalker-v3"))`` makes a Box2D environment's episodes repeatable."""

from __future__ import annotations

from typing import Any, TypeVar

from perdure.extras import require

require("gymnasium", extra="gym")

import gymnasium  # noqa: E402 - without the check the error would not say what to install

from perdure.capture.environments.box2d import give_new_world  # noqa: E402 - as above
from perdure.errors import InvalidInputError  # noqa: E402 - as above

__all__ = ["NewWorld"]

Observation = TypeVar("Observation")
Action = TypeVar("Action")


class NewWorld(gymnasium.Wrapper[Observation, Action, Observation, Action], gymnasium.utils.RecordConstructorArgs):
    """
    Gives each episode of a Box2D environment a world of its own, so that it follows from its seed and its actions.

    BipedalWalker keeps one world for all of its episodes, and earlier ones show in the contacts of later ones: a reset
    with a seed does not lead to the same episode, and perdure can only reset it. With this wrapper it is captured.

    Raises:
        InvalidInputError: The environment has no world of Box2D.

    Example:
        >>> env = NewWorld(gymnasium.make("BipedalWalker-v3"))  # doctest: +SKIP
    """

    def __init__(self, env: gymnasium.Env[Observation, Action]) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        super().__init__(env)
        if not hasattr(env.unwrapped, "world"):
            raise InvalidInputError(
                f"cannot give {env} new worlds: it has none of Box2D",
                kind="environment.no-world",
                hint="wrap Box2D environments only; others need no such wrapper",
                field="env",
            )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode in a new world."""
        give_new_world(self.unwrapped)
        return super().reset(seed=seed, options=options)
