"""Subset, compared with sums over all subsets."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steingrad as sg
from problems import largest_difference, moments, normal, objective


def by_hand(logits, k):
    """Every subset and its probability."""
    chosen = itertools.combinations(range(len(logits)), k)
    states = np.asarray([np.isin(np.arange(len(logits)), members) for members in chosen], float)
    weights = np.exp(states @ np.asarray(logits))
    return states, weights / weights.sum()


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("d", "k"), [(2, 1), (6, 1), (6, 3), (7, 6)])
def test_against_enumeration(d, k):
    logits = 3 * normal(d + k, d)
    dist, (states, probs) = sg.Subset(logits, k), by_hand(logits, k)
    assert dist.num_states == len(states)
    np.testing.assert_array_equal(dist.enumerate(), states[::-1])
    np.testing.assert_allclose(dist.probabilities(), probs[::-1], atol=1e-12)
    np.testing.assert_allclose(jnp.exp(dist.log_prob(jnp.asarray(states))), probs, atol=1e-12)
    mean = probs @ states
    np.testing.assert_allclose(dist.mean, mean, atol=1e-12)
    np.testing.assert_allclose(dist.score(jnp.asarray(states)), states - mean, atol=1e-12)
    covariance = (states.T * probs) @ states - np.outer(mean, mean)
    moved = jax.jacrev(lambda logits: sg.Subset(logits, k).mean)(logits)
    np.testing.assert_allclose(moved, covariance, atol=1e-12)
    f = objective(dist)
    values = np.asarray(f(jnp.asarray(states)))
    np.testing.assert_allclose(sg.exact_expectation(f, dist), probs @ values, atol=1e-10)
    gradient = (probs * values) @ (states - mean)
    np.testing.assert_allclose(sg.exact_gradient(f, dist), gradient, atol=1e-10)


def test_batches_and_samples():
    logits = normal(0, (2, 5)).astype(jnp.float32)
    dist = sg.Subset(logits, 3)
    x = dist.sample(jax.random.key(0), (50_000,))
    assert x.shape == (50_000, 2, 5)
    assert bool(jnp.all(jnp.sum(x, axis=-1) == 3))
    for b in range(2):
        counts = np.bincount(np.asarray(dist.state_number(x[:, b])), minlength=10)
        expected = len(x) * np.asarray(dist.probabilities()[b])
        assert np.abs((counts - expected) / np.sqrt(expected)).max() < 4.5
        np.testing.assert_allclose(dist.mean[b], sg.Subset(logits[b], 3).mean, rtol=1e-6)


def test_a_large_one_in_single_precision():
    """With logits far from 0, float32 agrees with float64, and samples have exactly k members."""
    logits = 5 * np.random.default_rng(0).normal(size=400) + 300
    single = sg.Subset(jnp.asarray(logits, jnp.float32), 100)
    with jax.enable_x64(True):
        double = sg.Subset(jnp.asarray(np.asarray(single.logits, np.float64)), 100)
        mean = np.asarray(double.mean)
    np.testing.assert_allclose(mean.sum(), 100, rtol=1e-10)
    np.testing.assert_allclose(single.mean, mean, atol=2e-4)
    x = single.sample(jax.random.key(0), (20,))
    assert bool(jnp.all(jnp.sum(x, axis=-1) == 100))
    assert bool(jnp.all(jnp.isfinite(single.log_prob(x))))


@pytest.mark.slow
def test_elements_that_are_left_out():
    dist = sg.Subset(jnp.array([-jnp.inf, 0.0, 1.0, -jnp.inf, 2.0]), 2)
    expected = sg.Subset(jnp.array([0.0, 1.0, 2.0]), 2)
    np.testing.assert_allclose(dist.mean[jnp.array([1, 2, 4])], expected.mean, atol=1e-6)
    assert float(dist.log_prob(jnp.array([1.0, 1.0, 0.0, 0.0, 0.0]))) == -np.inf
    assert float(dist.log_prob(jnp.array([0.0, 1.0, 1.0, 0.0, 1.0]))) == -np.inf  # three bits
    estimator = sg.Rodeo(2)
    value, grads = sg.value_and_grad(
        lambda x: jnp.sum(x**2, axis=-1),
        dist,
        estimator,
        estimator.init(jax.random.key(0)),
        key=jax.random.key(1),
    )
    assert float(value) == 2
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(grads))


@pytest.mark.usefixtures("x64")
@pytest.mark.slow
def test_its_mean_serves_linear_control_variates():
    """Lariat needs the mean and its derivative, but no independence: it is unbiased over all
    pairs."""

    class OnSubsets(sg.Lariat):
        distributions = (sg.Subset,)

    dist = sg.Subset(1.5 * normal(33, 4), 2)
    f = objective(dist)
    estimator = OnSubsets(2, weighted=True)
    cv = estimator.init(jax.random.key(0), dist)
    matrix = normal(1, cv.averages.products.matrix.shape)
    filled = (matrix @ matrix.T, jnp.asarray(0.9), jnp.asarray(0.3))
    products = lambda cv: (
        cv.averages.products.matrix,
        cv.averages.products.weight,
        cv.averages.value,
    )
    cv = eqx.tree_at(products, cv, filled)
    mean, _ = moments(estimator, cv, dist, f)
    assert largest_difference(mean, sg.exact_gradient(f, dist)) < 1e-10
    plain, _ = moments(sg.RLOO(2), None, dist, f)
    assert largest_difference(mean, plain) < 1e-10


@pytest.mark.parametrize("k", [0, 4, 5, -1, 1.5, None])
def test_k_is_checked(k):
    with pytest.raises(ValueError, match=r"whole k from 1 to d − 1 = 3"):
        sg.Subset(jnp.zeros(4), k)


def test_inputs_are_checked():
    with pytest.raises(ValueError, match="at least 2 logits above −inf, but was given 1 for"):
        sg.Subset(jnp.array([0.0, -jnp.inf, -jnp.inf]), 2)
    with pytest.raises(ValueError, match=r"logits below \+inf"):
        sg.Subset(jnp.array([jnp.inf, 0.0, 0.0]), 1)
    with pytest.raises(ValueError, match=r"needs logits of shape \[..., d\]"):
        sg.Subset(jnp.zeros(()), 1)
    with pytest.raises(ValueError, match="Cannot enumerate the 126410606437752 subsets"):
        sg.Subset(jnp.zeros(50), 25).enumerate()
    dist = sg.Subset(jnp.zeros(4), 2)
    x = jnp.array([[1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
    with pytest.raises(ValueError, match="no state of this Subset has"):
        sg.RLOO(2).estimate(None, dist, x, jnp.zeros(2))
    for estimator in (sg.LocalExpectation(), sg.DisARM(2), sg.CARMS(2)):
        with pytest.raises(ValueError, match=r"was given Subset, .*. RLOO and Rodeo take any"):
            estimator.sample(jax.random.key(0), dist)
    with pytest.raises(ValueError, match="needs a distribution of independent coordinates"):
        sg.Gibbs(scan="own").neighbours(dist, dist.enumerate())
