"""The Gibbs sampler compared with sums over all states, and its errors."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steingrad as sg
from problems import distributions, normal
from steingrad.distributions.gibbs_sampler import update

KEY = jax.random.key(0)


def chain(coupling, x):
    """A chain of coordinates; the even and the odd coordinates are two blocks."""
    return jnp.sum(coupling * x[1:] * x[:-1]) + 0.3 * x[0]


def rows(dist, blocks):
    """The transition matrix of each block's draw: every outcome with its probability."""
    states = dist.enumerate()
    coordinates, present = sg.GibbsSampler(blocks=blocks)._padded(dist.num_coordinates)
    for block, meant in zip(coordinates, present, strict=True):
        matrix = np.zeros((len(states), len(states)))
        for outcome in itertools.product(range(dist.num_values), repeat=len(block)):
            seen = []

            def draw(logits, outcome=outcome, seen=seen):
                seen.append(jax.nn.softmax(logits))
                return jnp.broadcast_to(jnp.asarray(outcome, jnp.int32), logits.shape[:-1])

            to = dist.state_number(update(dist, states, block, meant, draw))
            picked = np.asarray(seen[0])[:, np.arange(len(block)), outcome]
            np.add.at(matrix, (np.arange(len(states)), np.asarray(to)), picked.prod(-1))
        yield matrix


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["potts3", "chain", "categorical3"])
def test_each_draw_leaves_q_invariant(name):
    blocks = None
    if name == "chain":
        dist = sg.FromLogProb(chain, normal(0, 2), num_coordinates=3, values=(-1, 1))
        blocks = [(0, 2), (1,)]
    else:
        dist = distributions()[name]
    probs = np.asarray(dist.probabilities())
    matrices = list(rows(dist, blocks or [(i,) for i in range(dist.num_coordinates)]))
    for matrix in matrices:
        np.testing.assert_allclose(matrix.sum(-1), 1)
        np.testing.assert_allclose(probs @ matrix, probs, atol=1e-12)
    # From any start the distribution converges to q.
    sweep = np.linalg.multi_dot(matrices)
    np.testing.assert_allclose(np.linalg.matrix_power(sweep, 100)[0], probs, atol=1e-8)


@pytest.mark.usefixtures("x64")
def test_blocks_that_depend_on_each_other_do_not():
    """The same proof fails for such blocks, so they raise an error."""
    dist = sg.FromLogProb(chain, jnp.array([0.9, -1.2]), num_coordinates=3, values=(-1, 1))
    blocks = [(0, 1), (2,)]
    probs = np.asarray(dist.probabilities())
    assert np.abs(probs @ next(rows(dist, blocks)) - probs).max() > 1e-2
    with pytest.raises(ValueError, match=r"Block 0 .* depend on each other given the rest"):
        sg.GibbsSampler(blocks=blocks).init(KEY, dist, 2)
    sg.GibbsSampler(blocks=[(0, 2), (1,)]).init(KEY, dist, 2)


def test_samples_follow_the_probabilities():
    """This is tested under jit and scan, for a batch of two distributions and two calls."""
    energy = lambda p, x: jnp.sum(p * jnp.cos(x)) - 0.3 * jnp.sum((x[1:] - x[:-1]) ** 2)
    dist = sg.FromLogProb(
        energy, normal(0, (2, 3)), num_coordinates=3, values=(0, 1, 2), batch_shape=(2,)
    )
    # (Not 20,000 chains, because jaxlib 0.10.2 gets some of so many sums wrong on a CPU.)
    sampler, n = sg.GibbsSampler(sweeps=15), 8_000
    chains = sampler.init(KEY, dist, n)

    @jax.jit
    def twice(dist, chains):
        def step(chains, key):
            x, chains = sampler(key, dist, chains)
            return chains, x

        return jax.lax.scan(step, chains, jax.random.split(jax.random.key(1), 2))

    chains, x = twice(dist, chains)
    assert x.shape == (2, n, 2, 3)
    assert int(chains.sweeps) == 30
    np.testing.assert_array_equal(x[-1], chains.x)
    for element in range(2):
        counts = np.bincount(dist.state_number(chains.x[:, element]), minlength=27)
        expected = n * np.asarray(dist.probabilities()[element], np.float64)
        assert np.abs((counts - expected) / np.sqrt(expected)).max() < 4.5


