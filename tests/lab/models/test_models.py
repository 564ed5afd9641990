"""Binary VAEs: the ELBO and its gradients, compared with sums over all states."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import steingrad as sg
from marks import slow
from problems import largest_difference, normal
from significance import passes
from steingrad_lab.models import (
    BernoulliLikelihood,
    GaussianLikelihood,
    elbo_and_grad,
    mlp_vae,
    reconstruct,
    resnet_vae,
    sample_images,
)
from steingrad_lab.models.elbo import _ancestral_gradient
from steingrad_lab.models.resnet import UpConv

PIXELS = 4


def tiny(layer_sizes=(3,), hidden=(), likelihood=None):
    model = mlp_vae(
        PIXELS, layer_sizes, hidden, likelihood or BernoulliLikelihood(), key=jax.random.key(0)
    )
    return jax.tree.map(lambda leaf: leaf + 0.3 * normal(leaf.size, leaf.shape), model)


def states(bits):
    return jnp.asarray(list(itertools.product([0.0, 1.0], repeat=bits)))


def exact_elbo(model, y):
    """Returns the mean ELBO over the batch, by the definition, as a sum over all states."""

    def above(layer, below):
        """E[log p(below | x) − log q(x | below) + the same for the layers above], for one image."""
        if layer == model.num_layers:
            return model.log_prior(below)
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


def mean_gradients(model, y, estimators, cv, draws, **options):
    """Returns the mean and the standard error of the gradients over many draws."""

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


ESTIMATORS = {
    "rloo": sg.RLOO(2),
    "double_cv": sg.DoubleCV(2),
    "disarm": sg.DisARM(2),
    "rodeo": sg.Rodeo(2, surrogate=sg.MLPSurrogate(hidden=4)),
}


def per_layer(name, model):
    """Returns an estimator for each layer, and control variates that are not the initial ones."""
    relaxed = {"relax": sg.Relax, "relax without relaxation": Jumps}.get(name)
    if relaxed is None:
        built = [ESTIMATORS[name]] * model.num_layers
    else:
        below = (PIXELS, *model.layer_sizes[:-1])
        built = [relaxed(1, context_size=c, hidden=3) for c in below]
    layers = enumerate(zip(built, model.layer_sizes, strict=True))
    cv = [e.init(jax.random.key(i), sg.Bernoulli(jnp.zeros(d))) for i, (e, d) in layers]
    return tuple(built), tuple(jax.tree.map(lambda p: p + 0.5, c) for c in cv)


class Jumps(sg.Relax):
    """RELAX with a mistake: its control variate contains the sampled layers above."""

    @property
    def relaxes(self):
        return False


def z_scores(name, layer_sizes, draws=20_000, **options):
    model, y = tiny(layer_sizes), (normal(1, (2, PIXELS)) > 0).astype(float)
    estimators, cv = per_layer(name, model)
    means, errors = mean_gradients(model, y, estimators, cv, draws=draws, **options)
    expected = jax.tree.leaves(exact_gradient(model, y))
    assert len(expected) == len(means)
    scores = [
        (m - e) / jnp.maximum(s, 1e-9) for m, e, s in zip(means, expected, errors, strict=True)
    ]
    return jnp.concatenate([jnp.ravel(score) for score in scores])


def exact_gradient(model, y):
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    exact = jax.grad(lambda a: exact_elbo(eqx.combine(a, rest), y))(arrays)
    return exact.encoders, exact.generative


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", slow("relax", "disarm", "rodeo"))
def test_gradients_of_every_weight(name):
    """Compares the gradients of all weights of two layers with sums over states, by z-scores."""
    assert passes(z_scores(name, (2, 3)))


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("name", "layer_sizes", "option"),
    [
        ("rodeo", (3,), {}),
        ("double_cv", (2, 3), {}),
        ("rodeo", (2, 3), {"common_random_numbers": True}),
        ("rodeo", (2, 3), {"average_decoder": True}),
        ("relax", (2, 3), {"average_decoder": True}),
        ("rodeo", (2, 1, 2), {}),
    ],
)
def test_gradients_of_every_weight_with_options(name, layer_sizes, option):
    assert passes(z_scores(name, layer_sizes, **option))


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_relax_needs_the_relaxed_layers():
    """Sampled layers inside the control variate make f discontinuous. The test must detect it."""
    assert passes(z_scores("relax", (2, 3), draws=400_000))
    assert not passes(z_scores("relax without relaxation", (2, 3), draws=400_000))


def total(weights, tree):
    return jax.tree.map(lambda leaf: jnp.tensordot(weights, leaf, 1), tree)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["rloo", *slow("double_cv", "rodeo")])
def test_both_layers_exactly(name):
    """Sums over everything random: the ancestral state, the K samples of a layer, and the state
    of the layer above that is drawn for each sample."""
    model, y = tiny((2, 3)), (normal(1, (PIXELS,)) > 0).astype(float)
    (first, second), (cv_1, cv_2) = per_layer(name, model)
    exact, _ = exact_gradient(model, y[None])

    def gradient(layer, estimator, cv, below, x, above):
        """Returns the probability of x and above, and the gradient of the layer's encoder."""
        logits, pull_back = jax.vjp(lambda encoder: encoder(below), model.encoders[layer])
        q = sg.Bernoulli(logits)
        probability = jnp.exp(jnp.sum(q.log_prob(x)))

        def f(x):
            weight = model.log_likelihood(layer, below, x) - q.log_prob(x) + model.log_prior(x)
            if above is None:
                return weight
            q_above = sg.Bernoulli(model.encoders[layer + 1](x))
            return weight + model.log_likelihood(layer + 1, x, above) - q_above.log_prob(above)

        if above is not None:
            q_above = sg.Bernoulli(model.encoders[layer + 1](x))
            probability *= jnp.exp(jnp.sum(q_above.log_prob(above)))
        fx, pull = jax.vjp(f, x)
        g = estimator.estimate(cv, q, x, fx, pull(jnp.ones_like(fx))[0])
        return probability, pull_back(g)[0]

    pairs = lambda bits: jnp.stack(
        [jnp.stack(pair) for pair in itertools.product(states(bits), repeat=2)]
    )
    x, above = pairs(2), pairs(3)
    over_above = jax.vmap(lambda x, above: gradient(0, first, cv_1, y, x, above), in_axes=(None, 0))
    weights, gradients = jax.jit(jax.vmap(over_above, in_axes=(0, None)))(x, above)
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), gradients)
    assert abs(float(jnp.sum(weights)) - 1) < 1e-12
    assert largest_difference(total(weights.ravel(), flat), exact[0]) < 1e-8

    summed = jax.tree.map(jnp.zeros_like, exact[1])
    q = sg.Bernoulli(model.encoders[0](y))
    for below in states(2):
        weights, gradients = jax.vmap(
            lambda x, below=below: gradient(1, second, cv_2, below, x, None)
        )(above)
        part = total(weights * jnp.exp(q.log_prob(below)), gradients)
        summed = jax.tree.map(jnp.add, summed, part)
    assert largest_difference(summed, exact[1]) < 1e-8


