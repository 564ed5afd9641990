"""Numbers at every size: float32 results against NumPy in float64, on random problems.

`BOUND` is the error that each check allows, as a part of the sum of the absolute values of the
terms that make up a number. The references are written here, from the definitions.
"""

import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import steingrad as sg

KEY = jax.random.key(0)
BOUND = 2.0**-17
SCALES = [1e-30, 1e-8, 1.0, 1e8, 1e30]


def assert_close(found, exact, size, bound=BOUND):
    """|found − exact| is at most `bound` times `size`."""
    found = np.asarray(found, np.float64)
    assert found.shape == np.shape(exact)
    allowed = bound * np.asarray(size, np.float64) + 1e-37  # smaller numbers are rounded to 0
    wrong = ~(np.abs(found - exact) <= allowed)
    worst = np.max(np.abs(found - exact) / allowed, initial=0)
    assert not wrong.any(), f"{worst:.3g} times the allowed error"


def single(array):
    """The numbers as float32 sees them, in float64 and in float32."""
    array = np.asarray(array, np.float32)
    return np.asarray(array, np.float64), jnp.asarray(array)


def log_sigmoid(logits):
    return -np.logaddexp(0, -logits)


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    others = np.sort(np.exp(shifted), axis=-1)[..., :-1]
    return shifted - np.log1p(others.sum(-1, keepdims=True))


class Case(NamedTuple):
    """A random problem. Numbers are drawn by NumPy from the seed."""

    seed: int
    kind: str
    batch: tuple[int, ...]
    d: int
    spread: float
    """The scale of the logits."""
    shift: float
    """A constant added to all logits of a coordinate."""
    samples: int
    scale: float
    """The scale of f."""
    constant: float
    """A constant added to f, in units of its scale."""


def cases(kinds=("bernoulli", "categorical", "ordinal"), sizes=(1, 7, 300), spreads=(0.1, 1, 17)):
    one_of = st.sampled_from
    return st.builds(
        Case,
        seed=st.integers(0, 2**32 - 1),
        kind=one_of(kinds),
        batch=one_of([(), (3,), (2, 2)]),
        d=one_of(sizes),
        spread=one_of(spreads),
        shift=one_of([0.0, 1e4]),
        samples=one_of([2, 3, 20]),
        scale=one_of(SCALES),
        constant=one_of([0.0, 100.0]),
    )


class Law:
    """A distribution of the library, and its definition in float64."""

    def __init__(self, case, rng):
        # A million coordinates are enough for one element of the batch.
        self.batch, self.d = case.batch if case.d < 10_000 else (), case.d
        self.is_bits = case.kind == "bernoulli"
        self.m = 2 if self.is_bits else int(rng.integers(2, 6))
        shape = (*self.batch, self.d) if self.is_bits else (*self.batch, self.d, self.m)
        logits = case.spread * rng.normal(size=shape) + (0 if self.is_bits else case.shift)
        self.logits, given = single(logits)
        if self.is_bits:
            self.table = np.stack([log_sigmoid(-self.logits), log_sigmoid(self.logits)], -1)
        else:
            self.table = log_softmax(self.logits)
        self.values = np.arange(2.0)
        if self.is_bits:
            self.dist = sg.Bernoulli(given)
        elif case.kind == "categorical":
            self.dist, self.values = sg.Categorical(given), None
        else:
            steps = case.scale * rng.uniform(0.1, 1, self.m)
            self.values, numbers = single(np.cumsum(steps) - steps.sum() / 2)
            self.dist = sg.Ordinal(given, np.asarray(numbers))

    @property
    def probs(self):
        return np.exp(self.table)

    def indices(self, rng, samples):
        """Half of the coordinates have their most probable value, half any."""
        shape = (samples, *self.batch, self.d)
        likely = np.broadcast_to(self.table.argmax(-1), shape)
        return np.where(rng.uniform(size=shape) < 0.5, likely, rng.integers(0, self.m, shape))

    def state(self, index):
        state = np.eye(self.m)[index] if self.values is None else self.values[index]
        return jnp.asarray(state, jnp.float32)

    def log_probs(self, index):
        """log q of each coordinate's value."""
        table = np.broadcast_to(self.table, (*index.shape, self.m))
        return np.take_along_axis(table, index[..., None], -1)[..., 0]

    def score(self, index):
        """The score, without a difference of nearly equal numbers."""
        p, hot = self.probs, np.eye(self.m)[index]
        rest = np.stack([np.delete(p, a, -1).sum(-1) for a in range(self.m)], -1)
        by_value = np.where(hot > 0, rest, -p)
        return by_value[..., 1] if self.is_bits else by_value

    def over_value(self, numbers):
        """Numbers for each coordinate, with the axes of the score."""
        return numbers if self.is_bits else numbers[..., None]


