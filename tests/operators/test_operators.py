"""Every operator is a Stein operator: E_q[A h] = 0, summed over all states."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steingrad as sg
from marks import slow
from problems import distributions, metropolis, normal, table
from steingrad.operators.base import systematic_sample

pytestmark = pytest.mark.usefixtures("x64")

NAMES = [
    *("bernoulli", "categorical2", "categorical5", "ordinal3", "ising", "potts5", "subset"),
    *slow("categorical3", "ordinal2", "ordinal5", "potts3"),
]
OPERATORS = {
    "gibbs": sg.Gibbs(),
    "gibbs-own": sg.Gibbs(scan="own"),
    "mpf": sg.MPF(),
    "mpf-sparse": sg.MPF(neighbourhood="sparse"),
    "barker": sg.Barker(),
    "barker-sparse": sg.Barker(neighbourhood="sparse"),
    "metropolis": sg.Zanella(lambda t: jnp.minimum(1, t)),
    "metropolis-steps": sg.Zanella(lambda t: jnp.minimum(1, t), neighbourhood=(-1, 1)),
    "birth-death": sg.BirthDeath(),
    "difference": sg.Difference(),
    "transition-matrix": sg.TransitionMatrix(metropolis),
}


def mean_of_applied(operator, dist, h):
    states = dist.enumerate()
    applied = jax.jit(lambda x: operator.apply(h, dist, x))(states)
    return float(jnp.sum(dist.probabilities() * applied)), applied


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("operator", OPERATORS)
def test_mean_is_zero(name, operator):
    dist, operator = distributions()[name], OPERATORS[operator]
    if operator == sg.Gibbs(scan="own") and not dist.is_product:
        with pytest.raises(ValueError, match="independent coordinates"):
            operator.neighbours(dist, dist.enumerate())
        return
    h = table(dist, seed=1)
    mean, applied = mean_of_applied(operator, dist, h)
    assert abs(mean) < 1e-8
    assert float(jnp.max(jnp.abs(applied))) > 1e-2  # A h is not 0 everywhere


@pytest.mark.parametrize("operator", [sg.MPF, sg.BirthDeath, sg.Difference])
@pytest.mark.parametrize("name", ["bernoulli", "ising", "categorical3"])
def test_damping_breaks_it(name, operator):
    dist = distributions()[name]
    h = table(dist, seed=2)
    assert abs(mean_of_applied(operator(damping=0.0), dist, h)[0]) < 1e-8
    assert abs(mean_of_applied(operator(damping=1e-3), dist, h)[0]) > 1e-6


def test_damping_keeps_barker():
    """p_y / (p_x + p_y + damping) is symmetric, so the damped chain is still reversible."""
    dist = distributions()["ising"]
    mean, applied = mean_of_applied(sg.Barker(damping=0.1), dist, table(dist, seed=2))
    assert abs(mean) < 1e-8
    assert not np.allclose(applied, sg.Barker().apply(table(dist, 2), dist, dist.enumerate()))


@pytest.mark.parametrize(
    "operator",
    [
        sg.Gibbs(num_coordinates=2),
        sg.MPF(num_coordinates=2),
        sg.Barker(neighbourhood="sparse", num_coordinates=1),
        sg.BirthDeath(num_coordinates=2),
        sg.Difference(num_coordinates=1),
    ],
    ids=lambda operator: type(operator).__name__,
)
@pytest.mark.parametrize("name", ["bernoulli", "ising", "categorical2", "ordinal2"])
@pytest.mark.slow
def test_some_coordinates(name, operator, monkeypatch):
    """For each subset the mean is zero, and the average over subsets is the whole operator."""
    dist = distributions()[name]
    h, states = table(dist, seed=3), dist.enumerate()
    whole = type(operator)(
        **({"neighbourhood": operator.neighbourhood} if hasattr(operator, "neighbourhood") else {})
    )
    rows = []
    for start in range(dist.num_coordinates):
        monkeypatch.setattr(
            jax.random, "randint", lambda *a, start=start: jnp.full(a[1], start, jnp.int32)
        )
        assert abs(mean_of_applied_with_key(operator, dist, h)) < 1e-8
        rows.append(operator.apply(h, dist, states, key=jax.random.key(0)))
    np.testing.assert_allclose(sum(rows) / len(rows), whole.apply(h, dist, states), atol=1e-10)


def mean_of_applied_with_key(operator, dist, h):
    applied = operator.apply(h, dist, dist.enumerate(), key=jax.random.key(0))
    return float(jnp.sum(dist.probabilities() * applied))


@pytest.mark.parametrize(("m", "d"), [(1, 5), (2, 5), (3, 7), (5, 5), (64, 200)])
def test_systematic_sample(m, d):
    chosen = np.asarray(systematic_sample(jnp.arange(d, dtype=jnp.int32), m, d))
    assert chosen.min() >= 0
    assert chosen.max() < d
    assert all(len(set(row)) == m for row in chosen.tolist())
    np.testing.assert_array_equal(np.bincount(chosen.ravel(), minlength=d), m)


def test_systematic_sample_of_very_many():
    """d · m has more than 32 bits."""
    chosen = np.asarray(systematic_sample(jnp.asarray(59_999), 50_000, 60_000))
    assert chosen.min() >= 0
    assert chosen.max() < 60_000
    assert len(set(chosen.tolist())) == 50_000


def test_coordinates_are_drawn_anew():
    dist = sg.Bernoulli(normal(0, (50, 30)))
    row = sg.Gibbs(num_coordinates=4).neighbours(
        dist, dist.sample(jax.random.key(0)), key=jax.random.key(1)
    )
    assert row.weights.shape == (50, 4, 1)
    assert len({tuple(c) for c in np.asarray(row.coordinates).tolist()}) > 10


@pytest.mark.parametrize("name", ["bernoulli", "ordinal2", "categorical2", "ising"])
def test_two_values_are_one_neighbour(name):
    """For a bit, up and down are the same state. It counts once, unless the definition says
    otherwise."""
    dist = distributions()[name]
    x = dist.enumerate()
    assert sg.Barker(neighbourhood="sparse").neighbours(dist, x).values.shape[-1] == 1
    assert sg.BirthDeath().neighbours(dist, x).values.shape[-1] == 2
    h = table(dist, seed=4)
    np.testing.assert_allclose(
        sg.Barker(neighbourhood="sparse").apply(h, dist, x), sg.Barker().apply(h, dist, x)
    )


def test_gibbs_by_hand():
    """Two bits with probabilities 1/2 and 3/4, h = x₀ + 10 x₁, x = (0, 1)."""
    dist = sg.Bernoulli(jnp.log(jnp.array([1.0, 3.0])))
    row = sg.Gibbs().neighbours(dist, jnp.array([0.0, 1.0]))
    np.testing.assert_allclose(row.weights[:, 0], [0.25, 0.125])
    np.testing.assert_allclose(row.self_weight, -0.375)
    applied = sg.Gibbs().apply(lambda x: x[..., 0] + 10 * x[..., 1], dist, jnp.array([0.0, 1.0]))
    np.testing.assert_allclose(applied, 0.25 * 1 + 0.125 * (-10))


@pytest.mark.parametrize("kappa", [lambda t: t, lambda t: jnp.ones_like(t), lambda t: t**0.4])
def test_kappa_must_balance(kappa):
    with pytest.raises(ValueError, match=r"κ\(t\) = t·κ\(1/t\).*the one given has"):
        sg.Zanella(kappa)


def test_kappa_is_checked_while_tracing():
    def traced(x):
        return sg.Zanella(lambda t: t / (1 + t)).neighbours(sg.Bernoulli(x), jnp.round(x)).weights

    assert jax.jit(traced)(jnp.ones(3)).shape == (3, 1)


def test_neighbourhood_a_distribution_lacks():
    dist = distributions()["ordinal3"]
    with pytest.raises(ValueError, match=r"\(-3, 3\) has a step that a Ordinal of 3 values lacks"):
        sg.Barker(neighbourhood=(-3, 3)).neighbours(dist, dist.enumerate())
    with pytest.raises(ValueError, match="not symmetric"):
        sg.Barker(neighbourhood=(1,)).neighbours(dist, dist.enumerate())
    with pytest.raises(ValueError, match="neighbourhood='full'"):
        sg.Barker(neighbourhood="dense")


@pytest.mark.usefixtures("unchecked_types")
def test_bad_settings():
    dist = distributions()["bernoulli"]
    x = dist.enumerate()
    with pytest.raises(ValueError, match="scan='random' or scan='own'"):
        sg.Gibbs(scan="systematic")
    with pytest.raises(ValueError, match="1 or more"):
        sg.Gibbs(num_coordinates=0)
    with pytest.raises(ValueError, match="damping of 0 or more"):
        sg.MPF(damping=-1.0)
    with pytest.raises(ValueError, match="at most 3"):
        sg.Gibbs(num_coordinates=4).neighbours(dist, x)
    with pytest.raises(ValueError, match="pass key"):
        sg.Gibbs(num_coordinates=2).neighbours(dist, x)
    with pytest.raises(ValueError, match="x has shape"):
        sg.Gibbs().neighbours(dist, jnp.zeros((4, 5)))


def test_transition_matrix_is_checked():
    dist = sg.Bernoulli(jnp.zeros(2))
    with pytest.raises(ValueError, match=r"\[\.\.\., N, N\]"):
        sg.TransitionMatrix(jnp.ones((2, 3)))
    with pytest.raises(ValueError, match="summing to 1"):
        sg.TransitionMatrix(jnp.ones((4, 4)))
    with pytest.raises(ValueError, match="has 4 states"):
        sg.TransitionMatrix(jnp.eye(3)).neighbours(dist, dist.enumerate())
    with pytest.raises(ValueError, match="does not leave the distribution invariant"):
        sg.TransitionMatrix(jnp.eye(4)[jnp.array([0, 0, 0, 0])]).check(dist)
    sg.TransitionMatrix(metropolis(dist)).check(dist)


@pytest.mark.parametrize("operator", [sg.Gibbs, sg.MPF, sg.Barker, sg.BirthDeath, sg.Difference])
def test_num_coordinates_is_a_whole_number(operator):
    assert operator(num_coordinates=np.int64(2)) == operator(num_coordinates=2)
    for wrong in (4.5, 0, "2"):
        with pytest.raises(ValueError, match="whole num_coordinates of 1 or more"):
            operator(num_coordinates=wrong)


@pytest.mark.parametrize("operator", [sg.Gibbs(), sg.MPF(), sg.Barker(), sg.Zanella(jnp.sqrt)])
def test_mean_zero_with_values_of_probability_zero(operator):
    q = sg.Categorical(jnp.array([[0.0, -jnp.inf, 0.5], [0.2, 0.1, 0.0]]))
    states, probs = q.enumerate(), q.probabilities()
    h = lambda x: jnp.sin(jnp.sum(x * jnp.arange(6.0).reshape(2, 3), axis=(-2, -1)))
    possible = probs > 0
    applied = operator.apply(h, q, states[possible])
    np.testing.assert_allclose(jnp.sum(probs[possible] * applied), 0, atol=1e-6)


@pytest.mark.parametrize("operator", [sg.BirthDeath(), sg.Difference()])
def test_one_sided_operators_are_no_numbers_beside_probability_zero(operator):
    q = sg.Categorical(jnp.array([[0.0, -jnp.inf, 0.5]]))
    assert np.isnan(operator.apply(lambda x: x[..., 0, 0], q, q.enumerate()[2]))


@pytest.mark.parametrize("operator", [sg.BirthDeath(), sg.Difference()])
def test_no_infinite_numbers(operator):
    """Operators work if JAX is asked to raise at the first infinite number."""
    q = sg.Categorical(jnp.array([[0.0, 0.2, 0.5]]))
    with jax.debug_infs(True):
        applied = operator.apply(lambda x: x[..., 0, 0], q, q.enumerate())
    np.testing.assert_allclose(jnp.sum(q.probabilities() * applied), 0, atol=1e-6)
