"""Joint distributions, compared with sums over all their states."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import steingrad as sg
from marks import slow
from problems import (
    all_tuples,
    batched,
    largest_difference,
    metropolis,
    normal,
    objective,
    random_cv,
    table,
    values_and_gradients,
)
from significance import passes, z_scores

KEY = jax.random.key(0)


def joint():
    """Bits, a category of three values, and a subset of two of three elements."""
    return sg.Joint(
        bits=sg.Bernoulli(normal(0, 1)),
        category=sg.Categorical(normal(1, (1, 3))),
        pair=sg.Subset(normal(2, 3), 2),
    )


def product():
    return sg.Joint([sg.Bernoulli(normal(0, 2)), sg.Ordinal(normal(1, (1, 3)), (-1, 0, 2.5))])


JOINTS = {"constrained": joint, "product": product}
OPERATORS = {
    "gibbs": sg.Gibbs(),
    "gibbs-own": sg.Gibbs("own"),
    "barker-sparse": sg.Barker(neighbourhood="sparse"),
    "birth-death": sg.BirthDeath(),
    "difference": sg.Difference(),
    "transition-matrix": sg.TransitionMatrix(metropolis),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", JOINTS)
@pytest.mark.slow
def test_against_its_parts(name):
    dist = JOINTS[name]()
    states, number = dist.enumerate(), 0
    probs = jnp.exp(dist.log_prob(states))
    for choice in itertools.product(*(part.enumerate() for part in dist.parts)):
        np.testing.assert_array_equal(states[number], dist.join(choice))
        each = [part.log_prob(x) for part, x in zip(dist.parts, choice, strict=True)]
        np.testing.assert_allclose(probs[number], np.exp(sum(each)), atol=1e-12)
        number += 1
    assert number == dist.num_states
    np.testing.assert_allclose(jnp.sum(probs), 1)
    np.testing.assert_array_equal(dist.state_number(states), np.arange(number))
    np.testing.assert_array_equal(dist.state(dist.index(states)), states)
    np.testing.assert_array_equal(dist.merge(dist.split(states)), states)
    for x in states[::5]:
        automatic = jax.grad(lambda p, x=x: dist.with_parameters(p).log_prob(x))(dist.parameters)
        assert largest_difference(dist.score(x), automatic) < 1e-12


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", JOINTS)
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.slow
def test_operators(name, operator):
    """E[A h] = 0, and the fast path agrees with the definition."""
    dist, operator = JOINTS[name](), OPERATORS[operator]
    x = dist.enumerate()
    if operator == sg.Gibbs("own") and not dist.is_product:
        with pytest.raises(ValueError, match="independent coordinates"):
            operator.neighbours(dist, x)
        return
    h = table(dist, seed=1)
    row = operator.neighbours(dist, x)
    applied = row.apply(row.evaluate(h), h(x))
    assert abs(float(dist.probabilities() @ applied)) < 1e-10
    assert float(jnp.max(jnp.abs(applied))) > 1e-2
    gradient = normal(70, dist.event_shape)
    np.testing.assert_allclose(
        row.neighbours.linear_change(jnp.broadcast_to(gradient, x.shape)),
        row.evaluate(lambda y: y @ gradient) - (x @ gradient)[:, None, None],
        atol=1e-10,
    )
    if operator == sg.Gibbs("own"):
        return  # tested as local expectation, below
    fast = jax.tree.leaves(row.apply_to_score(row.evaluate(h), h(x), dist.score(x)))
    for leaf, values in enumerate(fast):
        for at in np.ndindex(values.shape[1:]):
            component = lambda y, leaf=leaf, at=at: (
                h(y) * jax.tree.leaves(dist.score(y))[leaf][(..., *at)]
            )
            np.testing.assert_allclose(
                values[(..., *at)], operator.apply(component, dist, x), atol=1e-10
            )


@pytest.mark.slow
def test_gibbs_is_that_of_one_distribution():
    """Bits in two parts give the same results as the same bits in one part."""
    logits = jnp.array([0.3, -1.0, 2.0])
    one, two = sg.Bernoulli(logits), sg.Joint([sg.Bernoulli(logits[:1]), sg.Bernoulli(logits[1:])])
    h = lambda x: jnp.sin(x @ jnp.array([1.0, 2.0, 3.0]))
    x = one.enumerate()
    for operator in (sg.Gibbs(), sg.MPF(), sg.BirthDeath(), sg.Difference()):
        np.testing.assert_allclose(
            operator.apply(h, one, x), operator.apply(h, two, x), rtol=1e-5, atol=1e-6
        )


def bias(estimator, dist):
    f = objective(dist)
    shown = lambda parts: f(dist.merge(parts))
    x, probs = all_tuples(dist, estimator.num_samples)
    fx, dfx = values_and_gradients(f, x)
    many = batched(dist, len(probs))

    def mean(cv):
        g = estimator.estimate(cv, many, x, fx, dfx, f=shown)
        return jax.tree.map(lambda leaf: jnp.tensordot(probs, leaf, axes=1), g)

    return largest_difference(jax.jit(mean)(random_cv(estimator)), sg.exact_gradient(shown, dist))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", JOINTS)
@pytest.mark.parametrize(
    "estimator",
    [
        sg.RLOO(2),
        *slow(sg.Reinforce(1, 0.7)),
        sg.Rodeo(2, surrogate=sg.MLPSurrogate(5)),
        *slow(
            sg.Rodeo(2, sg.Barker("sparse"), sg.ExactSurrogate()),
            sg.Rodeo(2, surrogate=sg.MLPSurrogate(5), coefficients="least_squares"),
        ),
    ],
    ids=["rloo", "reinforce", "rodeo", "rodeo-exact", "rodeo-least-squares"],
)
def test_unbiased(name, estimator):
    assert bias(estimator, JOINTS[name]()) < 1e-10


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "estimator", [sg.LocalExpectation(1), sg.Rodeo(2, sg.Gibbs("own"), sg.MLPSurrogate(5))]
)
def test_unbiased_on_a_product(estimator):
    assert bias(estimator, product()) < 1e-10


BY_PARTS = [
    (sg.DisARM(4), sg.Bernoulli),
    (sg.CARMS(3), sg.Categorical),
    *slow(
        (sg.ARMS(3), sg.Bernoulli),
        (sg.StraightThrough(2), sg.Categorical),
        (sg.ReinMax(2), sg.Bernoulli),
        (sg.DisARMIW(2), sg.Categorical),
        (sg.DisARMSB(2), sg.Categorical),
        (sg.GumbelSoftmax(2), sg.Categorical),
    ),
]


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("estimator", "kind"), BY_PARTS, ids=lambda case: str(case)[:24])
def test_a_part_after_the_other_is_one_distribution(estimator, kind):
    logits = normal(0, (5, 3) if kind is sg.Bernoulli else (5, 3, 4))
    one, two = kind(logits), sg.Joint([kind(logits[:, :1]), kind(logits[:, 1:])])
    x = two.merge(two.split(estimator.sample(KEY, two)))
    whole = x.reshape(-1, 5, *one.event_shape)
    fx, dfx = values_and_gradients(objective(one), whole)
    together = estimator.estimate(None, one, whole, fx, dfx)
    apart = estimator.estimate(None, two, x, fx, dfx.reshape(x.shape))
    np.testing.assert_allclose(jnp.concatenate(apart, axis=1), together, atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_double_cv():
    """Bits in nested parts give the same results as the same bits in one part."""
    logits, estimator = normal(0, (5, 3)), sg.DoubleCV(3)
    one = sg.Bernoulli(logits)
    inner = sg.Joint([sg.Bernoulli(logits[:, 1:2]), sg.Bernoulli(logits[:, 2:])])
    two = sg.Joint(a=sg.Bernoulli(logits[:, :1]), b=inner)
    x = one.sample(KEY, (3,))
    fx, dfx = values_and_gradients(objective(one), x)
    cv = random_cv(estimator)
    together = estimator.estimate(cv, one, x, fx, dfx)
    apart = estimator.estimate(cv, two, x, fx, dfx)
    assert set(apart) == {"a", "b"}
    pieces = [apart["a"], *apart["b"]]
    np.testing.assert_allclose(jnp.concatenate(pieces, axis=1), together, atol=1e-12)


def relaxed_scores(estimator):
    """z-scores of the gradient with respect to bits, and to a nested part of bits and
    categories."""
    inner = sg.Joint([sg.Categorical(normal(1, (1, 3))), sg.Bernoulli(normal(2, 1))])
    dist = sg.Joint(a=sg.Bernoulli(normal(0, 2)), b=inner)
    f = lambda x: jnp.sin(jnp.sum(x["a"], -1) + 2 * x["b"][0][..., 0, 1]) - x["b"][1][..., 0] ** 2
    cv, flat = estimator.init(KEY, dist), lambda tree: ravel_pytree(tree)[0]
    where = lambda cv: (cv.log_temperature, cv.scale)
    if hasattr(cv, "scale"):  # at the initial temperature the relaxation is nearly the sample
        cv = eqx.tree_at(where, cv, (jnp.full((), -0.5), jnp.full((), 0.8)))
    draw = lambda key: flat(estimator.value_and_grad(f, dist, cv, key=key)[1].parameters)
    return z_scores(draw, flat(sg.exact_gradient(f, dist)))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "estimator", [sg.Rebar(1), *slow(sg.Relax(2), sg.ModifiedRelax(2))], ids=repr
)
def test_relaxations(estimator):
    assert passes(relaxed_scores(estimator))


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_relaxations_of_categories_differentiated_by_half(monkeypatch):
    """If z̃ does not depend on the logits of the categories, the bias is detected."""

    right = sg.Categorical.latent_given
    wrong = lambda *given: jax.lax.stop_gradient(right(*given))
    monkeypatch.setattr(sg.Categorical, "latent_given", wrong)
    assert not passes(relaxed_scores(sg.Rebar(1)))


def test_parts_are_drawn_independently_and_samples_together():
    """Samples are antithetic in each part, and no two parts are equal."""
    q = sg.Joint([sg.Bernoulli(jnp.zeros((4000, 1))), sg.Bernoulli(jnp.zeros((4000, 1)))])
    x = sg.DisARM(2).sample(KEY, q)
    np.testing.assert_array_equal(x[0], 1 - x[1])
    assert abs(float(jnp.mean(x[0, :, 0] * x[0, :, 1])) - 0.25) < 0.03


def test_each_part_must_be_allowed():
    q = sg.Joint(a=sg.Bernoulli(jnp.zeros(2)), b=sg.Categorical(jnp.zeros((1, 3))))
    f = lambda x: jnp.sum(x["a"], -1) * x["b"][..., 0, 1] ** 2
    _, grads = sg.value_and_grad(f, q, sg.ReinMax(2), key=KEY)
    assert grads.parameters["b"].shape == (1, 3)
    with pytest.raises(ValueError, match="DisARM needs independent bits, but was given Joint"):
        sg.value_and_grad(f, q, sg.DisARM(2), key=KEY)
    ordinal = sg.Joint([sg.Ordinal(jnp.zeros((1, 3)), (0, 1, 2))])
    with pytest.raises(
        ValueError, match="Relax needs independent bits or one-hot categories, but was given Joint"
    ):
        sg.Relax().sample(KEY, ordinal)


@pytest.mark.slow
def test_f_sees_the_parts():
    dist = sg.Joint(
        bits=sg.Bernoulli(jnp.zeros((2, 3))),
        inner=sg.Joint([sg.Categorical(jnp.zeros((2, 1, 4))), sg.Bernoulli(jnp.zeros((2, 1)))]),
    )
    seen = []

    def f(x, scale):
        seen.append(jax.tree.map(jnp.shape, x))
        return scale * jnp.sum(x["bits"], -1) * x["inner"][0][..., 0, 1] + x["inner"][1][..., 0]

    for estimator in (sg.RLOO(3), sg.Rodeo(3), sg.LocalExpectation(3)):
        cv = estimator.init(KEY, dist)
        run = lambda p, scale, e=estimator, cv=cv: sg.expectation(
            f, dist.with_parameters(p), e, cv, key=KEY, args=(scale,)
        )
        value, (by_p, by_scale) = jax.value_and_grad(run, (0, 1))(dist.parameters, 2.0)
        direct, grads = sg.value_and_grad(f, dist, estimator, cv, key=KEY, args=(jnp.array(2.0),))
        np.testing.assert_allclose(value, direct)
        assert largest_difference(by_p, grads.parameters) < 1e-6
        np.testing.assert_allclose(by_scale, grads.args[0])
    assert all(s == {"bits": (3, 2, 3), "inner": ((3, 2, 1, 4), (3, 2, 1))} for s in seen)
    assert sg.LocalExpectation(3).num_evaluations(dist) == 3 * (1 + 3 + 3 + 1)
    assert sg.Rodeo(2, surrogate=sg.ExactSurrogate()).num_evaluations(dist) == 2 * (1 + 3 + 3 + 1)


def test_parts_of_two_kinds_of_half_precision():
    """Neither dtype holds the values of the other, so states are float32."""
    fine = sg.Ordinal(jnp.zeros((1, 2), jnp.float16), (1.0, 1.001))
    large = sg.Ordinal(jnp.zeros((1, 2), jnp.bfloat16), (1.0, 1e30))
    for parts in ([fine, large], [large, fine]):
        q = sg.Joint(parts)
        assert q.dtype == q.enumerate().dtype == jnp.float32
        assert len(np.unique(q.enumerate(), axis=0)) == 4
        np.testing.assert_array_equal(q.state_number(q.enumerate()), np.arange(4))
        merged = q.merge([part.state(jnp.ones(1, jnp.int32)) for part in parts])
        for part, own in zip(parts, q.split(merged), strict=True):
            assert own[0] == part.state(jnp.ones(1, jnp.int32))[0].astype(jnp.float32)
    assert sg.Joint([fine, fine]).dtype == jnp.float16


def test_empty_batches():
    q = sg.Joint(a=sg.Bernoulli(jnp.zeros((0, 3))), b=sg.Categorical(jnp.zeros((0, 1, 3))))
    f = lambda x: jnp.sum(x["a"], axis=-1) * x["b"][..., 0, 2]
    value, grads = sg.value_and_grad(f, q, sg.RLOO(2), key=jax.random.key(0))
    assert float(value) == 0
    assert jax.tree.map(jnp.shape, grads.parameters) == {"a": (0, 3), "b": (0, 1, 3)}


def test_inputs_are_checked():
    bits = sg.Bernoulli(jnp.zeros(2))
    with pytest.raises(ValueError, match="either named parts or a sequence of parts"):
        sg.Joint()
    with pytest.raises(ValueError, match="either named parts or a sequence of parts"):
        sg.Joint([bits], bits=bits)
    with pytest.raises(TypeError, match="made of distributions, but was given a"):
        sg.Joint(a=jnp.zeros(2))
    with pytest.raises(ValueError, match=r"share their batch_shape, but .*\[\(\), \(3,\)\]"):
        sg.Joint(a=bits, b=sg.Bernoulli(jnp.zeros((3, 2))))
    dist = sg.Joint(a=bits, b=sg.Categorical(jnp.zeros((1, 3))))
    for estimator in (sg.ARMS(2), sg.DisARM(2)):
        with pytest.raises(ValueError, match=r"was given Joint, .*. RLOO and Rodeo take any"):
            estimator.sample(KEY, dist)
    with pytest.raises(ValueError, match="Use num_coordinates=None for all"):
        sg.Gibbs(num_coordinates=1).neighbours(dist, dist.enumerate(), key=KEY)
    with pytest.raises(ValueError, match=r"pass them to one of joint\.parts, or use an operator"):
        dist.shift(dist.enumerate(), (1,))
    x = jnp.array([[2.0, 0.0, 1.0, 0.0, 0.0]])
    with pytest.raises(ValueError, match="no state of this Joint has"):
        sg.Reinforce(1).estimate(None, dist, x, jnp.zeros(1))


@pytest.mark.usefixtures("x64")
def test_answers_for_its_neighbours():
    """The neighbours' interface of a Joint is that of its parts, in the slots of `neighbours`."""
    dist = sg.Joint(a=sg.Bernoulli(normal(0, 2)), b=sg.Categorical(normal(1, (1, 3))))
    x = dist.enumerate()
    every = dist.neighbours(x)
    h = table(dist, seed=2)
    ratio = dist.at_neighbours(dist.log_prob, x, every.values) - dist.log_prob(x)[:, None, None]
    np.testing.assert_allclose(dist.log_ratio(x, every.values), ratio, atol=1e-12)
    np.testing.assert_array_equal(dist.shift(x), every.values)
    np.testing.assert_allclose(dist.at_neighbours(h, x, every.values), every.evaluate(h))
    gradient = normal(3, x.shape)
    np.testing.assert_allclose(
        dist.linear_change(gradient, x, every.values), every.linear_change(gradient)
    )
    coefficients = normal(4, every.values.shape)
    summed = jax.tree.map(lambda s: jnp.sum(s, 0), dist.score_change(coefficients, x, every.values))
    weighted = dist.weighted_score_change(coefficients, x, every.values)
    assert largest_difference(summed, weighted) < 1e-12
