"""Distributions given by a log-probability, compared with sums over all states: one product for all
scores, shared parameters, and no normalising constant."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steingrad as sg
from marks import slow
from problems import (
    all_tuples,
    autoregressive_log_prob,
    batched,
    distributions,
    ising_energy,
    ising_log_prob,
    largest_difference,
    metropolis,
    normal,
    objective,
    random_cv,
    values_and_gradients,
)
from steingrad.diagnostics import compare

KEY = jax.random.key(0)
STEIN = {"values": False, "gradients": False, "memory": False, "surrogate": sg.MLPSurrogate(5)}
ESTIMATORS = {
    "rloo": sg.RLOO(3),
    "reinforce": sg.Reinforce(3, "learned"),
    "rodeo": sg.Rodeo(3, surrogate=sg.MLPSurrogate(5)),
    "rodeo-ls": sg.Rodeo(3, surrogate=sg.MLPSurrogate(5), coefficients="least_squares"),
    "rodeo-matrix": sg.Rodeo(3, sg.TransitionMatrix(metropolis), sg.MLPSurrogate(5)),
    "lariat": sg.Lariat(3, gradients=False, memory=False),
    "lariat-stein": sg.Lariat(3, gradients=False, memory=False, surrogate=sg.MLPSurrogate(5)),
}


class OneByOne(sg.FromLogProb):
    """The plain definition, with a score for each sample."""

    @property
    def large_scores(self):
        return False


def assert_equal(a, b, tolerance=1e-10):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    assert jax.tree.leaves(a)
    assert largest_difference(a, b) < tolerance


def learned(estimator):
    """Averages after the warm-up, so that no coefficient is 0."""
    return jax.tree.map(jnp.abs, random_cv(estimator))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "name",
    [
        *("bernoulli", "ising"),
        *slow("categorical3", "ordinal3", "potts5", "subset", "joint"),
    ],
)
def test_weighted_sums_are_sums(name):
    """The sum is over two axes, or none, before the batch axis."""
    if name == "joint":
        dist = sg.Joint([sg.Bernoulli(normal(0, 2)), distributions()["ising"]])
    else:
        dist = distributions()[name]
    states = dist.enumerate()

    @jax.jit
    def both(x, weights):
        axes = tuple(range(weights.ndim))
        expand = lambda s: weights.reshape(*weights.shape, *[1] * (s.ndim - weights.ndim))
        total = jax.tree.map(lambda s: jnp.sum(expand(s) * s, axis=axes), dist.score(x))
        row = sg.Gibbs().neighbours(dist, x)
        coefficients = jnp.sin(jnp.arange(float(row.weights.size))).reshape(row.weights.shape)
        change = row.neighbours.score_change(coefficients)
        change = jax.tree.map(lambda s: jnp.sum(s, axis=axes), change)
        ours = dist.weighted_score(weights, x), row.neighbours.weighted_score_change(coefficients)
        return ours, (total, change)

    for lead in ((), (3, 2)):
        x = states[np.random.default_rng(0).integers(len(states), size=lead)]
        assert_equal(*both(x, normal(1, lead)))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "name",
    [
        *("rloo", "rodeo-ls"),
        *slow("reinforce", "rodeo", "rodeo-matrix", "lariat", "lariat-stein"),
    ],
)
def test_one_product_is_the_sum_of_scores(name):
    """Both ways give the same estimate and the same gradient for the control variates."""
    estimator = ESTIMATORS[name]
    parameters = (normal(3, (4, 3)), 0.7 * normal(4, (4, 3, 3)))
    results = []
    kinds: Any = (sg.FromLogProb, OneByOne)
    for kind in kinds:
        dist = kind(
            autoregressive_log_prob,
            parameters,
            num_coordinates=3,
            batch_shape=(4,),
            normalized=True,
        )
        x = dist.enumerate()[np.random.default_rng(5).integers(8, size=(3, 4))]
        fx, dfx = values_and_gradients(objective(dist), x)
        cv = learned(estimator)
        at = estimator.evaluated(cv, dist, x, fx, dfx)
        adapted = jax.jit(estimator.adapt)(cv, dist, at)
        assert_equal(adapted[0], jax.jit(estimator.gradient)(cv, dist, at))
        results.append(adapted)
    assert_equal(*results)
    assert largest_difference(results[0], jax.tree.map(jnp.zeros_like, results[0])) > 1e-3


def sizes(jaxpr):
    """The sizes of all intermediate arrays of a program."""
    for equation in jaxpr.eqns:
        yield from (int(np.prod(v.aval.shape)) for v in equation.outvars)
        for parameter in equation.params.values():
            for inner in jax.tree.leaves(
                parameter, is_leaf=lambda leaf: hasattr(leaf, "jaxpr") or hasattr(leaf, "eqns")
            ):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from sizes(inner)


@pytest.mark.parametrize("name", ["rloo", "reinforce", "rodeo", "rodeo-ls", "lariat-stein"])
def test_nothing_has_the_size_of_samples_times_parameters(name):
    samples, width, terms = 10, 200, 6

    def log_prob(weights, x):
        def step(hidden, bit):
            logit = jnp.sum(hidden)
            hidden = jnp.tanh(weights @ hidden + bit)
            return hidden, bit * logit - jnp.logaddexp(logit, 0.0)

        return jnp.sum(jax.lax.scan(step, jnp.zeros(width), x)[1])

    estimator = ESTIMATORS[name]
    estimator = type(estimator)(samples, **_settings(estimator))

    def largest(kind):
        dist = kind(log_prob, jnp.zeros((width, width)), num_coordinates=4, normalized=True)
        x, fx = jnp.zeros((samples, 4)), jnp.zeros(samples)
        cv = estimator.init(KEY, dist)
        run = lambda cv, fx: estimator.adapt(cv, dist, estimator.evaluated(cv, dist, x, fx, x))
        return max(sizes(jax.make_jaxpr(run)(cv, fx).jaxpr))

    assert largest(sg.FromLogProb) <= terms * width**2
    assert largest(OneByOne) >= samples * width**2


def _settings(estimator):
    return {
        name: value
        for name, value in vars(estimator).items()
        if name != "num_samples" and not name.startswith("_")
    }


def bits(parameters, x, condition):
    """Two bits, of which the second depends on the first."""
    bias, weights = parameters
    logits = bias + jnp.tanh(condition @ weights) + jnp.array([0.0, 1.5]) * x[0]
    return jnp.sum(x * logits - jax.nn.softplus(logits))


def sample_bits(key, parameters, condition):
    bias, weights = parameters
    logits = bias + jnp.tanh(condition @ weights)
    uniform = jax.random.uniform(key, (2,), logits.dtype)
    first = (uniform[0] < jax.nn.sigmoid(logits[0])).astype(logits.dtype)
    second = uniform[1] < jax.nn.sigmoid(logits[1] + 1.5 * first)
    return jnp.stack([first, second.astype(logits.dtype)])


def shared(**settings):
    settings = {"sampler": sample_bits, "normalized": True} | settings
    parameters = (normal(6, 2), normal(7, (3, 2)))
    return sg.FromLogProb(
        bits, parameters, conditions=normal(8, (2, 3)), num_coordinates=2, **settings
    )


def broadcast(dist):
    """The same distribution, but each element of the batch has its own parameters."""
    parameters = (dist.parameters, dist.conditions)
    size = len(dist.conditions)
    repeat = lambda p: jnp.broadcast_to(p, (size, *p.shape))
    return sg.FromLogProb(
        lambda p, x: bits(p[0], x, p[1]),
        (jax.tree.map(repeat, parameters[0]), dist.conditions),
        num_coordinates=2,
        batch_shape=(size,),
        normalized=True,
    )


def shared_f(x):
    return jnp.sin(x @ jnp.array([1.0, 2.0])) + jnp.arange(2.0) * x[..., 0]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("name", "num_samples"),
    [
        *(("rloo", 3), ("rodeo-ls", 2)),
        *slow(("rloo", 2), ("reinforce", 2), ("rodeo", 2), ("rodeo", 3), ("lariat-stein", 2)),
    ],
)
def test_shared_parameters_are_unbiased(name, num_samples):
    """The sum is over all tuples of samples of both elements of the batch."""
    dist, estimator = shared(), ESTIMATORS[name]
    estimator = type(estimator)(num_samples, **_settings(estimator))
    states, probs = dist.enumerate(), dist.probabilities()
    index = np.asarray(list(itertools.product(range(4), repeat=2 * num_samples)))
    index = index.reshape(-1, num_samples, 2)
    weights = jnp.prod(probs[np.arange(2), index], axis=(1, 2))
    np.testing.assert_allclose(jnp.sum(weights), 1)
    cv = learned(estimator)

    def one(x):
        fx, dfx = values_and_gradients(shared_f, x)
        return estimator.estimate(cv, dist, x, fx, dfx)

    g = jax.jit(jax.vmap(one))(states[index])
    mean = jax.tree.map(lambda leaf: jnp.tensordot(weights, leaf, axes=1) / 2, g)
    exact = sg.exact_gradient(shared_f, dist)
    assert_equal(mean, exact)
    # The gradient is the sum over the batch of the gradients of each element's own parameters.
    each = sg.exact_gradient(shared_f, broadcast(dist))[0]
    assert_equal(exact, jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), each))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "name",
    ["rloo", *slow("reinforce", "rodeo", "rodeo-ls", "rodeo-matrix", "lariat", "lariat-stein")],
)
def test_shared_parameters_are_the_sum_over_the_batch(name):
    estimator, dist = ESTIMATORS[name], shared()
    own = broadcast(dist)
    x = dist.enumerate()[np.random.default_rng(9).integers(4, size=(3, 2))]
    fx, dfx = values_and_gradients(shared_f, x)
    cv = learned(estimator)
    ours = estimator.estimate(cv, dist, x, fx, dfx)
    theirs = estimator.estimate(cv, own, x, fx, dfx)[0]
    assert_equal(ours, jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), theirs))


@pytest.mark.slow
def test_shared_parameters_through_the_front_door():
    dist, estimator = shared(), sg.Rodeo(2, surrogate=sg.MLPSurrogate(5))
    cv = estimator.init(KEY)
    loss = lambda p, cv: sg.expectation(shared_f, dist.with_parameters(p), estimator, cv, key=KEY)
    value, (grad, cv_grad) = jax.jit(jax.value_and_grad(loss, (0, 1)))(dist.parameters, cv)
    again, grads = sg.value_and_grad(shared_f, dist, estimator, cv, key=KEY)
    np.testing.assert_allclose(value, again, rtol=1e-6)
    assert_equal((grad, cv_grad), (grads.parameters, grads.cv), 1e-6)
    assert jax.tree.map(jnp.shape, grad) == ((2,), (3, 2))
    result = compare(
        shared_f, dist, [sg.RLOO(2), sg.Reinforce(2)], key=KEY, draws=5000, adapt_steps=1
    )
    for row in result.rows:
        assert not row.biased
        z = (row.mean - result.gradient) / np.sqrt(row.variances / result.draws)
        assert np.abs(z).max() < 4.5
    assert result.reference == "the exact gradient"


class Linear:
    """A callable that is neither a function nor a pytree."""

    def __init__(self, weights):
        self.weights = weights

    def __call__(self, parameters, x):
        return jnp.sum(x * (parameters + self.weights))


CLOSURES = {
    "lambda": lambda w: lambda p, x: jnp.sum(x * (p + w)),
    "object": Linear,
    "method": lambda w: Linear(w).__call__,
    "partial": lambda w: functools.partial(lambda w, p, x: jnp.sum(x * (p + w)), w),
}


def sum_of_bits(log_prob_fn, parameters, sampler=None):
    draw = lambda key, p: jax.random.bernoulli(key, jax.nn.sigmoid(p)).astype(float)
    q = sg.FromLogProb(log_prob_fn, parameters, num_coordinates=2, sampler=sampler or draw)
    return sg.expectation(lambda x: jnp.sum(x, axis=-1), q, sg.RLOO(2), key=jax.random.key(0))


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("argnums", [1, (0, 1)])
@pytest.mark.parametrize("closure", CLOSURES)
def test_what_is_closed_over_is_not_differentiated(closure, argnums, transform):
    loss = lambda p, w: sum_of_bits(CLOSURES[closure](w), p)
    at = (jnp.zeros(2), jnp.zeros(2))
    with pytest.raises(TypeError, match="array that its log_prob_fn closes over"):
        transform(jax.grad(loss, argnums))(*at)
    assert transform(jax.grad(loss))(*at).shape == (2,)
    constant = lambda p, w: loss(p, jax.lax.stop_gradient(w))
    leaves = jax.tree.leaves(transform(jax.grad(constant, argnums))(*at))
    assert all(np.isfinite(leaf).all() for leaf in leaves)


def test_what_is_closed_over_and_not_used_may_be_differentiated():
    """log_prob_fn may read a setting of a model, and a sampler may refer to its distribution."""

    def loss(model):
        scale = lambda p, x: model["scale"] * jnp.sum(x * p)
        return model["w"] * sum_of_bits(scale, jnp.zeros(2))

    grad = jax.grad(lambda w: loss({"scale": 1.0, 0: None, "w": w}))(jnp.ones(()))
    assert np.isfinite(grad)
    q = sg.FromLogProb(
        lambda p, x: jnp.sum(x * p),
        jnp.zeros(2),
        num_coordinates=2,
        sampler=lambda key, p: jax.random.randint(key, (2,), 0, q.num_values).astype(float),
    )
    value, _ = sg.value_and_grad(lambda x: x[..., 0], q, sg.RLOO(2), key=jax.random.key(0))
    assert np.isfinite(value)


def test_a_leaked_tracer_is_called_what_it_is():
    leaked = []
    jax.jit(lambda w: leaked.append(w) or w)(jnp.ones(2))
    with pytest.raises(jax.errors.UnexpectedTracerError):
        sum_of_bits(lambda p, x: jnp.sum(x * p), leaked[0])


def test_conditions_are_not_differentiated():
    dist = shared()

    def loss(conditions, parameters):
        q = sg.FromLogProb(
            bits, parameters, conditions=conditions, num_coordinates=2, sampler=sample_bits,
            normalized=True,
        )  # fmt: skip
        return sg.expectation(shared_f, q, sg.RLOO(2), key=KEY)

    with pytest.raises(TypeError, match="such as the conditions of a FromLogProb"):
        jax.grad(loss)(dist.conditions, dist.parameters)
    jax.grad(loss, 1)(dist.conditions, dist.parameters)
    stopped = lambda c, p: loss(jax.lax.stop_gradient(c), p)
    assert float(jnp.max(jnp.abs(jax.grad(stopped)(dist.conditions, dist.parameters)))) == 0


def unnormalised():
    parameters = (normal(30, 2), 0.7 * normal(31, (2, 2)))
    settings = {"num_coordinates": 2, "values": (-1, 1)}
    # The normalising constant depends on the parameters; this makes it depend on them more.
    energy = lambda p, x: ising_energy(p, x) + 3 * jnp.sum(p[0]) - jnp.sum(p[1] ** 2)
    return (
        sg.FromLogProb(energy, parameters, **settings),
        sg.FromLogProb(ising_log_prob, parameters, normalized=True, **settings),
    )


def without_the_constant(estimator, cv):
    """The bias, summed over all tuples of samples with their true probabilities."""
    dist, normalised = unnormalised()
    f = objective(dist)
    x, probs = all_tuples(normalised, estimator.num_samples)
    fx, dfx = values_and_gradients(f, x)
    g = jax.jit(lambda cv: estimator.estimate(cv, batched(dist, len(probs)), x, fx, dfx))(cv)
    mean = jax.tree.map(lambda leaf: jnp.tensordot(probs, leaf, axes=1), g)
    return largest_difference(mean, sg.exact_gradient(f, normalised))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "estimator",
    [
        sg.RLOO(2),
        sg.Rodeo(2, surrogate=sg.MLPSurrogate(5)),
        *slow(
            sg.RLOO(3),
            sg.Rodeo(3, sg.Barker(), sg.MLPSurrogate(5), coefficients="least_squares"),
            sg.Lariat(2, **STEIN),
        ),
    ],
    ids=["rloo", "rodeo", "rloo3", "rodeo3", "lariat"],
)
def test_the_constant_cancels(estimator):
    assert estimator.cancels_constant
    assert without_the_constant(estimator, learned(estimator)) < 1e-10


class Unchecked:
    """Disables the check that the constant cancels in the estimator."""

    @property
    def cancels_constant(self):
        return True


class UncheckedReinforce(Unchecked, sg.Reinforce):
    pass


class UncheckedRodeo(Unchecked, sg.Rodeo):
    pass


class UncheckedLariat(Unchecked, sg.Lariat):
    pass


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("unchecked", "settings"),
    [
        (UncheckedReinforce, {}),
        *slow((UncheckedRodeo, {"surrogate": sg.MLPSurrogate(5), "loo": False})),
        (UncheckedLariat, {"gradients": False, "memory": False}),
    ],
)
def test_elsewhere_the_constant_does_not_cancel(unchecked, settings):
    """The same proof fails for the other estimators, so they raise an error."""
    estimator = unchecked(2, **settings)
    assert without_the_constant(estimator, learned(estimator)) > 1e-2
    refused = unchecked.__bases__[1](2, **settings)
    with pytest.raises(ValueError, match=r"The constant cancels in RLOO, in Rodeo\(loo=True\)"):
        without_the_constant(refused, learned(refused))


@pytest.mark.usefixtures("x64")
def test_exact_sums_are_normalised():
    dist, normalised = unnormalised()
    f = objective(dist)
    np.testing.assert_allclose(sg.exact_expectation(f, dist), sg.exact_expectation(f, normalised))
    assert_equal(sg.exact_gradient(f, dist), sg.exact_gradient(f, normalised))


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_log_ratio_given_by_the_user():
    """log_ratio_fn gives the same numbers as log_prob_fn."""
    plain = distributions()["ising"]

    def log_ratio(parameters, x):
        field, coupling = parameters
        change = jnp.array([-1.0, 1.0]) - x[:, None]
        slope = field + (coupling + coupling.T) @ x
        return change * slope[:, None] + change**2 * jnp.diag(coupling)[:, None]

    dist = sg.FromLogProb(
        ising_energy, plain.parameters, num_coordinates=3, values=(-1, 1), log_ratio_fn=log_ratio
    )
    x = jnp.stack([plain.enumerate()] * 2)
    values = plain.shift(x, (1,))
    np.testing.assert_allclose(dist.log_ratio(x, values), plain.log_ratio(x, values), atol=1e-12)
    some = jnp.broadcast_to(jnp.array([2, 0], jnp.int32), (*x.shape[:-1], 2))
    values = plain.shift(x, (0, 1), some)
    np.testing.assert_allclose(
        dist.log_ratio(x, values, some), plain.log_ratio(x, values, some), atol=1e-12
    )
    coefficients = normal(1, values.shape)
    assert_equal(
        dist.weighted_score_change(coefficients, x, values, some),
        plain.weighted_score_change(coefficients, x, values, some),
    )


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_many_coordinates_at_a_time():
    """More coordinates than are visited at once are visited in pieces, with the same results."""
    d = 70
    log_prob = lambda p, x: jnp.sum(jnp.sin(p * jnp.cumsum(x)))
    dist = sg.FromLogProb(log_prob, normal(0, d), num_coordinates=d)
    x = (normal(1, (2, d)) > 0).astype(jnp.float64)
    values = dist.shift(x, (1,))
    plain = dist.at_neighbours(dist.log_prob, x, values) - dist.log_prob(x)[:, None, None]
    np.testing.assert_allclose(dist.log_ratio(x, values), plain, atol=1e-12)
    coefficients = normal(2, values.shape)
    by_parameters = lambda p: jnp.sum(coefficients * dist.with_parameters(p).log_ratio(x, values))
    product = dist.weighted_score_change(coefficients, x, values)
    assert_equal(product, jax.grad(by_parameters)(dist.parameters))
    # The derivative with respect to the coefficients, from which control variates learn.
    v = normal(3, d)
    along = lambda c: v @ dist.weighted_score_change(c, x, values)
    _, tangent = jax.jvp(
        lambda p: dist.with_parameters(p).log_ratio(x, values), (dist.parameters,), (v,)
    )
    np.testing.assert_allclose(jax.grad(along)(coefficients), tangent, atol=1e-10)


@pytest.mark.slow
def test_bfloat16_parameters():
    dist = sg.FromLogProb(
        lambda p, x: p @ x - jnp.sum(jax.nn.softplus(p)),
        normal(0, 3).astype(jnp.bfloat16),
        num_coordinates=3,
        normalized=True,
        sampler=lambda key, p: jax.random.bernoulli(key, jax.nn.sigmoid(p)),
    )
    f = lambda x: jnp.sum(x.astype(jnp.float32), axis=-1)
    _, grads = sg.value_and_grad(f, dist, sg.RLOO(4), key=KEY)
    _, exact = sg.value_and_grad(f, sg.Bernoulli(dist.parameters), sg.RLOO(4), key=KEY)
    assert grads.parameters.dtype == exact.parameters.dtype == jnp.bfloat16
    x = dist.sample(KEY, (4,))
    ours = dist.weighted_score(f(x), x)
    np.testing.assert_allclose(
        ours, sg.Bernoulli(dist.parameters).weighted_score(f(x), x), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: shared(batch_shape=(3,)), r"batch_shape=\(3,\), but have shapes \[\(2, 3\)\]"),
        (
            lambda: sg.FromLogProb(bits, jnp.zeros(2), conditions=(), num_coordinates=2),
            "needs arrays as conditions",
        ),
        (
            lambda: sg.FromLogProb(bits, jnp.zeros(2), conditions=1.0, num_coordinates=2),
            r"batch_shape=\(\), but have shapes \[\(\)\]",
        ),
        (
            lambda: sg.FromLogProb(lambda p, x: p * x, jnp.zeros(2), num_coordinates=2).log_prob(
                jnp.zeros(2)
            ),
            r"must return one number, but returned shape \(2,\)",
        ),
        (
            lambda: sg.FromLogProb(
                lambda p, x: p @ x, jnp.zeros(2), num_coordinates=2, log_ratio_fn=lambda p, x: x
            ).log_ratio(jnp.zeros(2), jnp.ones((2, 1), jnp.int32)),
            r"of shape \(2, 2\), but returned shape \(2,\)",
        ),
        (
            lambda: shared(sampler=lambda *_: jnp.zeros(5)).sample(KEY, (3,)),
            r"must return one state, of shape \(2,\), but returned shape \(5,\)",
        ),
        (
            lambda: shared(sampler=lambda *_: jnp.full(2, 0.5)).sample(KEY, (3,)),
            "entry 0.5, which no state .* The sampler returned it",
        ),
        (lambda: shared(sampler=None).sample(KEY), "`GibbsSampler` draws approximate ones"),
        (
            lambda: sg.Lariat(2).sample(KEY, shared()),
            r"whose mean is known, but was given FromLogProb.* Turn off .* Lariat\(gr",
        ),
        (
            lambda: sg.Lariat(2, gradients=False).sample(KEY, shared()),
            "Lariat needs a distribution whose mean is known",
        ),
    ],
)
def test_inputs_are_checked(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_log_probabilities_are_real():
    q = sg.FromLogProb(lambda p, x: (p @ x).astype(jnp.complex64), jnp.zeros(2), num_coordinates=2)
    with pytest.raises(TypeError, match="must return a real number, but returned complex64"):
        q.log_prob(jnp.zeros(2))
