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


# Sizes around the longest product with ones, and up to a million.
SIZES = [1, 2, 3, 31, 200, fast.SHORT - 1, fast.SHORT, fast.SHORT + 1, 784, 4096, 10**5, 10**6]
BOUND = 2.0**-18
"""The largest error, as a part of the sum of absolute values. Products with ones have up to 2⁻²⁰,
and more without the compiler's optimisation; a product over a million numbers would have 2⁻⁷."""


def numbers(kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Equal numbers are the worst case, because all rounding errors have the same sign."""
    if kind == "equal":
        return np.full(shape, 0.1, np.float32)
    return np.random.default_rng(2).normal(size=shape).astype(np.float32)


def assert_sums(found, values, sums):
    """`found` is `sums(values)` in float64, up to the stated error."""
    values = np.asarray(values, np.float64)
    error = np.abs(np.asarray(found, np.float64) - sums(values))
    assert (error <= BOUND * sums(np.abs(values)) + 1e-45).all(), np.max(error)


@pytest.mark.parametrize("kind", ["equal", "random"])
@pytest.mark.parametrize("size", SIZES)
def test_sums_are_exact_at_every_size(kind, size):
    for lead in [(), (3,)] if size > 5000 else [(), (3,), (2, 50)]:
        values = numbers(kind, (*lead, size))
        given = jnp.asarray(values)
        assert_sums(sum_of_events(given), values, lambda v: v.sum(-1))
        assert_sums(running_sum(given), values, lambda v: v.cumsum(-1))
        assert_sums(total(given), values, np.sum)
        assert_sums(mean(given), values, np.mean)
        assert_sums(fast.mean_of_squares(given), values**2, np.mean)
        across = jnp.asarray(np.moveaxis(values, -1, 0))
        assert_sums(fast.sum_of_samples(across), values, lambda v: v.sum(-1))
        assert_sums(fast.mean_of_samples(across), values, lambda v: v.mean(-1))
        # XLA's own sums, along one axis at either end of an array, are used for large sizes.
        assert_sums(jnp.sum(given, axis=-1), values, lambda v: v.sum(-1))
        assert_sums(jnp.sum(across, axis=0), values, lambda v: v.sum(-1))


@pytest.mark.parametrize(
    "shape", [(50, 31), (1000, 1000), (4, 250_000), (10**6, 1), (31, 31, 31, 31), (8,) * 6]
)
def test_total_of_arrays(shape):
    for kind in ("equal", "random"):
        values = numbers(kind, shape)
        assert_sums(total(jnp.asarray(values)), values, np.sum)
        assert_sums(sum_of_events(jnp.asarray(values), len(shape)), values, np.sum)
        # A sum of sums in one program, which the compiler must not join to one reduction.
        joined = jax.jit(lambda v: mean(jnp.sum(v, axis=-1)))
        assert_sums(joined(jnp.asarray(values)), values, lambda v: v.sum(-1).mean())


@pytest.mark.parametrize("samples", [2, 3, 16, 17, 1000])
def test_leave_one_out_with_a_large_constant(samples):
    """The error is a part of the differences, however large the values are."""
    values = 1e6 + np.random.default_rng(3).normal(size=(samples, 5)).astype(np.float32)
    values = values.astype(np.float32).astype(np.float64)
    exact = (values - values.mean(0)) * samples / (samples - 1)
    found = fast.leave_one_out(jnp.asarray(values, jnp.float32))
    np.testing.assert_allclose(found, exact, atol=2.0**-20 * np.ptp(values))
    assert not fast.leave_one_out(jnp.full((samples, 5), 0.1)).any()


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
    assert {name for name in own if not name.startswith(("plain_", "mean", "_"))} == set(PAIRS)
