"""Straight-through, Gumbel-softmax and ReinMax: hand-computed values, cases in which they are
exact, and their bias in all others."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steingrad as sg
from marks import slow
from problems import moments, normal, objective
from significance import gradient_z_scores, passes, z_scores
from steingrad.draws import gumbel, logistic
from steingrad.estimators import Estimator

BIASED = {
    "straight_through": sg.StraightThrough(),
    "gumbel_softmax": sg.GumbelSoftmax(2, temperature=0.7),
    "gumbel_straight_through": sg.GumbelSoftmax(2, 0.7, straight_through=True, jacobian_draws=3),
    "reinmax": sg.ReinMax(2),
}
BITS = sg.Bernoulli(normal(0, 3))


def kinds():
    return {
        "bits": sg.Bernoulli(normal(0, 2)),
        "two categories": sg.Categorical(normal(1, (2, 2))),
        "categories": sg.Categorical(normal(2, (2, 4))),
        "ordinal": sg.Ordinal(normal(3, (2, 3)), (-1.0, 0.5, 3.0)),
    }


KINDS = list(kinds())


def polynomial(dist, degree, seed=20):
    """A polynomial of this degree in each coordinate, with products of all coordinates."""
    axes = tuple(range(-dist.event_ndim, 0))
    w = normal(seed, (degree + 1, *dist.event_shape))
    # The terms of a category may mix its entries, because it is a one-hot vector.
    own = tuple(range(-dist.event_ndim + 1, 0))

    def f(x):
        each = sum(jnp.sum(w[i] * x, axis=own) ** i for i in range(1, degree + 1))
        return jnp.prod(1.5 + each, axis=-1) + jnp.sum(w[0] * x, axis=axes)

    return f


def bias(estimator, dist, f):
    """The exact bias, by summation over the samples, relative to the size of the gradient."""
    exact = sg.exact_gradient(f, dist)
    mean, _ = moments(estimator, None, dist, f)
    return float(jnp.linalg.norm(mean - exact) / jnp.linalg.norm(exact))


def test_they_say_so():
    for estimator in BIASED.values():
        assert estimator.biased
        assert repr(estimator).endswith(" (biased)")
        assert estimator.needs_gradient
        assert estimator.num_evaluations(BITS) == estimator.num_samples
    assert not Estimator.biased
    assert not sg.RLOO(2).biased
    assert "biased" not in repr(sg.RLOO(2))


class TestValues:
    """Values computed by hand."""

    def test_bits(self):
        q = sg.Bernoulli(jnp.log(jnp.array([1 / 3, 1.0])))  # θ = 1/4, 1/2
        x, dfx = jnp.array([[1.0, 0.0]]), jnp.array([[2.0, 4.0]])
        estimate = lambda estimator: estimator.estimate(None, q, x, jnp.zeros(1), dfx)
        np.testing.assert_allclose(estimate(sg.StraightThrough()), [2 * 3 / 16, 1], rtol=1e-6)
        # π_D = 5/8, 1/4: 2 · 15/64 · 2 − ½ · 3/16 · 2 and 2 · 3/16 · 4 − ½ · 1/4 · 4.
        np.testing.assert_allclose(estimate(sg.ReinMax()), [3 / 4, 1], rtol=1e-6)
        # A relaxed bit y has derivative y(1 − y)/τ.
        x = jnp.array([[0.2, 0.5]])
        g = sg.GumbelSoftmax(temperature=0.5).estimate(None, q, x, jnp.zeros(1), dfx)
        np.testing.assert_allclose(g, [2 * 0.16 * 2, 2 * 0.25 * 4], rtol=1e-6)

    @pytest.mark.usefixtures("x64")
    def test_categories(self):
        p, onehot, dfx = np.array([0.2, 0.3, 0.5]), np.array([0.0, 1.0, 0.0]), np.array([1, 2, 4.0])
        q = sg.Categorical(jnp.log(p)[None])
        estimate = lambda estimator: estimator.estimate(
            None, q, jnp.asarray(onehot)[None, None], jnp.zeros(1), jnp.asarray(dfx)[None, None]
        )[0]
        jacobian = lambda p: np.diag(p) - np.outer(p, p)
        np.testing.assert_allclose(estimate(sg.StraightThrough()), jacobian(p) @ dfx, rtol=1e-12)
        for temperature in (1.0, 0.5):
            soft = p ** (1 / temperature) / np.sum(p ** (1 / temperature))
            reinmax = 2 * jacobian((soft + onehot) / 2) @ dfx - jacobian(p) @ dfx / 2
            g = estimate(sg.ReinMax(temperature=temperature))
            np.testing.assert_allclose(g, reinmax, rtol=1e-12)

    @pytest.mark.usefixtures("x64")
    @pytest.mark.parametrize("name", ["straight_through", "reinmax"])
    def test_a_bit_is_two_categories(self, name):
        bits, key = sg.Bernoulli(normal(4, 3)), jax.random.key(0)
        two = sg.Categorical(jnp.stack([jnp.zeros(3), bits.logits], axis=-1))
        f = objective(bits)
        x = bits.sample(key, (BIASED[name].num_samples,))
        both = lambda x: jnp.stack([1 - x, x], axis=-1)
        dfx = jax.grad(lambda x: jnp.sum(f(x)))(x)
        ours = BIASED[name].estimate(None, bits, x, f(x), dfx)
        dfx = jnp.stack([0 * dfx, dfx], axis=-1)
        theirs = BIASED[name].estimate(None, two, both(x), f(x), dfx)
        np.testing.assert_allclose(both(ours)[..., 1], theirs[..., 1], rtol=1e-12)

    @pytest.mark.usefixtures("x64")
    @pytest.mark.parametrize("kind", ["bits", "categories"])
    def test_gumbel_softmax_is_the_derivative_along_the_noise(self, kind):
        dist, key, tau = kinds()[kind], jax.random.key(0), 0.6
        f = objective(dist)
        draw, squash = {
            "bits": (logistic, jax.nn.sigmoid),
            "categories": (gumbel, jax.nn.softmax),
        }[kind]
        noise = draw(jax.random.split(key, 3)[0], (2, *dist.logits.shape), dist.logits.dtype)
        loss = lambda logits: jnp.mean(f(squash((logits + noise) / tau)))
        value, grads = sg.GumbelSoftmax(2, tau).value_and_grad(f, dist, key=key)
        np.testing.assert_allclose(value, loss(dist.logits), rtol=1e-12)
        np.testing.assert_allclose(grads.parameters, jax.grad(loss)(dist.logits), rtol=1e-10)


@pytest.mark.usefixtures("x64")
class TestExact:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.slow
    def test_straight_through_where_f_is_affine_in_each_coordinate(self, kind):
        dist = kinds()[kind]
        assert bias(sg.StraightThrough(), dist, polynomial(dist, 1)) < 1e-12
        assert bias(sg.StraightThrough(), dist, polynomial(dist, 2)) > 0.005

    @pytest.mark.parametrize("kind", [KINDS[0], *slow(*KINDS[1:])])
    def test_reinmax_where_f_is_quadratic_in_each_coordinate(self, kind):
        """It is exact for categories too, whose pairs also follow the trapezoidal rule."""
        dist = kinds()[kind]
        assert bias(sg.ReinMax(2), dist, polynomial(dist, 1)) < 1e-12
        assert bias(sg.ReinMax(), dist, polynomial(dist, 2)) < 1e-12
        assert bias(sg.ReinMax(temperature=1.3), dist, polynomial(dist, 2)) > 1e-3
        assert bias(sg.ReinMax(), dist, polynomial(dist, 3)) > 1e-3

    def test_the_variables_may_interact(self):
        dist, w = kinds()["categories"], normal(30, (8, 8))
        f = lambda x: jnp.sum((x.reshape(*x.shape[:-2], 8) @ w) ** 2, axis=-1)
        assert bias(sg.ReinMax(), dist, f) < 1e-12
        assert bias(sg.StraightThrough(), dist, f) > 0.05


@pytest.mark.usefixtures("x64")
class TestBiased:
    """In all other cases there is a bias, which the proof of unbiasedness detects."""

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("name", ["straight_through", "reinmax"])
    def test_by_summation(self, name, kind):
        dist = kinds()[kind]
        assert bias(BIASED[name], dist, objective(dist)) > 0.01

    @pytest.mark.parametrize("name", BIASED)
    def test_by_draws(self, name):
        dist = kinds()["bits"]
        assert not passes(gradient_z_scores(BIASED[name], None, dist, objective(dist)))


@pytest.mark.usefixtures("x64")
class TestRaoBlackwell:
    """The straight-through Gumbel-softmax averages a Jacobian over noise given the sample."""

    @pytest.mark.parametrize(("kind", "draws"), [("bits", 1), ("bits", 3), ("categories", 2)])
    def test_mean(self, kind, draws):
        """For a linear f the mean is that of J(y)/τ over independent noise."""
        dist, tau = kinds()[kind], 0.8
        weights = normal(31, dist.event_shape)
        axes = tuple(range(-dist.event_ndim, 0))
        f = lambda x: jnp.sum(weights * x, axis=axes)
        estimator = sg.GumbelSoftmax(1, tau, straight_through=True, jacobian_draws=draws)
        plain = sg.GumbelSoftmax(1, tau)

        def difference(key):
            keys = jax.random.split(key)
            one, other = (
                e.value_and_grad(f, dist, key=k)[1].parameters
                for e, k in zip((estimator, plain), keys, strict=True)
            )
            return one - other

        assert passes(z_scores(difference, jnp.zeros(dist.logits.shape)))

    def test_more_draws_have_less_variance(self):
        dist, keys = kinds()["categories"], jax.random.split(jax.random.key(0), 4000)
        f = objective(dist)

        def variance(draws):
            estimator = sg.GumbelSoftmax(1, 0.3, straight_through=True, jacobian_draws=draws)
            draw = lambda key: estimator.value_and_grad(f, dist, key=key)[1].parameters
            return float(jnp.sum(jnp.var(jax.jit(jax.vmap(draw))(keys), axis=0)))

        one, ten, hundred = map(variance, (1, 10, 100))
        assert hundred < ten < 0.8 * one

    def test_samples_are_true_ones(self):
        hard, soft = sg.GumbelSoftmax(3, straight_through=True), sg.GumbelSoftmax(3)
        x, y = (e.sample(jax.random.key(0), kinds()["categories"]) for e in (hard, soft))
        assert set(np.unique(x)) == {0, 1}
        np.testing.assert_allclose(jnp.sum(y, axis=-1), 1)
        assert bool(jnp.all((y > 0) & (y < 1)))


EXTREME = {
    "bits": np.array([-40.0, 40.0, 0.3, -40.0]),
    "categories": np.array([[-40.0, 40.0, 0.0], [40.0, 40.0, -40.0]]),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", EXTREME)
@pytest.mark.parametrize("name", BIASED)
def test_extreme_logits(name, kind, dtype):
    """Results are finite and of the right dtype, for a batch, and under `jax.grad`."""
    make = sg.Bernoulli if kind == "bits" else sg.Categorical
    logits = jnp.broadcast_to(jnp.asarray(EXTREME[kind], dtype), (2, 3, *EXTREME[kind].shape))
    event = tuple(range(-EXTREME[kind].ndim, 0))
    f = lambda x: jnp.sum(x * jnp.arange(x.shape[-1], dtype=x.dtype), axis=event) ** 2

    @eqx.filter_jit
    def run(logits, key):
        loss = lambda logits: sg.expectation(f, make(logits), BIASED[name], key=key)
        return jax.value_and_grad(loss)(logits)

    value, grad = run(logits, jax.random.key(0))
    assert grad.shape == logits.shape
    assert grad.dtype == logits.dtype
    assert bool(jnp.isfinite(value))
    assert bool(jnp.all(jnp.isfinite(grad)))
    assert bool(jnp.any(grad != 0))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: sg.StraightThrough(0), "StraightThrough needs a whole num_samples of 1 or more"),
        (lambda: sg.ReinMax(0), "ReinMax needs a whole num_samples of 1 or more"),
        (lambda: sg.ReinMax(temperature=0.0), "ReinMax needs a temperature above 0"),
        (lambda: sg.GumbelSoftmax(temperature=-1.0), "GumbelSoftmax needs a temperature above 0"),
        (lambda: sg.GumbelSoftmax(jacobian_draws=2), "more than 1 needs straight_through=True"),
        (lambda: sg.GumbelSoftmax(0), "GumbelSoftmax needs a whole num_samples of 1 or more"),
        (
            lambda: sg.GumbelSoftmax(straight_through=True).estimate(
                None, BITS, jnp.zeros((1, 3)), jnp.zeros(1), jnp.zeros((1, 3))
            ),
            "pass key=",
        ),
        (
            lambda: sg.ReinMax().estimate(None, BITS, jnp.zeros((1, 3)), jnp.zeros(1)),
            "needs the gradient of f",
        ),
        (
            lambda: sg.GumbelSoftmax().sample(jax.random.key(0), kinds()["ordinal"]),
            "GumbelSoftmax needs independent bits or one-hot categories, but was given Ordinal",
        ),
    ],
)
def test_refusals(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
