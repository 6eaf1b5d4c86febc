"""
Box2D environments: what their episodes begin with.

A world of Box2D cannot be read, and it remembers: bodies that were taken out leave their places behind in an order
that decides which contact is solved first among those to come. LunarLander and CarRacing begin each episode in a world
that remembers nothing. BipedalWalker keeps one world for all of its episodes, so that an episode follows from its
generator only if somebody has given it a new one.
"""

from __future__ import annotations

import sys
from typing import Any

from perdure.capture.environments.plain import Tree, generator_from_tree, generator_to_tree
from perdure.capture.environments.replaying import EpisodeLog, same
from perdure.capture.environments.snapshot import take

__all__ = ["BeginningsInANewWorld", "GeneratorBeginnings", "give_new_world"]

_IS_NEW = "perdure_is_new"


class GeneratorBeginnings:
    """Episodes that follow from the generator at their reset."""

    unknown = ""

    def now(self, env: Any) -> Tree:
        """Return the beginning of a fresh environment, or of one that has just had its first reset."""
        if _generator(env) is None:
            return {"is_fresh": True, "seed": None, "generator": None}
        seed = vars(env)["_np_random_seed"]
        # Whether that seed leads to where the environment is, only trying can tell.
        return {"is_fresh": False, "seed": seed, "generator": None} if _began_with(env, seed) else None

    def before(self, env: Any, seed: int | None) -> Tree:
        """Return the generator that the reset will draw from; None if the reset makes one."""
        generator = _generator(env)
        return None if seed is not None or generator is None else generator_to_tree(generator)

    def after(self, env: Any, before: Tree) -> Tree:
        """Return the generator, or the seed that the reset has made it of."""
        seed = vars(env)["_np_random_seed"] if before is None else None
        return {"is_fresh": False, "seed": seed, "generator": before}

    def again(self, env: Any, beginning: Tree, options: dict[str, Any] | None, log: EpisodeLog) -> Any:
        """Reset from the same generator."""
        if beginning["is_fresh"]:
            return None
        if beginning["generator"] is not None:
            vars(env)["_np_random"] = generator_from_tree(beginning["generator"])
        return log.plain_reset(seed=beginning["seed"], options=options)[0]


class BeginningsInANewWorld(GeneratorBeginnings):
    """Episodes that follow from the generator, where they have a world to themselves."""

    unknown = (
        "keeps one Box2D world for all of its episodes, whose order within decides the next contacts; "
        "perdure.gymnasium.NewWorld gives it one for each"
    )

    def now(self, env: Any) -> Tree:
        """Return the beginning of an environment that was never reset, or once since its world was made for that."""
        return super().now(env) if _generator(env) is None or _is_new(env) else None

    def before(self, env: Any, seed: int | None) -> Tree:
        """Return whether the world is new, and the generator."""
        return {"is_new": _is_new(env), "generator": super().before(env, seed)}

    def after(self, env: Any, before: Tree) -> Tree:
        """Return the generator or its seed; None if the world has seen other episodes."""
        vars(env.world)[_IS_NEW] = False
        return super().after(env, before["generator"]) if before["is_new"] else None

    def again(self, env: Any, beginning: Tree, options: dict[str, Any] | None, log: EpisodeLog) -> Any:
        """Reset from the same generator, in a new world."""
        give_new_world(env)
        return super().again(env, beginning, options, log)


def give_new_world(env: Any) -> None:
    """Put a Box2D environment into a world that nothing has happened in, of the same gravity; a reset is then due."""
    env._destroy()  # noqa: SLF001 - what its own reset begins with
    env.world = type(env.world)(gravity=env.world.gravity)
    vars(env.world)[_IS_NEW] = True


def _is_new(env: Any) -> bool:
    return bool(vars(env.world).get(_IS_NEW))


def _generator(env: Any) -> Any:
    return vars(env).get("_np_random")  # the property of that name would make one


def _began_with(env: Any, seed: Any) -> bool:
    if env.spec is None or not isinstance(seed, int) or seed < 0:
        return False
    twin = sys.modules["gymnasium"].make(env.spec).unwrapped
    twin.reset(seed=seed)
    ours, theirs = ({name: take(value) for name, value in vars(each).items()} for each in (env, twin))
    twin.close()
    return all(
        name in theirs and same(tree["graph"], theirs[name]["graph"])
        for name, tree in ours.items()
        if not tree["reason"]
    )
