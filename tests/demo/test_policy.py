"""The policy in NumPy."""

import numpy as np
import pytest
import torch

from perdure.demo.policy import Policy, log_softmax
from perdure.demo.ppo import make_networks


@pytest.fixture
def networks():
    """A policy network that is no longer near zero, and the same policy for NumPy."""
    torch.manual_seed(3)
    network, _ = make_networks(4, 2)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    arrays = {name: tensor.numpy().copy() for name, tensor in network.state_dict().items()}
    return network, Policy.from_arrays(arrays)


def test_numpy_and_torch_compute_the_same_logits(networks):
    """The forward pass in NumPy equals torch's to within a few units of float32's last place."""
    network, policy = networks
    observations = np.random.default_rng(1).normal(size=(256, 4)).astype(np.float32)
    with torch.no_grad():
        expected = network(torch.from_numpy(observations)).numpy()
    np.testing.assert_allclose(policy.logits(observations), expected, rtol=2e-6, atol=2e-6)


def test_numpy_and_torch_compute_the_same_log_probabilities(networks):
    """Log-probabilities of drawn actions equal those that torch's distribution gives for them."""
    network, policy = networks
    observations = np.random.default_rng(2).normal(size=(64, 4)).astype(np.float32)
    actions, logs = policy.sample(observations, np.random.default_rng(5))
    with torch.no_grad():
        choice = torch.distributions.Categorical(logits=network(torch.from_numpy(observations)))
        expected = choice.log_prob(torch.from_numpy(actions)).numpy()
    np.testing.assert_allclose(logs, expected, rtol=1e-5, atol=1e-6)


def test_layers_are_taken_in_the_order_of_their_positions():
    """Layer 10 comes behind layer 2, whatever the order of the names."""
    shapes = {"10": (2, 5), "0": (3, 4), "2": (5, 3)}
    arrays = {f"{i}.weight": np.ones(shape) for i, shape in shapes.items()}
    arrays |= {f"{i}.bias": np.zeros(shape[0]) for i, shape in shapes.items()}
    policy = Policy.from_arrays(arrays)
    assert [weight.shape for weight, _ in policy.layers] == [(3, 4), (5, 3), (2, 5)]
    assert all(array.dtype == np.float32 for layer in policy.layers for array in layer)


def test_actions_are_drawn_with_the_policys_probabilities():
    """Drawn actions follow the categorical distribution of the logits."""
    logits = np.log(np.array([0.7, 0.2, 0.1], np.float32))
    policy = Policy(((np.zeros((3, 4), np.float32), logits),))
    actions, logs = policy.sample(np.zeros((20_000, 4), np.float32), np.random.default_rng(0))
    shares = np.bincount(actions, minlength=3) / len(actions)
    np.testing.assert_allclose(shares, [0.7, 0.2, 0.1], atol=0.015)
    np.testing.assert_allclose(np.exp(logs), np.array([0.7, 0.2, 0.1])[actions], rtol=1e-5)


def test_the_best_action_is_the_likeliest():
    """Without chance the likeliest action is taken."""
    policy = Policy(((np.array([[1.0], [-1.0]], np.float32), np.zeros(2, np.float32)),))
    assert policy.best(np.array([[2.0], [-2.0]], np.float32)).tolist() == [0, 1]


def test_log_probabilities_do_not_overflow():
    """Huge logits give finite log-probabilities that sum to one."""
    logs = log_softmax(np.array([[1000.0, 0.0], [-1000.0, -1000.0]], np.float32))
    np.testing.assert_allclose(np.exp(logs).sum(axis=1), 1.0)
    assert np.isfinite(logs).all()
