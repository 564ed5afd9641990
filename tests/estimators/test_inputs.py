"""Unusual inputs of estimators are accepted, or raise a clear error."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steingrad as sg
from marks import slow
from steingrad.estimators.base import Estimator

KEY = jax.random.key(0)
ALL = [
    sg.Reinforce(2),
    sg.Reinforce(2, "moving_average"),
    sg.RLOO(2),
    sg.Rodeo(2, surrogate=sg.MLPSurrogate(hidden=4)),
    sg.DoubleCV(2),
    sg.DisARM(2),
    sg.ARMS(3),
    sg.Rebar(),
    sg.Relax(hidden=4),
    sg.ModifiedRelax(2, surrogate=sg.MLPSurrogate(hidden=4)),
    sg.LocalExpectation(),
]
CATEGORICAL = [e for e in ALL if not isinstance(e, sg.DoubleCV | sg.DisARM | sg.ARMS)]
name = lambda estimator: type(estimator).__name__


def f(x):
    return jnp.sum((x - 0.45) ** 2, axis=-1)


@pytest.mark.parametrize("estimator", ALL, ids=name)
def test_empty_batches(estimator):
    q = sg.Bernoulli(jnp.zeros((0, 3)))
    cv = estimator.init(KEY, q)
    run = lambda l, cv, w: sg.expectation(
        lambda x, w: w * f(x), sg.Bernoulli(l), estimator, cv, key=KEY, args=(w,)
    )
    assert float(run(q.logits, cv, 2.0)) == 0
    value, grads = jax.value_and_grad(run, (0, 1, 2))(q.logits, cv, jnp.ones(()))
    assert float(value) == 0
    assert grads[0].shape == (0, 3)
    assert all(not np.asarray(leaf).any() for leaf in jax.tree.leaves(grads))


@pytest.mark.parametrize("estimator", ALL, ids=name)
@pytest.mark.slow
def test_keys_of_the_old_kind(estimator):
    q, old = sg.Bernoulli(jnp.zeros((2, 3))), jax.random.PRNGKey(5)
    cv = estimator.init(old, q)
    run = lambda key: sg.expectation(f, q, estimator, cv, key=key)
    np.testing.assert_array_equal(run(old), run(jax.random.wrap_key_data(old)))
    _, grads = estimator.value_and_grad(f, q, cv, key=old)
    assert np.isfinite(grads.parameters).all()


def test_empty_batches_of_evaluations():
    q, x, fx = sg.Bernoulli(jnp.zeros((0, 3))), jnp.zeros((2, 0, 3)), jnp.zeros((2, 0))
    assert RODEO.estimate(START, q, x, fx, x).shape == (0, 3)


ESTIMATORS = [kind for kind in vars(sg).values() if isinstance(kind, type)]
ESTIMATORS = [kind for kind in ESTIMATORS if issubclass(kind, Estimator) and kind is not Estimator]


@pytest.mark.parametrize("kind", ESTIMATORS, ids=lambda kind: kind.__name__)
def test_whole_numbers_of_numpy_for_every_estimator(kind):
    assert kind(np.int64(2)) == kind(2)
    assert type(kind(np.int64(2)).num_samples) is int


WITH_SETTINGS = [
    sg.Bronco(use_gradient=False),
    sg.Lariat(gradients=False, context_size=2, hidden=3, surrogate=sg.MLPSurrogate(hidden=3)),
    sg.Reinforce(2, "learned"),
    sg.Reinforce(2, "moving_average"),
    sg.Rodeo(2, surrogate=sg.MLPSurrogate(hidden=3), coefficients="least_squares"),
]


@pytest.mark.parametrize("estimator", [*(kind(2) for kind in ESTIMATORS), *WITH_SETTINGS], ids=repr)
def test_fresh_control_variates_can_be_donated(estimator):
    """No two arrays share their memory."""
    cv = estimator.init(KEY, sg.Bernoulli(jnp.zeros(3)))
    state = cv, sg.cv_optimizer(estimator).init(cv)
    leaves = jax.tree.leaves(state)
    assert len({leaf.unsafe_buffer_pointer() for leaf in leaves}) == len(leaves)
    jax.jit(lambda state: jax.tree.map(lambda a: a + 1, state), donate_argnums=0)(state)
    assert all(leaf.is_deleted() for leaf in leaves)


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        (sg.Bronco, "flips"),
        (sg.Lariat, "context_size"),
        (sg.Lariat, "hidden"),
        (sg.Relax, "context_size"),
        (sg.Relax, "hidden"),
        (sg.GumbelSoftmax, "jacobian_draws"),
        (sg.MLPSurrogate, "hidden"),
        (sg.Gibbs, "num_coordinates"),
    ],
)
def test_settings_are_whole_numbers(kind, setting):
    more = {"straight_through": True} if kind is sg.GumbelSoftmax else {}
    assert type(getattr(kind(**{setting: np.int32(3)}, **more), setting)) is int
    for wrong in (4.5, "3", -1):
        with pytest.raises(ValueError, match=f"{kind.__name__} needs a whole"):
            kind(**{setting: wrong}, **more)


def test_whole_numbers_of_numpy():
    assert type(sg.RLOO(np.int64(2)).num_samples) is int
    assert sg.RLOO(np.int64(3)) == sg.RLOO(3)
    for wrong in (2.0, "2", None):
        with pytest.raises(ValueError, match="whole num_samples of 2 or more"):
            sg.RLOO(wrong)


RODEO = sg.Rodeo(2, surrogate=sg.MLPSurrogate(hidden=4))
START = RODEO.init(KEY)


def with_alpha(alpha):
    return eqx.tree_at(lambda cv: cv.alpha, START, alpha)


@pytest.mark.parametrize(
    "cv",
    [
        None,
        (),
        [1.0],
        (START.surrogate, START.alpha, START.beta),
        sg.Rodeo(2, surrogate=sg.MLPSurrogate(hidden=5)).init(KEY),
        sg.Rodeo(2, surrogate=sg.LinearSurrogate()).init(KEY),
        sg.DoubleCV(2).init(KEY),
        with_alpha(0.0),
        with_alpha("0"),
        with_alpha([START.alpha]),
        with_alpha(None),
        with_alpha(jnp.zeros((), int)),
    ],
    ids=lambda cv: type(cv).__name__,
)
def test_control_variates_of_another_kind(cv):
    q = sg.Bernoulli(jnp.zeros(3))
    for run in (sg.value_and_grad, sg.expectation):
        with pytest.raises(ValueError, match=r"pass the cv that `init\(key, dist\)` of this very"):
            jax.grad(lambda l, run=run: run(f, sg.Bernoulli(l), RODEO, cv, key=KEY))(q.logits)


@pytest.mark.parametrize("dtype", [int, bool, jnp.bfloat16])
@pytest.mark.parametrize(
    "estimator", [sg.RLOO(2), sg.DisARM(2), sg.Bronco(2, use_gradient=False)], ids=name
)
def test_evaluations_of_another_type(estimator, dtype):
    """Integers, as from a simulator, and half precision give the same result as float32."""
    q = sg.Bernoulli(jnp.array([0.5, -0.5, 0.0]))
    cv = estimator.init(KEY, q)
    x = estimator.sample(KEY, q)
    values = lambda x: np.asarray(3 * jnp.sum(x, axis=-1)).astype(int)

    def estimate(states, cast):
        at = estimator.evaluated(cv, q, states, cast(values(x)), key=KEY)
        y = estimator.further_points(cv, q, at)
        fy = None if y is None else cast(values(y))
        return estimator.estimate(cv, q, states, cast(values(x)), fy=fy, key=KEY)

    whole = estimate(np.asarray(x).astype(dtype), lambda fx: fx)
    np.testing.assert_array_equal(whole, estimate(x, lambda fx: fx.astype(np.float32)))
    np.testing.assert_array_equal(whole, estimate(x, lambda fx: jnp.asarray(fx, jnp.bfloat16)))


def test_values_at_further_points_are_counted():
    q, bronco = sg.Bernoulli(jnp.zeros(3)), sg.Bronco(1, flips=2, use_gradient=False)
    cv = bronco.init(KEY, q)
    x, fx = jnp.zeros((1, 3)), jnp.zeros(1)
    with pytest.raises(ValueError, match=r"of shape \(2, 1\), but fy has shape \(1, 1\)"):
        bronco.estimate(cv, q, x, fx, fy=jnp.zeros((1, 1)), key=KEY)
    with pytest.raises(ValueError, match="leave fy out"):
        sg.RLOO(2).estimate(None, q, jnp.zeros((2, 3)), jnp.zeros(2), fy=jnp.zeros((1, 2)), key=KEY)


def test_values_at_further_points_of_an_empty_batch():
    q, bronco = sg.Bernoulli(jnp.zeros((0, 3))), sg.Bronco(1, flips=2, use_gradient=False)
    x, fx, fy = jnp.zeros((1, 0, 3)), jnp.zeros((1, 0)), jnp.zeros((2, 1, 0))
    assert bronco.estimate(bronco.init(KEY, q), q, x, fx, fy=fy, key=KEY).shape == (0, 3)


def test_complex_evaluations_are_refused():
    with pytest.raises(TypeError, match="real numbers"):
        sg.RLOO(2).estimate(None, sg.Bernoulli(jnp.zeros(3)), jnp.zeros((2, 3)), jnp.full(2, 1j))


def test_weights_of_any_sign():
    """The value is the weighted sum of f, and NaN if a weight is NaN."""

    class Extrapolated(sg.RLOO):
        def weights(self, dist, x):
            return jnp.array([1.5, -0.5])

    value, _ = Extrapolated(2).value_and_grad(
        lambda x: jnp.ones(x.shape[:-1]), sg.Bernoulli(jnp.zeros(3)), key=KEY
    )
    np.testing.assert_allclose(value, 1.0)
    nowhere = sg.Categorical(jnp.array([[0.0, jnp.nan, 1.0]]))
    one = lambda x: jnp.ones(x.shape[:-2])
    assert np.isnan(sg.UnorderedSet(2).value_and_grad(one, nowhere, key=KEY)[0])


@pytest.mark.parametrize(
    ("q", "wrong"),
    [
        (sg.Bernoulli(jnp.zeros(3)), 2.0),
        (sg.Bernoulli(jnp.zeros(3)), 0.5),
        (sg.Bernoulli(jnp.zeros(3)), jnp.nan),
        (sg.Categorical(jnp.zeros((2, 3))), 0.5),
        (sg.Ordinal(jnp.zeros((2, 3)), (-1, 0, 2.5)), 1.0),
    ],
)
def test_states_outside_the_space(q, wrong):
    x = q.sample(KEY, (2,))
    fx = jnp.zeros(2)
    sg.RLOO(2).estimate(None, q, x, fx)
    outside = x.at[(0,) * x.ndim].set(wrong)
    with pytest.raises(ValueError, match=f"x has the entry {wrong:g}, which no state"):
        sg.RLOO(2).estimate(None, q, outside, fx)
    jax.jit(lambda x: sg.RLOO(2).estimate(None, q, x, fx))(outside)  # tracers are not checked


@pytest.mark.parametrize(
    "estimator",
    [
        sg.RLOO(2),
        RODEO,
        sg.LocalExpectation(),
        sg.Bronco(uniform=1.0),
        *slow(*(e for e in ALL if not isinstance(e, sg.RLOO | sg.Rodeo | sg.LocalExpectation))),
        *slow(sg.Lariat(2), sg.Rodeo(2, operator=sg.MPF()), sg.StraightThrough(2), sg.ReinMax(2)),
        *slow(sg.GumbelSoftmax(2), sg.GumbelSoftmax(2, straight_through=True)),
    ],
    ids=name,
)
def test_bits_that_are_certain(estimator):
    """The estimates equal those with probabilities near 0 and 1, and contain no NaN."""
    logits = jnp.array([jnp.inf, 0.3, -jnp.inf, -0.4])
    near = jnp.where(jnp.isinf(logits), 100 * jnp.sign(logits), logits)

    @jax.jit
    def run(logits):
        q = sg.Bernoulli(logits)
        g = lambda x: jnp.sum(x * jnp.arange(1.0, 5.0), axis=-1) ** 2 - q.log_prob(x)
        cv = jax.tree.map(lambda p: p + 0.1, estimator.init(KEY, q))
        return estimator.value_and_grad(g, q, cv, key=jax.random.key(4))

    (value, ours), (value_near, theirs) = run(logits), run(near)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((value, ours)))
    np.testing.assert_allclose(value, value_near, rtol=1e-6)
    np.testing.assert_allclose(ours.parameters, theirs.parameters, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("operator", [sg.BirthDeath(), sg.Difference()], ids=name)
def test_operators_that_certain_bits_break_say_so(operator):
    """The control variate would not have mean zero, so the result is NaN and not a biased
    number."""
    q = sg.Bernoulli(jnp.array([jnp.inf, 0.3]))
    assert np.isnan(operator.neighbours(q, jnp.ones(2)).self_weight)


@pytest.mark.parametrize("estimator", [*CATEGORICAL, sg.Bronco(uniform=1.0)], ids=name)
@pytest.mark.slow
def test_values_of_probability_zero(estimator):
    """The estimates equal those with tiny positive probabilities, and contain no NaN."""
    logits = jnp.array([[0.3, -jnp.inf, 0.1], [0.0, 1.0, -0.5]])
    tiny = jnp.where(jnp.isneginf(logits), logits[:, :1] - 100, logits)

    @jax.jit
    def run(logits):
        q = sg.Categorical(logits)
        g = lambda x: jnp.sum(x * jnp.arange(3.0), axis=(-2, -1)) ** 2 - q.log_prob(x)
        cv = jax.tree.map(lambda p: p + 0.1, estimator.init(KEY, q))
        return estimator.value_and_grad(g, q, cv, key=jax.random.key(4))

    ours, theirs = run(logits), run(tiny)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(ours))
    assert float(ours[1].parameters[0, 1]) == 0
    if not estimator.needs_gradient:  # ∇f contains the logits
        np.testing.assert_allclose(ours[1].parameters, theirs[1].parameters, atol=1e-4)
