"""`sample`: the estimator's gradient for whatever cotangent arrives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steingrad as sg
from marks import slow
from problems import normal, objective

ESTIMATORS = {
    "straight_through": sg.StraightThrough(),
    "reinmax": sg.ReinMax(temperature=1.2),
    "gumbel": sg.GumbelSoftmax(temperature=0.7),
    "gumbel_hard": sg.GumbelSoftmax(temperature=0.7, straight_through=True, jacobian_draws=3),
}


def kinds():
    return {
        "bits": sg.Bernoulli(normal(0, (2, 3))),
        "categories": sg.Categorical(normal(1, (2, 2, 4))),
        "ordinal": sg.Ordinal(normal(3, (2, 2, 3)), (-1.0, 0.5, 3.0)),
        "joint": sg.Joint(
            a=sg.Bernoulli(normal(4, (2, 2))), b=sg.Categorical(normal(5, (2, 1, 3)))
        ),
        "subset": sg.Subset(normal(6, (2, 4)), 2),
    }


APPLICABLE = [
    (estimator, kind)
    for estimator in ESTIMATORS
    for kind in ("bits", "categories", "ordinal", "joint", "subset")
    if not (kind in ("ordinal", "subset") and estimator.startswith("gumbel"))
    and not (kind == "subset" and estimator == "reinmax")
]


def f_of(dist):
    f = objective(dist)
    return (lambda x: f(dist.merge(x))) if isinstance(dist, sg.Joint) else f


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("name", "kind"), [*APPLICABLE[::3], *slow(*APPLICABLE[1::3], *APPLICABLE[2::3])]
)
def test_same_numbers_as_value_and_grad(name, kind):
    """The same sample, value and gradient, in reverse mode; forward mode is its transpose."""
    dist, estimator, key = kinds()[kind], ESTIMATORS[name], jax.random.key(7)
    f = f_of(dist)
    value, grads = sg.value_and_grad(f, dist, estimator, key=key)

    @jax.jit
    def loss(parameters):
        return jnp.mean(f(sg.sample(key, dist.with_parameters(parameters), estimator)))

    ours, gradient = jax.value_and_grad(loss)(dist.parameters)
    np.testing.assert_allclose(ours, value, rtol=1e-13)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-13)
    jax.tree.map(close, gradient, grads.parameters)
    forward = jax.jacfwd(loss)(dist.parameters)
    jax.tree.map(close, forward, grads.parameters)
    assert any(float(jnp.max(jnp.abs(g))) > 1e-3 for g in jax.tree.leaves(gradient))


@pytest.mark.parametrize("kind", ["bits", "categories", "joint"])
@pytest.mark.parametrize("name", ["straight_through", "reinmax", "gumbel_hard"])
def test_values_are_states(name, kind):
    dist, key = kinds()[kind], jax.random.key(3)
    x = sg.sample(key, dist, ESTIMATORS[name])
    drawn = ESTIMATORS[name].draw(jax.random.split(key, 3)[0], dist)[0]
    jax.tree.map(np.testing.assert_array_equal, x, dist.view(drawn))
    if kind == "joint":
        assert x["a"].shape == (2, 2)
        assert x["b"].shape == (2, 1, 3)
    else:
        assert x.shape == (*dist.batch_shape, *dist.event_shape)


def test_two_wrong_jacobians_are_seen():
    """The cotangent must be multiplied by the estimator's own Jacobian."""
    dist, key = kinds()["bits"], jax.random.key(7)
    f = f_of(dist)
    of = lambda estimator: jax.grad(
        lambda p: jnp.mean(f(sg.sample(key, dist.with_parameters(p), estimator)))
    )(dist.parameters)
    _, grads = sg.value_and_grad(f, dist, sg.ReinMax(), key=key)
    assert float(jnp.max(jnp.abs(of(sg.StraightThrough()) - grads.parameters))) > 1e-3
    assert float(jnp.max(jnp.abs(of(sg.ReinMax()) - grads.parameters))) < 1e-6


def test_scan_and_vmap():
    """A chain of samples, each with the logits of the one before: gradients reach every step."""

    def run(bias, key):
        def step(x, key):
            x = sg.sample(key, sg.Bernoulli(0.5 * x + bias), sg.ReinMax())
            return x, jnp.sum(x)

        return jnp.sum(jax.lax.scan(step, jnp.zeros(3), jax.random.split(key, 4))[1])

    def unrolled(bias, key):
        x, total = jnp.zeros(3), 0.0
        for own in jax.random.split(key, 4):
            x = sg.sample(own, sg.Bernoulli(0.5 * x + bias), sg.ReinMax())
            total += jnp.sum(x)
        return total

    keys, bias = jax.random.split(jax.random.key(0), 5), jnp.array([0.3, -0.2, 0.1])
    scanned = jax.jit(jax.vmap(jax.grad(run), (None, 0)))(bias, keys)
    one_by_one = jnp.stack([jax.grad(unrolled)(bias, key) for key in keys])
    np.testing.assert_allclose(scanned, one_by_one, rtol=2e-5)
    assert float(jnp.min(scanned)) > 0.2


@pytest.mark.parametrize("name", ESTIMATORS)
def test_extreme_logits_and_half_precision(name):
    logits = jnp.array([jnp.inf, -jnp.inf, 40.0, 0.1])
    for dtype in (jnp.float32, jnp.bfloat16):
        loss = lambda l: jnp.sum(sg.sample(jax.random.key(0), sg.Bernoulli(l), ESTIMATORS[name]))
        value, grad = jax.value_and_grad(loss)(logits.astype(dtype))
        assert value.dtype == grad.dtype == dtype
        assert bool(jnp.isfinite(value))
        assert bool(jnp.all(jnp.isfinite(grad)))
        assert float(grad[3]) > 0


def test_second_derivatives_by_the_parameters_are_refused():
    logits, key = jnp.array([0.3, -0.2]), jax.random.key(0)
    loss = lambda l, w: jnp.sum(w * (1 + sg.sample(key, sg.Bernoulli(l), sg.ReinMax())) ** 2)
    with pytest.raises(TypeError, match="this is a second derivative"):
        jax.jacrev(jax.grad(loss))(logits, jnp.ones(2))
    by_w = jax.jacrev(jax.grad(loss), 1)(logits, jnp.ones(2))
    assert by_w.shape == (2, 2)
    assert bool(jnp.any(by_w != 0))


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("estimator", "error", "sentence"),
    [
        (sg.RLOO(4), ValueError, r"call expectation\(f, dist, RLOO\(4\), key=key\)"),
        (sg.Rebar(), ValueError, "was given Rebar, which needs the values of f"),
        (sg.ReinMax(3), ValueError, "num_samples=3"),
        (sg.ReinMax, TypeError, "sample needs an estimator such as ReinMax"),
        (None, TypeError, "sample needs an estimator such as ReinMax"),
    ],
)
def test_refusals(estimator, error, sentence):
    with pytest.raises(error, match=sentence):
        sg.sample(jax.random.key(0), kinds()["bits"], estimator)


@pytest.mark.usefixtures("unchecked_types")
def test_more_refusals():
    with pytest.raises(ValueError, match="GumbelSoftmax needs independent bits or one-hot"):
        sg.sample(jax.random.key(0), kinds()["ordinal"], sg.GumbelSoftmax())
    with pytest.raises(TypeError, match="key must be a random key"):
        sg.sample(0, kinds()["bits"], sg.ReinMax())
    with pytest.raises(TypeError, match="dist must be a distribution"):
        sg.sample(jax.random.key(0), jnp.zeros(3), sg.ReinMax())