def test_a_start_of_ones_own():
    dist = sg.FromLogProb(chain, jnp.zeros(3), num_coordinates=4, values=(-1, 1))
    chains = sg.GibbsSampler().init(KEY, dist, 5, start=jnp.ones(4))
    np.testing.assert_array_equal(chains.x, np.ones((5, 4)))
    assert "approximate" in repr(sg.GibbsSampler(blocks=[(0, 2), (1, 3)]))


def hard_core(activity, x):
    """Particles on a line of sites. Two of them are never side by side."""
    return jnp.where(jnp.any(x[1:] * x[:-1] > 0), -jnp.inf, jnp.sum(activity * x))


def needle(weight, x):
    """A single state of 40 bits has a probability above 0."""
    return jnp.where(jnp.all(x == jnp.arange(40.0) % 2), jnp.sum(weight), -jnp.inf)


def possible(dist, x):
    return bool(jnp.all(dist.log_prob(x) > -jnp.inf))


def test_chains_of_a_hard_core_model_are_possible():
    """Only one of 500 random states of 30 sites is possible."""
    sampler = sg.GibbsSampler(2)
    make = lambda activity: sg.FromLogProb(hard_core, activity, num_coordinates=30)

    def run(activity):
        chains = sampler.init(KEY, make(activity), 200)
        return chains.x, sampler(jax.random.key(1), make(activity), chains)[0]

    activity = normal(0, (2, 30))
    runs = [run(activity[0]), jax.jit(run)(activity[0])]
    runs += list(zip(*jax.vmap(run)(activity), strict=True))
    for (start, x), row in zip(runs, (0, 0, 0, 1), strict=True):
        assert possible(make(activity[row]), start)
        assert possible(make(activity[row]), x)
        assert len(np.unique(x, axis=0)) > 190


@pytest.mark.parametrize("blocks", [None, [range(0, 8, 2), range(1, 8, 2)]])
def test_marginals_of_a_hard_core_model(blocks):
    dist = sg.FromLogProb(hard_core, normal(0, (2, 8)) + 0.5, num_coordinates=8, batch_shape=(2,))
    sampler, n = sg.GibbsSampler(40, blocks), 4000
    x, _ = jax.jit(sampler)(jax.random.key(1), dist, sampler.init(KEY, dist, n))
    assert possible(dist, x)
    states = np.asarray(dist.enumerate_batch(), np.float64)
    exact = np.einsum("bs,sbd->bd", dist.probabilities(), states)
    error = np.sqrt(exact * (1 - exact) / n)
    assert np.abs((np.mean(x, axis=0) - exact) / error).max() < 4.5


@pytest.mark.parametrize("given", [False, True])
def test_values_of_probability_0(given):
    """One of five values of each of 12 coordinates is possible, and two values of another one."""
    logits = jnp.full((13, 5), -jnp.inf).at[jnp.arange(13), jnp.arange(13) % 5].set(0.3)
    q = sg.Categorical(logits.at[0, 3].set(1.0))
    start = q.state(jnp.arange(13, dtype=jnp.int32) % 5) if given else None
    sampler = sg.GibbsSampler(3)
    x, _ = sampler(jax.random.key(1), q, sampler.init(KEY, q, 2000, start))
    assert possible(q, x)
    p = float(jax.nn.sigmoid(0.7))
    assert abs(float(jnp.mean(x[:, 0, 3])) - p) < 4.5 * (p * (1 - p) / 2000) ** 0.5


def test_a_start_that_is_impossible():
    dist = sg.FromLogProb(hard_core, jnp.zeros(4), num_coordinates=4)
    starts = jnp.array([[1.0, 0, 1, 0], [1, 1, 0, 0]])
    sampler = sg.GibbsSampler()
    with pytest.raises(ValueError, match=r"log_prob is -inf at the state \[1.0, 1.0, 0.0, 0.0\]"):
        sampler.init(KEY, dist, 2, starts)
    with pytest.raises(ValueError, match=r"shape \(3,\), but a state has shape \(4,\)"):
        sampler.init(KEY, dist, 2, jnp.zeros(3))
    with pytest.raises(ValueError, match=r"the entry 0\.5, which no state"):
        sampler.init(KEY, dist, 2, jnp.full(4, 0.5))
    chains = jax.jit(lambda start: sampler.init(KEY, dist, 2, start))(starts)
    x, chains = jax.jit(sampler)(KEY, dist, chains)
    assert possible(dist, x[0])
    assert np.isnan(x[1]).all()
    assert np.isnan(chains.x[1]).all()


