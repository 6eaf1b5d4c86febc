"""The mathematics of PPO."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from perdure.demo.ppo import Hyperparameters, Losses, Minibatch, advantages_of, improve, losses_of, make_networks
from perdure.demo.rollout import Rollout

SETTINGS = Hyperparameters(discount=0.9, trace=0.8)


def slow_advantages(rewards, values, successor_values, terminated, ended, settings):
    """Generalised advantages as their definition reads: a sum over the rest of the episode, for each step anew."""
    advantages = np.zeros_like(rewards)
    steps, environments = rewards.shape
    for e in range(environments):
        for t in range(steps):
            weight = 1.0
            for k in range(t, steps):
                following = 0.0 if terminated[k, e] else successor_values[k, e]
                advantages[t, e] += weight * (rewards[k, e] + settings.discount * following - values[k, e])
                if ended[k, e]:
                    break
                weight *= settings.discount * settings.trace
    return advantages


@pytest.mark.parametrize("seed", range(5))
def test_advantages_equal_their_definition(seed):
    """The backward recursion gives what the definition gives, with falls and time limits anywhere."""
    generator = np.random.default_rng(seed)
    rewards, values, successor_values = generator.normal(size=(3, 17, 5))
    terminated = generator.random((17, 5)) < 0.15
    ended = terminated | (generator.random((17, 5)) < 0.1)
    arguments = (rewards, values, successor_values, terminated, ended, SETTINGS)
    np.testing.assert_allclose(advantages_of(*arguments), slow_advantages(*arguments), rtol=1e-10)


@pytest.mark.parametrize(("terminated", "expected"), [(True, 1.0 - 2.0), (False, 1.0 + 0.9 * 3.0 - 2.0)])
def test_a_time_limit_is_no_failure(terminated, expected):
    """A fall is worth nothing afterwards, while an episode that was cut off keeps its successor's value."""
    one = np.ones((1, 1))
    advantages = advantages_of(one, 2 * one, 3 * one, one == terminated, one == 1, SETTINGS)
    assert advantages.item() == pytest.approx(expected)


def batch_of(policy, value, advantages):
    """A batch that the policy itself has played, with given advantages and values that are right."""
    observations = torch.randn(len(advantages), 4, generator=torch.Generator().manual_seed(1))
    actions = torch.arange(len(advantages)) % 2
    with torch.no_grad():
        logs = torch.log_softmax(policy(observations), -1).gather(1, actions[:, None]).squeeze(1)
        targets = value(observations).squeeze(-1)
    return Minibatch(observations, actions, logs, torch.as_tensor(advantages), targets)


def test_a_step_makes_better_actions_likelier():
    """Descending the policy loss raises the probability of actions with positive advantages and lowers the others'."""
    torch.manual_seed(0)
    policy, value = make_networks(4, 2)
    advantages = torch.tensor([1.0, -1.0] * 8)
    batch = batch_of(policy, value, advantages)
    losses_of(policy, value, batch, Hyperparameters()).policy.backward()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter -= 0.1 * parameter.grad
        logs = torch.log_softmax(policy(batch.observations), -1).gather(1, batch.actions[:, None]).squeeze(1)
    change = (logs - batch.log_probabilities) * advantages
    assert change.mean() > 0


@pytest.mark.parametrize(("shift", "is_flat"), [(0.5, True), (-0.5, False)])
def test_the_ratio_stops_paying_beyond_the_clip(shift, is_flat):
    """A ratio that has left the clip in the direction that pays gives no gradient; in the other direction it does."""
    torch.manual_seed(0)
    policy, value = make_networks(4, 2)
    advantages = torch.tensor([1.0, 0.0] * 8)
    batch = batch_of(policy, value, advantages)
    # The good actions have become likelier than when they were taken by this much, and the others less likely.
    off = torch.where(advantages > 0.5, -shift, shift)
    moved = replace(batch, log_probabilities=batch.log_probabilities + off)
    losses_of(policy, value, moved, Hyperparameters()).policy.backward()
    size = sum(float(parameter.grad.abs().sum()) for parameter in policy.parameters())
    assert is_flat == (size == 0)


def test_the_loss_wants_entropy_and_good_values():
    """More entropy lowers what is minimised, and a larger error of the values raises it."""
    policy, value, entropy = (torch.tensor(number) for number in (1.0, 4.0, 0.5))
    settings = Hyperparameters(value_weight=0.5, entropy_weight=0.1)
    assert Losses(policy, value, entropy).total(settings).item() == pytest.approx(1.0 + 2.0 - 0.05)


def test_the_entropy_of_an_even_choice_is_the_largest():
    """An even choice between two actions has an entropy of log 2."""
    policy, value = make_networks(4, 2)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
    losses = losses_of(policy, value, batch_of(policy, value, [1.0, 0.0]), Hyperparameters())
    assert losses.entropy.item() == pytest.approx(np.log(2))
    assert losses.value.item() == pytest.approx(0.0)


def make_rollout(steps=16, environments=4):
    """A rollout of noise in which every action but the first is worth the same."""
    generator = np.random.default_rng(0)
    shape = (steps, environments)
    ended = generator.random(shape) < 0.1
    return Rollout(
        observations=generator.normal(size=(*shape, 4)).astype(np.float32),
        successors=generator.normal(size=(*shape, 4)).astype(np.float32),
        actions=generator.integers(2, size=shape),
        log_probabilities=np.full(shape, np.log(0.5), np.float32),
        rewards=np.ones(shape, np.float32),
        terminated=ended,
        ended=ended,
    )


def test_an_update_changes_both_networks_and_depends_on_the_seed_alone():
    """Two updates from one state of torch's generator give the same parameters, and move every layer."""

    def parameters_after():
        torch.manual_seed(5)
        policy, value = make_networks(4, 2)
        before = [parameter.detach().clone() for parameter in (*policy.parameters(), *value.parameters())]
        optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()], 1e-3)
        improve(policy, value, optimizer, make_rollout(), Hyperparameters())
        return before, [parameter.detach() for parameter in (*policy.parameters(), *value.parameters())]

    before, first = parameters_after()
    _, second = parameters_after()
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert all(not torch.equal(one, other) for one, other in zip(before, first, strict=True))