def problem(case):
    rng = np.random.default_rng(case.seed)
    law = Law(case, rng)
    return law, rng, law.indices(rng, case.samples)


def weigh(weights, score):
    """Σ_k w_k s_k, and the sum of the absolute values."""
    terms = weights.reshape(*weights.shape, *[1] * (score.ndim - weights.ndim)) * score
    return terms.sum(0), np.abs(terms).sum(0)


def check_log_prob(case):
    law, _, index = problem(case._replace(samples=2))
    certain = np.broadcast_to(law.table.argmax(-1), index.shape)
    for chosen in (index, certain):
        terms = law.log_probs(chosen)
        found = law.dist.log_prob(law.state(chosen))
        assert_close(found, terms.sum(-1), np.abs(terms).sum(-1))


def check_score(case):
    """Each number of the score by itself, and a weighted sum of scores."""
    law, rng, index = problem(case._replace(samples=3))
    x, exact = law.state(index), law.score(index)
    assert_close(law.dist.score(x), exact, np.abs(exact))
    weights, given = single(case.scale * rng.normal(size=(3, *law.batch)))
    # Scores below 10⁻³⁷ are rounded to 0, whatever they are multiplied by.
    total, size = weigh(weights, exact)
    size = size + np.abs(weights).max() * 1e-37 / BOUND
    assert_close(law.dist.weighted_score(given, x), total, size)


def check_mean(case):
    law, _, _ = problem(case)
    terms = law.probs if law.values is None else law.probs * law.values
    sums = (lambda terms: terms) if law.values is None else (lambda terms: terms.sum(-1))
    assert_close(law.dist.mean, sums(terms), sums(np.abs(terms)))


def check_joint(case):
    """A Joint of this distribution and of bits."""
    laws = [problem(case._replace(kind=kind, scale=1.0)) for kind in (case.kind, "bernoulli")]
    q = sg.Joint([law.dist for law, _, _ in laws])
    x = q.merge([law.state(index) for law, _, index in laws])
    terms = np.concatenate([law.log_probs(index) for law, _, index in laws], -1)
    assert_close(q.log_prob(x), terms.sum(-1), np.abs(terms).sum(-1))
    for score, (law, _, index) in zip(q.score(x), laws, strict=True):
        assert_close(score, law.score(index), np.abs(law.score(index)))


def check_subset(case):
    """Sums over all subsets. A logarithm of a sum has the error of the largest of its terms."""
    rng, (d, k) = np.random.default_rng(case.seed), [(4, 1), (7, 3)][case.seed % 2]
    logits, given = single(case.spread * rng.normal(size=(3, d)) + case.shift)
    q = sg.Subset(given, k)
    states = np.asarray([[i in s for i in range(d)] for s in itertools.combinations(range(d), k)])
    log_probs = log_softmax(logits @ states.T)
    size = 1 + np.sum(np.abs(logits - np.sort(logits)[:, [-k]]), axis=-1, keepdims=True)
    x = jnp.asarray(np.broadcast_to(states[:, None], (len(states), 3, d)), jnp.float32)
    assert_close(q.log_prob(x).T, log_probs, np.broadcast_to(size, log_probs.shape))
    mean = np.exp(log_probs) @ states
    assert_close(q.mean, mean, np.broadcast_to(size, mean.shape))
    assert_close(q.score(x[0]), states[0] - mean, np.broadcast_to(size, mean.shape))


def values_of_f(case, law, rng):
    noise = rng.normal(size=(case.samples, *law.batch))
    return single(case.scale * (noise + case.constant))


def check_rloo_and_reinforce(case):
    law, rng, index = problem(case)
    x, score, samples = law.state(index), law.score(index), case.samples
    fx, given = values_of_f(case, law, rng)
    exact, _ = weigh((fx - fx.mean(0)) / (samples - 1), score)
    # The error is a part of the differences of f, however large the constant is.
    _, size = weigh(np.broadcast_to(np.ptp(fx, 0), fx.shape) / samples, score)
    assert_close(sg.RLOO(samples).estimate(None, law.dist, x, given), exact, size)
    found = sg.Reinforce(samples).estimate(None, law.dist, x, given)
    assert_close(found, *weigh(fx / samples, score))


