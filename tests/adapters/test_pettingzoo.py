"""Environments of PettingZoo go on where they were captured, in whatever they are put into."""

import numpy as np
import pytest

pytest.importorskip("pettingzoo", reason="the extra pettingzoo is not installed")

from pettingzoo import AECEnv
from pettingzoo.classic.connect_four.connect_four import env as connect_four
from pettingzoo.classic.rps.rps import env as rps
from pettingzoo.classic.tictactoe.tictactoe import env as tictactoe
from pettingzoo.utils import parallel_to_aec

import perdure
import perdure.pettingzoo
from perdure.errors import IncompatibleError, InvalidInputError
from tests.adapters.tag import Tag

TURNS = {"rps": rps, "tictactoe": tictactoe, "connect_four": connect_four}


def play(env, rng, steps):
    """Play legal moves and tell everything that the agents see."""
    seen = []
    for _ in range(steps):
        if not env.agents:
            env.reset()
        observation, reward, terminated, truncated, _ = env.last()
        mask = observation.get("action_mask") if isinstance(observation, dict) else None
        over = terminated or truncated
        legal = np.flatnonzero(mask) if mask is not None else np.arange(env.action_space(env.agent_selection).n)
        action = None if over else int(rng.choice(legal))
        seen.append((env.agent_selection, repr(observation), float(reward), over, action))
        env.step(action)
    return seen


def run_once(store, env, rng, rounds, per_round, stop_after=None):
    """Play rounds under a run; leave it without a word after some."""
    env.reset(seed=3)
    seen = []
    run = perdure.open(store, run="duel", save=perdure.Every(steps=1), budget=None, quiet=True)
    try:
        run.track(env=perdure.pettingzoo.Environment(env), rng_moves=rng)
        for index in run.loop(0, rounds):
            if index == stop_after:
                return None
            seen = [*seen, *play(env, rng, per_round)]
            run._saver.drain(30)
        return seen, run.report.grade.value
    finally:
        run.close()


@pytest.mark.parametrize("game", TURNS)
def test_a_game_goes_on_between_two_moves(game, tmp_path):
    """After 1,000 moves and a resume in a fresh environment the next 1,000 are those of a game never left."""
    expected, _ = run_once(tmp_path / "whole", TURNS[game](), np.random.default_rng(5), 40, 51)
    run_once(tmp_path / "cut", TURNS[game](), np.random.default_rng(5), 40, 51, stop_after=20)
    ended, grade = run_once(tmp_path / "cut", TURNS[game](), np.random.default_rng(6), 40, 51)

    assert expected[-len(ended) :] == ended
    assert len(ended) >= 1_000
    assert grade == "exact"


def test_agents_in_parallel_go_on():
    """An environment of the user's own with get_state and set_state is captured behind PettingZoo's converters."""
    first, second = parallel_to_aec(Tag()), parallel_to_aec(Tag())
    first.reset(seed=1)
    second.reset(seed=2)
    play(first, np.random.default_rng(0), 25)
    play(second, np.random.default_rng(1), 7)
    component = perdure.pettingzoo.Environment(first)
    tree = component.capture()
    other = perdure.pettingzoo.Environment(second)
    other.check(tree)

    assert "no test has shown that" in other.restore(tree)
    assert component.grade is perdure.Grade.STATISTICAL
    assert play(first, np.random.default_rng(9), 40) == play(second, np.random.default_rng(9), 40)


@pytest.mark.process
@pytest.mark.parametrize("converted", [False, True])
def test_an_environment_of_the_users_own_is_tried_out(trials, converted):
    """Agents that act together, and the same in turns, are exact once a trial in other processes has shown it."""
    env = parallel_to_aec(Tag()) if converted else Tag()
    env.reset(seed=1)
    component = perdure.pettingzoo.Environment(env)
    tree = component.capture()["environment"]

    assert (tree["reason"], tree["unproven"]) == ("", "")
    assert component.grade is perdure.Grade.EXACT


class Forgetful(Tag):
    """Hands over less than its state."""

    def set_state(self, state):
        self.agents, self.places = list(state["agents"]), np.array(state["places"])


@pytest.mark.process
def test_an_environment_whose_word_is_not_true_is_reset(trials):
    """What does not go on in its trial is named, and is no more than reset."""
    env = Forgetful()
    env.reset(seed=1)
    component = perdure.pettingzoo.Environment(env)
    tree = component.capture()["environment"]

    assert "Forgetful has failed its probe (E4): restored" in tree["reason"]
    assert component.grade is perdure.Grade.STATISTICAL


class Opaque(AECEnv):
    """An environment of which nothing is known."""

    metadata = {"name": "opaque", "render_modes": []}  # noqa: RUF012 - PettingZoo has it so

    def __init__(self):
        super().__init__()
        self.agents = self.possible_agents = ["a"]
        self.resets = []

    def reset(self, seed=None, options=None):
        self.resets.append(seed)


def test_an_unknown_environment_is_reset_and_says_so():
    """An unknown environment is no more than statistical, and a restore begins a new episode with a derived seed."""
    env = Opaque()
    component = perdure.pettingzoo.Environment(env)
    tree = component.capture()
    note = component.restore(tree)

    assert component.grade is perdure.Grade.STATISTICAL
    assert "was reset, its episode is cut" in note
    assert len(env.resets) == 1
    assert env.resets[0] is not None


def test_another_game_is_refused():
    """A checkpoint of one game does not go into another."""
    first, second = tictactoe(), connect_four()
    first.reset(seed=1)
    second.reset(seed=1)
    tree = perdure.pettingzoo.Environment(first).capture()
    with pytest.raises(IncompatibleError):
        perdure.pettingzoo.Environment(second).check(tree)


def test_other_objects_are_refused():
    """What is no environment of PettingZoo is refused when it is tracked."""
    with pytest.raises(InvalidInputError, match="environment of PettingZoo"):
        perdure.pettingzoo.Environment(object())
