"""Lariat, and RODEO with least-squares coefficients: exact proofs, then the gain in variance."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import steingrad as sg
from marks import slow
from problems import (
    all_tuples,
    batched,
    largest_difference,
    normal,
    normalised_distributions,
    objective,
    values_and_gradients,
)
from steingrad.estimators import lariat
from steingrad.estimators.least_squares import Products

DISTRIBUTIONS = ["bernoulli", "categorical3", "ordinal3"]
NONE = {"values": False, "gradients": False, "memory": False}
CONTEXT = 3
GROUPS = {
    "values": {**NONE, "values": True},
    "gradients": {**NONE, "gradients": True},
    "weighted": {**NONE, "gradients": True, "weighted": True},
    "memory": {**NONE, "memory": True},
    "context": {**NONE, "context_size": CONTEXT},
    "context of a layer": {**NONE, "context_size": CONTEXT, "hidden": 4},
    "stein": {**NONE, "surrogate": sg.MLPSurrogate(hidden=5)},
    "without gradients": {"gradients": False, "context_size": CONTEXT},
    "default": {},
    "all": {
        "weighted": True,
        "memory": True,
        "context_size": CONTEXT,
        "hidden": 4,
        "surrogate": sg.MLPSurrogate(hidden=5),
    },
}


def distribution(name):
    if name != "joint":
        return normalised_distributions()[name]
    return sg.Joint(
        bit=sg.Bernoulli(normal(0, 1)),
        value=sg.Ordinal(normal(1, (1, 3)), (-1, 0, 2.5)),
        pair=sg.Subset(normal(2, 3), 2),
    )


def exact(f, dist):
    shown = (lambda parts: f(dist.merge(parts))) if isinstance(dist, sg.Joint) else f
    return sg.exact_gradient(shown, dist)


def random_state(estimator, dist, seed=0):
    """Random control variates, with coefficients of order one."""
    cv = estimator.init(jax.random.key(seed), dist)
    leaves, structure = jax.tree.flatten(cv)
    leaves = [0.5 * normal(seed + 100 + i, leaf.shape) for i, leaf in enumerate(leaves)]
    cv = jax.tree.unflatten(structure, leaves)
    return with_coefficients(cv, normal(seed + 99, products(cv).matrix.shape[0] - 1))


def products(cv):
    return cv.averages.products if isinstance(cv, sg.Lariat.CV) else cv.products


def with_coefficients(cv, c, ridge=1e-4):
    """The same state, with averages that give these coefficients."""
    size = len(c) + 1
    root = normal(7, (size - 1, size - 1))
    gram = root @ root.T + jnp.eye(size - 1)
    target = -(gram + ridge * jnp.diag(jnp.diag(gram))) @ c
    matrix = jnp.eye(size).at[1:, 1:].set(gram)
    matrix = matrix.at[0, 1:].set(target).at[1:, 0].set(target)
    where = lambda cv: products(cv)
    rest = jnp.asarray(0.9), products(cv).log_unit, jnp.asarray(1.0), jnp.asarray(1.0)
    return eqx.tree_at(where, cv, Products(matrix, *rest))


def mean_estimate(estimator, dist, cv):
    """The exact mean of the estimate, over all tuples of samples."""
    f = objective(dist)
    x, probs = all_tuples(dist, estimator.num_samples)
    fx, dfx = values_and_gradients(f, x)
    context = jnp.broadcast_to(normal(8, CONTEXT), (len(probs), CONTEXT))
    dfx = dfx if estimator.needs_gradient else None
    g = estimator.estimate(cv, batched(dist, len(probs)), x, fx, dfx, context=context)
    return jax.tree.map(lambda leaf: jnp.tensordot(probs, leaf, axes=1), g)


def biases(estimator, dist, seed=0):
    """|E[g] − ∇E[f]| for each term alone, then for all terms together."""
    truth = exact(objective(dist), dist)
    cv = random_state(estimator, dist, seed)
    size = len(products(cv).matrix) - 1
    mean = jax.jit(lambda c: mean_estimate(estimator, dist, with_coefficients(cv, c)))
    return [largest_difference(mean(c), truth) for c in (*jnp.eye(size), normal(seed, size))]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("bernoulli", "gradients"),
        ("bernoulli", "memory"),
        ("bernoulli", "without gradients"),
        ("categorical3", "default"),
        ("ordinal3", "all"),
        ("subset", "default"),
        *slow(("joint", "default"), ("subset", "all"), ("joint", "all"), ("joint", "memory")),
        *slow(("autoregressive", "values"), ("autoregressive", "stein")),
        *slow(*itertools.product(DISTRIBUTIONS, GROUPS)),
    ],
)
@pytest.mark.parametrize("num_samples", [2, *slow(3)])
def test_unbiased(name, num_samples, group):
    estimator = sg.Lariat(num_samples, **GROUPS[group])
    assert max(biases(estimator, distribution(name))) < 1e-10


@pytest.mark.usefixtures("x64")
@pytest.mark.slow
def test_mean_and_slope_of_a_joint():
    """E[x] is the sum over all states, and `slope` inverts the gradient of the mean."""
    dist = distribution("joint")
    np.testing.assert_allclose(dist.mean, dist.probabilities() @ dist.enumerate(), atol=1e-12)
    gradient = sg.exact_gradient(lambda parts: objective(dist)(dist.merge(parts)), dist)
    slope, scale = dist.slope(gradient)
    pulled = jax.vjp(lambda p: dist.with_parameters(p).mean, dist.parameters)[1](slope / scale)[0]
    np.testing.assert_allclose(pulled["bit"], gradient["bit"], atol=1e-12)
    # For real values it is the component along the values; for a subset it is approximate.
    for name in ("value", "pair"):
        a, b = (np.ravel(tree[name]) for tree in (pulled, gradient))
        assert a @ b > 0.7 * np.linalg.norm(a) * np.linalg.norm(b), name


@pytest.mark.usefixtures("x64")
def test_terms_are_not_zero():
    """Every term changes the estimate, so that the proof above is not empty."""
    dist = normalised_distributions()["categorical3"]
    estimator = sg.Lariat(3, **GROUPS["all"])
    cv = random_state(estimator, dist)
    f = objective(dist)
    x = estimator.sample(jax.random.key(0), batched(dist, 5))
    fx, dfx = values_and_gradients(f, x)
    g = jax.jit(
        lambda c: estimator.estimate(
            with_coefficients(cv, c), batched(dist, 5), x, fx, dfx, context=normal(8, (5, CONTEXT))
        )
    )
    size = estimator.num_terms
    for c in jnp.eye(size):
        assert largest_difference(g(c), g(jnp.zeros(size))) > 1e-3


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["bernoulli", *slow("categorical3", "ordinal3")])
@pytest.mark.parametrize("group", ["values", *slow("weighted", "memory")])
def test_a_term_that_sees_its_own_sample_is_caught(name, group, monkeypatch):
    mean_with_its_own = lambda v: jnp.broadcast_to(jnp.mean(v, axis=0), v.shape)
    estimator, dist = sg.Lariat(3, **GROUPS[group]), normalised_distributions()[name]
    monkeypatch.setattr(lariat, "mean_of_others", mean_with_its_own)
    # Here RLOO itself is biased too, so the bias of a term is the difference from RLOO.
    truth = sg.exact_gradient(objective(dist), dist)
    cv, size = random_state(estimator, dist), estimator.num_terms
    mean = lambda c: mean_estimate(estimator, dist, with_coefficients(cv, c)) - truth
    added = [largest_difference(mean(c), mean(0 * c)) for c in jnp.eye(size)]
    # The constant 1 and the memory's slope do not depend on any sample.
    innocent = {"values": [0], "memory": [0]}.get(group, [])
    for m, bias in enumerate(added):
        assert (bias < 1e-10) == (m in innocent), (m, bias)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("group", ["default", *slow("memory")])
def test_a_state_that_has_seen_the_samples_is_caught(group):
    """Coefficients or a memory from the present step cause a bias: they must be from past steps."""
    dist = normalised_distributions()["bernoulli"]
    estimator = sg.Lariat(2, **GROUPS[group], decay=0.9)
    f = objective(dist)
    x, probs = all_tuples(dist, 2)
    fx, dfx = values_and_gradients(f, x)
    cv = random_state(estimator, dist)

    def peeking(x, fx, dfx):
        at = estimator.evaluated(cv, dist, x, fx, dfx)
        _, step = estimator.adapt(cv, dist, at)
        return estimator.gradient(
            optax.apply_updates(cv, jax.tree.map(jnp.negative, step)), dist, at
        )

    g = jax.vmap(peeking, in_axes=1)(x, fx, dfx)
    truth = sg.exact_gradient(f, dist)
    assert largest_difference(jnp.tensordot(probs, g, axes=1), truth) > 1e-3
    assert largest_difference(mean_estimate(estimator, dist, cv), truth) < 1e-10


def adapted(estimator, f, dist, steps, seed=0, context=None):
    """The control variates after this number of steps."""
    optimizer = sg.cv_optimizer(estimator)

    def step(carry, key):
        cv, state = carry
        _, grads = estimator.value_and_grad(f, dist, cv, key=key, context=context)
        updates, state = optimizer.update(grads.cv, state, cv)
        return (optax.apply_updates(cv, updates), state), None

    cv = estimator.init(jax.random.key(seed), dist)
    keys = jax.random.split(jax.random.key(seed + 1), steps)
    run = jax.jit(lambda carry: jax.lax.scan(step, carry, keys)[0])
    return run((cv, optimizer.init(cv)))[0]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["bernoulli", *slow("categorical3", "ordinal3")])
@pytest.mark.parametrize("group", ["weighted", "default"])
def test_fitted_coefficients_are_those_of_an_offline_fit(name, group):
    """They equal ordinary least squares on all numbers of all terms, weighted by age."""
    dist, batch, steps, decay = normalised_distributions()[name], 4, 30, 0.9
    estimator = sg.Lariat(3, **GROUPS[group], decay=decay, ridge=1e-13)
    dist, f, size = batched(dist, batch), objective(dist), estimator.num_terms
    optimizer = sg.cv_optimizer(estimator)
    cv = estimator.init(jax.random.key(0), dist)
    state, columns, target = optimizer.init(cv), [], []

    @jax.jit
    def at_step(cv, key):
        x = estimator.sample(key, dist)
        fx, dfx = values_and_gradients(f, x)
        at = estimator.evaluated(cv, dist, x, fx, dfx)
        terms = lambda c: estimator.gradient(with_coefficients_keeping(cv, c), dist, at)
        start = terms(jnp.zeros(size))
        each = jax.vmap(terms)(jnp.eye(size)) - start
        return start, each, estimator.adapt(cv, dist, at)[1]

    def with_coefficients_keeping(cv, c):
        # The weight is that of the true state, on which the mean of f depends.
        new = with_coefficients(cv, c, 1e-13)
        scale = jnp.maximum(products(cv).weight, 1e-3) / 0.9
        value = cv.averages.value / scale
        return eqx.tree_at(lambda cv: cv.averages.value, new, value)

    for step in range(steps):
        start, each, toward = at_step(cv, jax.random.key(step))
        age = decay ** ((steps - 1 - step) / 2)
        if step > 0:  # the first step uses the mean of its own samples
            columns.append(age * np.asarray(each).reshape(size, -1).T)
            target.append(age * np.asarray(start).ravel())
        else:
            first = toward
        updates, state = optimizer.update(toward, state, cv)
        cv = optax.apply_updates(cv, updates)

    # The first step is left out, by subtracting its share from the averages.
    share = decay ** (steps - 1)
    in_units_of_f = lambda p, sign=1: sign * p.matrix * 4 ** (sign * p.log_unit)
    matrix = in_units_of_f(products(cv)) - share * in_units_of_f(products(first), -1)
    fitted = eqx.tree_at(lambda p: p.matrix, products(cv), matrix).coefficients(decay, 1e-13)
    offline = -np.linalg.lstsq(np.concatenate(columns), np.concatenate(target), rcond=None)[0]
    np.testing.assert_allclose(fitted, offline, rtol=1e-6, atol=1e-8)


def smooth(x):
    weights = jnp.asarray(np.random.default_rng(3).normal(size=x.shape[-1]), x.dtype)
    return jnp.tanh(jnp.sum(x * weights, axis=-1)) + jnp.sum(x * weights[::-1], axis=-1) + 5


def spread(estimator, f, dist, cv, draws=400, context=None):
    """The mean square of the estimate around the exact gradient, summed over parameters."""
    draw = lambda key: estimator.per_element(f, dist, cv, key=key, context=context)[1].parameters
    g = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(77), draws))
    return float(jnp.sum(jnp.var(g, axis=0)))


def test_variance():
    """Each group of terms lowers the variance of RLOO; without ∇f the memory does."""
    dist = sg.Bernoulli(jnp.asarray(normal(4, 8), jnp.float32))
    variance = {"rloo": spread(sg.RLOO(2), smooth, dist, None)}
    for group in ("values", "default", "without gradients"):
        settings = {**GROUPS[group], "context_size": 0}
        estimator = sg.Lariat(2, **settings)
        cv = adapted(estimator, smooth, dist, 1000)
        variance[group] = spread(estimator, smooth, dist, cv)
    assert variance["values"] < 0.8 * variance["rloo"]
    assert variance["default"] < 0.5 * variance["values"]
    assert variance["without gradients"] < 0.5 * variance["values"]


@pytest.mark.parametrize("num_samples", [2, *slow(3)])
@pytest.mark.parametrize("settings", ["all", *slow("default", "without gradients")])
@pytest.mark.parametrize(
    "f",
    [
        lambda x: 0 * jnp.sum(x, axis=-1) + 3,
        *slow(
            lambda x: jnp.sum(x, axis=-1),
            lambda x: 1e6 + jnp.sum(x, axis=-1),
            lambda x: 1e-12 * jnp.sum(x, axis=-1) ** 2,
        ),
        lambda x: 1e12 * jnp.sum(x, axis=-1) ** 2,
    ],
    ids=["constant", "linear", "offset", "tiny", "huge"],
)
def test_terms_that_vanish_or_depend_on_each_other_do_no_harm(f, settings, num_samples):
    logits = jnp.asarray([[30.0, 0.3, -0.7], [-40.0, 1.2, 0.0]], jnp.float32)
    dist, context = sg.Bernoulli(logits), jnp.ones((2, CONTEXT))
    estimator = sg.Lariat(num_samples, **GROUPS[settings])
    cv = adapted(estimator, f, dist, 300, context=context)
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(cv))
    ours = spread(estimator, f, dist, cv, context=context)
    rloo = spread(sg.RLOO(num_samples), f, dist, None)
    assert ours <= 1.2 * rloo + 1e-12


def test_linear_f_has_hardly_any_variance_left():
    """A perfect fit would leave no variance. The coefficients minimise the mean square over about
    200 draws, in which the means of the terms are not exactly 0."""
    dist = sg.Bernoulli(jnp.asarray([0.3, -0.7, 1.2]))
    f = lambda x: x @ jnp.asarray([1.0, -2.0, 0.5]) + 4
    estimator = sg.Lariat(2)
    cv = adapted(estimator, f, dist, 500)
    assert spread(estimator, f, dist, cv) < 1e-2 * spread(sg.RLOO(2), f, dist, None)


def test_starts_as_rloo():
    dist = sg.Bernoulli(jnp.zeros((3, 4)))
    estimator, rloo, key = sg.Lariat(3), sg.RLOO(3), jax.random.key(2)
    truth = rloo.value_and_grad(smooth, dist, key=key)[1].parameters
    for steps, same in ((0, True), (9, True), (10, False)):
        cv = adapted(estimator, smooth, dist, steps)
        g = estimator.value_and_grad(smooth, dist, cv, key=key)[1].parameters
        assert np.allclose(g, truth, rtol=1e-5, atol=1e-7) == same


@pytest.mark.parametrize("group", ["default", *slow("all", "without gradients")])
@pytest.mark.parametrize("shape", [(2, 3), *slow(((),), ((5,),))])
@pytest.mark.parametrize("dtype", ["float32", *slow("bfloat16")])
def test_shapes_and_types(group, shape, dtype):
    logits = jnp.asarray(normal(5, (*shape, 4, 3)), dtype)
    for dist in (
        sg.Bernoulli(logits[..., 0]),
        sg.Categorical(logits),
        sg.Ordinal(logits, (-1.0, 0.0, 2.5)),
    ):
        estimator = sg.Lariat(2, **GROUPS[group])
        f = lambda x, dist=dist: jnp.sum(x.astype(jnp.float32) ** 2, axis=dist_axes(dist)) ** 1.5
        cv = random_state(estimator, dist)
        context = jnp.ones((*shape, CONTEXT))
        _, grads = estimator.value_and_grad(f, dist, cv, key=jax.random.key(0), context=context)
        assert grads.parameters.shape == dist.parameters.shape
        assert grads.parameters.dtype == logits.dtype
        assert jax.tree.map(jnp.shape, grads.cv) == jax.tree.map(jnp.shape, cv)
        assert bool(jnp.all(jnp.isfinite(grads.parameters)))


def dist_axes(dist):
    return tuple(range(-dist.event_ndim, 0))


@pytest.mark.parametrize("num_samples", [64, *slow(16)])
def test_many_samples(num_samples):
    estimator, dist = sg.Lariat(num_samples, weighted=True), sg.Bernoulli(jnp.zeros((3, 6)))
    cv = adapted(estimator, smooth, dist, 200)
    assert spread(estimator, smooth, dist, cv, 100) < spread(
        sg.RLOO(num_samples), smooth, dist, None, 100
    )


@pytest.mark.slow
def test_transformations():
    """`expectation` works under jit, vmap and scan. The step of the averages is independent of the
    loss."""
    estimator, logits = sg.Lariat(2, memory=True), jnp.asarray(normal(6, (3, 4)), jnp.float32)
    cv = adapted(estimator, smooth, sg.Bernoulli(logits), 20)

    def loss(logits, cv, key, factor=1.0):
        return factor * sg.expectation(smooth, sg.Bernoulli(logits), estimator, cv, key=key)

    keys = jax.random.split(jax.random.key(0), 4)
    grad = jax.grad(loss, (0, 1))
    one_by_one = [grad(logits, cv, key) for key in keys]
    jitted = [jax.jit(grad)(logits, cv, key) for key in keys]
    mapped = jax.vmap(lambda key: grad(logits, cv, key))(keys)
    scanned = jax.lax.scan(lambda _, key: (None, grad(logits, cv, key)), None, keys)[1]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *one_by_one)
    jitted = jax.tree.map(lambda *leaves: jnp.stack(leaves), *jitted)
    for found in (jitted, mapped, scanned):
        assert largest_difference(found, stacked) < 1e-4
    g, step = grad(logits, cv, keys[0], -3.0)
    assert largest_difference(g, -3 * one_by_one[0][0]) < 1e-5
    assert largest_difference(step, one_by_one[0][1]) < 1e-6


@pytest.mark.usefixtures("x64")
@pytest.mark.slow
def test_steps_of_parts_of_a_batch_average_to_that_of_the_whole():
    """The average over devices, each with a part of the batch, equals the result of one device."""
    logits, estimator = normal(9, (6, 4)), sg.Lariat(2, memory=True)
    cv = random_state(estimator, sg.Bernoulli(logits))
    x = estimator.sample(jax.random.key(0), sg.Bernoulli(logits))
    fx, dfx = values_and_gradients(smooth, x)

    def step(part):
        dist = sg.Bernoulli(logits[part])
        at = estimator.evaluated(cv, dist, x[:, part], fx[:, part], dfx[:, part])
        return estimator.adapt(cv, dist, at)[1]

    whole = step(slice(None))
    halves = jax.tree.map(lambda a, b: (a + b) / 2, step(slice(3)), step(slice(3, None)))
    assert largest_difference(whole, halves) < 1e-12


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["bernoulli", "autoregressive", *slow("categorical3", "ising")])
@pytest.mark.parametrize("switches", [{}, *slow({"local": False}, {"global_": False})])
def test_rodeo_by_least_squares_is_unbiased(name, switches):
    dist = normalised_distributions()[name]
    estimator = sg.Rodeo(2, surrogate=sg.MLPSurrogate(5), coefficients="least_squares", **switches)
    cv, f = random_state(estimator, dist), objective(dist)
    x, probs = all_tuples(dist, 2)
    fx, dfx = values_and_gradients(f, x)
    g = estimator.estimate(cv, batched(dist, len(probs)), x, fx, dfx)
    mean = jax.tree.map(lambda leaf: jnp.tensordot(probs, leaf, axes=1), g)
    assert largest_difference(mean, sg.exact_gradient(f, dist)) < 1e-10


def test_rodeo_by_least_squares_is_lariat_with_its_terms():
    dist = sg.Bernoulli(jnp.asarray(normal(4, (3, 6)), jnp.float32))
    rodeo = sg.Rodeo(2, surrogate=sg.LinearSurrogate(), coefficients="least_squares")
    terms = sg.Lariat(2, **NONE, surrogate=sg.LinearSurrogate())
    state = adapted(rodeo, smooth, dist, 100)
    other = adapted(terms, smooth, dist, 100)
    assert largest_difference(state.products, other.averages.products) < 1e-3
    learned = sg.Rodeo(2, surrogate=sg.LinearSurrogate())
    slow_start = spread(learned, smooth, dist, adapted(learned, smooth, dist, 100))
    assert spread(rodeo, smooth, dist, state) < 0.5 * slow_start


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_samples": 1}, "num_samples of 2"),
        (NONE, "no terms left"),
        ({"gradients": False, "weighted": True}, "weighted"),
        ({"decay": 1.0}, "decay"),
        ({"ridge": 0.0}, "ridge"),
        ({"context_size": -1}, "context_size"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        sg.Lariat(**settings)


@pytest.mark.usefixtures("unchecked_types")
def test_what_is_missing_is_named():
    with pytest.raises(ValueError, match=r"init\(key, dist\)"):
        sg.Lariat(gradients=False).init(jax.random.key(0))
    with pytest.raises(ValueError, match="least_squares"):
        sg.Rodeo(coefficients="newton")
    dist, estimator = sg.Bernoulli(jnp.zeros(3)), sg.Lariat(context_size=2)
    cv = estimator.init(jax.random.key(0), dist)
    with pytest.raises(ValueError, match="context"):
        estimator.value_and_grad(smooth, dist, cv, key=jax.random.key(0))
    dist = normalised_distributions()["ising"]
    with pytest.raises(ValueError, match="whose mean is known, but was given FromLogProb"):
        sg.Lariat().sample(jax.random.key(0), dist)
