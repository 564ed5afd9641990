"""Autoregressive: compared with sequences written out one by one, and exactly unbiased."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steingrad as sg
from marks import slow
from problems import (
    largest_difference,
    metropolis,
    normal,
    objective,
    random_cv,
    table,
    values_and_gradients,
)
from sequences import (
    LENGTH,
    VOCABULARY,
    first,
    log_probs_by_hand,
    mean_over_tuples,
    parameters,
    policy,
    step,
    tokens_by_hand,
    without_repeats,
)
from steingrad.diagnostics import compare

KINDS = {
    "fixed": {},
    "ending": {"end": 1},
    "masked": {"step": without_repeats},
    "masked-ending": {"end": 2, "step": without_repeats},
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("kind", ["masked-ending", *slow("fixed", "ending", "masked")])
def test_against_sequences_by_hand(kind):
    dist, tokens = policy(**KINDS[kind]), tokens_by_hand(KINDS[kind].get("end"))
    states = dist.enumerate()
    np.testing.assert_array_equal(jnp.argmax(states, axis=-1), tokens)
    assert dist.num_states == len(tokens)
    np.testing.assert_array_equal(dist.state_number(states), jnp.arange(len(tokens)))
    f = table(dist, 3)

    def exact(p):
        steps = log_probs_by_hand(p, tokens, **KINDS[kind])
        return jnp.sum(jnp.exp(jnp.sum(steps, axis=-1)) * f(states)), steps

    (value, steps), grad = jax.jit(jax.value_and_grad(exact, has_aux=True))(parameters())
    log_probs = jnp.sum(steps, axis=-1)
    seen = log_probs > -jnp.inf
    np.testing.assert_allclose(dist.step_log_prob(states)[seen], steps[seen], atol=1e-12)
    np.testing.assert_allclose(dist.log_prob(states), log_probs, atol=1e-12)
    np.testing.assert_allclose(jnp.sum(jnp.exp(log_probs)), 1)
    np.testing.assert_allclose(dist.probabilities(), jnp.exp(log_probs), atol=1e-12)
    np.testing.assert_allclose(sg.exact_expectation(f, dist), value, atol=1e-12)
    assert largest_difference(sg.exact_gradient(f, dist), grad) < 1e-12


def test_after_the_end():
    dist = policy(end=1)
    x = dist.state(jnp.array([[0, 1, 1], [1, 1, 1], [0, 2, 0], [2, 0, 1]]))
    np.testing.assert_array_equal(dist.lengths(x), [2, 1, 3, 3])
    np.testing.assert_array_equal(dist.mask(x), [[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 1]])
    goes_on = dist.state(jnp.array([0, 1, 2]))
    assert float(dist.log_prob(goes_on)) == -np.inf
    assert all(bool(jnp.all(jnp.isfinite(g))) for g in jax.tree.leaves(dist.score(goes_on)))
    np.testing.assert_array_equal(dist.index(goes_on), [0, 1, 1])
    assert policy().lengths(goes_on) == 3
    with pytest.raises(ValueError, match="no state of this Autoregressive has"):
        sg.RLOO(2).estimate(None, dist, jnp.stack([goes_on, goes_on]), jnp.zeros(2))
    # The logits of a step after the end are ignored: they may exclude all tokens.
    after = lambda weights, carry, token: (
        carry + token[1],
        jnp.where(carry + token[1] > 0, -jnp.inf, weights),
    )
    settings = {"length": 4, "vocabulary": 3, "end": 1}
    dist = sg.Autoregressive(after, jnp.array([0.1, 0.2, 0.3]), 0.0, **settings)
    score = dist.score(dist.state(jnp.array([0, 1, 1, 1])))
    expected = jnp.array([1.0, 1.0, 0.0]) - 2 * jax.nn.softmax(jnp.array([0.1, 0.2, 0.3]))
    np.testing.assert_allclose(score, expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["masked-ending", *slow("fixed")])
def test_samples(kind):
    """The frequencies of all states, and the log-probabilities returned with the samples, are
    right."""
    dist = policy(**KINDS[kind])
    x, log_probs = dist.sample_and_log_prob(jax.random.key(0), (30_000,))
    assert x.shape == (30_000, LENGTH, VOCABULARY)
    counts = np.bincount(np.asarray(dist.state_number(x)), minlength=dist.num_states)
    probs = np.asarray(dist.probabilities())
    assert counts[probs == 0].sum() == 0
    expected = len(x) * probs[probs > 0]
    assert np.abs((counts[probs > 0] - expected) / np.sqrt(expected)).max() < 4.5
    np.testing.assert_allclose(log_probs[:50], dist.step_log_prob(x[:50]), atol=1e-5)


OPERATORS = {
    "gibbs": sg.Gibbs(),
    "barker-sparse": sg.Barker(neighbourhood="sparse"),
    "mpf": sg.MPF(),
    "metropolis": sg.Zanella(lambda t: jnp.minimum(1, t)),
    "transition-matrix": sg.TransitionMatrix(metropolis),
    "birth-death": sg.BirthDeath(),
    "difference": sg.Difference(),
}


def bias(estimator, dist):
    """|E[g] − ∇E[f]|, summed over all tuples of samples."""
    f, cv = objective(dist), random_cv(estimator)
    if isinstance(estimator, sg.Lariat):
        products = lambda cv: (cv.averages.products.matrix, cv.averages.products.weight)
        matrix = products(cv)[0]
        cv = eqx.tree_at(products, cv, (matrix @ matrix.T, jnp.asarray(0.9)))

    def estimate(x):
        return estimator.estimate(cv, dist, x, *values_and_gradients(f, x), f=f)

    mean = mean_over_tuples(estimate, dist, estimator.num_samples)
    return largest_difference(mean, sg.exact_gradient(f, dist))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("estimator", "kind"),
    [
        (sg.Rodeo(2, surrogate=sg.MLPSurrogate(hidden=4)), "masked-ending"),
        *slow(
            *((sg.RLOO(2), kind) for kind in KINDS),
            (sg.Reinforce(2), "ending"),
            (sg.Reinforce(1, "learned"), "fixed"),
            (sg.Lariat(2, gradients=False, memory=False), "masked-ending"),
        ),
    ],
    ids=lambda case: case if isinstance(case, str) else type(case).__name__,
)
def test_unbiased(estimator, kind):
    assert bias(estimator, policy(**KINDS[kind])) < 1e-10


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("operator", "kind"),
    [
        ("gibbs", "fixed"),
        *slow(
            *((o, k) for o in list(OPERATORS)[1:5] for k in KINDS),
            ("gibbs", "ending"),
            ("gibbs", "masked"),
            ("birth-death", "fixed"),
            ("difference", "fixed"),
        ),
    ],
)
def test_rodeo(operator, kind):
    estimator = sg.Rodeo(2, OPERATORS[operator], sg.MLPSurrogate(hidden=4))
    assert bias(estimator, policy(**KINDS[kind])) < 1e-10


@pytest.mark.usefixtures("x64")
def test_an_operator_that_forgets_the_end_is_found():
    class GoesOn(sg.Autoregressive):
        """A distribution whose neighbours ignore the end."""

        def log_ratio(self, x, values, coordinates=None):
            endless = eqx.tree_at(lambda q: q._parameters, policy(), self._parameters)
            return endless.log_ratio(x, values, coordinates)

    settings = {"length": LENGTH, "vocabulary": VOCABULARY, "end": 1}
    wrong = GoesOn(step, parameters(), first, **settings)
    h = table(policy(), 4)
    apply = eqx.filter_jit(lambda dist, x: sg.Gibbs().apply(h, dist, x))
    for dist, least, most in ((policy(end=1), 0, 1e-12), (wrong, 1e-3, np.inf)):
        mean = dist.probabilities() @ apply(dist, dist.enumerate())
        assert least <= float(jnp.abs(mean)) <= most


@pytest.mark.parametrize("operator", [sg.BirthDeath(), sg.Difference()])
def test_operators_that_need_every_state(operator):
    dist = policy(end=1)
    with pytest.raises(ValueError, match="has neighbours of probability 0"):
        operator.neighbours(dist, dist.enumerate())


def from_condition(weights, condition):
    return weights["first"] + condition, jnp.zeros((), jnp.int32)


def given(weights, conditions, batch_shape=None, end=1):
    return sg.Autoregressive(
        step,
        weights,
        from_condition,
        length=LENGTH,
        vocabulary=VOCABULARY,
        end=end,
        conditions=conditions,
        batch_shape=batch_shape,
    )


def test_conditions_share_the_network():
    """A batch gives the same log-probabilities and estimates as its elements one by one."""
    weights = jax.tree.map(lambda p: p.astype(jnp.float32), parameters())
    conditions = normal(5, (4, 2)).astype(jnp.float32)
    dist = given(weights, conditions)
    assert dist.batch_shape == (4,)
    x = dist.sample(jax.random.key(0), (2,))
    assert x.shape == (2, 4, LENGTH, VOCABULARY)
    fx = jnp.sum(x[..., 0], axis=-1) ** 2

    def both(dist, x, fx):
        return dist.log_prob(x), sg.RLOO(2).estimate(None, dist, x, fx)

    log_probs, total = jax.jit(both)(dist, x, fx)
    one = lambda condition, x, fx: both(given(weights, condition, ()), x, fx)
    alone, single = jax.jit(jax.vmap(one, (0, 1, 1)))(conditions, x, fx)
    np.testing.assert_allclose(log_probs, alone.T, atol=1e-6)
    assert largest_difference(total, jax.tree.map(lambda g: jnp.sum(g, axis=0), single)) < 1e-5
    square = given(weights, conditions.reshape(2, 2, 2), (2, 2))
    shaped = square.log_prob(x.reshape(2, 2, 2, *x.shape[2:]))
    np.testing.assert_allclose(shaped, log_probs.reshape(2, 2, 2), atol=1e-6)


def test_transformations():
    """It works under jit, grad of an expectation, vmap over policies, and a scan of training
    steps."""
    dist = policy(end=1)
    count = lambda x: jnp.sum(x[..., 0], axis=-1)

    def loss(weights, key):
        q = sg.Autoregressive(step, weights, first, length=LENGTH, vocabulary=VOCABULARY, end=1)
        return -sg.expectation(count, q, sg.RLOO(16), key=key)

    def train(weights, key):
        def one(weights, key):
            value, grads = jax.value_and_grad(loss)(weights, key)
            return jax.tree.map(lambda p, g: p - 0.5 * g, weights, grads), value

        return jax.lax.scan(one, weights, jax.random.split(key, 60))

    several = jax.tree.map(lambda p: jnp.stack([p, 0.5 * p]).astype(jnp.float32), dist.parameters)
    weights, values = jax.jit(jax.vmap(train))(several, jax.random.split(jax.random.key(0)))
    assert values.shape == (2, 60)
    for i in range(2):
        trained = dist.with_parameters(jax.tree.map(lambda p, i=i: p[i], weights))
        assert float(sg.exact_expectation(count, trained)) > 2.7
    assert float(sg.exact_expectation(count, dist)) < 1.5


@pytest.mark.slow
def test_half_precision():
    """Derivatives, and the carry with them, are computed in float32."""
    half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), parameters())
    cell = lambda p, carry, token: (
        jnp.tanh(p["hidden"] @ carry + p["token"] @ token),
        p["out"] @ carry,
    )
    settings = {"length": LENGTH, "vocabulary": VOCABULARY}
    dist = sg.Autoregressive(cell, half, half["first"], **settings)
    f = lambda x: jnp.sum(x[..., 0], axis=-1)
    estimate = jax.jit(lambda key: sg.value_and_grad(f, dist, sg.RLOO(4), key=key))
    _, grads = estimate(jax.random.key(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(grads.parameters)} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.slow
def test_compare():
    dist = policy(end=1)
    result = compare(
        lambda x: jnp.sum(x[..., 0], axis=-1) ** 2,
        dist,
        [sg.Reinforce(2), sg.RLOO(2), sg.Rodeo(2), sg.Lariat(2, gradients=False, memory=False)],
        key=jax.random.key(0),
        draws=2000,
    )
    assert result.reference == "the exact gradient"
    assert len(result.rows) == 4
    assert not any(row.biased for row in result.rows)


def test_no_token_left():
    def shrinking(weights, left, token):
        left = left * (1 - token)
        return left, jnp.where(left > 0, weights, -jnp.inf)

    make = lambda length: sg.Autoregressive(
        shrinking, jnp.zeros(3), jnp.ones(3), length=length, vocabulary=3
    )
    x = make(3).sample(jax.random.key(0), (20,))  # without replacement
    np.testing.assert_array_equal(jnp.sum(x, axis=-2), 1)
    np.testing.assert_allclose(make(3).log_prob(x), np.log(1 / 6), rtol=1e-6)
    too_long = make(4)
    with pytest.raises(ValueError, match=r"No token is left at step 3 .*all −inf"):
        too_long.sample(jax.random.key(0))
    y = too_long.state(jnp.array([0, 1, 2, 0]))
    with pytest.raises(ValueError, match="No token is left at step 3"):
        too_long.log_prob(y)
    assert bool(jnp.isnan(jax.jit(lambda y: too_long.log_prob(y))(y)))


@pytest.mark.usefixtures("x64")
def test_no_token_left_at_a_neighbour():
    """After a token that is never drawn all tokens may be excluded. Operators evaluate such
    states."""

    def grammar(weights, lost, token):
        """Token 2 is never the first token, and after a first token 2 all tokens are excluded."""
        begins, lost = token.sum() == 0, lost | ((token[2] > 0) & (token.sum() > 0))
        allowed = ~lost & (~begins | (jnp.arange(3) < 2)) & (begins | (jnp.arange(3) != 2))
        return lost, jnp.where(allowed, weights, -jnp.inf)

    weights, settings = jnp.array([0.3, -0.5, 1.0]), {"length": 2, "vocabulary": 3}
    dist = sg.Autoregressive(grammar, weights, jnp.zeros((), bool), **settings)
    probs = dist.probabilities()
    np.testing.assert_allclose(jnp.sum(probs > 0), 4)
    x = dist.enumerate()[probs > 0]
    applied = sg.Gibbs().apply(table(dist, 4), dist, x)
    np.testing.assert_allclose(probs[probs > 0] @ applied, 0, atol=1e-12)
    assert float(jnp.abs(applied).min()) > 1e-3
    assert bool(jnp.all(jnp.isfinite(dist.score(dist.state(jnp.array([2, 0]))))))


def test_inputs_are_checked():
    weights = parameters()

    def make(step=step, weights=weights, carry=first, **settings):
        return sg.Autoregressive(
            step, weights, carry, **{"length": LENGTH, "vocabulary": VOCABULARY} | settings
        )

    for length in (0, -1):
        with pytest.raises(ValueError, match="a whole length of 1 or more, but was given"):
            make(length=length)
    with pytest.raises(ValueError, match="a whole vocabulary of 2 or more, but was given"):
        make(vocabulary=1)
    for end in (3, -1):
        with pytest.raises(ValueError, match=r"index of a token, 0 to 2 with vocabulary=3, but .*"):
            make(end=end)
    with pytest.raises(ValueError, match=r"token of shape \(4,\).* failed"):
        make(vocabulary=4)
    small = lambda weights, carry, token: (carry, weights["bias"][:2])
    with pytest.raises(ValueError, match=r"logits of shape \(3,\), one for each token .*\[2\]"):
        make(step=small)
    with pytest.raises(ValueError, match=r"a carry like the one it was given, .* but this one"):
        make(step=lambda weights, carry, token: (carry[0], weights["bias"]))
    with pytest.raises(ValueError, match=r"a carry like the one it was given"):
        make(step=lambda weights, carry, token: ((carry[0][:1], carry[1]), weights["bias"]))
    with pytest.raises(ValueError, match=r"with a token .* and the carry .* failed"):
        make(carry=jnp.zeros(5))
    with pytest.raises(TypeError, match="returns a pair, the new carry and the logits"):
        make(step=lambda weights, carry, token: weights["bias"])
    with pytest.raises(TypeError, match="floating-point logits, but this step returned int32"):
        make(step=lambda weights, carry, token: (carry, jnp.zeros(3, jnp.int32)))
    with pytest.raises(TypeError, match="a step with arrays inside"):
        make(step=eqx.nn.GRUCell(3, 2, key=jax.random.key(0)))
    with pytest.raises(ValueError, match="at least one floating-point array"):
        make(weights=(1, 2))
    with pytest.raises(ValueError, match=r"batch_shape=\(4,\) without conditions"):
        make(batch_shape=(4,))
    with pytest.raises(ValueError, match="but its carry is not a function of them"):
        make(carry=first(weights), conditions=jnp.zeros(2))
    with pytest.raises(ValueError, match=r"batch_shape=\(4,\), but have shapes \[\(3, 2\)\]"):
        make(carry=from_condition, conditions=jnp.zeros((3, 2)), batch_shape=(4,))
    with pytest.raises(ValueError, match=r"Cannot enumerate the 3486784401 sequences of 20 tokens"):
        make(length=20).enumerate()
    with pytest.raises(ValueError, match="needs a distribution of independent coordinates"):
        sg.Gibbs(scan="own").neighbours(make(), make().enumerate())
