"""Each distribution compared with its definition, by sums, automatic differentiation and loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import steingrad as sg
from problems import autoregressive_log_prob, distributions, normal, normalised_distributions

NAMES = list(distributions())
NORMALISED = list(normalised_distributions())


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", NORMALISED)
def test_probabilities_sum_to_one(name):
    dist = normalised_distributions()[name]
    states = dist.enumerate()
    assert len(states) == dist.num_states
    np.testing.assert_allclose(jnp.sum(jnp.exp(dist.log_prob(states))), 1)
    np.testing.assert_array_equal(dist.state(dist.index(states)), states)
    np.testing.assert_array_equal(dist.state_number(states), np.arange(len(states)))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", NORMALISED)
def test_score_is_the_gradient_of_log_prob(name):
    dist = normalised_distributions()[name]
    for x in dist.enumerate():
        automatic = jax.grad(lambda p, x=x: dist.with_parameters(p).log_prob(x))(dist.parameters)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), dist.score(x), automatic
        )


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", NAMES)
def test_log_ratio(name):
    """It agrees with log_prob at the neighbours, for all and for some coordinates."""
    dist = distributions()[name]
    x = dist.enumerate()
    values = dist.shift(x, tuple(range(1, dist.num_values)))
    plain = dist.at_neighbours(dist.log_prob, x, values) - dist.log_prob(x)[:, None, None]
    np.testing.assert_allclose(dist.log_ratio(x, values), plain, atol=1e-12)
    one = jnp.full((len(x), 1), dist.num_coordinates - 1, jnp.int32)
    np.testing.assert_allclose(dist.log_ratio(x, values[:, -1:], one), plain[:, -1:], atol=1e-12)


@pytest.mark.parametrize("name", ["bernoulli", "categorical3", "ordinal3"])
def test_samples_follow_the_probabilities(name):
    dist = normalised_distributions()[name]
    n = 50_000
    counts = np.bincount(
        dist.state_number(dist.sample(jax.random.key(0), (n,))), minlength=dist.num_states
    )
    probs = np.asarray(dist.probabilities(), np.float64)
    z = (counts - n * probs) / np.sqrt(n * probs * (1 - probs))
    assert np.abs(z).max() < 4.5


def test_batches_of_samples():
    logits = normal(0, (2, 3, 4, 5))
    assert sg.Bernoulli(logits).sample(jax.random.key(0), (7,)).shape == (7, 2, 3, 4, 5)
    assert sg.Categorical(logits).sample(jax.random.key(0), (7,)).shape == (7, 2, 3, 4, 5)
    assert sg.Ordinal(logits, range(5)).sample(jax.random.key(0), (7,)).shape == (7, 2, 3, 4)


@pytest.mark.usefixtures("x64")
@pytest.mark.slow
def test_from_log_prob_with_a_batch_and_a_sampler():
    def sampler(key, parameters):
        bias, weights = parameters
        x = jnp.zeros(3)
        for i, k in enumerate(jax.random.split(key, 3)):
            logit = bias[i] + jnp.tril(weights, -1)[i] @ x
            x = x.at[i].set((jax.random.uniform(k) < jax.nn.sigmoid(logit)).astype(x.dtype))
        return x

    parameters = (normal(0, (2, 3)), normal(1, (2, 3, 3)))
    dist = sg.FromLogProb(
        autoregressive_log_prob,
        parameters,
        num_coordinates=3,
        batch_shape=(2,),
        sampler=sampler,
        normalized=True,
    )
    x = dist.sample(jax.random.key(0), (40_000,))
    assert x.shape == (40_000, 2, 3)
    for b in range(2):
        counts = np.bincount(np.asarray(dist.state_number(x[:, b])), minlength=8)
        expected = len(x) * np.asarray(dist.probabilities()[b])
        assert np.abs((counts - expected) / np.sqrt(expected)).max() < 4.5
    # It can be trained: an estimate by RODEO has the parameters' shapes.
    estimator = sg.Rodeo(2)
    run = jax.jit(
        lambda dist, cv: sg.value_and_grad(
            lambda x: jnp.sum(x, -1), dist, estimator, cv, key=jax.random.key(1)
        )
    )
    _, grads = run(dist, estimator.init(jax.random.key(0)))
    assert jax.tree.map(jnp.shape, grads.parameters) == ((2, 3), (2, 3, 3))


def test_from_log_prob_is_checked():
    with pytest.raises(ValueError, match="num_coordinates of 1 or more"):
        sg.FromLogProb(lambda p, x: p @ x, jnp.zeros(3), num_coordinates=0)
    with pytest.raises(ValueError, match="must begin with those axes"):
        sg.FromLogProb(lambda p, x: p @ x, jnp.zeros(3), num_coordinates=3, batch_shape=(2,))
    with pytest.raises(ValueError, match="at least one floating-point array"):
        sg.FromLogProb(lambda p, x: x[0], None, num_coordinates=3)


@settings(max_examples=10, deadline=None)
@given(
    logits=st.lists(st.floats(-60, 60, width=32), min_size=1, max_size=6),
    seed=st.integers(0, 2**31),
)
def test_bernoulli_is_finite_everywhere(logits, seed):
    dist = sg.Bernoulli(jnp.asarray(logits, jnp.float32))
    x = dist.sample(jax.random.key(seed))
    assert bool(jnp.all((x == 0) | (x == 1)))
    for number in (dist.log_prob(x), dist.score(x), dist.log_ratio(x, dist.shift(x, (1,)))):
        assert bool(jnp.all(jnp.isfinite(number)))
    np.testing.assert_allclose(dist.score(x), x - jax.nn.sigmoid(dist.logits), atol=1e-6)


@pytest.mark.parametrize(
    ("make", "error", "sentence"),
    [
        (lambda: sg.Bernoulli([0.1, 0.2]), TypeError, r"given a list. Write Bernoulli\(jnp.as"),
        (lambda: sg.Bernoulli(0.3), TypeError, "as an array, but was given a float"),
        (lambda: sg.Bernoulli(jnp.zeros(())), ValueError, r"logits\[None\], of shape \(1,\)"),
        (lambda: sg.Categorical(jnp.zeros(8)), ValueError, r"8 values has logits\[None\], of sh"),
        (lambda: sg.Ordinal(jnp.zeros(3), (0, 1, 2)), ValueError, r"logits\[None\], of shape \(1"),
        (lambda: sg.Categorical(jnp.zeros((2, 1))), ValueError, "at least 2 values on the last"),
        (lambda: sg.Bernoulli(jnp.zeros(3, int)), TypeError, "needs floating-point logits"),
    ],
)
def test_logits_are_checked(make, error, sentence):
    with pytest.raises(error, match=sentence):
        make()


@pytest.mark.parametrize(
    ("values", "dtype", "match"),
    [
        ((256.0, 257.0), jnp.bfloat16, "not distinct in its dtype, bfloat16"),
        ((2.0**24, 2.0**24 + 1), jnp.float32, "not distinct in its dtype, float32"),
        ((0.0, jnp.nan), jnp.float32, "finite"),
        ((0.0, jnp.inf), jnp.float32, "finite"),
        ((0.0, 1e39), jnp.float32, "finite"),
    ],
)
def test_values_that_the_states_cannot_hold(values, dtype, match):
    with np.errstate(over="ignore"), pytest.raises(ValueError, match=match):
        sg.Ordinal(jnp.zeros((3, 2), dtype), values)
    with np.errstate(over="ignore"), pytest.raises(ValueError, match=match):
        sg.FromLogProb(lambda p, x: p @ x, jnp.zeros(3, dtype), num_coordinates=3, values=values)


def test_values_are_checked_again_in_another_type():
    """They are checked by `with_parameters`, and after a cast without a constructor."""
    values = (256.0, 257.0)
    ordinal = sg.Ordinal(jnp.zeros((3, 2)), values)
    other = sg.FromLogProb(
        lambda p, x: p @ x, jnp.zeros(3), num_coordinates=3, values=values, sampler=lambda k, p: p
    )
    for q in (ordinal, other):
        narrow = jnp.zeros_like(q.parameters, jnp.bfloat16)
        with pytest.raises(ValueError, match="not distinct in its dtype, bfloat16"):
            q.with_parameters(narrow)
        cast = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), q)
        with pytest.raises(ValueError, match="not distinct in its dtype, bfloat16"):
            cast.state(jnp.zeros(3, int))
        with pytest.raises(ValueError, match="not distinct in its dtype, bfloat16"):
            q.index(jnp.full(3, 256, jnp.bfloat16))
        np.testing.assert_array_equal(q.with_parameters(q.parameters).enumerate(), q.enumerate())
    with pytest.raises(ValueError, match="one logit for each value"):
        ordinal.with_parameters(jnp.zeros((3, 4)))


def test_the_mean_is_that_of_rounded_states():
    """In bfloat16 the states are rounded values, and the mean is that of the rounded values."""
    q = sg.Ordinal(jnp.zeros((1, 3), jnp.bfloat16), (100, 100.6, 101.2))
    wide = q.with_parameters(q.parameters.astype(jnp.float32))
    states = np.asarray(q.enumerate(), np.float64).ravel()
    np.testing.assert_allclose(wide.mean, [states.mean()], rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(wide.enumerate(), np.float64).ravel(), states)


def test_changes_are_not_rounded_to_the_type_of_states():
    q = sg.Ordinal(jnp.zeros((1, 2), jnp.bfloat16), (0.1, 100))
    low, high = q.values
    x = q.state(jnp.zeros(1, jnp.int32))
    change = q.linear_change(jnp.ones(1), x, q.shift(x, (1,)))
    np.testing.assert_allclose(change.ravel(), [high - low], rtol=1e-6)


def test_log_prob_of_bits_that_are_certain():
    q = sg.Bernoulli(jnp.array([jnp.inf, 0.0, -jnp.inf]))
    expected = [-np.inf] * 4 + [np.log(0.5), -np.inf] * 2
    np.testing.assert_allclose(q.log_prob(q.enumerate()), expected, rtol=1e-6)
    np.testing.assert_allclose(q.probabilities(), np.exp(expected), rtol=1e-6)
    state, between = jnp.array([1.0, 1.0, 0.0]), jnp.array([0.9, 0.5, 0.1])
    by_logits = jax.grad(lambda l: sg.Bernoulli(l).log_prob(state))(q.logits)
    np.testing.assert_allclose(by_logits, q.score(state), atol=1e-6)
    assert np.isfinite(jax.grad(q.log_prob)(between)).all()
    entropy = lambda l: sg.exact_expectation(
        lambda x: x[..., 0] - sg.Bernoulli(l).log_prob(x), sg.Bernoulli(l)
    )
    np.testing.assert_allclose(entropy(q.logits), 1 + np.log(2), rtol=1e-6)
    np.testing.assert_allclose(jax.grad(entropy)(q.logits), np.zeros(3), atol=1e-6)


def test_log_prob_with_values_of_probability_zero():
    q = sg.Categorical(jnp.array([[0.0, -jnp.inf, 0.0]]))
    log_probs = q.log_prob(q.enumerate())
    np.testing.assert_allclose(log_probs, np.log([0.5, 1e-300, 0.5]) * [1, np.inf, 1], rtol=1e-6)
    np.testing.assert_allclose(q.probabilities(), [0.5, 0, 0.5])
    grad = jax.grad(lambda l: sg.Categorical(l).log_prob(q.enumerate()[0]))(q.logits)
    np.testing.assert_allclose(grad, [[0.5, 0, -0.5]])


def test_sampler_with_a_key_of_the_old_kind():
    sampler = lambda key, p: jax.random.bernoulli(key, 0.5, (3,)).astype(jnp.float32)
    q = sg.FromLogProb(
        lambda p, x: p @ x, jnp.zeros((2, 3)), num_coordinates=3, batch_shape=(2,), sampler=sampler
    )
    old = jax.random.PRNGKey(3)
    x = q.sample(old, (4,))
    assert x.shape == (4, 2, 3)
    np.testing.assert_array_equal(x, q.sample(jax.random.wrap_key_data(old), (4,)))
    step = lambda p, carry, token: (carry, p)
    sequences = sg.Autoregressive(step, jnp.zeros(3), jnp.zeros(2), length=5, vocabulary=3)
    x = sequences.sample(old, (4,))
    assert x.shape == (4, 5, 3)
    np.testing.assert_array_equal(x, sequences.sample(jax.random.wrap_key_data(old), (4,)))
