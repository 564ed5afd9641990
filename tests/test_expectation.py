"""`expectation`: derivatives, conventions, transformations, dtypes, errors."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import steingrad as sg
from marks import slow
from problems import largest_difference, normal, normalised_distributions, objective, random_cv

RODEO = sg.Rodeo(num_samples=3, surrogate=sg.MLPSurrogate(hidden=6))


def f(x, w):
    return jnp.sum(w * x, axis=-1) ** 2 + jnp.sin(jnp.sum(x, axis=-1))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("factor", "batch"), [(-1.0, ()), (-2.0, (4,))])
def test_cv_gradient_is_that_of_the_mean_square(factor, batch):
    """Checked by finite differences of mean(g²), where g is the gradient of the logits."""
    logits, w, key = normal(0, (*batch, 5)), normal(1, 5), jax.random.key(3)
    cv = random_cv(RODEO)

    def loss(logits, cv):
        return factor * sg.expectation(f, sg.Bernoulli(logits), RODEO, cv, key=key, args=(w,))

    @jax.jit
    def mean_square(cv):
        return jnp.mean(jax.grad(loss)(logits, cv) ** 2)

    cv_grad = jax.jit(jax.grad(loss, argnums=1))(logits, cv)
    flat, unravel = ravel_pytree(cv)
    flat_grad, _ = ravel_pytree(cv_grad)
    step = 1e-5
    for i in range(flat.size):
        up, down = (mean_square(unravel(flat.at[i].add(s))) for s in (step, -step))
        np.testing.assert_allclose(flat_grad[i], (up - down) / (2 * step), rtol=1e-5, atol=1e-8)
    once = jax.jit(
        jax.grad(lambda cv: sg.expectation(f, sg.Bernoulli(logits), RODEO, cv, key=key, args=(w,)))
    )(cv)
    assert largest_difference(cv_grad, jax.tree.map(lambda g: factor**2 * g, once)) < 1e-8


@pytest.mark.usefixtures("x64")
def test_expectation_agrees_with_value_and_grad():
    logits, w, key = normal(0, (2, 5)), normal(1, 5), jax.random.key(3)
    cv = random_cv(RODEO)
    value, grads = jax.jit(
        lambda l, cv, w: sg.value_and_grad(f, sg.Bernoulli(l), RODEO, cv, key=key, args=(w,))
    )(logits, cv, w)

    def loss(logits, cv, w):
        return sg.expectation(f, sg.Bernoulli(logits), RODEO, cv, key=key, args=(w,))

    value2, (g, cv_grad, w_grad) = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(logits, cv, w)
    np.testing.assert_allclose(value, value2)
    np.testing.assert_allclose(loss(logits, cv, w), value)  # not differentiated: the same samples
    assert largest_difference((g, cv_grad, w_grad), (grads[0], grads[1], grads[2][0])) < 1e-12


@pytest.mark.usefixtures("x64")
def test_closed_over_arrays_are_differentiated():
    """A closure and `args` give the same gradient, even if f depends on the logits."""
    logits, w, key = normal(0, 5), normal(1, 5), jax.random.key(3)

    def closed(logits, w):
        q = sg.Bernoulli(logits)
        return sg.expectation(lambda x: f(x, w) - q.log_prob(x), q, sg.RLOO(2), key=key)

    def explicit(logits, w):
        inner = lambda x, w, logits: f(x, w) - sg.Bernoulli(logits).log_prob(x)
        return sg.expectation(inner, sg.Bernoulli(logits), sg.RLOO(2), key=key, args=(w, logits))

    ours, theirs = (jax.grad(loss, (0, 1))(logits, w) for loss in (closed, explicit))
    assert largest_difference(ours, theirs) < 1e-12
    # E[-log q] adds no gradient through its argument: the mean of the score is zero.
    direct = jax.grad(
        lambda l: sg.expectation(
            lambda x, l: -sg.Bernoulli(l).log_prob(x),
            sg.Bernoulli(logits),
            sg.RLOO(2),
            key=key,
            args=(l,),
        )
    )(logits)
    x = sg.RLOO(2).sample(jax.random.split(key, 3)[0], sg.Bernoulli(logits))
    np.testing.assert_allclose(direct, -jnp.mean(sg.Bernoulli(logits).score(x), axis=0))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["bernoulli", "categorical3", "ordinal3"])
def test_exact_gradient_with_a_direct_dependence(name):
    """`exact_expectation` differentiates through q and through f."""
    dist = normalised_distributions()[name]
    h = objective(dist)
    by_hand = jnp.sum(dist.probabilities() * h(dist.enumerate()))
    np.testing.assert_allclose(sg.exact_expectation(h, dist), by_hand)
    score_form = jax.tree.map(
        lambda s: jnp.tensordot(dist.probabilities() * h(dist.enumerate()), s, axes=1),
        dist.score(dist.enumerate()),
    )
    assert largest_difference(sg.exact_gradient(h, dist), score_form) < 1e-10


def test_one_backward_pass():
    """f is traced once, and its tanh is evaluated once for value and gradient."""
    w, logits, cv = jnp.ones(5), jnp.zeros(5), RODEO.init(jax.random.key(0))
    calls = []

    def counted(x, w):
        calls.append(x.shape)
        return jnp.sum(jnp.tanh(w * x), axis=-1)

    jaxpr = jax.make_jaxpr(
        lambda l, w: sg.value_and_grad(
            counted, sg.Bernoulli(l), RODEO, cv, key=jax.random.key(0), args=(w,)
        )
    )(logits, w)
    assert calls == [(3, 5)]
    assert str(jaxpr).count("= tanh ") == 1


def test_gradient_of_f_is_not_computed_where_it_is_not_needed():
    """The compiled RLOO step contains the sine of f but not its derivative; RODEO contains both."""

    def compiled(estimator):
        cv = estimator.init(jax.random.key(0))

        def loss(logits):
            f = lambda x: jnp.sum(jnp.sin(x), axis=-1)
            return sg.expectation(f, sg.Bernoulli(logits), estimator, cv, key=jax.random.key(0))

        return jax.jit(jax.grad(loss)).lower(jnp.zeros(5)).as_text()

    rloo, rodeo = compiled(sg.RLOO(2)), compiled(sg.Rodeo(2))
    assert "sine" in rloo
    assert "cosine" not in rloo
    assert "cosine" in rodeo


@pytest.mark.parametrize("batch", [(), (3,), (2, 1, 3)])
def test_batch_shapes(batch):
    cv = random_cv(RODEO)
    for dist in (
        sg.Bernoulli(jnp.zeros((*batch, 4))),
        sg.Ordinal(jnp.zeros((*batch, 4, 3)), (0, 1, 3)),
    ):
        value, grads = jax.jit(
            lambda dist: sg.value_and_grad(
                lambda x: jnp.sum(x**2, axis=-1), dist, RODEO, cv, key=jax.random.key(0)
            )
        )(dist)
        assert value.shape == ()
        assert grads.parameters.shape == dist.logits.shape


@pytest.mark.usefixtures("x64")
def test_a_batch_is_many_problems():
    """The estimate of each element is the same as for this element alone."""
    logits, w = normal(0, (2, 3, 5)), normal(1, 5)
    cv, dist = random_cv(RODEO), sg.Bernoulli(logits)
    x = RODEO.sample(jax.random.key(0), dist)
    fx, pull = jax.vjp(lambda x: f(x, w), x)
    (dfx,) = pull(jnp.ones_like(fx))
    estimate = jax.jit(RODEO.estimate)
    g = estimate(cv, dist, x, fx, dfx)
    for i, j in np.ndindex(2, 3):
        alone = estimate(cv, sg.Bernoulli(logits[i, j]), x[:, i, j], fx[:, i, j], dfx[:, i, j])
        np.testing.assert_allclose(g[i, j], alone, atol=1e-12)


def test_outside_jax():
    """`sample` and `estimate` work with values and gradients computed outside JAX."""
    dist, cv = sg.Bernoulli(jnp.linspace(-1, 1, 4)), random_cv(RODEO)
    x = RODEO.sample(jax.random.key(0), dist)
    outside = np.asarray(x, np.float64)
    fx = jnp.asarray((outside**2).sum(-1), jnp.float32)
    dfx = jnp.asarray(2 * outside, jnp.float32)
    estimate = jax.jit(RODEO.estimate)
    g = estimate(cv, dist, x, fx, dfx)
    inside_fx, pull = jax.vjp(lambda x: jnp.sum(x**2, axis=-1), x)
    inside = estimate(cv, dist, x, inside_fx, pull(jnp.ones_like(inside_fx))[0])
    np.testing.assert_allclose(g, inside, rtol=1e-5, atol=1e-6)


def test_vmap_jit_scan():
    cv = RODEO.init(jax.random.key(0))

    def loss(logits, key):
        return sg.expectation(
            lambda x: jnp.sum((x - 0.3) ** 2, axis=-1), sg.Bernoulli(logits), RODEO, cv, key=key
        )

    keys = jax.random.split(jax.random.key(1), 6)
    logits = jnp.linspace(-2, 2, 24).reshape(6, 4)
    mapped = jax.jit(jax.vmap(jax.grad(loss)))(logits, keys)
    one = jax.jit(jax.grad(loss))
    alone = jnp.stack([one(l, k) for l, k in zip(logits, keys, strict=True)])
    np.testing.assert_allclose(mapped, alone, atol=1e-6)

    def step(logits, key):
        return logits - 0.5 * jax.grad(loss)(logits, key), loss(logits, key)

    final, values = jax.lax.scan(step, jnp.zeros(4), jax.random.split(jax.random.key(2), 200))
    assert float(values[-50:].mean()) < float(values[:50].mean())
    assert bool(jnp.all(final < 0))


def test_gradient_of_a_larger_loss():
    """The expectation is one term of a loss, and its parameters are outputs of a function."""
    cv = RODEO.init(jax.random.key(0))

    def loss(weights):
        logits = jnp.tanh(weights @ jnp.ones(3))
        g = sg.expectation(
            lambda x: jnp.sum(x, axis=-1), sg.Bernoulli(logits), RODEO, cv, key=jax.random.key(1)
        )
        return jnp.sum(weights**2) + 3 * g

    weights = jnp.full((4, 3), 0.2)
    grad = jax.grad(loss)(weights)
    _, inner = sg.value_and_grad(
        lambda x: jnp.sum(x, axis=-1),
        sg.Bernoulli(jnp.tanh(weights @ jnp.ones(3))),
        RODEO,
        cv,
        key=jax.random.key(1),
    )
    chain = 3 * inner.parameters * (1 - jnp.tanh(0.6) ** 2)
    np.testing.assert_allclose(grad, 2 * weights + chain[:, None], rtol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.float64])
@pytest.mark.parametrize("estimator", [RODEO, sg.RLOO(2), sg.Reinforce(1, "learned")])
def test_types(dtype, estimator):
    with jax.enable_x64(dtype == jnp.float64):
        logits = jnp.linspace(-1, 1, 5).astype(dtype)
        cv = estimator.init(jax.random.key(0))

        def loss(logits, cv):
            return sg.expectation(
                lambda x: jnp.sum(x**2, axis=-1),
                sg.Bernoulli(logits),
                estimator,
                cv,
                key=jax.random.key(1),
            )

        g, cv_grad = jax.jit(jax.grad(loss, (0, 1)))(logits, cv)
        assert g.dtype == dtype
        assert bool(jnp.all(jnp.isfinite(g.astype(jnp.float32))))
        for ours, theirs in zip(jax.tree.leaves(cv_grad), jax.tree.leaves(cv), strict=True):
            assert ours.dtype == theirs.dtype


@pytest.mark.parametrize("transform", [lambda loss: loss, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(("of_f", "of_logits"), [("bfloat16", "float32"), ("float32", "float64")])
@pytest.mark.parametrize("estimator", [sg.RLOO(2), sg.DoubleCV(2)], ids=["RLOO", "DoubleCV"])
def test_an_objective_of_another_type(estimator, of_f, of_logits, transform):
    """The value has the same dtype with and without a derivative, inside and outside `jit`."""
    with jax.enable_x64(of_logits == "float64"):
        cv = estimator.init(jax.random.key(0))
        f = lambda x: jnp.sum(x**2, axis=-1).astype(of_f)
        loss = lambda logits: sg.expectation(
            f, sg.Bernoulli(logits), estimator, cv, key=jax.random.key(1)
        )
        logits = jnp.zeros(3, of_logits)
        value, grad = jax.value_and_grad(transform(loss))(logits)
        assert transform(loss)(logits).dtype == value.dtype == grad.dtype == of_logits


def test_an_operator_made_of_the_logits():
    """The matrix is a constant of the estimate."""

    def loss(logits, matrix=None):
        q = sg.Bernoulli(logits)
        invariant = jnp.broadcast_to(q.probabilities(), (4, 4)) if matrix is None else matrix
        estimator = sg.Rodeo(2, operator=sg.TransitionMatrix(invariant))
        cv = estimator.init(jax.random.key(0))
        return sg.expectation(lambda x: x[..., 0], q, estimator, cv, key=jax.random.key(1))

    logits = jnp.array([0.3, -0.4])
    constant = jnp.broadcast_to(sg.Bernoulli(logits).probabilities(), (4, 4))
    np.testing.assert_array_equal(jax.grad(loss)(logits), jax.grad(loss)(logits, constant))


def test_a_value_alone_needs_no_control_variates():
    f = lambda x: jnp.sum(x, axis=-1)
    value = sg.expectation(f, sg.Bernoulli(jnp.full(3, 50.0)), RODEO, key=jax.random.key(0))
    assert float(value) == 3


def test_exact_sums_take_an_optional_key_as_none():
    q, key = sg.Bernoulli(jnp.zeros(3)), jax.random.key(0)
    optional = lambda x, key=None: jnp.sum(x, axis=-1) * (1 if key is None else 2)
    assert float(sg.exact_expectation(optional, q)) == 1.5
    needed = lambda x, key: jnp.sum(x, axis=-1) * jax.random.uniform(key)
    with pytest.raises(ValueError, match="no sum over states is exact"):
        sg.exact_expectation(needed, q)
    sg.exact_expectation(functools.partial(needed, key=key), q)


W = jnp.ones(3)
Q = sg.Bernoulli(jnp.zeros(3))
CALL = {"key": jax.random.key(0)}


@pytest.mark.parametrize("call", [sg.expectation, sg.value_and_grad])
@pytest.mark.parametrize(
    ("arguments", "settings", "sentence"),
    [
        ((W, sg.RLOO(2)), CALL, r"Bernoulli\(logits\), not an array"),
        ((sg.RLOO(2), Q), CALL, "are in the wrong order: pass f, dist, estimator"),
        ((Q, sg.RLOO), CALL, r"write RLOO\("),
        ((Q, "rloo"), CALL, r"RLOO\(2\), not a str"),
        ((Q, sg.RLOO(2)), {**CALL, "args": W}, r"args=\(w,\), not an array"),
        ((Q, sg.RLOO(2)), {"key": 0}, "jax.random.key"),
        ((Q, sg.RLOO(2)), {"key": None}, "jax.random.key"),
        ((Q, sg.RLOO(2), jax.random.key(0)), CALL, "learns nothing"),
        ((Q, sg.RLOO(2)), {**CALL, "batched": False, "in_axes": 0}, "one entry for each of args"),
    ],
)
def test_arguments_in_the_wrong_place(call, arguments, settings, sentence, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for users
    with pytest.raises((TypeError, ValueError), match=sentence):
        call(lambda x, *_: jnp.sum(x, axis=-1), *arguments, **settings)


@pytest.mark.slow
def test_float32_parameters_with_float64_logits():
    with jax.enable_x64(False):
        cv = RODEO.init(jax.random.key(0))
    with jax.enable_x64(True):
        _, grads = sg.value_and_grad(
            lambda x: jnp.sum(x, axis=-1),
            sg.Bernoulli(jnp.zeros(3, jnp.float64)),
            RODEO,
            cv,
            key=jax.random.key(0),
        )
        assert grads.parameters.dtype == jnp.float64
        assert grads.cv.alpha.dtype == jnp.float32


def test_random_objective():
    """f takes a key, and gets a new one for a new key of the expectation."""

    def noisy(x, scale, *, key):
        return jnp.sum(x, axis=-1) + scale * jax.random.normal(key, x.shape[:-1])

    def loss(logits, scale, key):
        return sg.expectation(noisy, sg.Bernoulli(logits), sg.RLOO(4), key=key, args=(scale,))

    keys = jax.random.split(jax.random.key(0), 20_000)
    grads = jax.jit(jax.vmap(jax.grad(loss), (None, None, 0)))(jnp.zeros(3), 1.0, keys)
    error = grads.std(0) / np.sqrt(len(keys))
    assert bool(jnp.all(jnp.abs(grads.mean(0) - 0.25) < 4.5 * error))
    # A given key gives the same noise in value and gradient: ∂/∂scale is that noise.
    value = lambda s: loss(jnp.zeros(3), s, keys[0])
    slope = jax.grad(value)(1.0)
    np.testing.assert_allclose(value(2.0) - value(1.0), slope, rtol=1e-4)


def test_module_objective_and_integer_arguments():
    mlp = eqx.nn.MLP(4, "scalar", 8, 1, key=jax.random.key(0))

    def apply(x, mlp, power):
        flat = jax.vmap(mlp)(x.reshape(-1, 4))
        return flat.reshape(x.shape[:-1]) ** power

    _, grads = sg.value_and_grad(
        apply, sg.Bernoulli(jnp.zeros((3, 4))), sg.RLOO(2), key=jax.random.key(1), args=(mlp, 2)
    )
    assert grads.args[1] is None
    assert grads.args[0].layers[0].weight.shape == (8, 4)
    assert float(jnp.abs(grads.args[0].layers[0].weight).max()) > 0


def test_moving_average_baseline():
    """Gradient descent with step 1 − decay is the moving average, which begins with the second
    step."""
    estimator = sg.Reinforce(2, baseline="moving_average")
    cv = estimator.init(jax.random.key(0))
    dist, average = sg.Bernoulli(jnp.zeros((3, 4))), 0.0
    for seed in range(5):
        value, grads = estimator.value_and_grad(
            lambda x: jnp.sum(x, axis=-1) + 5, dist, cv, key=jax.random.key(seed)
        )
        cv = jax.tree.map(lambda p, g: p - 0.1 * g, cv, grads.cv)
        average = 0.9 * average + 0.1 * float(value) if seed > 0 else 0.0
        np.testing.assert_allclose(cv.baseline, average, rtol=1e-5)


@pytest.mark.parametrize("factor", [1.0, -30.0])
def test_moving_average_in_a_loss(factor):
    """The average does not depend on the factor of the expectation in the loss."""
    estimator = sg.Reinforce(2, baseline="moving_average")
    cv = sg.Reinforce.CV(jnp.asarray(1.0), jnp.asarray(2.0))
    loss = lambda cv: (
        factor
        * sg.expectation(
            lambda x: jnp.sum(x, axis=-1) + 5,
            sg.Bernoulli(jnp.zeros((3, 4))),
            estimator,
            cv,
            key=jax.random.key(0),
        )
    )
    gradient = jax.grad(loss)(cv).baseline
    np.testing.assert_allclose(gradient, 1.0 - loss(cv) / factor, rtol=1e-5)


def test_large_batches():
    """The square of the batch size exceeds 32 bits."""
    estimator = sg.DoubleCV(2)
    run = jax.jit(
        lambda cv, key: estimator.value_and_grad(
            lambda x: jnp.sum(x, axis=-1), sg.Bernoulli(jnp.zeros((100_000, 2))), cv, key=key
        )
    )
    _, grads = run(estimator.init(jax.random.key(0)), jax.random.key(1))
    assert bool(jnp.isfinite(grads.cv.alpha))


def test_parameters_that_are_not_all_arrays():
    """The parameters of q may be a network, including its activation function."""
    network = eqx.nn.MLP(3, 3, 4, 1, key=jax.random.key(0))
    log_prob = lambda net, x: jnp.sum(x * net(jnp.ones(3)) - jax.nn.softplus(net(jnp.ones(3))))
    sampler = lambda key, net: jax.random.bernoulli(key, jax.nn.sigmoid(net(jnp.ones(3)))).astype(
        float
    )

    @eqx.filter_jit
    @eqx.filter_grad
    def gradient(network):
        dist = sg.FromLogProb(
            log_prob, network, num_coordinates=3, sampler=sampler, normalized=True
        )
        return sg.expectation(
            lambda x: jnp.sum(x, axis=-1), dist, sg.RLOO(4), key=jax.random.key(1)
        )

    assert float(jnp.abs(gradient(network).layers[0].weight).max()) > 0


def test_learned_baseline_lowers_the_variance():
    estimator = sg.Reinforce(1, baseline="learned")
    cv, dist = estimator.init(jax.random.key(0)), sg.Bernoulli(jnp.zeros(4))

    @jax.jit
    def step(cv, key):
        _, grads = estimator.value_and_grad(lambda x: jnp.sum(x, axis=-1) + 5, dist, cv, key=key)
        return jax.tree.map(lambda p, g: p - 0.2 * g, cv, grads.cv), None

    cv, _ = jax.lax.scan(step, cv, jax.random.split(jax.random.key(1), 3000))
    assert abs(float(cv.baseline) - 7) < 0.5


def test_memory_is_linear_in_d():
    """The compiler reports less than 200 MB for 8 × 4096 bits, twice as much as for 8 × 2048."""
    estimator = sg.Rodeo(num_samples=2)
    cv = estimator.init(jax.random.key(0))

    def temporaries(d):
        def run(logits, cv, key):
            return sg.value_and_grad(
                lambda x: jnp.sum(jnp.sin(x), axis=-1),
                sg.Bernoulli(logits),
                estimator,
                cv,
                key=key,
            )

        compiled = jax.jit(run).lower(jnp.zeros((8, d)), cv, jax.random.key(0)).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    small, large = temporaries(2048), temporaries(4096)
    assert large < 200e6
    assert large <= 2.3 * small


class TestEachElement:
    """`expectation` with `reduce=False`."""

    LOGITS = np.random.default_rng(80).normal(size=(3, 4))
    W = np.array([1.0, -2.0, 0.5, 0.3])
    COTANGENT = np.array([2.0, -3.0, 0.5])
    KEY = jax.random.key(6)

    def values(self, estimator, logits, w, cv, **settings):
        settings = {"key": self.KEY, "args": (w,), "reduce": False, **settings}
        return sg.expectation(f, sg.Bernoulli(logits), estimator, cv, **settings)

    @pytest.mark.usefixtures("x64")
    @pytest.mark.parametrize(
        "estimator",
        [
            sg.DoubleCV(2),
            sg.Bronco(1, flips=1),
            *slow(RODEO, sg.RLOO(2), sg.Lariat(2), sg.DisARM(2), sg.UnorderedSet(3), sg.Rebar(2)),
        ],
        ids=lambda estimator: type(estimator).__name__,
    )
    def test_any_cotangent(self, estimator):
        logits, w, cotangent = map(jnp.asarray, (self.LOGITS, self.W, self.COTANGENT))
        dist = sg.Bernoulli(logits)
        cv = jax.tree.map(lambda leaf: leaf + 0.3, estimator.init(jax.random.key(0), dist))

        @jax.jit
        def pulled(cotangent, cv):
            value, pull_back = jax.vjp(lambda *given: self.values(estimator, *given), logits, w, cv)
            return value, pull_back(cotangent)

        value, (grad, w_grad, cv_grad) = pulled(cotangent, cv)
        assert value.shape == (3,)
        mean = sg.expectation(f, dist, estimator, cv, key=self.KEY, args=(w,))
        np.testing.assert_allclose(jnp.mean(value), mean)
        # Each element's gradient is its own, times its cotangent.
        _, (ones_grad, ones_w, ones_cv) = pulled(jnp.ones(3), cv)
        np.testing.assert_allclose(grad, cotangent[:, None] * ones_grad, atol=1e-12)
        each = jnp.stack([pulled(one, cv)[1][1] for one in jnp.eye(3)])
        np.testing.assert_allclose(w_grad, cotangent @ each, atol=1e-12)
        np.testing.assert_allclose(ones_w, jnp.sum(each, axis=0), atol=1e-12)
        # `value_and_grad` has the gradients of the sum.
        settings = {"key": self.KEY, "args": (w,), "reduce": False}
        same, grads = jax.jit(lambda cv: sg.value_and_grad(f, dist, estimator, cv, **settings))(cv)
        ours = grads.parameters, grads.args[0], grads.cv
        assert largest_difference((same, *ours), (value, ones_grad, ones_w, ones_cv)) < 1e-10
        if cv is None:
            return
        if not estimator.cv_is_quadratic:
            assert largest_difference(cv_grad, ones_cv) < 1e-12
            return
        flat, unravel = ravel_pytree(cv)
        direction = normal(90, flat.shape)
        square = lambda cv: jnp.mean(pulled(cotangent, cv)[1][0] ** 2)
        up, down = (square(unravel(flat + step * direction)) for step in (1e-5, -1e-5))
        slope = ravel_pytree(cv_grad)[0] @ direction
        np.testing.assert_allclose(slope, (up - down) / 2e-5, rtol=1e-5)

    @pytest.mark.usefixtures("x64")
    @pytest.mark.parametrize("estimator", [sg.RLOO(3), *slow(RODEO)])
    def test_shared_parameters(self, estimator):
        """The gradient of shared parameters is a sum over the batch, with the cotangents in it."""
        weights, conditions = normal(91, (2, 3)), normal(92, (4, 2))

        def log_prob(weights, x, condition):
            logits = condition @ weights
            return jnp.sum(x * logits - jnp.logaddexp(logits, 0))

        def sampler(key, weights, condition):
            return jax.random.bernoulli(key, jax.nn.sigmoid(condition @ weights)).astype(float)

        cv = random_cv(estimator) if isinstance(estimator, sg.Rodeo) else None

        def values(weights, cv):
            dist = sg.FromLogProb(
                log_prob,
                weights,
                conditions=conditions,
                num_coordinates=3,
                sampler=sampler,
                normalized=True,
            )
            g = lambda x: jnp.sum(jnp.sin(x * jnp.arange(1.0, 4.0)), axis=-1) ** 2
            return sg.expectation(g, dist, estimator, cv, key=self.KEY, reduce=False)

        @jax.jit
        def pull_back(cotangent, cv):
            return jax.vjp(values, weights, cv)[1](cotangent)

        each = jnp.stack([pull_back(one, cv)[0] for one in jnp.eye(4)])
        for cotangent in (normal(93, 4), jnp.array([0.0, 2.0, -1.0, 0.0])):
            grad, cv_grad = pull_back(cotangent, cv)
            np.testing.assert_allclose(grad, jnp.tensordot(cotangent, each, 1), atol=1e-12)
            assert float(jnp.max(jnp.abs(grad))) > 1e-3
        if cv is not None:
            flat, unravel = ravel_pytree(cv)
            direction = normal(94, flat.shape)
            square = lambda cv: jnp.mean(pull_back(cotangent, cv)[0] ** 2)
            up, down = (square(unravel(flat + step * direction)) for step in (1e-5, -1e-5))
            slope = ravel_pytree(cv_grad)[0] @ direction
            np.testing.assert_allclose(slope, (up - down) / 2e-5, rtol=1e-5)

    @pytest.mark.parametrize("estimator", [sg.RLOO(2), sg.Bronco(1, flips=1)])
    @pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
    def test_a_masked_element_adds_nothing(self, estimator, bad):
        """Not even if its f is not finite; and nothing is learned from it."""
        logits = jnp.asarray(self.LOGITS, jnp.float32)
        cv = estimator.init(jax.random.key(0), sg.Bernoulli(logits))
        mask = jnp.array([1.0, 0.0, 1.0])

        @jax.jit
        @functools.partial(jax.grad, argnums=(0, 1))
        def gradient(logits, cv, second):
            f = lambda x: jnp.sum(x**2, axis=-1) * jnp.array([1.0, second, 1.0])
            dist, settings = sg.Bernoulli(logits), {"key": self.KEY, "reduce": False}
            values = sg.expectation(f, dist, estimator, cv, **settings)
            return jnp.sum(jnp.where(mask > 0, values, 0.0))

        fine, broken = gradient(logits, cv, 1.0), gradient(logits, cv, bad)
        assert largest_difference(fine[0], broken[0]) == 0
        assert bool(jnp.all(fine[0][1] == 0))
        assert bool(jnp.any(fine[0] != 0))
        for a, b in zip(jax.tree.leaves(fine[1]), jax.tree.leaves(broken[1]), strict=True):
            np.testing.assert_array_equal(a, b)

    def test_a_loss_without_the_expectation(self):
        """A factor of 0, as at the start of an annealed weight, gives zeros and teaches nothing."""
        estimator, logits = sg.Bronco(1, flips=1), jnp.asarray(self.LOGITS, jnp.float32)
        cv = estimator.init(jax.random.key(0), sg.Bernoulli(logits))

        @jax.jit
        @functools.partial(jax.grad, argnums=(0, 1, 2))
        def gradient(logits, w, cv, factor):
            dist = sg.Bernoulli(logits)
            return factor * sg.expectation(f, dist, estimator, cv, key=self.KEY, args=(w,))

        found = gradient(logits, jnp.asarray(self.W, jnp.float32), cv, 0.0)
        assert all(bool(jnp.all(leaf == 0)) for leaf in jax.tree.leaves(found))

    def test_other_forms_of_f(self):
        logits, w = jnp.asarray(self.LOGITS, jnp.float32), jnp.asarray(self.W, jnp.float32)
        dist, settings = sg.Bernoulli(logits), {"key": self.KEY, "reduce": False}
        expected = sg.expectation(f, dist, sg.RLOO(2), args=(w,), **settings)
        with_aux = lambda x, w: (f(x, w), x)
        found, aux = sg.expectation(with_aux, dist, sg.RLOO(2), args=(w,), has_aux=True, **settings)
        np.testing.assert_array_equal(found, expected)
        assert aux.shape == (2, 3, 4)
        (found, aux), _ = sg.value_and_grad(
            with_aux, dist, sg.RLOO(2), args=(w,), has_aux=True, **settings
        )
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        target = jnp.arange(3.0)
        one = lambda x, w, target: f(x, w) - target
        found = sg.expectation(
            one, dist, sg.RLOO(2), args=(w, target), batched=False, in_axes=(None, 0), **settings
        )
        np.testing.assert_allclose(found, expected - target, rtol=1e-5)
        gradient = jax.grad(lambda l: jnp.sum(self.values(sg.RLOO(2), l, w, None)))
        assert gradient(jnp.zeros((0, 4))).shape == (0, 4)
        assert self.values(sg.RLOO(2), jnp.zeros((2, 0, 4)), w, None).shape == (2, 0)
        assert self.values(sg.RLOO(2), jnp.zeros(4), w, None).shape == ()
        number = sg.callback(lambda x: np.sum(x, axis=-1))
        values = lambda l: sg.expectation(number, sg.Bernoulli(l), sg.RLOO(2), **settings)
        assert jax.jacrev(values)(logits).shape == (3, 3, 4)


class TestBadInput:
    def test_one_sample(self):
        for estimator in (sg.RLOO, sg.Rodeo):
            with pytest.raises(ValueError, match=r"num_samples of 2 or more.*was given 1"):
                estimator(num_samples=1)
        with pytest.raises(ValueError, match="1 or more"):
            sg.Reinforce(num_samples=0)

    def test_logits_of_the_wrong_rank(self):
        with pytest.raises(ValueError, match=r"\[\.\.\., d\].*shape \(\)"):
            sg.Bernoulli(jnp.zeros(()))
        with pytest.raises(ValueError, match=r"\[\.\.\., d, m\].*shape \(3,\)"):
            sg.Categorical(jnp.zeros(3))
        with pytest.raises(ValueError, match="at least 2 values"):
            sg.Categorical(jnp.zeros((3, 1)))
        with pytest.raises(ValueError, match="at least one coordinate"):
            sg.Bernoulli(jnp.zeros((3, 0)))
        with pytest.raises(TypeError, match=r"floating-point logits.*int32"):
            sg.Bernoulli(jnp.zeros(3, jnp.int32))

    def test_values(self):
        with pytest.raises(ValueError, match="two or more distinct values"):
            sg.Ordinal(jnp.zeros((2, 3)), (0, 1, 1))
        with pytest.raises(ValueError, match="one logit for each value"):
            sg.Ordinal(jnp.zeros((2, 3)), (0, 1))

    @pytest.mark.parametrize("estimator", [sg.RLOO(2), sg.Rodeo(2)])
    def test_shape_of_f(self, estimator):
        cv = estimator.init(jax.random.key(0))
        for wrong in (lambda x: x, lambda x: jnp.sum(x), lambda x: jnp.sum(x, -1, keepdims=True)):
            with pytest.raises(ValueError, match=r"must return one number for each.*\(2, 3\)"):
                sg.expectation(
                    wrong, sg.Bernoulli(jnp.zeros((3, 4))), estimator, cv, key=jax.random.key(0)
                )

    def test_unnormalised(self):
        dist = sg.FromLogProb(lambda p, x: p @ x, jnp.zeros(3), num_coordinates=3)
        x = dist.enumerate()[:2]
        with pytest.raises(ValueError, match="normalized=True"):
            sg.Reinforce(2).estimate(None, dist, x, jnp.zeros(2))

    def test_no_sampler(self):
        dist = sg.FromLogProb(lambda p, x: p @ x, jnp.zeros(3), num_coordinates=3, normalized=True)
        with pytest.raises(ValueError, match="without a sampler"):
            sg.value_and_grad(lambda x: x[..., 0], dist, sg.RLOO(2), key=jax.random.key(0))

    def test_too_many_states(self):
        with pytest.raises(ValueError, match=r"2\^21 states: at most 2\^20"):
            sg.exact_expectation(lambda x: x[..., 0], sg.Bernoulli(jnp.zeros(21)))

    def test_missing_control_variates(self):
        with pytest.raises(ValueError, match=r"pass the cv that `init\(key, dist\)`"):
            sg.value_and_grad(
                lambda x: x[..., 0], sg.Bernoulli(jnp.zeros(3)), sg.Rodeo(2), key=jax.random.key(0)
            )
        with pytest.raises(ValueError, match=r"pass the cv that `init\(key, dist\)`"):
            sg.value_and_grad(
                lambda x: x[..., 0],
                sg.Bernoulli(jnp.zeros(3)),
                sg.Reinforce(1, "learned"),
                key=jax.random.key(0),
            )

    def test_shapes_for_estimate(self):
        dist, x = sg.Bernoulli(jnp.zeros(3)), jnp.zeros((2, 3))
        cv = sg.Rodeo(2).init(jax.random.key(0))
        with pytest.raises(ValueError, match=r"samples of shape \(2, 3\)"):
            sg.RLOO(2).estimate(None, dist, jnp.zeros((3, 3)), jnp.zeros(3))
        with pytest.raises(ValueError, match=r"values of f of shape \(2,\)"):
            sg.RLOO(2).estimate(None, dist, x, jnp.zeros((2, 1)))
        with pytest.raises(ValueError, match="pass dfx"):
            sg.Rodeo(2).estimate(cv, dist, x, jnp.zeros(2))
        exact = sg.Rodeo(2, surrogate=sg.ExactSurrogate())
        with pytest.raises(ValueError, match="ExactSurrogate evaluates"):
            exact.estimate(exact.init(jax.random.key(0)), dist, x, jnp.zeros(2))

    def test_surrogate_settings(self):
        with pytest.raises(ValueError, match="1 or 2 hidden layers"):
            sg.MLPSurrogate(layers=3)
        with pytest.raises(ValueError, match="whole number of hidden units of 1 or more"):
            sg.PooledSurrogate(hidden=0)

    @pytest.mark.usefixtures("unchecked_types")
    def test_baseline(self):
        with pytest.raises(ValueError, match="'moving_average' or 'learned'"):
            sg.Reinforce(1, baseline="mean")
