"""DisARM-IW, DisARM-SB and CARMS: exact sums over all pairs, tests by draws, and wrong variants
that fail."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steingrad as sg
from marks import slow
from problems import batched, normal, objective
from significance import gradient_z_scores, passes, z_scores
from steingrad.estimators import carms, couplings, disarm_iw, sticks

PAIRS = [sg.DisARMIW(2), sg.DisARMSB(2), sg.CARMS(2)]
SKEWED = jnp.log(jnp.array([[0.9, 0.04, 0.06], [0.3, 0.3, 0.4]]))


def problem(values, coordinates):
    return sg.Categorical(1.5 * normal(values, (coordinates, values)))


def joint(dist, num_samples):
    """P(a, b) of two samples of each coordinate, by summing over the bits of both. The only formula
    of the estimator that it uses is the distribution of one pair of bits."""
    out = []
    for logits in np.asarray(dist.logits, np.float64):
        p = np.exp(logits) / np.sum(np.exp(logits))
        order, m = np.argsort(logits), len(p)
        pair = np.zeros((m, m))
        laws = []
        for c in range(m - 1):
            phi = p[order[c]] / np.sum(p[order[c:]])
            power = 1 / (num_samples - 1)
            both = max(2 * phi**power - 1, 0) ** (num_samples - 1)
            laws.append([[1 - 2 * phi + both, phi - both], [phi - both, both]])
        for bits in itertools.product(itertools.product((0, 1), repeat=2), repeat=m - 1):
            chance = np.prod([law[b][c] for law, (b, c) in zip(laws, bits, strict=True)])
            first = [next((c for c, b in enumerate(bits) if b[s]), m - 1) for s in (0, 1)]
            pair[order[first[0]], order[first[1]]] += chance
        out.append(pair)
    return np.asarray(out)


def over_all_pairs(estimator, dist, chances):
    """The exact mean and variance of an estimator with two samples."""
    states = dist.enumerate()
    index = np.asarray(dist.index(states))
    first, second = np.asarray(list(itertools.product(range(len(states)), repeat=2))).T
    each = [chances[i][index[first, i], index[second, i]] for i in range(dist.num_coordinates)]
    weights = jnp.asarray(np.prod(each, axis=0))
    x = jnp.stack([states[first], states[second]])
    g = estimator.estimate(None, batched(dist, len(first)), x, objective(dist)(x))
    mean = jnp.tensordot(weights, g, axes=1)
    return mean, float(jnp.sum(jnp.tensordot(weights, (g - mean) ** 2, axes=1)))


@pytest.mark.usefixtures("x64")
class TestExact:
    @pytest.mark.parametrize("estimator", PAIRS, ids=repr)
    @pytest.mark.parametrize(("values", "coordinates"), [(2, 2), (3, 2), *slow((5, 1))])
    def test_mean_over_all_pairs(self, estimator, values, coordinates):
        dist = problem(values, coordinates)
        pairs = joint(dist, 2)
        np.testing.assert_allclose(pairs.sum(axis=-1), jax.nn.softmax(dist.logits), rtol=1e-12)
        mean, variance = over_all_pairs(estimator, dist, pairs)
        exact = sg.exact_gradient(objective(dist), dist)
        np.testing.assert_allclose(mean, exact, atol=1e-13)
        p = np.asarray(jax.nn.softmax(dist.logits))
        independent = [np.outer(q, q) for q in p]
        _, rloo = over_all_pairs(sg.RLOO(2), dist, independent)
        assert variance < rloo

    def test_ordinal(self):
        dist = sg.Ordinal(normal(3, (2, 3)), (-1.0, 0.5, 3.0))
        exact = sg.exact_gradient(objective(dist), dist)
        for estimator in PAIRS:
            mean, _ = over_all_pairs(estimator, dist, joint(dist, 2))
            np.testing.assert_allclose(mean, exact, atol=1e-13)

    @pytest.mark.parametrize("num_samples", [2, 3, 4, 7])
    @pytest.mark.parametrize("values", [2, 3, 5])
    def test_weights_are_those_of_the_pairs(self, num_samples, values):
        """r = p_a p_b / P(a, b) for all a ≠ b, and r stays small."""
        dist = problem(values, 2)
        broken = sticks.break_sticks(dist)
        weight = sticks.pair_weight(
            broken,
            couplings.debias(broken.logits, num_samples),
            couplings.both_rare(broken.logits, num_samples),
        )
        p, pairs = np.asarray(jax.nn.softmax(dist.logits)), joint(dist, num_samples)
        for i, (a, b) in itertools.product(range(2), itertools.permutations(range(values), 2)):
            first = min(broken.rank[i, a], broken.rank[i, b])
            expected = p[i, a] * p[i, b] / pairs[i, a, b]
            np.testing.assert_allclose(weight[i, first], expected, rtol=1e-9)
        assert bool(jnp.all((weight >= 0) & (weight < 2)))

    @pytest.mark.slow
    def test_two_values_are_bits(self):
        """With two values they equal DisARM and ARMS, whose logit is the difference of the two
        logits."""
        bits = sg.Bernoulli(normal(5, 3))
        two = sg.Categorical(jnp.stack([jnp.zeros(3), bits.logits], axis=-1))
        f = objective(bits)
        for ours, theirs in ((sg.CARMS(3), sg.ARMS(3)), (sg.DisARMSB(4), sg.DisARM(4))):
            x = theirs.sample(jax.random.key(0), bits)
            onehot = jnp.stack([1 - x, x], axis=-1)
            g = ours.estimate(None, two, onehot, f(x))[..., 1]
            np.testing.assert_allclose(g, theirs.estimate(None, bits, x, f(x)), atol=1e-13)


@pytest.mark.usefixtures("x64")
@pytest.mark.slow
class TestByDraws:
    """Tests of samples and estimates with 400,000 draws. Each wrong variant fails the same test."""

    @pytest.mark.parametrize("estimator", [sg.DisARMIW(2), sg.DisARMSB(4)], ids=repr)
    def test_pairs(self, estimator):
        assert passes(scores(estimator))

    @pytest.mark.parametrize("num_samples", [3, 4])
    def test_carms(self, num_samples):
        assert passes(scores(sg.CARMS(num_samples)))

    def test_frequencies(self):
        """Two of three samples of CARMS are a and b with probability P(a, b)."""
        dist = sg.Categorical(SKEWED.astype(float))

        def draw(key):
            x = sg.CARMS(3).sample(key, dist)
            noise = 1e-3 * jax.random.normal(key, (2, 3, 3))  # some pairs never occur
            return x[0][..., :, None] * x[2][..., None, :] + noise

        assert passes(z_scores(draw, jnp.asarray(joint(dist, 3))))

    def test_without_weights(self, monkeypatch):
        monkeypatch.setattr(
            carms, "pair_weight", lambda sticks, differ, both: jnp.ones_like(sticks.phi)
        )
        assert not passes(scores(sg.CARMS(3)))

    def test_the_most_probable_first(self, monkeypatch):
        """If the most probable category came first, some pairs would never occur, which is a
        bias."""

        def descending(dist):
            order = jnp.argsort(-dist.logits, axis=-1)
            log_probs = jnp.take_along_axis(jax.nn.log_softmax(dist.logits), order, axis=-1)
            tail = jax.lax.cumlogsumexp(log_probs, axis=log_probs.ndim - 1, reverse=True)
            return sticks.Sticks(order, jnp.argsort(order, axis=-1), log_probs, tail)

        for module in (disarm_iw, sticks):
            monkeypatch.setattr(module, "break_sticks", descending)
        assert not passes(scores(sg.DisARMIW(2)))

    def test_clipped_weights(self, monkeypatch):
        right = sticks.pair_weight
        monkeypatch.setattr(carms, "pair_weight", lambda *a: jnp.minimum(right(*a), 0.8))
        assert not passes(scores(sg.CARMS(3)))


def scores(estimator):
    dist = sg.Categorical(SKEWED.astype(float))
    return gradient_z_scores(estimator, None, dist, objective(dist))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("estimator", [sg.DisARMIW(2), sg.DisARMSB(4), sg.CARMS(3)], ids=repr)
def test_extreme_logits(estimator, dtype):
    logits = jnp.array([[-40.0, 40.0, 0.0], [40.0, 40.0, -40.0], [0.3, 0.0, 0.1]], dtype)
    logits = jnp.broadcast_to(logits, (2, 50, 3, 3))
    f = lambda x: jnp.sum(x * jnp.arange(9.0, dtype=x.dtype).reshape(3, 3), axis=(-2, -1)) ** 2
    loss = lambda logits: sg.expectation(
        f, sg.Categorical(logits), estimator, key=jax.random.key(0)
    )
    grad = jax.jit(jax.grad(loss))(logits)
    assert grad.dtype == logits.dtype
    assert bool(jnp.all(jnp.isfinite(grad)))
    assert bool(jnp.any(grad != 0))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: sg.DisARMIW(3), "DisARMIW needs an even num_samples"),
        (lambda: sg.DisARMSB(0), "DisARMSB needs a whole num_samples of 2 or more"),
        (lambda: sg.CARMS(1), "CARMS needs a whole num_samples of 2 or more"),
        (
            lambda: sg.CARMS(2).sample(jax.random.key(0), sg.Subset(jnp.zeros(3), 2)),
            "CARMS needs independent coordinates, but was given Subset",
        ),
    ],
)
def test_refusals(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
