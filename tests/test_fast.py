"""Fast forms of sums and solves agree with their plain definitions."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from steingrad import fast
from steingrad.fast import mean, running_sum, sum_of_events, total


@pytest.mark.parametrize("axes", [0, 1, 2])
@pytest.mark.parametrize("shape", [(3, 4, 5), (0, 4, 5), (3, 0, 5), (3, 4, 0)])
def test_is_a_sum(shape, axes):
    values = jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)
    expected = np.sum(np.asarray(values, np.float64), axis=tuple(range(3 - axes, 3)))
    np.testing.assert_allclose(sum_of_events(values, axes), expected, rtol=1e-5, atol=1e-6)


def test_infinite_values_stay_in_their_row():
    values = jnp.array([[1.0, -jnp.inf], [2.0, 3.0]])
    assert sum_of_events(values).tolist() == [-jnp.inf, 5.0]


def test_half_precision_adds_up_in_single():
    values = jnp.full(4096, 1.001, jnp.bfloat16)
    assert float(sum_of_events(values)) == pytest.approx(4096, rel=1e-2)


def test_gradient():
    gradient = jax.grad(lambda v: jnp.sum(sum_of_events(v, 2) ** 2))(jnp.ones((2, 3, 4)))
    assert jnp.array_equal(gradient, jnp.full((2, 3, 4), 24.0))


@pytest.mark.parametrize("shape", [(), (5,), (0,), (3, 4, 5), (3, 0, 5), (0, 4), (2, 100, 1)])
def test_total_and_mean(shape):
    values = jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)
    expected = np.sum(np.asarray(values, np.float64))
    np.testing.assert_allclose(total(values), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(mean(values), expected / max(values.size, 1), rtol=1e-5, atol=1e-6)


def test_gradient_of_mean():
    values = jnp.arange(1.0, 1201.0).reshape(3, 200, 2)
    np.testing.assert_allclose(jax.grad(mean)(values), jnp.full((3, 200, 2), 1 / 1200), rtol=1e-5)


def test_mean_of_numbers_whose_sum_is_too_large():
    values = jnp.full((30, 40), 1000.0, jnp.float16)
    assert mean(values) == 1000
    assert mean(values).dtype == jnp.float16


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 0, 4), (3, 1)])
def test_running_sum(shape):
    values = jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)
    np.testing.assert_allclose(running_sum(values), np.cumsum(values, -1), rtol=1e-5, atol=1e-6)


def systems(seed: int) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(6, 10, 3))
    return jnp.asarray(features.swapaxes(-1, -2) @ features), jnp.asarray(rng.normal(size=(6, 3)))


PAIRS = sorted(name.removeprefix("plain_") for name in vars(fast) if name.startswith("plain_"))
INPUTS = {"solve": systems(0)}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", PAIRS)
def test_agrees_with_its_plain_definition(name):
    rng = np.random.default_rng(1)
    given = INPUTS.get(name, (jnp.asarray(rng.normal(size=(5, 40, 7))),))
    given = jax.tree.map(lambda array: array.astype(float), given)
    quick, plain = (getattr(fast, prefix + name)(*given) for prefix in ("", "plain_"))
    np.testing.assert_allclose(quick, plain, rtol=1e-10, atol=1e-12)


def test_every_fast_sum_and_solve_has_a_plain_form():
    """Means are made of the sums."""
    functions = {name for name, member in vars(fast).items() if inspect.isfunction(member)}
    own = {name for name in functions if getattr(fast, name).__module__ == fast.__name__}
    assert {name for name in own if not name.startswith(("plain_", "mean"))} == set(PAIRS)
