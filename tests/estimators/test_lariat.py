"""Lariat, and RODEO with coefficients by least squares: exact proofs first, then what they gain."""

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


def random_state(estimator, dist, seed=0):
    """Control variates in any state at all, with coefficients of order one."""
    cv = estimator.init(jax.random.key(seed), dist)
    leaves, structure = jax.tree.flatten(cv)
    leaves = [0.5 * normal(seed + 100 + i, leaf.shape) for i, leaf in enumerate(leaves)]
    cv = jax.tree.unflatten(structure, leaves)
    return with_coefficients(cv, normal(seed + 99, products(cv).matrix.shape[0] - 1))


def products(cv):
    return cv.averages.products if isinstance(cv, sg.Lariat.CV) else cv.products


def with_coefficients(cv, c):
    """The same state with averages from which these coefficients follow."""
    size = len(c) + 1
    root = normal(7, (size - 1, size - 1))
    gram = root @ root.T + jnp.eye(size - 1)
    ridge = 1e-4 * jnp.diag(jnp.diag(gram))
    target = -(gram + ridge) @ c
    matrix = jnp.zeros((size, size)).at[1:, 1:].set(gram)
    matrix = matrix.at[0, 1:].set(target).at[1:, 0].set(target)
    where = lambda cv: products(cv)
    return eqx.tree_at(where, cv, Products(matrix, jnp.asarray(0.6)))


def mean_estimate(estimator, dist, cv):
    """The exact mean of the estimate, over all tuples of samples."""
    f = objective(dist)
    x, probs = all_tuples(dist, estimator.num_samples)
    fx, dfx = values_and_gradients(f, x)
    context = jnp.broadcast_to(normal(8, CONTEXT), (len(probs), CONTEXT))
    dfx = dfx if estimator.needs_gradient else None
    g = estimator.estimate(cv, batched(dist, len(probs)), x, fx, dfx, context=context)
    return jnp.tensordot(probs, g, axes=1)


def biases(estimator, dist, seed=0):
    """|E[g] − ∇E[f]| for each term alone, then for all together."""
    truth = sg.exact_gradient(objective(dist), dist)
    cv = random_state(estimator, dist, seed)
    size = len(products(cv).matrix) - 1
    mean = jax.jit(lambda c: mean_estimate(estimator, dist, with_coefficients(cv, c)))
    return [largest_difference(mean(c), truth) for c in (*jnp.eye(size), normal(seed, size))]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("num_samples", [2, 3])
@pytest.mark.parametrize("group", GROUPS)
def test_unbiased(name, num_samples, group):
    estimator = sg.Lariat(num_samples, **GROUPS[group])
    assert max(biases(estimator, normalised_distributions()[name])) < 1e-10


@pytest.mark.usefixtures("x64")
def test_terms_are_not_zero():
    """Every term changes the estimate, so that the proof above is about something."""
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
@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("group", ["values", "gradients", "weighted", "memory"])
def test_a_term_that_sees_its_own_sample_is_caught(name, group, monkeypatch):
    mean_with_its_own = lambda v: jnp.broadcast_to(jnp.mean(v, axis=0), v.shape)
    estimator, dist = sg.Lariat(3, **GROUPS[group]), normalised_distributions()[name]
    monkeypatch.setattr(lariat, "mean_of_others", mean_with_its_own)
    # RLOO itself is biased now too: the terms are what is added to that.
    truth = sg.exact_gradient(objective(dist), dist)
    cv, size = random_state(estimator, dist), estimator.num_terms
    mean = lambda c: mean_estimate(estimator, dist, with_coefficients(cv, c)) - truth
    added = [largest_difference(mean(c), mean(0 * c)) for c in jnp.eye(size)]
    # 1, and the memory's own slope, know no sample.
    innocent = {"values": [0], "memory": [0]}.get(group, [])
    for m, bias in enumerate(added):
        assert (bias < 1e-10) == (m in innocent), (m, bias)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("group", ["default", "memory"])
def test_a_state_that_has_seen_the_samples_is_caught(group):
    """Coefficients, or a memory, from this very step are a bias: they must be of the past."""
    dist = normalised_distributions()["bernoulli"]
    estimator = sg.Lariat(2, **GROUPS[group], decay=0.5)
    f = objective(dist)
    x, probs = all_tuples(dist, 2)
    fx, dfx = values_and_gradients(f, x)
    cv = random_state(estimator, dist)

    def peeking(x, fx, dfx):
        at = estimator.evaluated(cv, dist, x, fx, dfx)
        _, step = estimator.adapt(cv, dist, at)
        return estimator.gradient(optax.apply_updates(cv, jax.tree.map(jnp.negative, step)), dist, at)

    g = jax.vmap(peeking, in_axes=1)(x, fx, dfx)
    truth = sg.exact_gradient(f, dist)
    assert largest_difference(jnp.tensordot(probs, g, axes=1), truth) > 1e-3
    assert largest_difference(mean_estimate(estimator, dist, cv), truth) < 1e-10


def adapted(estimator, f, dist, steps, seed=0, context=None):
    """The control variates after so many steps."""
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
@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("group", ["weighted", "default"])
def test_fitted_coefficients_are_those_of_an_offline_fit(name, group):
    """Ordinary least squares on every number of every term, written out, weighted by age."""
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
        # With the weight of the true state, on which the mean of f depends.
        new = with_coefficients(cv, c)
        scale = jnp.maximum(products(cv).weight, 1e-3) / 0.6
        value = cv.averages.value / scale
        return eqx.tree_at(lambda cv: cv.averages.value, new, value)

    for step in range(steps):
        start, each, toward = at_step(cv, jax.random.key(step))
        age = decay ** ((steps - 1 - step) / 2)
        if step > 0:  # the first has its own samples' mean for that of the past
            columns.append(age * np.asarray(each).reshape(size, -1).T)
            target.append(age * np.asarray(start).ravel())
        else:
            first = toward
        updates, state = optimizer.update(toward, state, cv)
        cv = optax.apply_updates(cv, updates)

    # Without the first step, by taking its share out of the averages.
    share = decay ** (steps - 1)
    matrix = products(cv).matrix + share * products(first).matrix
    fitted = Products(matrix, products(cv).weight).coefficients(decay, 1e-13)
    offline = -np.linalg.lstsq(np.concatenate(columns), np.concatenate(target), rcond=None)[0]
    np.testing.assert_allclose(fitted, offline, rtol=1e-6, atol=1e-8)