def test_no_possible_state_is_found():
    dist = sg.FromLogProb(needle, jnp.zeros(1), num_coordinates=40)
    sampler = sg.GibbsSampler()
    with pytest.raises(ValueError, match=r"found no state .* Pass such a state as start="):
        sampler.init(KEY, dist, 3)
    assert np.isnan(jax.jit(lambda key: sampler.init(key, dist, 3).x)(KEY)).all()
    start = jnp.arange(40.0) % 2
    x, _ = sampler(KEY, dist, sampler.init(KEY, dist, 3, start))
    sg.GibbsSampler(blocks=[(i,) for i in range(40)]).init(KEY, dist, 3, start)
    np.testing.assert_array_equal(x, np.broadcast_to(start, (3, 40)))


def test_the_distribution_has_changed():
    """A chain whose state has become impossible is lost, and says so."""
    free = sg.Bernoulli(jnp.zeros(3))
    dist = free.with_parameters(jnp.array([-jnp.inf, 0.0, 0.0]))
    sampler = sg.GibbsSampler()
    chains = sampler.init(KEY, free, 2, jnp.array([[1.0, 0, 0], [0, 0, 1]]))
    with pytest.raises(ValueError, match=r"1 of the 2 chains .* call `init` again"):
        sampler(KEY, dist, chains)
    x, chains = jax.jit(sampler)(KEY, dist, chains)
    assert np.isnan(x).all(axis=-1).tolist() == [True, False]
    x, _ = jax.jit(sampler)(KEY, free, chains)  # it does not come back
    assert np.isnan(x).all(axis=-1).tolist() == [True, False]


@pytest.mark.parametrize("blocks", [[range(12)], [(0, 1), range(2, 12, 2), range(3, 12, 2)]])
def test_blocks_that_exclude_each_other_are_refused(blocks):
    dist = sg.FromLogProb(hard_core, jnp.zeros(12), num_coordinates=12)
    with pytest.raises(ValueError, match=r"Block 0 .* depend on each other given the rest"):
        sg.GibbsSampler(blocks=blocks).init(KEY, dist, 2)
    sampler = sg.GibbsSampler(30, blocks)
    # Under jit blocks are not checked, but the states are.
    chains = jax.jit(lambda key: sampler.init(key, dist, 50))(KEY)
    x, _ = jax.jit(sampler)(KEY, dist, chains)
    lost = np.isnan(x).any(axis=-1)
    assert lost.any()
    assert possible(dist, x[~lost])


@pytest.mark.parametrize(
    ("make", "error", "sentence"),
    [
        (lambda q: sg.GibbsSampler(sweeps=0), ValueError, "1 or more, but was given 0"),
        (lambda q: sg.GibbsSampler(blocks=[(0, 1), (1,)]), ValueError, "every coordinate 0"),
        (lambda q: sg.GibbsSampler(blocks=[(0, 1), ()]), ValueError, "blocks of one or more"),
        (
            lambda q: sg.GibbsSampler(blocks=[(0, 1)]).init(KEY, q, 2),
            ValueError,
            "blocks name 2 coordinates, but the distribution has 3",
        ),
        (lambda q: sg.GibbsSampler().init(KEY, q, 0), ValueError, "num_chains of 1 or more"),
        (
            lambda q: sg.GibbsSampler()(KEY, q, jnp.zeros(3)),
            TypeError,
            "needs chains made by `init`",
        ),
        (
            lambda q: sg.GibbsSampler().init(KEY, sg.Subset(jnp.zeros(4), 2), 2),
            ValueError,
            "given Subset: use its own `sample`, which is exact",
        ),
        (
            lambda q: sg.GibbsSampler()(KEY, sg.Joint([q]), None),
            ValueError,
            "given Joint: sample its parts one by one",
        ),
    ],
)
def test_inputs_are_checked(make, error, sentence):
    dist = sg.FromLogProb(chain, jnp.zeros(2), num_coordinates=3, values=(-1, 1))
    with pytest.raises(error, match=sentence):
        make(dist)
