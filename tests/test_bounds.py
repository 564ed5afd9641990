"""Multi-sample bounds: exact proofs over all tuples of samples, and the wiring of the door."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steingrad as sg
from marks import slow
from problems import all_tuples, batched, largest_difference, normal, table
from steingrad.bounds.base import log_mean_exp
from steingrad.distributions.copies import side_by_side

pytestmark = pytest.mark.usefixtures("x64")


def distributions():
    return {
        "bits": sg.Bernoulli(normal(0, 2)),
        "categories": sg.Categorical(normal(1, (1, 3))),
        "joint": sg.Joint(a=sg.Bernoulli(normal(2, 1)), b=sg.Categorical(normal(3, (1, 2)))),
    }


def log_weight(dist, has_q=True):
    """A function of the parameters that returns log w: a random table, and −log q if `has_q`."""
    log_p = table(dist, 7)

    def of(parameters):
        q = dist.with_parameters(parameters) if has_q else dist
        return lambda x: 1.5 * log_p(x) - q.log_prob(x)

    return of


def exact(dist, log_w_of, count):
    """The bound and its gradient, by summation over all K-tuples."""
    x, _ = all_tuples(dist, count)

    def bound(parameters):
        probs = all_tuples(dist.with_parameters(parameters), count)[1]
        return jnp.sum(probs * log_mean_exp(log_w_of(parameters)(x)))

    return jax.value_and_grad(bound)(dist.parameters)


def mean_over(estimator, dist, log_w_of, x, probs):
    """The mean of the estimate over points `[P, N, *event]` with these probabilities."""

    def direct(parameters):
        return jnp.sum(probs * estimator.bound(log_w_of(parameters)(x)))

    value, grad = jax.value_and_grad(direct)(dist.parameters)
    log_w = log_w_of(dist.parameters)(x)
    g = estimator.gradient(batched(dist, len(probs)), x, log_w)
    sampled = jax.tree.map(lambda leaf: jnp.tensordot(probs, leaf, axes=1), g)
    return value, jax.tree.map(jnp.add, grad, sampled)


def batched_joint(dist, size):
    return dist.with_parameters(
        jax.tree.map(lambda p: jnp.broadcast_to(p, (size, *p.shape)), dist.parameters)
    )


def antithetic_tuples(dist, count):
    """Every tuple of K antithetic pairs of bits `[2 K, N, d]` with its probability."""
    theta = jax.nn.sigmoid(dist.logits)
    one = jnp.stack(
        [
            jnp.maximum(1 - 2 * theta, 0),
            jnp.minimum(theta, 1 - theta),
            jnp.minimum(theta, 1 - theta),
            jnp.maximum(2 * theta - 1, 0),
        ]
    )  # of the pairs 00, 01, 10, 11, for each bit
    d = dist.num_coordinates
    pairs = np.asarray(list(itertools.product(range(4), repeat=count * d))).reshape(-1, count, d)
    probs = jnp.prod(one[pairs, np.arange(d)], axis=(1, 2))
    x = np.moveaxis(np.concatenate([pairs // 2, pairs % 2], axis=1), 0, 1)
    return jnp.asarray(x, dist.dtype), probs


def difference(estimator, dist, has_q=True):
    log_w_of, count = log_weight(dist, has_q), estimator.num_samples
    pairs = isinstance(estimator, sg.LocalDisARM)
    points = antithetic_tuples(dist, count) if pairs else all_tuples(dist, estimator.num_points)

    @jax.jit
    def run():
        return mean_over(estimator, dist, log_w_of, *points), exact(dist, log_w_of, count)

    (value, grad), (expected, expected_grad) = run()
    assert abs(float(value - expected)) < 1e-12
    return largest_difference(grad, expected_grad)


UNBIASED = [
    sg.VIMCO(2),
    sg.VIMCO(3),
    sg.VIMCO(3, mean="arithmetic"),
    sg.OVIS(2, auxiliary_samples=2),
    sg.OVIS(2, weighs_by_q=False),
    sg.OVIS(3, auxiliary_samples=0),
]
PAIRS = [sg.LocalDisARM(1), sg.LocalDisARM(2), sg.LocalDisARM(2, symmetric=True)]


@pytest.mark.parametrize(
    ("estimator", "kind"),
    [
        *((estimator, "bits") for estimator in UNBIASED),
        *slow(*((estimator, "categories") for estimator in UNBIASED)),
        *slow(*((estimator, "joint") for estimator in UNBIASED)),
    ],
    ids=repr,
)
def test_unbiased(estimator, kind):
    dist = distributions()[kind]
    assert difference(estimator, dist) < 1e-10
    assert difference(estimator, dist, has_q=False) < 1e-10


@pytest.mark.parametrize("estimator", PAIRS, ids=repr)
def test_local_disarm(estimator):
    assert difference(estimator, distributions()["bits"]) < 1e-10


def test_wrong_versions_are_caught():
    dist = distributions()["bits"]

    class Peeking(sg.VIMCO):
        """The mean includes the sample's own weight."""

        def gradient(self, dist, x, log_w):
            swapped = jnp.roll(log_w, 1, axis=0)
            return super().gradient(dist, x, swapped)

    class Global(sg.LocalDisARM):
        """A factor for independent samples in place of that for antithetic ones."""

        def gradient(self, dist, x, log_w):
            return 0.9 * super().gradient(dist, x, log_w)

    assert difference(Peeking(2), dist) > 1e-3
    assert difference(Global(2), dist) > 1e-3
    biased = sg.OVIS(3, auxiliary_samples=0, gamma=1.0)
    assert biased.biased
    assert repr(biased).endswith("(biased)")
    assert difference(biased, dist) > 1e-3


