"""A distribution written outside the library works with every estimator that it can serve."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float

import steingrad as sg
from problems import largest_difference, moments, objective
from significance import gradient_z_scores, passes
from steingrad.distributions import Independent, RealValued
from steingrad.estimators.checks import NEEDS, check_distribution


class TruncatedPoisson(RealValued, Independent):
    r"""Independent counts up to a most: $q(x_i = v) \propto \lambda_i^v / v!$ for $v = 0 \dots n$.

    The parameters are the logarithms of the rates, one number for each coordinate.
    """

    log_rates: Float[Array, "*batch d"]
    values: tuple[float, ...] = eqx.field(static=True)

    def __init__(self, log_rates: Any, most: int):
        self.log_rates = log_rates
        self.values = tuple(range(most + 1))

    @property
    def parameters(self):
        return self.log_rates

    @property
    def dtype(self):
        return self.log_rates.dtype

    def with_parameters(self, parameters):
        return TruncatedPoisson(parameters, len(self.values) - 1)

    @property
    def value_logits(self):
        counts = jnp.asarray(self.values, self.log_rates.dtype)
        return self.log_rates[..., None] * counts - jax.scipy.special.gammaln(counts + 1)


RATES = (0.3, -0.5)
KEY = jax.random.key(0)
# By enumeration of all samples, or by z-scores where samples or flips are drawn in other ways.
ENUMERATED = [
    sg.Reinforce(1),
    sg.RLOO(2),
    sg.Rodeo(2, surrogate=sg.MLPSurrogate(5)),
    sg.DoubleCV(2),
    sg.Lariat(2),
    sg.LocalExpectation(1),
]
DRAWN = [sg.DisARMIW(2), sg.DisARMSB(2), sg.CARMS(3), sg.UnorderedSet(3), sg.Bronco(1)]
BIASED = [sg.StraightThrough(2), sg.ReinMax(2)]
REFUSED = [sg.DisARM(2), sg.ARMS(3), sg.Rebar(), sg.Relax(), sg.ModifiedRelax(), sg.GumbelSoftmax()]


def counts(most=2):
    return TruncatedPoisson(jnp.asarray(RATES), most)


def names(estimators):
    return [type(estimator).__name__ for estimator in estimators]


def test_every_estimator_is_tried():
    tried = names([*ENUMERATED, *DRAWN, *BIASED, *REFUSED])
    kinds = {name for name, kind in vars(sg).items() if _is_estimator(kind)}
    assert set(tried) == kinds - {"Estimator"}


def _is_estimator(kind):
    return isinstance(kind, type) and issubclass(kind, sg.Estimator)


@pytest.mark.usefixtures("x64")
def test_the_distribution_itself():
    q = counts(3)
    x = q.enumerate()
    assert jnp.allclose(jnp.sum(jnp.exp(q.log_prob(x))), 1)
    score = jax.vmap(jax.grad(lambda p, x: q.with_parameters(p).log_prob(x)), (None, 0))
    assert jnp.allclose(q.score(x), score(q.parameters, x))
    mean = lambda p: jnp.tensordot(jnp.exp(q.with_parameters(p).log_prob(x)), x, 1)
    assert jnp.allclose(q.mean, mean(q.parameters))
    v = jnp.asarray([0.7, -1.1])
    gradient = jax.grad(lambda p: v @ mean(p))(q.parameters)
    assert jnp.allclose(q.pull_mean(v), gradient)
    above, below = q.slope(gradient)
    assert jnp.allclose(above / below, v)
    for operator in (sg.Gibbs(), sg.MPF(), sg.BirthDeath()):
        applied = operator.apply(objective(q), q, x)
        assert abs(float(q.probabilities() @ applied)) < 1e-12


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("estimator", ENUMERATED, ids=names(ENUMERATED))
def test_unbiased_by_enumeration(estimator):
    q = counts()
    cv = estimator.init(KEY, q)
    # Coefficients other than zero, so that the control variates count.
    cv = jax.tree.map(lambda leaf: leaf + 0.3, cv)
    f = objective(q)
    mean, variance = moments(estimator, cv, q, f)
    assert largest_difference(mean, sg.exact_gradient(f, q)) < 1e-10
    assert float(jnp.max(variance)) > 1e-6


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("estimator", DRAWN, ids=names(DRAWN))
def test_unbiased_by_draws(estimator):
    q = counts()
    assert passes(gradient_z_scores(estimator, estimator.init(KEY, q), q, objective(q)))


@pytest.mark.usefixtures("x64")
def test_a_wrong_score_is_caught(monkeypatch):
    """The same proof fails if the counts' derivative with respect to the rates is wrong."""
    q, f = counts(), objective(counts())
    right = TruncatedPoisson.by_parameters
    monkeypatch.setattr(TruncatedPoisson, "by_parameters", lambda q, g: 0.9 * right(q, g))
    mean, _ = moments(sg.RLOO(2), None, q, f)
    assert largest_difference(mean, sg.exact_gradient(f, q)) > 1e-2


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("estimator", BIASED, ids=names(BIASED))
def test_biased_ones_are_exact_for_a_linear_objective(estimator):
    q, w = counts(), jnp.asarray([1.0, -2.0])
    f = lambda x: x @ w
    _, grads = estimator.value_and_grad(f, q, key=KEY)
    if type(estimator) is sg.StraightThrough:
        assert jnp.allclose(grads.parameters, sg.exact_gradient(f, q))
    else:
        assert passes(gradient_z_scores(estimator, None, q, f))


@pytest.mark.parametrize("estimator", REFUSED, ids=names(REFUSED))
def test_the_others_say_what_they_need(estimator):
    with pytest.raises(ValueError, match=f"needs {NEEDS[estimator.needs]}, but was given Trunc"):
        check_distribution(estimator, counts())


@pytest.mark.usefixtures("x64")
def test_as_a_part_of_a_joint():
    joint = sg.Joint(counts=counts(), bit=sg.Bernoulli(jnp.asarray([0.4])))
    f = lambda x: (jnp.sum(x["counts"], -1) - 1) ** 2 * (1 + x["bit"][..., 0])
    exact, keys = sg.exact_gradient(f, joint), jax.random.split(KEY, 20_000)
    for estimator in (sg.LocalExpectation(1), sg.Bronco(1)):
        cv = estimator.init(KEY, joint)
        draw = lambda key, e=estimator, cv=cv: e.value_and_grad(f, joint, cv, key=key)[1].parameters
        draws = jax.jit(jax.vmap(draw))(keys)
        error = jax.tree.map(lambda g: jnp.std(g, axis=0) / len(keys) ** 0.5, draws)
        z = jax.tree.map(lambda g, e, s: jnp.abs(g.mean(0) - e) / s, draws, exact, error)
        assert all(bool(jnp.all(leaf < 4.5)) for leaf in jax.tree.leaves(z))