@pytest.mark.usefixtures("x64")
def test_decoders_exactly():
    """Sums the gradient from one ancestral sample over all ancestral samples."""
    model, y = tiny((2, 3)), (normal(1, (1, PIXELS)) > 0).astype(float)
    _, exact = exact_gradient(model, y)
    q_1 = sg.Bernoulli(model.encoders[0](y))

    def gradient(x_1, x_2):
        q_2 = sg.Bernoulli(model.encoders[1](x_1))
        _, grad = _ancestral_gradient(model, [(0, y, q_1, x_1), (1, x_1, q_2, x_2)])
        return jnp.exp(q_1.log_prob(x_1) + q_2.log_prob(x_2))[0], grad

    x_1, x_2 = (
        jnp.stack(column)[:, None]
        for column in zip(*itertools.product(states(2), states(3)), strict=True)
    )
    weights, gradients = jax.jit(jax.vmap(gradient))(x_1, x_2)
    assert largest_difference(total(weights, gradients), exact) < 1e-8


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


class TestResNet:
    def test_up_conv_is_a_transposed_convolution(self):
        """Compares UpConv with loops over the definition, out[2i + k] += x[i] w[k]."""
        for size in (2, 3):
            layer = UpConv(2, 3, size, key=jax.random.key(size))
            x = np.asarray(normal(0, (1, 3, 4, 2)), np.float32)
            w, by_hand = np.asarray(layer.weight), np.zeros((8, 10, 3))
            for i, j, k, l in np.ndindex(3, 4, size, size):
                by_hand[2 * i + k, 2 * j + l] += x[0, i, j] @ w[k, l]
            np.testing.assert_allclose(layer(jnp.asarray(x))[0], by_hand[:6, :8], atol=1e-5)
            gradient = jax.grad(
                lambda w, layer=layer, x=x: jnp.sum(
                    jnp.sin(eqx.tree_at(lambda m: m.weight, layer, w)(jnp.asarray(x)))
                )
            )(layer.weight)
            assert gradient.shape == layer.weight.shape

    def test_shapes_and_parameters(self):
        # Only traced, to save time: the doctests of the classes run small networks.
        shapes = eqx.filter_eval_shape
        build = lambda key: resnet_vae((28, 28), 200, BernoulliLikelihood(), key=key)
        model = shapes(build, jax.random.key(0))
        conv = lambda a, b, size=3: size * size * a * b + b
        blocks = (
            4 * conv(16, 16)
            + conv(16, 32) + conv(32, 32) + conv(16, 32, 2) + 2 * conv(32, 32)
            + conv(32, 64) + conv(64, 64) + conv(32, 64, 2) + 2 * conv(64, 64)
        )  # fmt: skip
        encoder = conv(1, 16) + blocks + 7 * 7 * 64 * 200 + 200
        up_blocks = (
            4 * conv(64, 64)
            + conv(64, 32) + conv(32, 32) + conv(64, 32, 2) + 2 * conv(32, 32)
            + conv(32, 16) + conv(16, 16) + conv(32, 16, 2) + 2 * conv(16, 16)
        )  # fmt: skip
        decoder = 200 * 7 * 7 * 64 + 7 * 7 * 64 + up_blocks + conv(16, 1)
        count = lambda tree: sum(l.size for l in jax.tree.leaves(tree) if hasattr(l, "shape"))
        assert count(model.encoders) == encoder
        assert count(model.decoders) == decoder
        call = lambda network, x: network(x)
        assert shapes(call, model.encoders[0], jnp.zeros((2, 3, 784))).shape == (2, 3, 200)
        assert shapes(call, model.decoders[0], jnp.zeros((2, 3, 200))).shape == (2, 3, 784)

    @pytest.mark.slow
    @pytest.mark.usefixtures("x64")
    def test_gradient(self):
        """Compares directional derivatives with finite differences, in double precision."""
        model = resnet_vae((8, 8), 6, BernoulliLikelihood(), key=jax.random.key(0))
        arrays, rest = eqx.partition(model, eqx.is_inexact_array)
        flat, unravel = ravel_pytree(arrays)
        # Zero biases would put empty patches of an image exactly on the kink of ReLU.
        flat = flat.astype(jnp.float64) + 0.02 * normal(3, flat.shape)
        y = (normal(1, (2, 64)) > 0).astype(jnp.float64)
        x = (normal(2, (2, 6)) > 0).astype(jnp.float64)

        @jax.jit
        def loss(flat):
            model = eqx.combine(unravel(flat), rest)
            return jnp.mean(model.log_likelihood(0, y, x)) + jnp.sum(model.encoders[0](y) ** 2)

        gradient = jax.grad(loss)(flat)
        for seed in range(3):
            direction = normal(10 + seed, flat.shape)
            step = 1e-6
            finite = (loss(flat + step * direction) - loss(flat - step * direction)) / (2 * step)
            np.testing.assert_allclose(gradient @ direction, finite, rtol=1e-4)

    def test_sides_must_divide_by_four(self):
        with pytest.raises(ValueError, match="multiples of 4"):
            resnet_vae((10, 8), 6, BernoulliLikelihood(), key=jax.random.key(0))
