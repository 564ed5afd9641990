"""Binary VAEs: the ELBO and its gradients against sums over all states."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import largest_difference, normal

import steingrad as sg
from steingrad.models import (
    BernoulliLikelihood,
    GaussianLikelihood,
    elbo_and_grad,
    mlp_vae,
    reconstruct,
    sample_images,
)

PIXELS = 4


def tiny(layer_sizes=(3,), hidden=(), likelihood=None):
    model = mlp_vae(
        PIXELS, layer_sizes, hidden, likelihood or BernoulliLikelihood(), key=jax.random.key(0)
    )
    return jax.tree.map(lambda leaf: leaf + 0.3 * normal(leaf.size, leaf.shape), model)


def states(bits):
    return jnp.asarray(list(itertools.product([0.0, 1.0], repeat=bits)))


def exact_elbo(model, y):
    """Sum over the states of all layers, written from the definition; mean over the batch."""

    def above(layer, below):
        """E[log p(x_{l-1} | x_l) − log q(x_l | x_{l-1}) + the layers above], for one image."""
        if layer == model.num_layers:
            return model.log_prior()
        q = sg.Bernoulli(model.encoders[layer](below))

        def term(x):
            log_q = q.log_prob(x)
            return jnp.exp(log_q) * (
                model.log_likelihood(layer, below, x) - log_q + above(layer + 1, x)
            )

        return jnp.sum(jax.vmap(term)(states(model.layer_sizes[layer])))

    return jnp.mean(jax.vmap(lambda image: above(0, image))(y))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("layer_sizes", [(3,), (3, 2)])
@pytest.mark.parametrize("kind", ["bernoulli", "gaussian"])
def test_log_weights_average_to_the_elbo(layer_sizes, kind):
    likelihood = BernoulliLikelihood() if kind == "bernoulli" else GaussianLikelihood(PIXELS)
    model, y = tiny(layer_sizes, (5,), likelihood), normal(1, (2, PIXELS))
    weights = jax.jit(lambda k: model.log_weights(y, samples=40_000, key=k))(jax.random.key(2))
    per_draw = jnp.mean(weights, axis=1)
    error = float(jnp.std(per_draw)) / np.sqrt(len(per_draw))
    assert abs(float(jnp.mean(per_draw) - exact_elbo(model, y))) < 4.5 * error


def test_gaussian_log_prob():
    likelihood = GaussianLikelihood(3)
    variance = max(float(jax.nn.softplus(-0.5)), 1e-3)
    y, mean = np.array([0.1, -0.4, 0.9]), np.array([0.0, 0.2, 1.0])
    by_hand = np.sum(-0.5 * np.log(2 * np.pi * variance) - (y - mean) ** 2 / (2 * variance))
    ours = likelihood.log_prob(jnp.asarray(mean, jnp.float32), jnp.asarray(y, jnp.float32))
    np.testing.assert_allclose(ours, by_hand, rtol=1e-5)
    floor = eqx.tree_at(lambda l: l.raw_variance, likelihood, jnp.full(3, -50.0))
    by_hand = np.sum(-0.5 * np.log(2 * np.pi * 1e-3) - (y - mean) ** 2 / 2e-3)
    ours = floor.log_prob(jnp.asarray(mean, jnp.float32), jnp.asarray(y, jnp.float32))
    np.testing.assert_allclose(ours, by_hand, rtol=1e-5)


def mean_gradients(model, y, estimator, cv, draws, **options):
    """Mean and standard error of the gradients over many draws."""
    estimators = (estimator,) * model.num_layers

    @jax.jit
    def chunk(keys):
        def one(key):
            _, grads = elbo_and_grad(model, y, estimators, cv, key=key, **options)
            return grads.encoders, eqx.filter(grads.generative, eqx.is_inexact_array)

        grads = jax.vmap(one)(keys)
        return jax.tree.map(lambda g: (g.sum(0), (g**2).sum(0)), grads)

    total = None
    for keys in jax.random.split(jax.random.key(7), (draws // 5000, 5000)):
        sums = chunk(keys)
        total = sums if total is None else jax.tree.map(jnp.add, total, sums)
    pairs = jax.tree.leaves(
        total,
        is_leaf=lambda leaf: isinstance(leaf, tuple) and len(leaf) == 2 and eqx.is_array(leaf[0]),
    )
    means = [s / draws for s, _ in pairs]
    errors = [jnp.sqrt(jnp.maximum(q / draws - (s / draws) ** 2, 1e-30) / draws) for s, q in pairs]
    return means, errors


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("layer_sizes", [(3,), (3, 2)])
@pytest.mark.parametrize("option", [{}, {"common_random_numbers": True}, {"average_decoder": True}])
def test_gradients_of_every_weight(layer_sizes, option):
    """z-scores of all encoder and decoder weights against the sum over all states."""
    if option and len(layer_sizes) == 1:
        pytest.skip("the options concern several layers")
    model, y = tiny(layer_sizes), (normal(1, (2, PIXELS)) > 0).astype(float)
    estimator = sg.Rodeo(2, surrogate=sg.MLPSurrogate(hidden=4))
    cv = tuple(
        jax.tree.map(lambda p: p + 0.5, estimator.init(jax.random.key(i)))
        for i in range(model.num_layers)
    )
    means, errors = mean_gradients(model, y, estimator, cv, draws=40_000, **option)
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    exact = jax.grad(lambda a: exact_elbo(eqx.combine(a, rest), y))(arrays)
    expected = jax.tree.leaves((exact.encoders, exact.generative))
    count = sum(leaf.size for leaf in expected)
    assert len(expected) == len(means)
    worst = max(
        float(jnp.max(jnp.abs(m - e) / jnp.maximum(s, 1e-9)))
        for m, e, s in zip(means, expected, errors, strict=True)
    )
    # P(|z| > bound) = 1e-3 / count for each weight.
    from scipy.stats import norm

    assert worst < norm.isf(0.5e-3 / count)


@pytest.mark.usefixtures("x64")
def test_top_layer_exactly():
    """For the only layer of a model nothing is random but the samples: sum over all pairs."""
    model, y = tiny((3,)), (normal(1, (1, PIXELS)) > 0).astype(float)
    estimator = sg.Rodeo(2, surrogate=sg.MLPSurrogate(hidden=4))
    cv = jax.tree.map(lambda p: p + 0.5, estimator.init(jax.random.key(0)))
    q = sg.Bernoulli(model.encoders[0](y))
    all_states = states(3)
    total = jnp.zeros_like(q.logits)
    for i, j in itertools.product(range(8), repeat=2):
        x = jnp.stack([all_states[i], all_states[j]])[:, None]
        f = lambda x: model.log_likelihood(0, y, x) - q.log_prob(x) + model.log_prior()
        fx, pull = jax.vjp(f, x)
        g = estimator.estimate(cv, q, x, fx, pull(jnp.ones_like(fx))[0])
        total += jnp.exp(jnp.sum(q.log_prob(x))) * g
    _, pull_back = jax.vjp(lambda encoder: encoder(y), model.encoders[0])
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    exact = jax.grad(lambda a: exact_elbo(eqx.combine(a, rest), y))(arrays)
    assert largest_difference(pull_back(total)[0], exact.encoders[0]) < 1e-8


def test_images():
    model = tiny((3, 2))
    drawn = sample_images(model, 7, key=jax.random.key(0))
    rebuilt = reconstruct(model, jnp.zeros((5, PIXELS)), key=jax.random.key(0))
    assert drawn.shape == (7, PIXELS)
    assert rebuilt.shape == (5, PIXELS)
    assert bool(jnp.all((drawn >= 0) & (drawn <= 1) & jnp.isfinite(drawn)))


def test_paper_sizes():
    model = mlp_vae(784, (200,), (200, 200), BernoulliLikelihood(), key=jax.random.key(0))
    count = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_array)))
    encoder = 784 * 200 + 200 + 2 * (200 * 200 + 200)
    decoder = 2 * (200 * 200 + 200) + 200 * 784 + 784
    assert count == encoder + decoder
