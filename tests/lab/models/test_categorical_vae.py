"""VAEs of categories, exact KL divergences and learned priors, compared with sums over states."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steingrad as sg
from marks import slow
from problems import largest_difference, normal
from steingrad_lab.models import (
    BernoulliLikelihood,
    elbo_and_grad,
    mlp_vae,
    reconstruct,
    resnet_vae,
    sample_images,
)
from steingrad_lab.models.networks import MLP, Dense

PIXELS = 4
# Codes and categories of small models; no categories stands for bits.
KINDS = {"categories": ((2,), 3), "bits": ((3,), None)}


def tiny(layer_sizes, categories, *, analytic_kl=False, learned_prior=False):
    model = mlp_vae(
        PIXELS, layer_sizes, (5, 4), BernoulliLikelihood(), categories, key=jax.random.key(0)
    )
    width = layer_sizes[-1] * (categories or 1)
    prior = jnp.zeros(width) if learned_prior else None
    model = dataclasses.replace(model, analytic_kl=analytic_kl, prior=prior)
    return jax.tree.map(lambda leaf: leaf + 0.3 * normal(leaf.size, leaf.shape), model)


def exact_elbo(model, y):
    """Returns the mean ELBO over the batch, by the definition, as a sum over all states."""

    def above(layer, below, x):
        """E[log p(below | x) − log q(x | below) + the same for the layers above], for one image."""
        if layer == model.num_layers:
            return model.log_prior(x)
        q = model.encode(layer, below)

        def term(x):
            log_q = q.log_prob(x)
            here = model.log_likelihood(layer, below, x) - log_q
            return jnp.exp(log_q) * (here + above(layer + 1, model.flat(x), x))

        return jnp.sum(jax.vmap(term)(q.enumerate()))

    return jnp.mean(jax.vmap(lambda image: above(0, image, None))(y))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("learned_prior", [True, *slow(False)])
@pytest.mark.parametrize("analytic_kl", [True, *slow(False)])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_every_weight(kind, analytic_kl, learned_prior):
    """Without replacement, as many samples as states give the exact gradient of all weights."""
    sizes, categories = KINDS[kind]
    model = tiny(sizes, categories, analytic_kl=analytic_kl, learned_prior=learned_prior)
    y = (normal(1, (2, PIXELS)) > 0).astype(float)
    states = model.encode(0, y).num_states
    _, grads = elbo_and_grad(model, y, (sg.UnorderedSet(states),), (None,), key=jax.random.key(1))
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    exact = jax.grad(lambda a: exact_elbo(eqx.combine(a, rest), y))(arrays)
    found = eqx.filter((grads.encoders, grads.generative), eqx.is_inexact_array)
    assert (exact.prior is not None) == learned_prior
    assert largest_difference(found, (exact.encoders, exact.generative)) < 1e-10


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("layer_sizes", "categories", "analytic_kl"),
    [((2,), 3, False), ((2,), 3, True), ((3,), None, True), ((2, 1), 3, False)],
)
def test_estimates_of_the_elbo(layer_sizes, categories, analytic_kl):
    """The value of a step, and both means of `log_weights_and_elbos`, estimate the exact ELBO."""
    model = tiny(layer_sizes, categories, analytic_kl=analytic_kl, learned_prior=True)
    y = (normal(1, (2, PIXELS)) > 0).astype(float)
    exact = float(exact_elbo(model, y))
    layers = (sg.RLOO(2),) * len(layer_sizes), (None,) * len(layer_sizes)
    step = lambda key: elbo_and_grad(model, y, *layers, key=key)[0]
    values = jax.jit(jax.vmap(step))(jax.random.split(jax.random.key(2), 10_000))
    both = model.log_weights_and_elbos(y, samples=10_000, key=jax.random.key(3))
    for estimates in (values, *(jnp.mean(each, axis=1) for each in both)):
        error = float(jnp.std(estimates)) / np.sqrt(len(estimates))
        assert abs(float(jnp.mean(estimates)) - exact) < 4.5 * error
    weights, elbos = both
    assert bool(jnp.all(weights == elbos)) == (not analytic_kl)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("learned_prior", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_kl_is_the_sum_over_states(kind, learned_prior):
    model = tiny(*KINDS[kind], learned_prior=learned_prior)
    q = model.encode(0, normal(1, (PIXELS,)))
    x = q.enumerate()
    log_q = q.log_prob(x)
    by_hand = jnp.sum(jnp.exp(log_q) * (log_q - model.log_prior(x)))
    np.testing.assert_allclose(model.kl(q), by_hand, rtol=1e-10)


def test_decoders_of_categories_are_mirrored():
    model = mlp_vae(
        PIXELS, (2,), (6, 5), BernoulliLikelihood(), 3, "relu", "pytorch", key=jax.random.key(0)
    )
    shapes = lambda mlp: [layer.weight.shape for layer in mlp.layers]
    assert shapes(model.encoders[0]) == [(4, 6), (6, 5), (5, 6)]
    assert shapes(model.decoders[0]) == [(6, 5), (5, 6), (6, 4)]
    assert model.encoders[0].activation == "relu"


def test_pytorch_initialization():
    """Weights and biases are uniform between ±1/√inputs, as in torch.nn.Linear."""
    dense = Dense(25, 400, "pytorch", key=jax.random.key(0))
    for values in (dense.weight, dense.bias):
        assert 0.19 < float(jnp.max(jnp.abs(values))) <= 0.2
        np.testing.assert_allclose(jnp.std(values), 0.2 / np.sqrt(3), rtol=0.1)
    assert not jnp.any(Dense(25, 400, key=jax.random.key(0)).bias)


def test_activations():
    """The hidden units are computed by hand."""
    y = normal(3, (7, 5))
    for name, slope in (("relu", 0.0), ("leaky_relu", 0.3)):
        mlp = MLP(5, (6,), 2, name, key=jax.random.key(0))
        first, last = mlp.layers
        before = y @ first.weight
        expected = jnp.where(before > 0, before, slope * before) @ last.weight
        np.testing.assert_allclose(mlp(y), expected, rtol=1e-4, atol=1e-5)


def test_grey_values_are_the_mean_of_drawn_pixels():
    grey, drawn = BernoulliLikelihood(grey=True), BernoulliLikelihood()
    images, outputs = jnp.array([0, 51, 128, 255], jnp.uint8), normal(4, (4,))
    y = grey.observe(jax.random.key(0), images)
    np.testing.assert_allclose(y, [0, 0.2, 128 / 255, 1], rtol=1e-6)
    keys = jax.random.split(jax.random.key(1), 20_000)
    terms = jax.vmap(lambda key: drawn.log_prob(outputs, drawn.observe(key, images)))(keys)
    error = float(jnp.std(terms)) / np.sqrt(len(keys))
    assert abs(float(jnp.mean(terms) - grey.log_prob(outputs, y))) < 4.5 * error


@pytest.mark.parametrize("layer_sizes", [(2,), (2, 1)])
def test_images(layer_sizes):
    model = tiny(layer_sizes, 3, learned_prior=True)
    assert sample_images(model, 7, key=jax.random.key(1)).shape == (7, PIXELS)
    assert reconstruct(model, jnp.ones((5, PIXELS)), key=jax.random.key(1)).shape == (5, PIXELS)


def test_samples_follow_the_learned_prior():
    """Every sample of a prior that prefers one state is the image of that state."""
    model = tiny((2,), 3, learned_prior=True)
    state = jnp.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    sure = dataclasses.replace(model, prior=100 * model.flat(state))
    image = model.likelihood.mean(model.decoders[0](model.flat(state)))
    drawn = sample_images(sure, 20, key=jax.random.key(1))
    np.testing.assert_allclose(drawn, jnp.broadcast_to(image, (20, PIXELS)), rtol=1e-5)


def test_residual_networks():
    """The model is traced, not computed."""
    build = lambda key: resnet_vae((8, 8), 2, BernoulliLikelihood(), 3, key=key)
    model = eqx.filter_eval_shape(build, jax.random.key(0))
    weights = lambda model, key: model.log_weights(jnp.ones((1, 64)), samples=2, key=key)
    assert eqx.filter_eval_shape(weights, model, jax.random.key(1)).shape == (2, 1)
