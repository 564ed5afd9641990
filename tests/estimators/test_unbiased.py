"""E[g] = ∇E[f], summed over all tuples of samples: no randomness, no tolerance for noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steingrad as sg
from marks import slow
from problems import (
    all_tuples,
    batched,
    largest_difference,
    metropolis,
    moments,
    normal,
    normalised_distributions,
    objective,
    random_cv,
    table,
    values_and_gradients,
)

pytestmark = pytest.mark.usefixtures("x64")

DISTRIBUTIONS = ["bernoulli", "categorical3", "ordinal3", "ising", "autoregressive", "subset"]
QUICK = [
    "bernoulli",
    "autoregressive",
    "subset",
    *slow("categorical3", "ordinal3", "ising"),
]
OPERATORS = {
    "gibbs": sg.Gibbs(),
    "gibbs-own": sg.Gibbs(scan="own"),
    "mpf": sg.MPF(),
    "barker-sparse": sg.Barker(neighbourhood="sparse"),
    "metropolis": sg.Zanella(lambda t: jnp.minimum(1, t)),
    "birth-death": sg.BirthDeath(),
    "difference": sg.Difference(),
    "transition-matrix": sg.TransitionMatrix(metropolis),
}
SURROGATES = {
    "mlp": sg.MLPSurrogate(hidden=5),
    "mlp2": sg.MLPSurrogate(hidden=4, layers=2),
    "pooled": sg.PooledSurrogate(hidden=5),
    "linear": sg.LinearSurrogate(),
    "exact": sg.ExactSurrogate(),
}


def bias(estimator, dist, cv=None):
    f = objective(dist)
    cv = random_cv(estimator) if cv is None else cv
    mean, variance = jax.jit(lambda p: moments(estimator, p, dist, f))(cv)
    assert all(float(v.max()) > 1e-3 for v in jax.tree.leaves(variance))
    return largest_difference(mean, sg.exact_gradient(f, dist))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("num_samples", [2, 3])
def test_rloo(name, num_samples):
    assert bias(sg.RLOO(num_samples), normalised_distributions()[name]) < 1e-8


@pytest.mark.parametrize("baseline", [None, 1.7, "moving_average", "learned"])
@pytest.mark.parametrize("num_samples", [1, 2])
def test_reinforce(baseline, num_samples):
    dist = normalised_distributions()["categorical3"]
    assert bias(sg.Reinforce(num_samples, baseline), dist) < 1e-8


@pytest.mark.parametrize("num_samples", [2, 3, 4])
def test_double_cv(num_samples):
    dist = normalised_distributions()["bernoulli"]
    estimator = sg.DoubleCV(num_samples)
    assert bias(estimator, dist) < 1e-8

    class Wrong(sg.DoubleCV):
        """A wrong estimator, which leaves out the mean of its control variate."""

        def gradient(self, cv, dist, at):
            theta = jax.nn.sigmoid(dist.logits)
            mean = cv.alpha * theta * (1 - theta) * jnp.mean(at.dfx, axis=0)
            return super().gradient(cv, dist, at) + mean

    assert bias(Wrong(num_samples), dist) > 1e-3


@pytest.mark.parametrize("name", ["bernoulli", "categorical3", "ordinal3"])
@pytest.mark.parametrize("num_samples", [1, 2, 3])
def test_local_expectation(name, num_samples):
    assert bias(sg.LocalExpectation(num_samples), normalised_distributions()[name]) < 1e-8


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("operator", OPERATORS)
def test_rodeo_operators(name, operator):
    dist = normalised_distributions()[name]
    if operator == "gibbs-own" and not dist.is_product:
        pytest.skip("the own-coordinate scan needs independent coordinates; refusal tested")
    estimator = sg.Rodeo(2, OPERATORS[operator], sg.MLPSurrogate(hidden=5))
    assert bias(estimator, dist) < 1e-8


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_rodeo_surrogates(surrogate):
    estimator = sg.Rodeo(3, sg.Gibbs(), SURROGATES[surrogate])
    assert bias(estimator, normalised_distributions()["ordinal3"]) < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("num_samples", [2, 3])
def test_rodeo_everything(name, operator, surrogate, num_samples):
    dist = normalised_distributions()[name]
    if operator == "gibbs-own" and not dist.is_product:
        pytest.skip("the own-coordinate scan needs independent coordinates; refusal tested")
    estimator = sg.Rodeo(num_samples, OPERATORS[operator], SURROGATES[surrogate])
    assert bias(estimator, dist) < 1e-8


@pytest.mark.parametrize("loo", [True, False])
@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("global_", [True, False])
@pytest.mark.parametrize("num_samples", [2, *slow(3)])
def test_rodeo_switches(loo, local, global_, num_samples):
    estimator = sg.Rodeo(
        num_samples, surrogate=sg.MLPSurrogate(5), loo=loo, local=local, global_=global_
    )
    assert bias(estimator, normalised_distributions()["bernoulli"]) < 1e-8


def test_a_biased_estimator_is_caught():
    """With a surrogate that depends on its own sample the proof must fail."""

    class Peeking(sg.MLPSurrogate):
        def evaluate(self, cv, row, at):
            swapped = sg.Evaluated(at.x, at.fx[::-1], at.dfx[::-1])
            return super().evaluate(cv, row, swapped)

    estimator = sg.Rodeo(2, surrogate=Peeking(hidden=5))
    assert bias(estimator, normalised_distributions()["bernoulli"]) > 1e-3


def test_damping_is_caught():
    estimator = sg.Rodeo(2, sg.Difference(damping=1e-3), sg.MLPSurrogate(hidden=5))
    assert bias(estimator, normalised_distributions()["bernoulli"]) > 1e-6


@pytest.mark.parametrize("name", ["bernoulli", "categorical3", "autoregressive", "subset"])
@pytest.mark.parametrize(
    "operator",
    [
        sg.Gibbs(num_coordinates=1),
        sg.Gibbs("own", num_coordinates=1),
        sg.Barker("sparse", num_coordinates=1),
    ],
    ids=["gibbs", "gibbs-own", "barker"],
)
@pytest.mark.slow
def test_some_coordinates(name, operator, monkeypatch):
    """One coordinate is drawn for each sample, and the sum is over these draws as well."""
    dist = normalised_distributions()[name]
    if operator == sg.Gibbs("own", num_coordinates=1) and not dist.is_product:
        pytest.skip("the own-coordinate scan needs independent coordinates; refusal tested")
    f, d = objective(dist), dist.num_coordinates
    estimator = sg.Rodeo(2, operator, sg.MLPSurrogate(hidden=5))
    cv = random_cv(estimator)
    x, probs = all_tuples(dist, 2)
    fx, dfx = values_and_gradients(f, x)

    def mean_at(starts):
        draw = jnp.broadcast_to(starts[:, None], (2, len(probs)))
        monkeypatch.setattr(jax.random, "randint", lambda *_: draw)
        g = estimator.estimate(cv, batched(dist, len(probs)), x, fx, dfx, key=jax.random.key(0))
        return jax.tree.map(lambda leaf: jnp.tensordot(probs, leaf, axes=1), g)

    draws = jnp.asarray(list(np.ndindex(d, d)), jnp.int32)
    means = jax.jit(lambda draws: jax.lax.map(mean_at, draws))(draws)
    mean = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), means)
    assert largest_difference(mean, sg.exact_gradient(f, dist)) < 1e-8


@pytest.mark.parametrize(
    "name", ["bernoulli", "categorical3", "ordinal3", "autoregressive", "subset"]
)
@pytest.mark.slow
def test_rao_blackwell(name):
    """P(f s) has no more variance than f s, in any coordinate."""
    dist = normalised_distributions()[name]
    f = objective(dist)
    estimator = sg.Rodeo(2, surrogate=sg.ExactSurrogate(), loo=False, local=False)
    cv = sg.Rodeo.CV(None, jnp.zeros(()), jnp.ones(()))
    _, ours = moments(estimator, cv, dist, f)
    _, reinforce = moments(sg.Reinforce(2), None, dist, f)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(reinforce), strict=True):
        assert bool(jnp.all(a <= b + 1e-12))
        assert bool(jnp.any(a < 0.9 * b))


@pytest.mark.parametrize("name", ["bernoulli", *slow("categorical3", "ordinal3")])
def test_own_scan_is_local_expectation(name):
    """With h = f and β = 1, component i is Σ_v q(v) f(x with x_i = v) s_i(v)."""
    dist = normalised_distributions()[name]
    f = table(dist, seed=60)
    x = all_tuples(dist, 2)[0]
    batch = batched(dist, x.shape[1])
    estimator = sg.Rodeo(
        2, sg.Gibbs("own"), sg.ExactSurrogate(), loo=False, local=False, global_=True
    )
    cv = sg.Rodeo.CV(None, jnp.zeros(()), jnp.ones(()))
    g = estimator.estimate(cv, batch, x, f(x), f=f)

    def local_expectation(x):
        """The local expectation gradient of one state, by loops."""
        index = np.asarray(dist.index(x))
        out = np.zeros(dist.parameters.shape)
        for i in range(dist.num_coordinates):
            for v in range(dist.num_values):
                moved = index.copy()
                moved[i] = v
                y = dist.state(jnp.asarray(moved))
                row = np.exp(np.asarray(dist.log_ratio(y, dist.shift(y, range_of(dist)))))[i]
                prob = 1 / (1 + row.sum())
                out[i] += prob * float(f(y)) * np.asarray(dist.score(y))[i]
        return out

    by_hand = np.mean([[local_expectation(y) for y in sample] for sample in x], axis=0)
    np.testing.assert_allclose(g, by_hand, atol=1e-10)


def range_of(dist):
    return tuple(range(1, dist.num_values))


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.slow
def test_fast_path_is_the_definition(name, operator):
    """The sparse row equals `operator.apply` on h and on each component of h·s."""
    dist = normalised_distributions()[name]
    operator = OPERATORS[operator]
    if operator == sg.Gibbs(scan="own"):
        pytest.skip("has its own test: test_own_scan_is_local_expectation")
    h, x = objective(dist), dist.enumerate()
    row = operator.neighbours(dist, x)
    gradient = normal(70, dist.event_shape)
    axes = tuple(range(-dist.event_ndim, 0))
    linear = lambda y: jnp.sum(gradient * y, axis=axes)
    np.testing.assert_allclose(
        row.neighbours.linear_change(jnp.broadcast_to(gradient, x.shape)),
        row.evaluate(linear) - linear(x)[:, None, None],
        atol=1e-10,
    )
    fast = row.apply_to_score(row.evaluate(h), h(x), dist.score(x))
    leaves = jax.tree.leaves(fast)
    for leaf, fast_leaf in enumerate(leaves):
        for at in np.ndindex(fast_leaf.shape[1:]):
            component = lambda y, leaf=leaf, at=at: (
                h(y) * jax.tree.leaves(dist.score(y))[leaf][(..., *at)]
            )
            np.testing.assert_allclose(
                fast_leaf[(..., *at)], operator.apply(component, dist, x), atol=1e-10
            )