def check_disarm_and_arms(case):
    law, rng, index = problem(case)
    x, samples = law.state(index), case.samples
    fx, given = values_of_f(case, law, rng)
    if samples % 2 == 0:
        (f, f_tilde), (b, b_tilde) = np.split(fx, 2), np.split(index, 2)
        factor = np.exp(log_sigmoid(np.abs(law.logits))) / samples
        exact = weigh(f - f_tilde, factor * (b - b_tilde))
        assert_close(sg.DisARM(samples).estimate(None, law.dist, x, given), *exact)
    p = law.probs.min(-1)
    both = np.maximum(2 * p ** (1 / (samples - 1)) - 1, 0) ** (samples - 1)
    score = p * (1 - p) / (p - both) * law.score(index)
    exact, _ = weigh((fx - fx.mean(0)) / (samples - 1), score)
    _, size = weigh(np.broadcast_to(np.ptp(fx, 0), fx.shape) / samples, score)
    assert_close(sg.ARMS(samples).estimate(None, law.dist, x, given), exact, size)


def objective(case, law, rng):
    """A function of the states, t + t² with t a sum of numbers of a table, and its definition."""
    table, given = single(rng.normal(size=(law.d, law.m)))

    def exact(index):
        t = np.sum(table[np.arange(law.d), index], axis=-1)
        return float(np.float32(case.scale)) * (t + t**2)

    def f(x):
        hot = jax.nn.one_hot(law.dist.index(x), law.m, dtype=jnp.float32)
        t = jnp.sum(hot * given, axis=(-2, -1))
        return jnp.float32(case.scale) * (t + t**2)

    return f, exact


def check_exact(case):
    """Sums over all states, and an `UnorderedSet` of all states, which is exact too."""
    law, rng, _ = problem(case)
    f, of_index = objective(case, law, rng)
    index = np.asarray(list(itertools.product(range(law.m), repeat=law.d)))
    index = np.expand_dims(index, tuple(range(1, 1 + len(law.batch))))
    index = np.broadcast_to(index, (len(index), *law.batch, law.d))
    weights = np.exp(law.log_probs(index).sum(-1)) / math.prod(law.batch)
    fx = of_index(index)
    largest = np.broadcast_to(np.abs(fx).max(), fx.shape)
    value, size = np.sum(weights * fx), np.sum(weights * largest)
    gradient, _ = weigh(weights * fx, law.score(index))
    _, of_gradient = weigh(weights * largest, law.score(index))
    # A derivative of a softmax is a difference, which is 0 if a value is certain.
    of_gradient = of_gradient + largest.max() * 2.0**-6
    both = jax.jit(lambda q: (sg.exact_expectation(f, q), sg.exact_gradient(f, q)))(law.dist)
    assert_close(both[0], value, size)
    assert_close(both[1], gradient, of_gradient)
    if len(index) <= 9:
        every = sg.UnorderedSet(len(index))
        found, grads = jax.jit(every.value_and_grad, static_argnums=0)(f, law.dist, key=KEY)
        assert_close(found, value, size)
        assert_close(grads.parameters, gradient, of_gradient)


def check_neighbours(case):
    """The local expectation gradient, and operators, by loops over all neighbours."""
    law, rng, index = problem(case._replace(samples=1))
    f, of_index = objective(case, law, rng)
    x, fx, p = law.state(index), of_index(index), law.probs
    gradient, of_gradient = np.zeros((2, *law.score(index).shape))
    applied, size = {"Gibbs": 0.0, "Barker": 0.0, "MPF": 0.0}, 0.0
    for i, value in itertools.product(range(law.d), range(law.m)):
        moved = index.copy()
        moved[..., i] = value
        fy, own = of_index(moved), np.arange(law.d) == i
        reach = np.abs(fx) + np.abs(fy)
        local = law.over_value(p[..., value] * own) * law.score(moved)
        gradient += weigh((fy - fx)[None], local[None])[0]
        of_gradient += weigh(
            reach[None], law.over_value(p[..., value] * own * np.ones(index.shape))[None]
        )[1]
        ratio = np.exp(law.log_probs(moved)[..., i] - law.log_probs(index)[..., i])
        rates = {
            "Gibbs": p[..., i, value] / law.d,
            "Barker": ratio / (1 + ratio),
            "MPF": ratio**0.5,
        }
        applied = {name: applied[name] + rates[name] * (fy - fx) for name in rates}
        size = size + sum(rates.values()) * reach
    given = jnp.asarray(fx, jnp.float32)
    local = jax.jit(lambda q: sg.LocalExpectation().estimate(None, q, x, given, f=f))
    assert_close(local(law.dist), gradient[0], of_gradient[0])
    for name, exact in applied.items():
        operator = getattr(sg, name)()
        assert_close(jax.jit(lambda q, a=operator: a.apply(f, q, x))(law.dist), exact, size)