def test_values_computed_by_hand():
    """Weights 1, 2 and 6."""
    q, w = sg.Bernoulli(jnp.zeros(1)), jnp.array([1.0, 2.0, 6.0])
    x = jnp.array([[1.0], [0.0], [0.0]])  # scores ½, −½ and −½
    log = np.log
    total = log(3.0)
    geometric = [log((12**0.5 + 8) / 3), log((6**0.5 + 7) / 3), log((2**0.5 + 3) / 3)]
    arithmetic = [log(4.0), log(3.5), log(1.5)]
    score = np.array([0.5, -0.5, -0.5])
    for mean, baseline in (("geometric", geometric), ("arithmetic", arithmetic)):
        g = sg.VIMCO(3, mean).gradient(q, x, jnp.log(w))
        np.testing.assert_allclose(g, [np.sum((total - np.array(baseline)) * score)], rtol=1e-12)
    # Equation 17 of OVIS; without its −v_k, which is direct dependence.
    v = np.array([1, 2, 6]) / 9
    for gamma in (0.0, 0.4, 1.0):
        c = np.array(arithmetic) - gamma * v + (1 - gamma) * log(2 / 3)
        g = sg.OVIS(3, 0, gamma).gradient(q, x, jnp.log(w))
        np.testing.assert_allclose(g, [np.sum((total - c) * score)], rtol=1e-12)
    # Equation 12 with the auxiliary weight 3.
    sums = np.array([11.0, 10.0, 6.0])
    c = log(sums / 3) - 3 / sums
    more = jnp.log(jnp.append(w, 3.0))
    g = sg.OVIS(3, 1).gradient(q, jnp.append(x, x[:1], axis=0), more)
    np.testing.assert_allclose(g, [np.sum((total - c) * score)], rtol=1e-12)
    # Pairs (1, 0) and (0, 1): ½ (log 3/2 − log 7/2) · ½ − ½ (log 3/2 − log 6/2) · ½.
    pairs = jnp.array([[1.0], [0.0], [0.0], [1.0]])
    g = sg.LocalDisARM(2).gradient(q, pairs, jnp.log(jnp.array([1.0, 2.0, 5.0, 5.0])))
    expected = 0.25 * ((log(3) - log(7)) - (log(3) - log(6)))
    np.testing.assert_allclose(g, [expected], rtol=1e-12)


@pytest.mark.parametrize("estimator", [sg.VIMCO(3), sg.OVIS(3), sg.LocalDisARM(3)], ids=repr)
def test_large_weights_cost_no_digits(estimator):
    with jax.enable_x64(False):
        dist = sg.Bernoulli(jnp.array([0.3, -0.4]))
        x = estimator.draw(jax.random.key(0), dist)
        log_w = jnp.arange(len(x)).astype(jnp.float32)
        small = estimator.gradient(dist, x, log_w)
        large = estimator.gradient(dist, x, log_w - 4096.0)
        np.testing.assert_allclose(small, large, rtol=1e-6)
        # A weight of 0 is allowed.
        zero = estimator.gradient(dist, x, log_w.at[0].set(-jnp.inf))
        assert bool(jnp.all(jnp.isfinite(zero)))


