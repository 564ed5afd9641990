"""Random numbers near 0 and 1, where events of tiny probability are decided.

Such events are too rare to wait for. The tests set the first random bits to 0, so that all numbers
are near an end, and compare frequencies there with the conditional probabilities.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steingrad as sg
from steingrad import draws
from steingrad.estimators.couplings import antithetic_pairs, mutually_antithetic

N = 100_000
SINGLE, DOUBLE = jnp.dtype("float32"), jnp.dtype("float64")


@pytest.fixture
def near_the_ends(monkeypatch):
    """Returns a function that makes all words begin with this many zeros, if `where` is true."""
    bits = jax.random.bits

    def zeros(first, others=0, where=lambda shape: True):
        amounts = iter([first])

        def shifted(key, shape, dtype):
            words = bits(key, shape, dtype)
            amount = jnp.asarray(next(amounts, others), dtype)
            # The last bit decides which end is near, and stays random.
            return jnp.where(where(shape), (words >> amount) & ~(amount * 0 + 1) | words & 1, words)

        monkeypatch.setattr(jax.random, "bits", shifted)
        draws.uniform.clear_cache()

    yield zeros
    monkeypatch.undo()
    draws.uniform.clear_cache()


def assert_frequency(hits, probability):
    """The frequency is within four standard errors of its expectation."""
    error = np.sqrt(probability * (1 - probability) / np.size(hits))
    assert abs(np.mean(hits) - probability) < 4 * error, (np.mean(hits), probability)


def tail(log_odds):
    return 1 / (1 + np.exp(np.float64(abs(log_odds))))


@pytest.mark.parametrize(
    ("logit", "first", "others", "size"),
    # The last number is the size of t: 24 zeros in one word, or 31 in the first and 24 in others.
    [
        (18, 24, 0, 2.0**-24),
        (20, 24, 0, 2.0**-24),
        (24, 31, 0, 2.0**-31),
        (40.8963, 31, 24, 2.0**-55),
    ],
)
@pytest.mark.parametrize("sign", [-1, 1])
def test_bits_in_both_tails(near_the_ends, logit, first, others, size, sign):
    near_the_ends(first, others)
    x = sg.Bernoulli(jnp.full(N, sign * logit, jnp.float32)).sample(jax.random.key(int(logit)))
    rare = np.asarray(x) == (sign < 0)
    # Half of the numbers are near the other end, where the rare value does not occur.
    assert_frequency(rare, tail(logit) / size)


@pytest.mark.usefixtures("x64")
def test_bits_in_double_precision(near_the_ends):
    near_the_ends(63)
    x = sg.Bernoulli(jnp.full(N, -44.5)).sample(jax.random.key(0))
    assert x.dtype == jnp.float64
    assert_frequency(np.asarray(x), tail(44.5) * 2.0**63)


def test_the_smallest_numbers(near_the_ends):
    """All random bits are 0: the numbers are still positive, and no bit of probability 0 occurs."""
    near_the_ends(31, 31)
    u = draws.uniform(jax.random.key(0), (10,), SINGLE)
    assert (np.asarray(u.distance) < 1e-37).all()
    assert (np.asarray(u.distance) > 0).all()
    for noise in (draws.logistic, draws.exponential, draws.gumbel):
        assert np.isfinite(noise(jax.random.key(0), (10,), SINGLE)).all()
    x = sg.Bernoulli(jnp.array([-jnp.inf, jnp.inf])).sample(jax.random.key(0), (100,))
    np.testing.assert_array_equal(x, np.broadcast_to([0.0, 1.0], (100, 2)))


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
def test_noise_has_its_distribution(dtype):
    """The largest distance of the distribution functions (Kolmogorov–Smirnov, level 10⁻⁴)."""
    functions = {
        "uniform": lambda v: v,
        "logistic": lambda v: 1 / (1 + np.exp(-v)),
        "exponential": lambda v: -np.expm1(-v),
        "gumbel": lambda v: np.exp(-np.exp(-v)),
    }
    with jax.enable_x64(dtype == DOUBLE):
        for name, function in functions.items():
            values: object = getattr(draws, name)(jax.random.key(1), (N,), dtype)
            if isinstance(values, draws.Uniform):
                half = values.distance / 2
                values = jnp.where(values.upper, 1 - half, half)
            ranks = np.arange(N) / N
            distance = np.abs(function(np.sort(np.asarray(values, np.float64))) - ranks).max()
            assert distance < 2.2 / np.sqrt(N), name


def test_exponential_numbers_near_zero(near_the_ends):
    near_the_ends(31)
    e = np.asarray(draws.exponential(jax.random.key(2), (N,), SINGLE), np.float64) * 2.0**31
    for level in (0.001, 0.1, 0.5, 0.9):
        assert_frequency(e < level, level)


def test_rare_categories(near_the_ends):
    """Only the noise of the rare value is near its end."""
    near_the_ends(31, where=lambda shape: jnp.arange(shape[-1]) == 1)
    q = sg.Categorical(jnp.full((N, 1, 2), jnp.array([0.0, -23.0]), jnp.float32))
    odds = np.exp(-23.0) * 2.0**31
    # P(u < odds · e) for uniform u and exponential e.
    assert_frequency(q.sample(jax.random.key(3))[:, 0, 1], odds * -np.expm1(-1 / odds))


def test_rare_members(near_the_ends):
    """The first elements are members with probability 10⁻¹⁰ or less, and others with 1 − 10⁻¹⁰."""
    near_the_ends(31)
    q = sg.Subset(jnp.full((N, 2), jnp.array([0.0, 23.0]), jnp.float32), 1)
    x = q.sample(jax.random.key(4))
    np.testing.assert_array_equal(jnp.sum(x, axis=-1), 1)
    assert_frequency(x[:, 0], tail(23) * 2.0**31)


@pytest.mark.parametrize("sign", [-1, 1])
def test_antithetic_pairs(near_the_ends, sign):
    near_the_ends(31)
    pairs = antithetic_pairs(jax.random.key(5), 2, jnp.full(N, sign * 24.0, jnp.float32))
    b, b_tilde = (np.asarray(half) == (sign < 0) for half in pairs)
    assert not (b & b_tilde).any()
    assert_frequency(b, tail(24) * 2.0**31)
    assert_frequency(b_tilde, tail(24) * 2.0**31)


@pytest.mark.parametrize("num_samples", [2, 3, 5])
def test_mutually_antithetic_bits(near_the_ends, num_samples):
    """All exponential numbers but the first are near 0, so the first bit may be the rare value."""
    rest = num_samples - 1
    near_the_ends(31, where=lambda shape: (jnp.arange(shape[0]) > 0)[:, None])
    bits = mutually_antithetic(jax.random.key(6), num_samples, jnp.full(N, -22.0 * rest))
    assert not np.asarray(bits[1:]).any()
    rng = np.random.default_rng(0)
    sums, e = rng.uniform(size=(rest, 20 * N)).sum(0), rng.exponential(size=20 * N)
    expected = np.mean(sums < tail(22.0 * rest) ** (1 / rest) * 2.0**31 * e)
    assert_frequency(bits[0], expected)


@pytest.mark.parametrize("log_odds", [-3.0, 0.0, 3.0])
def test_frequencies_that_are_not_rare(log_odds):
    shape = jnp.full(N, log_odds, jnp.float32)
    assert_frequency(sg.Bernoulli(shape).sample(jax.random.key(7)), 1 / (1 + np.exp(-log_odds)))
    b, b_tilde = antithetic_pairs(jax.random.key(8), 2, shape)
    assert_frequency(b, 1 / (1 + np.exp(-log_odds)))
    assert_frequency(b != b_tilde, min(2 * tail(log_odds), 1 - 1e-9))
    for bit in mutually_antithetic(jax.random.key(9), 4, -jnp.abs(shape)):
        assert_frequency(bit, tail(log_odds))