def check_advantages(case):
    """Groups of very different scales and constants, and samples of very different lengths."""
    rng, count = np.random.default_rng(case.seed), case.samples
    n = {1: 1, 7: 12}.get(case.d, case.d)
    groups = rng.integers(0, count, n)
    scales, constants = rng.choice(SCALES, count), rng.choice([0.0, 1.0, 100.0], count)
    r, given = single(scales[groups] * (rng.normal(size=n) + constants[groups]))
    weighted = case.constant > 0
    lengths, given_lengths = single(10 ** rng.uniform(0, 9, n) if weighted else np.ones(n))
    extra = {"kind": "length_weighted", "lengths": given_lengths} if weighted else {}
    found = np.asarray(sg.advantages(given, groups, **extra))
    for k in range(n):
        others = (groups == groups[k]) & (np.arange(n) != k)
        if not others.any():
            assert found[k] == r[k]
            continue
        exact = r[k] - np.average(r[others], weights=lengths[others])
        assert_close(found[k], exact, np.ptp(r[groups == groups[k]]))


def check_values(case):
    """The value of an expectation is a mean over samples and batch, of any size."""
    rng, size = np.random.default_rng(case.seed), case.d
    q = sg.Bernoulli(jnp.zeros((size, 1)))
    fx, _ = single(case.scale * rng.uniform(size=size))
    equal, _ = single(np.full(size, 0.1 * case.scale))
    for exact, estimator in ((fx, sg.RLOO(2)), (equal, sg.DisARM(2))):
        values = jnp.asarray(exact, jnp.float32)
        f = lambda x, values=values: values + 0 * x[..., 0]
        value, grads = sg.value_and_grad(f, q, estimator, key=KEY)
        assert_close(value, exact.mean(), exact.mean())
        assert_close(sg.expectation(f, q, estimator, key=KEY), value, value)
        assert not np.asarray(grads.parameters).any()


ALL_SPREADS = (1e-30, 0.1, 1, 8, 30, 1e30)
CHECKS = {
    "log_prob": (check_log_prob, cases(sizes=(1, 300, 10**6), spreads=ALL_SPREADS)),
    "score": (check_score, cases(sizes=(1, 300, 10**5), spreads=ALL_SPREADS)),
    "mean": (check_mean, cases(spreads=ALL_SPREADS)),
    "joint": (check_joint, cases(spreads=ALL_SPREADS)),
    "subset": (check_subset, cases(spreads=(1e-30, 1, 10, 100))),
    "rloo_and_reinforce": (check_rloo_and_reinforce, cases()),
    "disarm_and_arms": (check_disarm_and_arms, cases(kinds=["bernoulli"])),
    "exact": (check_exact, cases(sizes=(1, 3))),
    "neighbours": (check_neighbours, cases(sizes=(1, 3))),
    "advantages": (check_advantages, cases(sizes=(1, 7, 1000))),
    "values": (check_values, cases(sizes=(1, 257, 500_000))),
}


def assert_check_holds(name, examples):
    check, problems = CHECKS[name]
    chosen = settings(derandomize=True, deadline=None, max_examples=examples, database=None)
    chosen(given(problems)(check))()


@pytest.mark.parametrize("name", CHECKS)
def test_few_examples(name):
    assert_check_holds(name, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_many_examples(name):
    assert_check_holds(name, 30)


def test_the_bound_can_fail():
    """A sum as one long product with ones is far outside."""
    wrong = jnp.matmul(jnp.full(10**6, 0.1), jnp.ones(10**6))
    with pytest.raises(AssertionError, match="times the allowed error"):
        assert_close(wrong, 1e5, 1e5)