DOOR = [
    (sg.VIMCO(3), None),
    (sg.OVIS(3), None),
    (sg.LocalDisARM(3, symmetric=True), None),
    (sg.RLOO(2), 3),
    *slow((sg.VIMCO(3, "arithmetic"), None), (sg.DisARM(2), 3), (sg.LocalExpectation(), 3)),
]


def door_problem():
    """A batch of two, with log w that depends on the logits, on args and on a closed-over array."""
    shift, logits, w = normal(8, 2), normal(9, (2, 2)), normal(10, 2)

    def bound(logits, w, shift, estimator, count, key):
        q = sg.Bernoulli(logits)
        log_w = lambda x, w: jnp.sin(2 * x @ w) + x @ shift - q.log_prob(x)
        return sg.multi_sample_bound(log_w, q, estimator, key=key, num_samples=count, args=(w,))

    def truth(logits, w, shift, count):
        total = 0.0
        for row in range(2):
            q = sg.Bernoulli(logits[row])
            x, probs = all_tuples(q, count)
            log_w = jnp.sin(2 * x @ w) + x @ shift - q.log_prob(x)
            total += jnp.sum(probs * log_mean_exp(log_w)) / 2
        return total

    return bound, truth, (logits, w, shift)


@pytest.mark.parametrize(("estimator", "count"), DOOR, ids=repr)
def test_the_door(estimator, count):
    """z-scores of value and all gradients of `multi_sample_bound`, in a batch."""
    bound, truth, arrays = door_problem()
    one = lambda key: jax.value_and_grad(bound, (0, 1, 2))(*arrays, estimator, count, key)
    draws = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), 20_000))
    expected = jax.value_and_grad(truth, (0, 1, 2))(*arrays, 3)
    for drawn, right in zip(jax.tree.leaves(draws), jax.tree.leaves(expected), strict=True):
        error = jnp.mean(drawn, axis=0) - right
        z = error / (jnp.std(drawn, axis=0) / len(drawn) ** 0.5)
        assert float(jnp.max(jnp.abs(z))) < 4.2


def test_forward_mode_and_jit():
    bound, _, (logits, *rest) = door_problem()
    loss = jax.jit(lambda l: -2 * bound(l, *rest, sg.VIMCO(4), None, jax.random.key(0)))
    reverse = jax.grad(loss)(logits)
    np.testing.assert_allclose(jax.jacfwd(loss)(logits), reverse, rtol=1e-12)
    assert reverse.shape == logits.shape


def test_second_derivatives():
    bound, _, (logits, w, shift) = door_problem()
    loss = lambda l, w: bound(l, w, shift, sg.VIMCO(4), None, jax.random.key(0))
    grad = jax.jit(lambda w: jax.grad(loss)(logits, w))
    by_w, step = jax.jacrev(grad)(w), 1e-6
    numeric = (grad(w.at[0].add(step)) - grad(w.at[0].add(-step))) / (2 * step)
    np.testing.assert_allclose(by_w[..., 0], numeric, atol=1e-7)
    with pytest.raises(TypeError, match="differentiated by the parameters"):
        jax.jacrev(jax.grad(loss))(logits, w)


def test_one_sample_is_an_expectation():
    """With K = 1 the ordinary estimators give what `expectation` gives."""
    q, key = distributions()["bits"], jax.random.key(3)
    f = lambda x: jnp.sum(x, axis=-1) ** 2
    for estimator in (sg.ReinMax(), sg.RLOO(3)):
        bound = lambda l, e=estimator: sg.multi_sample_bound(
            f, sg.Bernoulli(l), e, key=key, num_samples=1
        )
        plain = lambda l, e=estimator: sg.expectation(f, sg.Bernoulli(l), e, key=key)
        np.testing.assert_allclose(jax.grad(bound)(q.logits), jax.grad(plain)(q.logits), rtol=1e-12)


