"""Pictures to stack: of a game, or of noise."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

SIDE = 84


def play(kind: str, count: int) -> tuple[NDArray[np.uint8], str]:
    """
    Frames of ``(count, 84, 84)``, and what they show.

    Args:
        kind: ``noise``; or ``game`` for Pong played at random if the Arcade Learning Environment is here, and for a
            ball and two bats of our own otherwise.
        count: How many.
    """
    rng = np.random.default_rng(0)
    if kind == "noise":
        return rng.integers(0, 256, (count, SIDE, SIDE), np.uint8), "noise"
    if find_spec("ale_py"):
        return _pong(count, rng), "Pong, random play, every fourth frame"
    return _bats(count, rng), "a ball and two bats"


def _pong(count: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    from ale_py import ALEInterface, LoggerMode, roms

    ALEInterface.setLoggerMode(LoggerMode.Error)
    game = ALEInterface()
    game.setInt("random_seed", 1)
    game.loadROM(roms.get_rom_path("pong"))
    actions = game.getMinimalActionSet()
    frames = np.empty((count, SIDE, SIDE), np.uint8)
    for frame in frames:
        if game.game_over():
            game.reset_game()
        action = actions[rng.integers(len(actions))]
        for _ in range(4):
            game.act(action)
        screen = game.getScreenGrayscale()
        rows, columns = (np.linspace(0, size - 1, SIDE).astype(np.intp) for size in screen.shape[:2])
        frame[:] = screen[np.ix_(rows, columns)]
    return frames


def _bats(count: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    frames = np.full((count, SIDE, SIDE), 87, np.uint8)
    ball, speed = np.array([40.0, 40.0]), np.array([1.3, 2.1])
    bats = np.array([40, 40])
    for frame in frames:
        ball += speed
        speed = np.where((ball < 2) | (ball > SIDE - 4), -speed, speed)
        bats = np.clip(bats + rng.integers(-3, 4, 2), 0, SIDE - 12)
        frame[bats[0] : bats[0] + 12, 4:7] = 147
        frame[bats[1] : bats[1] + 12, 77:80] = 213
        frame[int(ball[0]) : int(ball[0]) + 3, int(ball[1]) : int(ball[1]) + 2] = 236
    return frames
