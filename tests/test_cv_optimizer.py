"""One optimiser for the control variates of any estimator."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import steingrad as sg
from steingrad.estimators.optimizers import adam

KEY = jax.random.key(0)
DIST = sg.Bernoulli(jnp.linspace(-1, 1, 4))


def f(x):
    return jnp.sum((x - 0.45) ** 2, axis=-1) + 5


def steps(estimator, optimizer, count=5):
    """The control variates after some steps, and the gradients of these steps."""
    cv = estimator.init(KEY, DIST)
    state, gradients = optimizer.init(cv), []
    for i in range(count):
        _, grads = estimator.value_and_grad(f, DIST, cv, key=jax.random.fold_in(KEY, i))
        updates, state = optimizer.update(grads.cv, state, cv)
        with jax.numpy_dtype_promotion("standard"):
            cv = optax.apply_updates(cv, updates)
        gradients.append(grads.cv)
    return cv, gradients


@pytest.mark.parametrize(
    ("estimator", "b1"),
    [(sg.DoubleCV(2), 0.9), (sg.Reinforce(2, "learned"), 0.9), (sg.Rebar(), 0.999)],
)
def test_adam(estimator, b1):
    cv, gradients = steps(estimator, sg.cv_optimizer(estimator, learning_rate=0.01))
    theirs = estimator.init(KEY, DIST)
    plain = optax.adam(0.01, b1=b1)
    state = plain.init(theirs)
    with jax.numpy_dtype_promotion("standard"):
        for gradient in gradients:
            updates, state = plain.update(gradient, state)
            theirs = optax.apply_updates(theirs, updates)
    for a, b in zip(jax.tree.leaves(cv), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=3e-6)


@pytest.mark.parametrize("estimator", [sg.DoubleCV(2), sg.Rebar(2)], ids=["DoubleCV", "Rebar"])
def test_adam_takes_its_step_however_small_f_is(estimator):
    """The gradient for control variates is proportional to f² and to the batch size to the power
    −2."""
    q = sg.Bernoulli(jnp.zeros((1000, 4)))
    cv = estimator.init(KEY, q)
    optimizer = sg.cv_optimizer(estimator, 1e-3)
    first = []
    for factor in (1.0, 1e-2):
        _, grads = sg.value_and_grad(lambda x, c=factor: c * f(x), q, estimator, cv, key=KEY)
        first.append(optimizer.update(grads.cv, optimizer.init(cv), cv)[0])
    for large, small in zip(*map(jax.tree.leaves, first), strict=True):
        np.testing.assert_allclose(large, small, rtol=0.05)
        np.testing.assert_allclose(np.abs(small), 1e-3, rtol=0.05)


def test_rounding_errors_are_no_gradient():
    """A parameter whose gradient is 0 up to rounding does not move, while others do."""
    optimizer = adam(1e-3)
    gradient = {"large": jnp.array(1e-6), "rounding": jnp.array(1e-18)}
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = optimizer.update(gradient, optimizer.init(gradient))
    np.testing.assert_allclose(updates["large"], -1e-3, rtol=1e-5)
    assert abs(float(updates["rounding"])) < 1e-6


def test_moving_average():
    """The average begins with the second step. The first tells the size of f alone."""
    estimator, average = sg.Reinforce(2, "moving_average"), 0.0
    cv, _ = steps(estimator, sg.cv_optimizer(estimator, learning_rate=1e9), count=3)
    for i in range(1, 3):
        value, _ = estimator.value_and_grad(
            f, DIST, estimator.init(KEY), key=jax.random.fold_in(KEY, i)
        )
        average = 0.99 * average + 0.01 * float(value)
    np.testing.assert_allclose(cv.baseline, average, rtol=1e-5)


def test_nothing_learned():
    cv, _ = steps(sg.RLOO(2), sg.cv_optimizer(sg.RLOO(2)))
    assert cv is None


def test_a_schedule():
    """The learning rate may be a schedule."""
    estimator = sg.DoubleCV(2)
    still = sg.cv_optimizer(estimator, optax.piecewise_constant_schedule(0.1, {2: 0.0}))
    two, _ = steps(estimator, still, count=2)
    ten, _ = steps(estimator, still, count=10)
    np.testing.assert_array_equal(two.alpha, ten.alpha)
    assert float(two.alpha) != 0


def test_other_structures_are_refused():
    """optax.flatten hides what an average is, unless everything is treated the same."""
    for estimator in (sg.Lariat(2), sg.Rodeo(2, coefficients="least_squares")):
        optimizer = optax.flatten(sg.cv_optimizer(estimator))
        with pytest.raises(TypeError, match=r"given f32\[\d+\]. .* such as optax.flatten: use cv_"):
            optimizer.init(estimator.init(KEY, DIST))
    layers = (sg.DoubleCV(2), sg.DoubleCV(2))
    cv = tuple(estimator.init(KEY, DIST) for estimator in layers)
    with pytest.raises(TypeError, match=r"takes the tuple .* given f32\[2\]. .* optax.flatten"):
        optax.flatten(sg.cv_optimizer(layers)).init(cv)
    estimator = sg.Reinforce(2, "moving_average")
    plain, flat = sg.cv_optimizer(estimator), optax.flatten(sg.cv_optimizer(estimator))
    (a, _), (b, _) = steps(estimator, plain, 2), steps(estimator, flat, 2)
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_several_layers():
    """Each layer gets the optimiser of its own estimator."""
    layers = (sg.Reinforce(2, "moving_average"), sg.RLOO(2), sg.DoubleCV(2))
    optimizer = sg.cv_optimizer(layers, learning_rate=0.01)
    cv = tuple(estimator.init(KEY, DIST) for estimator in layers)
    grads = tuple(
        e.value_and_grad(f, DIST, c, key=KEY)[1].cv for e, c in zip(layers, cv, strict=True)
    )
    together, _ = optimizer.update(grads, optimizer.init(cv), cv)
    for estimator, one_cv, gradient, update in zip(layers, cv, grads, together, strict=True):
        alone = sg.cv_optimizer(estimator, learning_rate=0.01)
        expected, _ = alone.update(gradient, alone.init(one_cv), one_cv)
        assert jax.tree.map(float, update) == jax.tree.map(float, expected)