@pytest.mark.parametrize("kind", ["bits", *slow("joint", "categories")])
def test_copies(kind):
    """The copies side by side have the probabilities of tuples, and f sees the tuples."""
    dist = distributions()[kind]
    product, states = side_by_side(dist, 2)
    log_w_of = log_weight(dist)
    log_w = log_w_of(dist.parameters)
    x = states(product.view(product.enumerate()))
    assert x.shape == (2, dist.num_states**2, *dist.event_shape)
    value = jnp.sum(product.probabilities() * log_mean_exp(log_w(x)))
    np.testing.assert_allclose(value, exact(dist, log_w_of, 2)[0], rtol=1e-12)
    batch = batched_joint(dist, 4)
    product, states = side_by_side(batch, 3)
    drawn = states(product.view(product.sample(jax.random.key(0), (5,))))
    assert drawn.shape == (3, 5, 4, *dist.event_shape)
    assert product.event_shape == sg.copies(batch, 3).event_shape


@pytest.mark.parametrize("name", ["joint", *slow("learned")])
def test_views_and_control_variates(name):
    """log w of a Joint sees named parts; control variates are learned through the bound."""
    key = jax.random.key(0)
    if name == "joint":
        dist, seen = distributions()["joint"], []

        def log_w(x):
            seen.append(set(x))
            return jnp.sum(x["a"], axis=-1) + x["b"][..., 0, 0]

        for estimator, count in ((sg.VIMCO(3), None), (sg.RLOO(2), 3)):
            grad = jax.grad(
                lambda p, e=estimator, c=count: sg.multi_sample_bound(
                    log_w, dist.with_parameters(p), e, key=key, num_samples=c
                )
            )(dist.parameters)
            assert jax.tree.map(jnp.shape, grad) == {"a": (1,), "b": (1, 2)}
        assert all(parts == {"a", "b"} for parts in seen)
    else:
        q, estimator = distributions()["bits"], sg.Bronco()
        cv = estimator.init(key, sg.copies(q, 3))
        f = lambda cv: sg.multi_sample_bound(
            lambda x: jnp.sum(x, axis=-1) ** 2, q, estimator, cv, key=key, num_samples=3
        )
        grad = jax.grad(f)(cv)
        assert any(bool(jnp.any(leaf != 0)) for leaf in jax.tree.leaves(grad))


Q = sg.Bernoulli(jnp.zeros(2, jnp.float32))


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda b: b(sg.RLOO(2)), ValueError, "Pass num_samples=K to multi_sample_bound"),
        (lambda b: b(sg.VIMCO(3), num_samples=4), ValueError, "given num_samples=4. Leave it out"),
        (lambda b: b(sg.VIMCO), TypeError, r"needs an estimator such as VIMCO\(5\)"),
        (lambda b: b(sg.VIMCO(3), jnp.zeros(2)), ValueError, "VIMCO learns nothing"),
        (lambda b: sg.VIMCO(1), ValueError, "VIMCO needs a whole num_samples of 2 or more"),
        (lambda b: sg.VIMCO(3, "harmonic"), ValueError, "mean='geometric' or 'arithmetic'"),
        (lambda b: sg.OVIS(1, 0), ValueError, "needs a num_samples of 2 or more"),
        (lambda b: sg.OVIS(3, 0, 2.0), ValueError, "a gamma from 0 to 1"),
        (lambda b: sg.OVIS(3, 1, 0.5), ValueError, "gamma above 0 only with auxiliary_samples=0"),
        (
            lambda b: b(sg.LocalDisARM(3), dist=sg.Categorical(jnp.zeros((2, 3)))),
            ValueError,
            "LocalDisARM needs independent bits.*VIMCO and OVIS take any",
        ),
        (
            lambda b: sg.expectation(jnp.sum, Q, sg.VIMCO(3), key=jax.random.key(0)),
            TypeError,
            "must be one such as RLOO",
        ),
        (lambda b: b(sg.VIMCO(3), log_w=lambda x: x), ValueError, "must return one number for"),
    ],
)
def test_refusals(call, error, sentence):
    f = lambda x: jnp.sum(x, axis=-1)

    def bound(estimator, cv=None, dist=Q, log_w=f, **more):
        return sg.multi_sample_bound(log_w, dist, estimator, cv, key=jax.random.key(0), **more)

    with pytest.raises(error, match=sentence):
        call(bound)
