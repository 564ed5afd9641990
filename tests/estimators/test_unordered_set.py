"""UnorderedSet: exact sums over all ordered samples without replacement, and wrong variants that
fail."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steingrad as sg
from problems import batched, largest_difference, normal, normalised_distributions, objective
from significance import passes
from steingrad.estimators.base import weighted
from steingrad.estimators.unordered_set import log_set_probabilities


class PlainMean(sg.UnorderedSet):
    """A wrong variant, which treats the states as independent samples."""

    def _ratios(self, dist, x):
        log_weights, log_others = super()._ratios(dist, x)
        return 0 * log_weights - np.log(self.num_samples), log_others


class FirstOrder(sg.UnorderedSet):
    """A wrong variant, whose baseline weights ignore that its own sample has been drawn."""

    def _ratios(self, dist, x):
        log_weights, log_others = super()._ratios(dist, x)
        return log_weights, jnp.broadcast_to(log_weights, log_others.shape)


def ordered(dist, num_samples):
    """Every sequence of different states, [n, K], and its probability."""
    probs = np.asarray(dist.probabilities(), np.float64)
    sequences = np.asarray(list(itertools.permutations(range(len(probs)), num_samples)))
    p = probs[sequences]
    gone = np.cumsum(p, axis=1) - p
    return sequences, np.prod(p / (1 - gone), axis=1)


def everything(estimator, dist):
    """The exact means of the gradient and of the value."""
    f = objective(dist)
    sequences, chances = ordered(dist, estimator.num_samples)
    np.testing.assert_allclose(np.sum(chances), 1)
    x = jnp.moveaxis(dist.enumerate()[sequences], 1, 0)
    many = batched(dist, len(sequences))

    @jax.jit
    def means(x, chances):
        g = estimator.gradient(None, many, sg.Evaluated(x, f(x)))
        values = jnp.mean(weighted(f(x), estimator.weights(many, x)), axis=0)
        return jax.tree.map(lambda leaf: jnp.tensordot(chances, leaf, axes=1), (g, values))

    return means(x, jnp.asarray(chances))


@pytest.mark.usefixtures("x64")
class TestExact:
    @pytest.mark.parametrize(
        ("name", "num_samples"),
        [("categorical3", 3), ("autoregressive", 3), ("subset", 2)],
    )
    def test_unbiased(self, name, num_samples):
        dist = normalised_distributions()[name]
        gradient, value = everything(sg.UnorderedSet(num_samples), dist)
        assert largest_difference(gradient, sg.exact_gradient(objective(dist), dist)) < 1e-10
        np.testing.assert_allclose(value, sg.exact_expectation(objective(dist), dist))

    @pytest.mark.parametrize("wrong", [PlainMean, FirstOrder])
    def test_wrong_ones_are_caught(self, wrong):
        dist = normalised_distributions()["categorical3"]
        gradient, _ = everything(wrong(3), dist)
        assert largest_difference(gradient, sg.exact_gradient(objective(dist), dist)) > 1e-3

    def test_all_states_leave_no_noise(self):
        """The value and all gradients are exact if all states are drawn."""
        dist = sg.Categorical(normal(1, (2, 1, 4)))  # a batch of two
        f = lambda x, w: jnp.sum(x * w, axis=(-2, -1)) ** 2
        w = normal(2, (1, 4))
        estimator = sg.UnorderedSet(4)
        key = jax.random.key(0)
        door = lambda w: sg.expectation(f, dist, estimator, key=key, args=(w,))
        value, grads, (same, by_door) = jax.jit(
            lambda w: (
                *estimator.value_and_grad(f, dist, key=key, args=(w,)),
                jax.value_and_grad(door)(w),
            )
        )(w)
        np.testing.assert_allclose(value, sg.exact_expectation(f, dist, args=(w,)))
        exact = sg.exact_gradient(f, dist, args=(w,))
        np.testing.assert_allclose(grads.parameters, exact, atol=1e-12)
        by_args = jax.grad(lambda w: sg.exact_expectation(f, dist, args=(w,)))(w)
        np.testing.assert_allclose(grads.args[0], by_args, atol=1e-12)
        np.testing.assert_allclose(same, value)
        np.testing.assert_allclose(by_door, by_args, atol=1e-12)


def test_probabilities_of_sets_by_hand():
    """q = (½, ¼, ¼): {first, second} is ½·½ + ¼·⅔."""
    log_sets = log_set_probabilities(jnp.log(jnp.array([0.5, 0.25])), jnp.log(0.25))
    np.testing.assert_allclose(jnp.exp(log_sets), [1, 2 / 3, 1 / 2, 1 / 4 + 1 / 6], rtol=1e-5)


def test_draws():
    """Samples are drawn without replacement and with the right probabilities."""
    dist = sg.Categorical(jnp.log(jnp.array([[0.6, 0.2, 0.1, 0.1]])))
    estimator, f = sg.UnorderedSet(2), objective(dist)
    x = estimator.sample(jax.random.key(0), batched(dist, 500))
    assert not jnp.any(jnp.all(x[0] == x[1], axis=(-2, -1)))
    keys = jax.random.split(jax.random.key(1), 20_000)
    draw = lambda key: estimator.value_and_grad(f, dist, key=key)[1].parameters
    g = np.asarray(jax.jit(jax.vmap(draw))(keys))
    error = np.mean(g, axis=0) - sg.exact_gradient(f, dist)
    assert passes(error / (np.std(g, axis=0) / len(keys) ** 0.5))


def test_nearly_certain_states():
    """Probabilities of 1 − 10⁻³⁵ cause no division by 0."""
    dist = sg.Categorical(jnp.array([[80.0, 0.0, -5.0]]))
    estimator, f = sg.UnorderedSet(2), lambda x: x[..., 0, 1] + 2
    _, grads = jax.jit(lambda key: estimator.value_and_grad(f, dist, key=key))(jax.random.key(0))
    assert jnp.all(jnp.isfinite(grads.parameters))


def test_states_that_never_happen():
    """With as many samples as states the estimate is exact, even if a state has probability 0 and f
    is infinite there."""
    q = sg.Categorical(jnp.array([[0.0, -jnp.inf, 1.0]]))
    f = lambda x: jnp.where(x[..., 0, 1] > 0, jnp.inf, x[..., 0, 0] + 4 * x[..., 0, 2])
    value, grads = sg.UnorderedSet(3).value_and_grad(f, q, key=jax.random.key(0))
    np.testing.assert_allclose(value, sg.exact_expectation(f, q), rtol=1e-6)
    expected = 3 * jax.nn.sigmoid(1.0) * jax.nn.sigmoid(-1.0) * jnp.array([[-1.0, 0.0, 1.0]])
    np.testing.assert_allclose(grads.parameters, expected, rtol=1e-5)


def test_no_infinite_numbers():
    """An ordinary problem works if JAX is asked to raise at the first infinite number."""
    q = sg.Categorical(jnp.array([[0.0, 0.5, 1.0]]))
    f = lambda x: x[..., 0, 0] + 4 * x[..., 0, 2]
    with jax.debug_infs(True):
        value, grads = sg.UnorderedSet(3).value_and_grad(f, q, key=jax.random.key(0))
    np.testing.assert_allclose(value, sg.exact_expectation(f, q), rtol=1e-6)
    np.testing.assert_allclose(grads.parameters, sg.exact_gradient(f, q), rtol=1e-5, atol=1e-7)


def test_inputs_are_checked():
    dist = sg.Bernoulli(jnp.zeros(2))
    with pytest.raises(ValueError, match="2 or more, because the other samples"):
        sg.UnorderedSet(1)
    with pytest.raises(ValueError, match="at most 12 of them, but was given 13"):
        sg.UnorderedSet(13)
    with pytest.raises(ValueError, match="different states, 5 of them, but this Bernoulli has 4"):
        sg.UnorderedSet(5).sample(jax.random.key(0), dist)
    with pytest.raises(ValueError, match="Cannot enumerate"):
        sg.UnorderedSet(4).sample(jax.random.key(0), sg.Bernoulli(jnp.zeros(50)))
