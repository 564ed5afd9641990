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
