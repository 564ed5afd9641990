"""Bronco: unbiased for any `cv`, by summation over all samples and flips; the fit; edge cases."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import steingrad as sg
from marks import slow
from problems import (
    all_tuples,
    batched,
    distributions,
    largest_difference,
    normal,
    normalised_distributions,
    objective,
    table,
    values_and_gradients,
)
from steingrad.distributions.joint import JointNeighbours
from steingrad.distributions.swaps import Swaps
from steingrad.estimators.base import of_one_type
from steingrad.estimators.blend import coefficients as blend_coefficients
from steingrad.estimators.bronco import Drawn, at_slots, corrected, pick
from steingrad.estimators.flip_regression import coefficients
from steingrad.estimators.least_squares import Products
from steingrad.estimators.value_tables import ValueTables, pair_number

NAMES = ["bernoulli", "categorical3", "ordinal3"]


def problems():
    """Problems, one of them a Joint with a Subset."""
    return normalised_distributions() | {
        "joint": sg.Joint(
            bit=sg.Bernoulli(normal(0, 1)),
            category=sg.Categorical(normal(1, (1, 3))),
            pair=sg.Subset(normal(2, 3), 2),
        ),
        "product": sg.Joint(
            [sg.Bernoulli(normal(0, 2)), sg.Ordinal(normal(1, (1, 3)), (-1, 0, 2.5))]
        ),
    }


def of_partners(flips, slots, count):
    """The probability of each partner, of shape `[..., count]`; partner 0 if there is none."""
    if isinstance(flips, Swaps):
        own = flips.chances(slots)
        return jnp.pad(own, [(0, 0)] * slots.ndim + [(0, count - own.shape[-1])])
    if isinstance(flips, JointNeighbours):
        parts = [
            jnp.where(inside[..., None], of_partners(part, local, count), 0)
            for part, (local, inside) in zip(flips.parts, flips._local(slots), strict=True)
        ]
        return sum(parts)
    return jax.nn.one_hot(jnp.zeros_like(slots), count)


def random_cv(estimator, dist, seed=0):
    """Sums as if over random flips, with coefficients and probabilities far from the initial
    ones."""
    rng = np.random.default_rng(seed)
    d, m = dist.flip_shape
    features, target = rng.normal(size=(d, 5, 3)), rng.normal(size=(d, 5))
    cv = estimator.CV(
        gram=jnp.asarray(np.einsum("dnf,dng->dfg", features, features)),
        cross=jnp.asarray(np.einsum("dnf,dn->df", features, target)),
        error=jnp.asarray(rng.exponential(size=d)),
        size=jnp.asarray(rng.exponential(size=d)),
        flips=jnp.asarray(5.0 * d),
        change=jnp.asarray(3.0 * d),
        value=jnp.asarray(2.0),
        deviation=jnp.asarray(1.5),
        steps=jnp.asarray(3.0),
        effect=jnp.asarray(rng.exponential(size=(d, m, 2))),
        tables=random_tables(d, m, rng),
        products=random_products(),
    )
    return eqx.tree_at(lambda cv: cv.effect, cv, None) if estimator.use_gradient else cv


def random_tables(d, m, rng):
    """Tables of random residuals; `None` for bits."""
    tables = ValueTables.zero(d, m)
    fill = lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)) + jnp.asarray([0.0, 4.0])
    return jax.tree.map(lambda leaf: jnp.abs(fill(leaf)) * jnp.asarray([-1.0, 1.0]), tables)


def random_products():
    """Products with which both coefficients of the blend are far from 0."""
    matrix = jnp.asarray([[2.0, -1.0, 0.5], [-1.0, 3.0, 0.4], [0.5, 0.4, 1.5]])
    rest = map(jnp.asarray, (0.8, 1.0, 1.0, 1.0))
    products = Products(matrix, *rest)
    assert min(map(abs, blend_coefficients(products))) > 0.05
    return products


def mean_over_everything(estimator, cv, dist, f, estimate=None):
    """Σ_x q(x) Σ_slots π g, for all tuples of samples and all choices of flips."""
    x, probs = all_tuples(dist, estimator.num_samples)
    fx, dfx = values_and_gradients(f, x)
    many = batched(dist, len(probs))
    at = sg.Evaluated(x, fx, dfx if estimator.use_gradient else None)
    guess = estimator.guess(cv, many, at)
    count = guess.change.shape[-1] * guess.change.shape[-2]
    shape = estimator.flips, estimator.num_samples
    choices = np.asarray(list(itertools.product(range(count), repeat=shape[0] * shape[1])))

    def term(choice):
        slots = jnp.broadcast_to(choice.reshape(*shape, 1), (*shape, len(probs)))
        weights = probs * jnp.prod(at_slots(guess.probability, slots), axis=(0, 1))
        total, mean = 0, jax.tree.map(jnp.zeros_like, dist.parameters)
        count = dist.flip_shape[0] if guess.flips.has_partners else 1
        chance = of_partners(guess.flips, slots, count)
        for partner in itertools.product(range(count), repeat=shape[0] * shape[1]):
            partner = jnp.asarray(partner, jnp.int32).reshape(*shape, 1)
            partner = jnp.broadcast_to(partner, slots.shape)
            drawn = Drawn(slots, partner if guess.flips.has_partners else None)
            fy = jax.vmap(f)(guess.flips.moved(*drawn))
            at = sg.Evaluated(x, fx, dfx, fy, memo=(guess, drawn))
            g = estimator.gradient(cv, many, at) if estimate is None else estimate(many, at)
            chosen = jnp.take_along_axis(chance, partner[..., None], axis=-1)[..., 0]
            w = weights * jnp.prod(chosen, axis=(0, 1))
            total += jnp.sum(w)
            mean = jax.tree.map(lambda m, g, w=w: m + jnp.tensordot(w, g, 1), mean, g)
        return total, mean

    totals, terms = jax.vmap(term)(jnp.asarray(choices, jnp.int32))
    # Probabilities that do not sum to one are detected too.
    return jax.tree.map(lambda g: jnp.sum(g, axis=0) / jnp.sum(totals) ** 2, terms)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", [*NAMES, *slow("joint", "subset", "product")])
@pytest.mark.parametrize(("num_samples", "flips"), [(1, 1), *slow((1, 2), (2, 1))])
@pytest.mark.parametrize("use_gradient", [True, *slow(False)])
def test_unbiased_for_any_state(name, num_samples, flips, use_gradient):
    dist = problems()[name]
    estimator = sg.Bronco(num_samples, flips, use_gradient=use_gradient)
    f = objective(dist) if use_gradient else table(dist, 3)
    shown = f if not isinstance(dist, sg.Joint) else lambda parts: f(dist.merge(parts))
    mean = jax.jit(lambda cv: mean_over_everything(estimator, cv, dist, f))
    for cv in (estimator.init(jax.random.key(0), dist), random_cv(estimator, dist)):
        assert largest_difference(mean(cv), sg.exact_gradient(shown, dist)) < 1e-10


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "name", ["bernoulli", "subset", *slow("categorical3", "ordinal3", "joint")]
)
def test_a_guess_that_sees_the_flip_is_caught(name):
    dist = problems()[name]
    estimator = sg.Bronco(1, 1)
    f = objective(dist)

    def peeking(many, at):
        guess, drawn = at.memo
        slot = jnp.arange(guess.change[0, 0].size, dtype=jnp.int32).reshape(guess.change.shape[-2:])
        here = slot == drawn.slots[0][..., None, None]
        change = guess.change + jnp.where(here, 0.5 * (at.fy[0] - at.fx)[..., None, None], 0)
        return corrected(at, guess._replace(change=change), drawn)

    cv = random_cv(estimator, dist)
    shown = f if not isinstance(dist, sg.Joint) else lambda parts: f(dist.merge(parts))
    mean = jax.jit(lambda cv: mean_over_everything(estimator, cv, dist, f, peeking))(cv)
    assert largest_difference(mean, sg.exact_gradient(shown, dist)) > 1e-2


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("part", ["tables", "products"])
def test_a_state_that_sees_its_own_step_is_caught(part):
    """Tables that know the flip of this step, or products that know its samples, add a bias."""
    dist, estimator = problems()["categorical3"], sg.Bronco(1, 1)
    f, cv = objective(dist), random_cv(estimator, dist)

    def peeking(many, at):
        def one(x, fx, dfx, fy, slot):
            """The estimate of one element, with what is learned from this element alone."""
            lead = lambda a: a[:, None]
            at = sg.Evaluated(lead(x), lead(fx), lead(dfx), key=None)
            drawn = Drawn(slot[:, :, None], None)
            single = batched(dist, 1)
            guess = estimator.guess(cv, single, at)
            at = sg.Evaluated(at.x, at.fx, at.dfx, fy[:, :, None], memo=(guess, drawn))
            following = jax.tree.map(jnp.subtract, cv, estimator.adapt(cv, single, at)[1])
            seen = eqx.tree_at(lambda cv: getattr(cv, part), cv, getattr(following, part))
            guess = estimator.guess(seen, single, at)._replace(probability=guess.probability)
            at = eqx.tree_at(lambda at: at.memo, at, (guess, drawn))
            return estimator.gradient(seen, single, at)[0]

        drawn = at.memo[1]
        axes = (1, 1, 1, 2, 2)
        return jax.vmap(one, axes)(at.x, at.fx, at.dfx, at.fy, drawn.slots)

    right = jax.jit(lambda: mean_over_everything(estimator, cv, dist, f))()
    wrong = jax.jit(lambda: mean_over_everything(estimator, cv, dist, f, peeking))()
    exact = sg.exact_gradient(f, dist)
    assert largest_difference(right, exact) < 1e-10
    assert largest_difference(wrong, exact) > 1e-5


def test_numbers_of_pairs():
    m = 7
    u, v = np.meshgrid(np.arange(m), np.arange(m))
    number = np.asarray(pair_number(jnp.asarray(u), jnp.asarray(v)))
    assert (number == number.T).all()
    assert sorted(number[u < v]) == list(range(m * (m - 1) // 2))


def test_bits_have_no_tables_and_many_values_no_pairs():
    tables = lambda d, m: sg.Bronco().init(None, sg.Categorical(jnp.zeros((d, m)))).tables
    assert tables(200, 2) is None
    assert tables(16, 8).pairs.shape == (16, 28, 2)
    large = tables(64, 512)
    assert large.pairs is None
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(large)) < 2e6


@pytest.mark.parametrize("flips", [1, *slow(2)])
def test_curvature_between_values_is_learned(flips):
    """f is quadratic in each coordinate, with another curvature for each pair of values. Its slope
    is not enough, and the numbers for pairs are: little is left but the noise of x itself."""
    mixed = normal(0, (4, 5, 5)).astype(jnp.float32)
    w = normal(1, (4, 5)).astype(jnp.float32)

    def f(x):
        each = jnp.einsum("...dm,dmn,...dn->...d", x, mixed, x)
        return jnp.sum(each, axis=-1) + jnp.sum(w * x, axis=(-2, -1))

    q = sg.Categorical(normal(2, (4, 5)).astype(jnp.float32))
    estimator = sg.Bronco(1, flips)
    cv, _ = run(estimator, f, q, 4000)
    without = eqx.tree_at(lambda cv: cv.tables, cv, ValueTables.zero(4, 5))
    assert variance(estimator, f, q, cv) < 0.2 * variance(estimator, f, q, without)


@pytest.mark.parametrize("use_gradient", [True, False])
@pytest.mark.parametrize("name", ["bits", *slow("categories", "subset", "joint")])
def test_never_worse_than_rloo(name, use_gradient):
    """An independent random value of f at each state, so that no slope and no past flip tells
    anything. The blend with the score-function estimate keeps the variance of RLOO."""
    dist = {
        "bits": sg.Bernoulli(normal(0, 8).astype(jnp.float32)),
        "categories": sg.Categorical(normal(1, (4, 4)).astype(jnp.float32)),
        "subset": sg.Subset(normal(2, 8).astype(jnp.float32), 3),
        "joint": sg.Joint(
            [
                sg.Bernoulli(normal(3, 4).astype(jnp.float32)),
                sg.Categorical(normal(4, (2, 4)).astype(jnp.float32)),
            ]
        ),
    }[name]
    values = normal(5, dist.num_states).astype(jnp.float32) + 10
    merge = dist.merge if isinstance(dist, sg.Joint) else lambda x: x
    f = lambda x: values[dist.state_number(merge(x))]
    estimator = sg.Bronco(1, 1, use_gradient=use_gradient)
    cv, _ = run(estimator, f, dist, 3000)
    assert variance(estimator, f, dist, cv) < 1.1 * variance(sg.RLOO(2), f, dist, None)


def test_coefficients_of_the_blend_minimise_the_mean_square():
    rng = np.random.default_rng(0)
    for seed in range(20):
        g, a, s = terms = np.random.default_rng(seed).normal(size=(3, 12))
        a -= rng.uniform(-1, 2) * g
        products = Products(jnp.asarray(terms @ terms.T), *map(jnp.asarray, (1.0, 0.0, 1.0, 1.0)))
        c1, c2 = map(float, blend_coefficients(products))
        grid = np.linspace(0, 1, 201)
        # For each first coefficient, the best second one.
        second = -(s @ g + grid * (s @ a)) / (s @ s)
        squares = [np.sum((g + b * a + c * s) ** 2) for b, c in zip(grid, second, strict=True)]
        assert np.sum((g + c1 * a + c2 * s) ** 2) <= min(squares) * (1 + 1e-4)
        assert c1 == pytest.approx(grid[np.argmin(squares)], abs=0.01)
    few = Products(jnp.eye(3), *map(jnp.asarray, (0.01, 0.0, 1.0, 1.0)))
    assert blend_coefficients(few) == (0, 0)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["bernoulli", *slow("categorical5", "ordinal5", "product")])
def test_flips_are_neighbours_and_a_slot_each(name):
    dist = (problems() | distributions())[name]
    x = dist.sample(jax.random.key(0), (1,))
    count = dist.num_neighbours
    slots = jnp.arange(count, dtype=jnp.int32)[:, None]
    y = dist.flips(x).moved(slots, None)
    assert jnp.all(jnp.sum(dist.index(y) != dist.index(x), axis=-1) == 1)
    assert len(np.unique(dist.state_number(y))) == count
    # In the order of the guess: a linear change is guessed exactly.
    w = normal(1, dist.event_shape)
    f = lambda x: jnp.sum(w * x, axis=tuple(range(-dist.event_ndim, 0)))
    fx, dfx = values_and_gradients(f, x)
    estimator = sg.Bronco()
    guess = estimator.guess(estimator.init(None, dist), dist, sg.Evaluated(x, fx, dfx))
    assert jnp.allclose(at_slots(guess.change, slots), jax.vmap(f)(y) - fx, atol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("k", [3, *slow(1, 2, 5)])
def test_a_partner_leaves_the_distribution_of_the_other_value(k):
    """A sample given x_i = 1, after i leaves and its partner enters, is a sample given x_i = 0. The
    same holds with 0 and 1 exchanged."""
    dist = sg.Subset(2 * normal(3, 6), k)
    states, probs, mean = dist.enumerate(), dist.probabilities(), dist.mean
    number = np.asarray(dist.state_number(states))
    assert np.array_equal(number, np.arange(len(states)))
    for i in range(6):
        slots = jnp.full((1, len(states)), i, jnp.int32)
        partners = np.asarray(dist.flips(states).chances(slots))[0]
        assert np.allclose(partners.sum(-1), 1, atol=1e-12)
        for value in (0, 1):
            here = np.asarray(states[:, i]) == value
            after = np.zeros(len(states))
            for n in np.flatnonzero(here):
                for j in np.flatnonzero(partners[n]):
                    assert j != i
                    assert states[n, j] != value
                    y = np.asarray(states[n]).copy()
                    y[[i, j]] = 1 - y[[i, j]]
                    after[int(dist.state_number(jnp.asarray(y)))] += probs[n] * partners[n, j]
            given = np.asarray(mean[i] if value else 1 - mean[i])
            expected = np.where(here, 0, probs) / (1 - given)
            assert np.allclose(after / given, expected, atol=1e-12)


def test_partners_are_drawn_with_their_probabilities():
    dist = sg.Subset(jnp.linspace(-1, 1, 5), 2)
    x = jnp.asarray([1.0, 0, 0, 1, 0])
    many = jnp.broadcast_to(x, (20_000, 5))
    flips = dist.flips(many)
    for i in (0, 2):
        slots = jnp.full((1, len(many)), i, jnp.int32)
        y = flips.moved(slots, flips.draw_partners(slots, jax.random.key(i)))[0]
        assert jnp.all(jnp.sum(y, axis=-1) == 2)
        moved = jnp.mean(y != x, axis=0).at[i].set(0)
        expected = flips.chances(slots)[0, 0]
        assert jnp.max(jnp.abs(moved - expected)) < 4 * 0.5 / 20_000**0.5
        assert jnp.all(moved[expected == 0] == 0)


def test_a_subset_that_has_no_choice():
    """If only two elements can be the two members, nothing is learned and all results are
    finite."""
    dist = sg.Subset(jnp.asarray([0.0, -jnp.inf, 1.0, -jnp.inf]), 2)
    estimator = sg.Bronco(2, 2)
    cv = estimator.init(jax.random.key(0), dist)
    f = lambda x: curved(x) - dist.log_prob(x)
    _, grads = jax.jit(lambda key: estimator.value_and_grad(f, dist, cv, key=key))(
        jax.random.key(0)
    )
    assert finite(grads.cv)
    assert jnp.all(grads.parameters == 0)


@pytest.mark.slow
def test_a_subset_makes_no_infinite_numbers():
    """Estimates work if JAX is asked to raise at the first infinite number."""
    dist = sg.Subset(jnp.linspace(-1, 1, 4), 2)
    estimator = sg.Bronco()
    cv = estimator.init(jax.random.key(0), dist)
    with jax.debug_infs(True):
        _, grads = estimator.value_and_grad(curved, dist, cv, key=jax.random.key(0))
    assert finite(grads)


def test_a_subset_in_bfloat16_keeps_what_is_almost_certain():
    """μ = 0.9986 must not be rounded to 1, as bfloat16 would."""
    logits = jnp.asarray([7.0, 0, 0, 0, 0])
    flips = [
        q.flips(q.sample(jax.random.key(0), (3,)))
        for q in (sg.Subset(logits.astype(dtype), 2) for dtype in (jnp.bfloat16, jnp.float32))
    ]
    narrow, wide = (jnp.sort(flip.conditional()[:, 0, 0]) for flip in flips)
    assert jnp.all(narrow > 0)
    assert jnp.allclose(narrow, wide, atol=1e-5)


@pytest.mark.slow
def test_parts_of_several_types():
    q = sg.Joint(a=sg.Bernoulli(jnp.zeros((4, 2), jnp.bfloat16)), b=sg.Subset(jnp.zeros((4, 3)), 1))
    estimator = sg.Bronco(2, 2)
    cv = estimator.init(jax.random.key(0), q)
    f = lambda x: jnp.sum(x["a"].astype(jnp.float32), -1) * x["b"][..., 0]
    keys = jax.random.split(jax.random.key(1), 3)
    _, grads = jax.vmap(lambda key: estimator.value_and_grad(f, q, cv, key=key))(keys)
    assert finite(grads)
    assert grads.parameters["a"].dtype == jnp.bfloat16
    assert grads.parameters["b"].shape == (3, 4, 3)


@pytest.mark.slow
def test_adaptation_on_a_subset():
    dist = sg.Subset(jnp.linspace(-1, 1, 12), 4)
    w = jnp.linspace(0.2, 3.0, 12)
    f = lambda x: (x @ w - 5) ** 2
    estimator = sg.Bronco(1, 1)
    before = estimator.init(jax.random.key(0), dist)
    after, _ = run(estimator, f, dist, 600)
    first, then, rloo = (
        variance(e, f, dist, cv)
        for e, cv in ((estimator, before), (estimator, after), (sg.RLOO(2), None))
    )
    assert then < 0.8 * first
    assert then < 0.2 * rloo


def test_a_part_that_cannot_be_flipped_is_refused():
    q = sg.Joint(
        a=sg.Bernoulli(jnp.zeros(2)),
        b=sg.FromLogProb(lambda p, x: p @ x, jnp.zeros(2), num_coordinates=2),
    )
    with pytest.raises(
        ValueError,
        match="can change one at a time, but was given Joint",
    ):
        sg.Bronco().value_and_grad(lambda x: x["a"][..., 0], q, None, key=jax.random.key(0))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("n", [1, 7, 12, *slow(2, 16, 23)])
def test_draws_have_their_probabilities(n):
    probability = np.random.default_rng(n).exponential(size=n) ** 2 + 1e-3
    probability = jnp.asarray(probability / probability.sum())
    grid = jnp.asarray((np.arange(400) + 0.5) / 400)
    first, second = (axis.reshape(-1) for axis in jnp.meshgrid(grid, grid))
    slots = pick(probability, first, second)
    frequency = np.bincount(slots, minlength=n) / slots.size
    assert np.allclose(frequency, probability, atol=5e-3)
    ends = jnp.asarray([0.0, 1 - 2.0**-53])
    assert jnp.all((pick(probability, ends, ends) >= 0) & (pick(probability, ends, ends) < n))


def test_draws_of_many_in_half_precision():
    """Positions above 256 are right, although bfloat16 has no odd numbers there."""
    estimator = sg.Bronco(1, uniform=1.0)
    q = sg.Bernoulli(jnp.zeros((60, 300 * 300), jnp.bfloat16))
    x = jnp.zeros((1, 60, 300 * 300), jnp.bfloat16)
    cv = estimator.init(jax.random.key(0), q)
    at = estimator.evaluated(cv, q, x, jnp.zeros((1, 60), jnp.bfloat16), x, key=jax.random.key(1))
    _, (_, (slots, _)) = estimator.propose(*of_one_type(cv, q, at))
    slots = slots[0]
    blocks, inside = jnp.divmod(slots, 300)
    assert jnp.any((blocks > 256) & (blocks % 2 == 1))
    assert jnp.any((inside > 256) & (inside % 2 == 1))


def test_two_flips_of_a_sample_differ():
    estimator = sg.Bronco(1, 2, uniform=1.0)
    q = sg.Bernoulli(jnp.zeros((200, 9)))
    x = estimator.sample(jax.random.key(0), q)
    cv = estimator.init(jax.random.key(0), q)
    at = sg.Evaluated(x, jnp.zeros((1, 200)), jnp.zeros_like(x), key=jax.random.key(1))
    y = estimator.further_points(cv, q, at)
    assert y.shape == (2, 1, 200, 9)
    assert not jnp.any(jnp.all(y[0] == y[1], axis=-1))


@pytest.mark.parametrize("dist", [sg.Bernoulli(jnp.zeros((3, 8))), sg.Subset(jnp.zeros(8), 3)])
def test_flips_are_drawn_once(dist):
    """The estimate uses the flips that were proposed with its key. Another key gives other
    flips."""
    estimator = sg.Bronco(1, 2)
    cv = estimator.init(jax.random.key(0), dist)
    x = estimator.sample(jax.random.key(1), dist)
    fx, dfx = values_and_gradients(curved, x)
    at = sg.Evaluated(x, fx, dfx, key=jax.random.key(2))
    y, memo = estimator.propose(cv, dist, at)
    assert jnp.array_equal(estimator.further_points(cv, dist, at), y)
    # With the memo no key is needed.
    known = estimator.gradient(cv, dist, sg.Evaluated(x, fx, dfx, curved(y), memo=memo))
    same, other = (
        estimator.estimate(cv, dist, x, fx, dfx, fy=curved(y), key=jax.random.key(seed))
        for seed in (2, 3)
    )
    assert jnp.array_equal(known, same)
    assert not jnp.array_equal(known, other)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["bernoulli", *slow("categorical3", "ordinal3")])
def test_coefficients_are_a_weighted_least_squares_fit(name):
    """The coefficients equal those of an offline fit to a record of all draws."""
    dist = batched(distributions()[name], 6)
    f = objective(dist)
    estimator = sg.Bronco(2, 2, memory=24 * 19 / dist.num_coordinates)  # 0.95 a step
    cv = estimator.init(jax.random.key(0), dist)
    coordinates, features, targets, weights = [], [], [], []
    for step in range(12):
        keys = jax.random.split(jax.random.key(step))
        x = estimator.sample(keys[0], dist)
        fx, dfx = values_and_gradients(f, x)
        at = sg.Evaluated(x, fx, dfx, key=keys[1])
        y, memo = estimator.propose(cv, dist, at)
        at = sg.Evaluated(x, fx, dfx, jax.vmap(f)(y), memo=memo)
        guess, (slots, _) = memo
        count = dist.num_coordinates * (dist.num_values - 1)
        known = lambda a, slots=slots: np.asarray(at_slots(a, slots)).reshape(-1)
        coordinates.append(np.asarray(slots).reshape(-1) // (dist.num_values - 1))
        features.append(np.stack([known(feature) for feature in guess.features], -1))
        # The coefficients explain what the numbers of values and pairs leave.
        rest = 0 if guess.residual is None else known(guess.residual)
        targets.append(np.asarray((at.fy - fx) / guess.scale).reshape(-1) - rest)
        weights.append(0.95 ** (11 - step) * known(guess.size) ** 2 / known(guess.probability))
        weights[-1] /= count
        _, cv_grad = estimator.adapt(cv, dist, at)
        cv = jax.tree.map(jnp.subtract, cv, cv_grad)

    i, phi, t, w = map(np.concatenate, (coordinates, features, targets, weights))
    flips = sum(24 * 0.95**k for k in range(12))
    assert cv.flips == pytest.approx(flips)
    one_flip = np.sum(w[:, None] * phi**2, axis=0) / flips

    def fit(chosen, prior, ridge):
        """Least squares with the prior as further observations."""
        rows = np.sqrt(w[chosen])[:, None] * phi[chosen]
        rows = np.concatenate([rows, np.diag(np.sqrt(ridge * one_flip))])
        right = np.concatenate([np.sqrt(w[chosen]) * t[chosen], np.sqrt(ridge * one_flip) * prior])
        return np.linalg.lstsq(rows, right, rcond=None)[0]

    first = np.asarray([1.0, 0.0, 0.0])
    common = fit(np.ones(len(i), bool), first, 10.0)
    each = np.stack([fit(i == k, common, 1.0) for k in range(dist.num_coordinates)])
    assert np.allclose(
        coefficients(cv.gram, cv.cross, cv.flips, jnp.asarray(first)), each, atol=1e-8
    )


def run(estimator, f, q, steps, cv=None, key=0):
    """The result of `steps` steps of adaptation, in one compiled scan."""
    cv = estimator.init(jax.random.key(0), q) if cv is None else cv
    optimizer = sg.cv_optimizer(estimator)

    def step(carry, key):
        cv, state = carry
        value, grads = estimator.value_and_grad(f, q, cv, key=key)
        updates, state = optimizer.update(grads.cv, state, cv)
        return (optax.apply_updates(cv, updates), state), (value, grads.parameters)

    keys = jax.random.split(jax.random.key(key), steps)
    (cv, _), (_, g) = jax.jit(lambda c, k: jax.lax.scan(step, c, k))((cv, optimizer.init(cv)), keys)
    return cv, g


def variance(estimator, f, q, cv, draws=4000):
    keys = jax.random.split(jax.random.key(7), draws)
    g = jax.jit(jax.vmap(lambda key: estimator.value_and_grad(f, q, cv, key=key)[1].parameters))(
        keys
    )
    return sum(float(jnp.sum(jnp.var(leaf, axis=0))) for leaf in jax.tree.leaves(g))


def curved(x):
    """A smooth function, with a different curvature in each coordinate."""
    w = jnp.linspace(0.2, 3.0, x.shape[-1], dtype=x.dtype)
    return -jnp.sum(w * (x - 0.3) ** 2, axis=-1) + jnp.sin(jnp.sum(x * w, axis=-1))


@pytest.mark.parametrize("use_gradient", [True, *slow(False)])
def test_adaptation_lowers_the_variance(use_gradient):
    q = sg.Bernoulli(jnp.linspace(-1.5, 1.5, 12))
    estimator = sg.Bronco(1, 1, use_gradient=use_gradient)
    before = estimator.init(jax.random.key(0), q)
    after, _ = run(estimator, curved, q, 600)
    first, then = (variance(estimator, curved, q, cv) for cv in (before, after))
    assert then < 0.75 * first
    two = sg.Bronco(1, 2, use_gradient=use_gradient)
    assert variance(two, curved, q, run(two, curved, q, 600)[0]) < 0.7 * then


@pytest.mark.slow
def test_adaptation_on_categories():
    q = sg.Categorical(normal(0, (6, 4)).astype(jnp.float32))
    w = normal(1, (6, 4)).astype(jnp.float32)
    f = lambda x: jnp.sum(w * x, axis=(-2, -1)) ** 2
    for use_gradient in (True, False):
        estimator = sg.Bronco(1, 1, use_gradient=use_gradient)
        before = estimator.init(jax.random.key(0), q)
        after, _ = run(estimator, f, q, 2000)
        assert variance(estimator, f, q, after) < 0.9 * variance(estimator, f, q, before)


def finite(tree):
    return all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(tree))


LOGITS = {
    "one bit": jnp.zeros(1),
    "no batch": jnp.zeros(5),
    "batch of one": jnp.zeros((1, 5)),
    "batch of (2, 3)": jnp.zeros((2, 3, 5)),
    "certain": jnp.asarray([[40.0, -40.0, 40.0], [200.0, -200.0, 40.0]]),
    "partly certain": jnp.asarray([[40.0, -40.0, 0.3], [0.1, 0.2, -40.0]]),
    "10,000 bits": jnp.zeros(10_000),
}
OBJECTIVES = {
    "curved": curved,
    "no slope": lambda x: jnp.sum(jnp.round(x), axis=-1) ** 2,
    "constant": lambda x: 0 * jnp.sum(x, axis=-1) + 3,
    "huge": lambda x: 1e12 * curved(x),
    "tiny": lambda x: 1e-12 * curved(x),
}


@pytest.mark.parametrize(
    "name",
    [
        *("one bit", "batch of (2, 3)", "certain", "10,000 bits"),
        *slow("no batch", "batch of one", "partly certain"),
    ],
)
@pytest.mark.parametrize("use_gradient", [True, *slow(False)])
def test_safe_shapes(name, use_gradient):
    q = sg.Bernoulli(LOGITS[name])
    estimator = sg.Bronco(1, 2, use_gradient=use_gradient)
    cv, g = run(estimator, curved, q, 20)
    assert g.shape == (20, *q.logits.shape)
    assert finite((cv, g))


@pytest.mark.parametrize("name", ["no slope", "huge", *slow("curved", "constant", "tiny")])
@pytest.mark.parametrize("use_gradient", [True, *slow(False)])
def test_safe_objectives(name, use_gradient):
    f = OBJECTIVES[name]
    q = sg.Bernoulli(jnp.linspace(-2, 2, 6))
    estimator = sg.Bronco(use_gradient=use_gradient)
    cv, g = run(estimator, f, q, 300)
    assert finite((cv, g))
    exact = sg.exact_gradient(f, q)
    late = g[100:]
    error = jnp.sqrt(jnp.mean((late - exact) ** 2, axis=0))
    assert jnp.all(error <= 10 * jnp.max(jnp.abs(exact)) + 1e-20)


@pytest.mark.parametrize("factor", slow(1e3, 1e-3))
def test_a_jump_of_the_objective(factor):
    """Soon after a jump the variance is as low as if the objective had always been the new one."""
    q = sg.Bernoulli(jnp.linspace(-1.5, 1.5, 12))
    estimator = sg.Bronco()
    before, _ = run(estimator, curved, q, 500)
    other = lambda x: factor * curved(x)
    after, g = run(estimator, other, q, 300, before)
    settled, _ = run(estimator, other, q, 500)
    assert finite((after, g))
    assert variance(estimator, other, q, after) < 1.5 * variance(estimator, other, q, settled)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, *slow(jnp.float32)])
@pytest.mark.parametrize("kind", ["bernoulli", "categorical", "ordinal", "subset"])
def test_types_and_front_door(dtype, kind):
    """`expectation` works compiled and in any dtype, and `cv` moves by one plain gradient step."""
    shape = (4, 3) if kind in ("bernoulli", "subset") else (4, 3, 5)
    logits = normal(0, shape).astype(dtype)
    make = {
        "bernoulli": sg.Bernoulli,
        "categorical": sg.Categorical,
        "ordinal": lambda logits: sg.Ordinal(logits, range(5)),
        "subset": lambda logits: sg.Subset(logits, 2),
    }[kind]
    estimator = sg.Bronco(2, 2)
    cv = estimator.init(jax.random.key(0), make(logits))
    axes = tuple(range(-make(logits).event_ndim, 0))
    f = lambda x: jnp.sum(x.astype(jnp.float32), axis=axes) ** 2

    @jax.jit
    def grads(logits, cv, key):
        loss = lambda logits, cv: -sg.expectation(f, make(logits), estimator, cv, key=key)
        return jax.grad(loss, (0, 1))(logits, cv)

    g, cv_grad = grads(logits, cv, jax.random.key(1))
    assert g.shape == shape
    assert g.dtype == dtype
    assert cv_grad.flips == -2 * 2 * 4
    assert finite((g, cv_grad))


@pytest.mark.slow
def test_vmap_is_a_loop():
    q = sg.Bernoulli(normal(0, (3, 5)).astype(jnp.float32))
    estimator = sg.Bronco()
    cv = estimator.init(jax.random.key(0), sg.Bernoulli(q.logits[0]))
    keys = jax.random.split(jax.random.key(1), 3)

    def one(logits, key):
        return estimator.value_and_grad(curved, sg.Bernoulli(logits), cv, key=key)[1]

    together = jax.vmap(one)(q.logits, keys)
    for k in range(3):
        alone = one(q.logits[k], keys[k])
        assert largest_difference(jax.tree.map(lambda leaf, k=k: leaf[k], together), alone) < 1e-4


def test_a_random_objective_is_the_same_at_x_and_its_flips():
    """The noise of f is the same at both points, so it cancels in the change."""
    q = sg.Bernoulli(jnp.zeros((7, 4)))
    estimator = sg.Bronco(1, 2)
    cv = estimator.init(jax.random.key(0), q)
    noisy = lambda x, key: curved(x) + 1e3 * jax.random.normal(key, x.shape[:-1])
    quiet = estimator.value_and_grad(curved, q, cv, key=jax.random.key(1))[1].parameters
    g = estimator.value_and_grad(noisy, q, cv, key=jax.random.key(1))[1].parameters
    assert jnp.allclose(g, quiet, atol=1e-2)


@pytest.mark.slow
def test_evaluations_of_ones_own():
    q = sg.Bernoulli(normal(0, (4, 5)).astype(jnp.float32))
    estimator = sg.Bronco(2, 3)
    assert estimator.num_evaluations(q) == 8
    cv = estimator.init(jax.random.key(0), q)
    x = estimator.sample(jax.random.key(1), q)
    fx, dfx = values_and_gradients(curved, x)
    key = jax.random.key(2)
    y = estimator.further_points(cv, q, estimator.evaluated(cv, q, x, fx, dfx, key=key))
    assert y.shape == (3, 2, 4, 5)
    g = estimator.estimate(cv, q, x, fx, dfx, fy=curved(y), key=key)
    assert g.shape == (4, 5)
    with pytest.raises(ValueError, match="pass fy"):
        estimator.estimate(cv, q, x, fx, dfx, key=key)
    with pytest.raises(ValueError, match="pass key"):
        estimator.estimate(cv, q, x, fx, dfx, fy=curved(y))


def test_refusals():
    with pytest.raises(ValueError, match="whole number of flips of 1 or more"):
        sg.Bronco(flips=0)
    with pytest.raises(ValueError, match="every flip can be drawn"):
        sg.Bronco(uniform=0.0)
    with pytest.raises(ValueError, match="memory"):
        sg.Bronco(memory=0.0)
    with pytest.raises(ValueError, match="pass the distribution"):
        sg.Bronco().init(jax.random.key(0))


def test_an_infinite_memory():
    """Sums over all past flips, of which none counts less than another."""
    dist = sg.Bernoulli(jnp.zeros(4))
    estimator = sg.Bronco(memory=float("inf"))
    cv = estimator.init(jax.random.key(0), dist)
    for seed in range(3):
        key = jax.random.key(seed)
        _, grads = sg.value_and_grad(lambda x: jnp.sum(x, -1), dist, estimator, cv, key=key)
        cv = jax.tree.map(jnp.subtract, cv, grads.cv)
    assert float(cv.flips) == 3
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(cv))


@pytest.mark.parametrize("use_gradient", [False, True])
@pytest.mark.parametrize("shape", [(300, 1, 3), *slow(((3000, 2, 4),), ((2000, 1, 9),))])
def test_many_flips_of_the_same_value_in_a_step(shape, use_gradient):
    """The numbers of coordinates, values and pairs are learned from what the others leave. With a
    large batch each sees hundreds of flips in a step, and together they must not overshoot."""
    rng = np.random.default_rng(0)
    tables = jnp.asarray(5 * rng.normal(size=shape), jnp.float32)
    # Without a slope everything is left to the numbers of values and pairs.
    f = lambda x: jnp.sum(jax.lax.stop_gradient(x) * tables, axis=(-1, -2)) + 0 * jnp.sum(x)
    dist = sg.Categorical(jnp.zeros(shape))
    estimator = sg.Bronco(use_gradient=use_gradient)
    cv = estimator.init(jax.random.key(0), dist)
    optimizer = sg.cv_optimizer(estimator)

    def step(carry, key):
        cv, state = carry
        _, grads = estimator.per_element(f, dist, cv, key=key)
        updates, state = optimizer.update(grads.cv, state, cv)
        return (optax.apply_updates(cv, updates), state), jnp.mean(grads.parameters**2)

    keys = jax.random.split(jax.random.key(0), 150)
    (cv, _), squares = jax.lax.scan(step, (cv, optimizer.init(cv)), keys)
    assert 0.1 < jnp.mean(squares[-50:]) / jnp.mean(squares[:3]) < 1.1
    assert cv.products.matrix[0, 0] < 10
