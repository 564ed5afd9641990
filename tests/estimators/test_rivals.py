"""DoubleCV, DisARM, ARMS, REBAR, RELAX and local expectation: proofs, errors, extreme inputs."""

from decimal import Decimal, localcontext

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import steingrad as sg
from marks import slow
from problems import batched, largest_difference, normal, normalised_distributions, objective
from significance import gradient_z_scores, passes, z_scores
from steingrad.estimators import arms, modified_relax
from steingrad.estimators.couplings import debias

SKEWED = np.array([0.02, 0.3, 0.7, 0.98])
SURROGATE = sg.MLPSurrogate(hidden=6)
BITS = {
    "double_cv": sg.DoubleCV(3),
    "disarm": sg.DisARM(4),
    "arms": sg.ARMS(3),
    "local_expectation": sg.LocalExpectation(2),
    "rebar": sg.Rebar(2),
    "relax": sg.Relax(2, context_size=3),
    "modified_relax": sg.ModifiedRelax(3, SURROGATE),
}
CATEGORIES = {
    "local_expectation": sg.LocalExpectation(2),
    "rebar": sg.Rebar(2),
    "relax": sg.Relax(2, context_size=3),
    "modified_relax": sg.ModifiedRelax(3, SURROGATE),
}


def bits():
    return sg.Bernoulli(jnp.log(SKEWED / (1 - SKEWED)))


def categories():
    return sg.Categorical(1.5 * normal(3, (2, 3)))


def moved(estimator, dist, seed=0):
    """Control variates away from their initial values, but not so far that noise hides a bias."""
    cv = estimator.init(jax.random.key(seed), dist)
    leaves, structure = jax.tree.flatten(cv)
    leaves = [leaf + 0.2 * normal(seed + 80 + i, leaf.shape) for i, leaf in enumerate(leaves)]
    cv = jax.tree.unflatten(structure, leaves)
    if hasattr(cv, "surrogate"):
        cv = eqx.tree_at(lambda cv: cv.surrogate, cv, jax.tree.map(lambda w: 2 * w, cv.surrogate))
    if hasattr(cv, "log_temperature"):
        where = lambda cv: (cv.log_temperature, cv.scale)
        cv = eqx.tree_at(where, cv, (jnp.full((), -0.5, float), jnp.full((), 0.8, float)))
    return cv


def context_for(estimator, batch=()):
    size = getattr(estimator, "context_size", 0)
    return normal(90, (*batch, size)) if size else None


@eqx.filter_jit
def gradients(estimator, dist, f, cv, key, context=None):
    return estimator.value_and_grad(f, dist, cv, key=key, context=context)[1]


def scores(estimator, dist, cv=None):
    cv = moved(estimator, dist) if cv is None else cv
    return gradient_z_scores(estimator, cv, dist, objective(dist), context_for(estimator))


@pytest.mark.usefixtures("x64")
class TestUnbiased:
    """400,000 draws are compared with the exact gradient. Each wrong variant fails the same
    test."""

    @pytest.mark.parametrize("num_samples", [2, *slow(4)])
    def test_disarm(self, num_samples):
        assert passes(scores(sg.DisARM(num_samples), bits()))

    @pytest.mark.parametrize("num_samples", [3, *slow(6)])
    def test_arms(self, num_samples):
        assert passes(scores(sg.ARMS(num_samples), bits()))

    @pytest.mark.parametrize(("dist", "num_samples"), [(bits, 2), *slow((categories, 1))])
    def test_rebar(self, dist, num_samples):
        assert passes(scores(sg.Rebar(num_samples), dist()))

    @pytest.mark.slow
    def test_rebar_where_it_starts(self):
        assert passes(scores(sg.Rebar(), bits(), sg.Rebar().init(jax.random.key(0))))

    @pytest.mark.parametrize("dist", [bits, *slow(categories)])
    def test_relax(self, dist):
        estimator = (BITS if dist is bits else CATEGORIES)["relax"]
        assert passes(scores(estimator, dist()))

    @pytest.mark.parametrize(("dist", "num_samples"), slow((bits, 3), (categories, 2)))
    def test_modified_relax(self, dist, num_samples):
        assert passes(scores(sg.ModifiedRelax(num_samples, SURROGATE), dist()))

    def test_an_objective_that_jumps(self):
        """For a table of values the estimate is unbiased with a relaxation, and biased without
        one."""
        weights, table = jnp.array([1.0, 2.0, 4.0, 8.0]), normal(5, (16,))
        f = lambda x: table[jnp.round(x @ weights).astype(int)]
        relaxation = lambda x: jnp.sum((x - 0.3) ** 3, axis=-1)
        estimator, dist = sg.Rebar(1), sg.Bernoulli(normal(1, (4,)))
        cv = moved(estimator, dist)

        def loss(logits, key, relaxation):
            return sg.expectation(
                f, sg.Bernoulli(logits), estimator, cv, key=key, relaxation=relaxation
            )

        exact = sg.exact_gradient(f, dist)
        draw = lambda key, c: jax.grad(loss)(dist.logits, key, c)
        assert passes(z_scores(lambda key: draw(key, relaxation), exact))
        assert not passes(z_scores(lambda key: draw(key, None), exact))

    def test_disarm_without_its_factor(self):
        class Wrong(sg.DisARM):
            def gradient(self, cv, dist, at):
                grad = super().gradient(cv, dist, at)
                return grad / jax.nn.sigmoid(jnp.abs(dist.logits))

        assert not passes(scores(Wrong(2), bits()))

    def test_arms_without_debiasing(self, monkeypatch):
        monkeypatch.setattr(arms, "debias", lambda logits, num_samples: jnp.ones_like(logits))
        assert not passes(scores(sg.ARMS(3), bits()))

    @pytest.mark.parametrize(
        ("dist", "name"),
        [
            (bits, "rebar"),
            *slow((bits, "relax"), (categories, "rebar"), (categories, "modified_relax")),
        ],
    )
    def test_z_tilde_not_differentiated(self, dist, name, monkeypatch):
        kind = type(dist())
        right = kind.latent_given
        monkeypatch.setattr(kind, "latent_given", lambda *a: jax.lax.stop_gradient(right(*a)))
        assert not passes(scores((BITS if dist is bits else CATEGORIES)[name], dist()))

    def test_a_surrogate_that_sees_its_own_sample(self, monkeypatch):
        monkeypatch.setattr(modified_relax, "others", lambda values: values[None])
        assert not passes(scores(sg.ModifiedRelax(2, SURROGATE), bits()))


@pytest.mark.usefixtures("x64")
class TestSamples:
    @pytest.mark.parametrize(
        "estimator", [sg.DisARM(2), sg.ARMS(2), sg.ARMS(3), sg.ARMS(6)], ids=str
    )
    def test_marginals_and_pairs(self, estimator):
        """Each sample is exact, and two samples are both 1 with the right probability."""
        others, theta = estimator.num_samples - 1, SKEWED
        rare = np.minimum(theta, 1 - theta)
        both_rare = np.maximum(2 * rare ** (1 / others) - 1, 0) ** others
        both = np.where(theta < 0.5, both_rare, 2 * theta - 1 + both_rare)

        # A pair that never occurs has no standard error, so independent noise is added.
        def draw(key):
            x = estimator.sample(key, bits())
            noise = 1e-3 * jax.random.normal(key, (2, 4))
            return jnp.stack([jnp.mean(x, axis=0), x[0] * x[-1]]) + noise

        assert passes(z_scores(draw, jnp.asarray([theta, both])))

    def test_conditional_noise(self):
        """z given a sample x gives x back, and has the distribution of z."""
        offsets = jnp.asarray([-1.5, -0.8, 0.0, 0.7, 2.5])
        laws = (
            (bits(), jax.nn.sigmoid(offsets)),
            (categories(), jnp.exp(-jnp.exp(-offsets))),
        )
        for dist, law in laws:
            location = dist.location()

            def conditional(key, shape=(), dist=dist):
                x_key, noise_key = jax.random.split(key)
                x = dist.sample(x_key, shape)
                return x, dist.latent_given(x, dist.noise(noise_key, shape))

            def draw(key, conditional=conditional, location=location):
                noise = conditional(key)[1] - location
                return (noise[..., None] < offsets).astype(noise.dtype)

            x, z = conditional(jax.random.key(0), (1000,))
            back = z > 0 if dist.event_ndim == 1 else z == jnp.max(z, axis=-1, keepdims=True)
            assert bool(jnp.all(back >= (x > 0)))
            assert bool(jnp.mean(back == (x > 0)) > 0.99)  # except for ties by rounding
            exact = jnp.broadcast_to(law, (*location.shape, len(law)))
            assert passes(z_scores(draw, exact))

    def test_arms_of_two_is_disarm(self):
        dist = batched(bits(), 50)
        x = sg.DisARM(2).sample(jax.random.key(0), dist)
        fx = objective(bits())(x)
        ours, theirs = (e.estimate(None, dist, x, fx) for e in (sg.ARMS(2), sg.DisARM(2)))
        assert float(jnp.abs(ours).max()) > 0.1
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-15)

    def test_any_even_number_of_pairs(self):
        dist, one = bits(), sg.DisARM(2)
        x = sg.DisARM(6).sample(jax.random.key(0), dist)
        fx = objective(dist)(x)
        pairs = [one.estimate(None, dist, x[k::3], fx[k::3]) for k in range(3)]
        g = sg.DisARM(6).estimate(None, dist, x, fx)
        np.testing.assert_allclose(g, np.mean(pairs, axis=0), rtol=1e-12)


@pytest.mark.parametrize("num_samples", [2, 3, 4, 10, 1000])
def test_arms_debias_is_stable(num_samples):
    """θ(1−θ)/(θ − P(both 1)) in float32 agrees with 60 digits."""
    logits = np.concatenate([[-40.0, -20.0, 20.0, 40.0], np.linspace(-9, 9, 37)])

    def definition(logit):
        with localcontext() as digits:
            digits.prec = 60
            theta = 1 / (1 + Decimal(-logit).exp())
            power = Decimal(1) / (num_samples - 1)
            both_rare = lambda p: max(2 * p**power - 1, Decimal(0)) ** (num_samples - 1)
            low = theta < Decimal("0.5")
            both = both_rare(theta) if low else 2 * theta - 1 + both_rare(1 - theta)
            return float(theta * (1 - theta) / (theta - both))

    ours = debias(jnp.asarray(logits, jnp.float32), num_samples)
    np.testing.assert_allclose(ours, [definition(logit) for logit in logits], rtol=2e-6)


@pytest.mark.usefixtures("x64")
class TestRelations:
    @pytest.mark.parametrize("name", ["bernoulli", "categorical3", "ordinal3"])
    def test_local_expectation_is_rodeo_with_its_own_scan(self, name):
        dist = normalised_distributions()[name]
        f, x = objective(dist), dist.enumerate()[None]
        batch = batched(dist, x.shape[1])
        x = jnp.concatenate([x, x[:, ::-1]])
        rodeo = sg.Rodeo(2, sg.Gibbs("own"), sg.ExactSurrogate(), loo=False, local=False)
        cv = sg.Rodeo.CV(None, jnp.zeros(()), jnp.ones(()))
        estimate = jax.jit(
            lambda: (
                sg.LocalExpectation(2).estimate(None, batch, x, f(x), f=f),
                rodeo.estimate(cv, batch, x, f(x), f=f),
            )
        )
        np.testing.assert_allclose(*estimate(), atol=1e-12)

    @pytest.mark.parametrize("estimator", [sg.DoubleCV(3), sg.ModifiedRelax(3, SURROGATE)])
    def test_starts_as_rloo(self, estimator):
        key, f = jax.random.key(0), objective(bits())
        ours = gradients(estimator, bits(), f, estimator.init(key), key)
        rloo = gradients(sg.RLOO(3), bits(), f, None, key)
        np.testing.assert_allclose(ours.parameters, rloo.parameters, rtol=1e-12, atol=1e-15)

    def test_network(self):
        """The network depends on the context. Without the network RELAX equals REBAR."""
        estimator, key, f = BITS["relax"], jax.random.key(0), objective(bits())
        cv, context = moved(estimator, bits()), context_for(estimator)
        here, there = (
            gradients(estimator, bits(), f, cv, key, c).parameters for c in (context, -context)
        )
        assert float(jnp.abs(here - there).max()) > 1e-3
        cv = eqx.tree_at(lambda cv: cv.network, cv, jax.tree.map(jnp.zeros_like, cv.network))
        ours = gradients(estimator, bits(), f, cv, key, context)
        rebar = sg.Rebar.CV(cv.log_temperature, cv.scale)
        theirs = gradients(BITS["rebar"], bits(), f, rebar, key)
        np.testing.assert_allclose(ours.parameters, theirs.parameters, rtol=1e-12)
        shared = sg.Rebar.CV(ours.cv.log_temperature, ours.cv.scale)
        assert largest_difference(shared, theirs.cv) < 1e-12


LEARNED = ["double_cv", "rebar", "relax", "modified_relax"]
ADAPTED = [(bits, name) for name in LEARNED]
ADAPTED += slow(*((categories, name) for name in ("rebar", "modified_relax")))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("dist", "name"), ADAPTED)
def test_cv_gradient_is_that_of_the_mean_square(dist, name):
    """Checked by finite differences, along each scalar and along random directions for networks."""
    estimator = (BITS if dist is bits else CATEGORIES)[name]
    dist, f = batched(dist(), 3), objective(dist())
    context = context_for(estimator, (3,))

    def grads(cv):
        return gradients(estimator, dist, f, cv, jax.random.key(3), context)

    cv = moved(estimator, dist)
    flat, unravel = ravel_pytree(cv)
    slope, _ = ravel_pytree(grads(unravel(flat)).cv)
    directions = [jnp.eye(flat.size)[i] for i in range(min(flat.size, 2))]
    directions += [normal(100 + i, flat.size) for i in range(6)]
    step = 1e-6
    for direction in directions:
        up, down = (
            jnp.mean(grads(unravel(flat + s * direction)).parameters ** 2) for s in (step, -step)
        )
        difference = (up - down) / (2 * step)
        np.testing.assert_allclose(slope @ direction, difference, rtol=1e-5, atol=1e-8)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "name", ["relax", "double_cv", *slow(*(n for n in BITS if n not in ("relax", "double_cv")))]
)
def test_expectation_agrees_with_value_and_grad(name):
    estimator = BITS[name]
    logits, w, key = normal(0, (2, 4)), normal(1, 4), jax.random.key(3)
    cv = moved(estimator, sg.Bernoulli(logits))
    context = context_for(estimator, (2,))

    def f(x, w, key):  # a random objective: the same noise wherever it is evaluated
        noise = jax.random.normal(key, w.shape)
        return jnp.sum(w * x, axis=-1) ** 2 + jnp.sin(jnp.sum((1 + noise) * x, axis=-1))

    def loss(logits, cv, w):
        q = sg.Bernoulli(logits)
        return sg.expectation(f, q, estimator, cv, key=key, args=(w,), context=context)

    @jax.jit
    def run(logits, cv, w):
        q = sg.Bernoulli(logits)
        explicit = sg.value_and_grad(f, q, estimator, cv, key=key, args=(w,), context=context)
        learned = (0, 1, 2) if cv is not None else (0, 2)
        return explicit, jax.value_and_grad(loss, learned)(logits, cv, w), loss(logits, cv, w)

    (value, grads), (value2, derivatives), undifferentiated = run(logits, cv, w)
    np.testing.assert_allclose(value2, value)
    np.testing.assert_allclose(undifferentiated, value)  # the same samples
    expected = (grads.parameters, grads.cv, grads.args[0])
    assert largest_difference(derivatives, expected) < 1e-10
    # The gradient with respect to `args` depends on the samples alone, not on relaxed points.
    x = estimator.sample(jax.random.split(key, 3)[0], sg.Bernoulli(logits))
    direct = jax.grad(lambda w: jnp.mean(f(x, w, jax.random.split(key, 3)[1])))(w)
    np.testing.assert_allclose(grads.args[0], direct, rtol=1e-10)


EXTREME = {
    "bits": np.array([-40.0, 40.0, 0.3, -40.0]),
    "categories": np.array([[-40.0, 40.0, 0.0], [40.0, 40.0, -40.0]]),
}
EVERYTHING = [("bits", name) for name in BITS] + [("categories", name) for name in CATEGORIES]
LONGEST = [(kind, name) for kind, name in EVERYTHING if "relax" in name or name == "rebar"]


@pytest.mark.parametrize(
    ("kind", "name", "dtype"),
    [
        *((*case, "float32") for case in EVERYTHING if case not in LONGEST),
        *slow(*((*case, "float32") for case in LONGEST)),
        *slow(*(("bits", name, "bfloat16") for name in BITS)),
    ],
)
def test_extreme_logits(kind, name, dtype):
    """Results are finite and of the right dtype, for a batch of rank two, in jit, vmap and scan."""
    estimator = (BITS if kind == "bits" else CATEGORIES)[name]
    make = sg.Bernoulli if kind == "bits" else sg.Categorical
    event = EXTREME[kind].shape
    logits = jnp.broadcast_to(jnp.asarray(EXTREME[kind], dtype), (2, 3, 1, *event))
    context = context_for(estimator, (2, 3, 1))
    context = None if context is None else context.astype(dtype)
    weights = jnp.arange(1, 1 + np.prod(event)).reshape(event).astype(dtype)
    cv = estimator.init(jax.random.key(0), make(logits))

    def f(x):
        return jnp.sum(weights * x, axis=tuple(range(-len(event), 0))) ** 2

    def one(logits, context, key):
        return estimator.value_and_grad(f, make(logits), cv, key=key, context=context)

    @jax.jit
    def run(logits, context, key):
        mapped = jax.vmap(one, (0, None if context is None else 0, None))
        keys = jax.random.split(key, 50)
        return jax.lax.scan(lambda _, key: (None, mapped(logits, context, key)), None, keys)[1]

    values, grads = run(logits, context, jax.random.key(1))
    assert values.shape == (50, 2)
    assert grads.parameters.shape == (50, *logits.shape)
    assert grads.parameters.dtype == logits.dtype
    assert bool(jnp.any(grads.parameters != 0))
    for leaf in jax.tree.leaves((values, grads)):
        assert bool(jnp.all(jnp.isfinite(leaf)))


class TestCosts:
    @pytest.mark.parametrize(("kind", "name"), EVERYTHING[:8])
    def test_number_of_evaluations(self, kind, name):
        """The number of evaluations equals the number counted at run time."""
        estimator = (BITS if kind == "bits" else CATEGORIES)[name]
        dist = sg.Bernoulli(jnp.zeros(4)) if kind == "bits" else sg.Categorical(jnp.zeros((2, 3)))
        axes = tuple(range(-dist.event_ndim, 0))
        seen = []

        def f(x):
            jax.debug.callback(lambda x: seen.append(x.shape[0]), x)
            return jnp.sum(x, axis=axes)

        cv, context = estimator.init(jax.random.key(0), dist), context_for(estimator)
        context = None if context is None else context.astype(jnp.float32)
        draw = lambda: (
            estimator.value_and_grad(f, dist, cv, key=jax.random.key(1), context=context)[
                1
            ].parameters
        )
        jax.jit(draw)()
        jax.effects_barrier()
        assert sum(seen) == estimator.num_evaluations(dist)

    @pytest.mark.parametrize("name", BITS)
    def test_parameters_keep_their_type(self, name):
        """The dtype is kept, so that a step of an optimiser, or a scan over steps, compiles
        once."""
        for leaf in jax.tree.leaves(BITS[name].init(jax.random.key(0), sg.Bernoulli(jnp.zeros(4)))):
            assert leaf.dtype == jnp.float32
            assert not leaf.weak_type

    def test_gradient_needed(self):
        free = [name for name, estimator in BITS.items() if not estimator.needs_gradient]
        assert free == ["disarm", "arms", "local_expectation"]


class TestRefusals:
    @pytest.mark.parametrize(
        ("estimator", "dist", "sentence"),
        [
            (
                sg.DisARM(2),
                "categorical",
                "DisARM needs independent bits, but was given Cat",
            ),
            (sg.ARMS(2), "ordinal", "ARMS needs independent bits, but was given Ordinal"),
            (
                sg.DoubleCV(2),
                "general",
                "DoubleCV needs a distribution whose mean is known",
            ),
            (
                sg.Rebar(2),
                "ordinal",
                "Rebar needs independent bits or one-hot categories",
            ),
            (
                sg.Relax(2),
                "general",
                "Relax needs independent bits or one-hot categories, but was given FromLogProb",
            ),
            (
                sg.LocalExpectation(2),
                "general",
                "LocalExpectation needs independent coordinates, but was given FromLogProb",
            ),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_distributions(self, estimator, dist, sentence):
        dist = {
            "categorical": sg.Categorical(jnp.zeros((2, 3))),
            "ordinal": sg.Ordinal(jnp.zeros((2, 3)), (0.0, 1.0, 2.0)),
            "general": sg.FromLogProb(
                lambda p, x: p @ x,
                jnp.zeros(2),
                num_coordinates=2,
                sampler=lambda key, p: jnp.zeros(2),
                normalized=True,
            ),
        }[dist]
        f = lambda x: jnp.sum(x, axis=tuple(range(-dist.event_ndim, 0)))
        key, cv = jax.random.key(0), estimator.init(jax.random.key(0), dist)
        x = dist.enumerate()[:2]
        for attempt in (
            lambda: estimator.sample(key, dist),
            lambda: estimator.estimate(cv, dist, x, f(x), x, key=key, f=f),
            lambda: sg.value_and_grad(f, dist, estimator, cv, key=key),
            lambda: sg.expectation(f, dist, estimator, cv, key=key),
        ):
            with pytest.raises(ValueError, match=sentence):
                attempt()

    @pytest.mark.parametrize(
        ("make", "sentence"),
        [
            (lambda: sg.DoubleCV(1), "DoubleCV needs a whole num_samples of 2 or more"),
            (lambda: sg.DisARM(3), "DisARM needs an even num_samples"),
            (lambda: sg.DisARM(0), "DisARM needs a whole num_samples of 2 or more"),
            (lambda: sg.ARMS(1), "ARMS needs a whole num_samples of 2 or more"),
            (
                lambda: sg.LocalExpectation(0),
                "LocalExpectation needs a whole num_samples of 1 or more",
            ),
            (lambda: sg.Rebar(0), "Rebar needs a whole num_samples of 1 or more"),
            (lambda: sg.Relax(0), "Relax needs a whole num_samples of 1 or more"),
            (lambda: sg.Relax().init(jax.random.key(0)), r"pass the distribution too, init\(key"),
            (lambda: sg.Relax(hidden=0), "whole number of hidden units of 1 or more"),
            (lambda: sg.ModifiedRelax(1, SURROGATE), "num_samples of 2 or more"),
        ],
    )
    def test_settings(self, make, sentence):
        with pytest.raises(ValueError, match=sentence):
            make()

    def test_estimate_alone(self):
        """Estimators that need f at other points than the samples raise an error; modified RELAX
        works."""
        dist, key = sg.Bernoulli(jnp.zeros(4)), jax.random.key(0)
        for name in ("rebar", "relax", "local_expectation"):
            estimator = BITS[name]
            x = estimator.sample(key, dist)
            with pytest.raises(ValueError, match="use `value_and_grad` or `expectation`"):
                estimator.estimate(estimator.init(key, dist), dist, x, x[:, 0], x)
        modified = BITS["modified_relax"]
        x = modified.sample(key, dist)
        g = jax.eval_shape(
            lambda: modified.estimate(modified.init(key), dist, x, x[:, 0], x, key=key)
        )
        assert g.shape == (4,)
        with pytest.raises(
            ValueError,
            match=r"draws random numbers .* no key was given: pass key",
        ):
            modified.estimate(modified.init(key), dist, x, x[:, 0], x)

    def test_control_variates(self):
        f, dist, key = lambda x: x[..., 0], sg.Bernoulli(jnp.zeros(4)), jax.random.key(0)
        for name in LEARNED:
            with pytest.raises(ValueError, match=r"pass the cv that .* makes, .*CV.*, not None"):
                sg.value_and_grad(f, dist, BITS[name], key=key)
        with pytest.raises(ValueError, match=r"network=.*, not .*CV"):
            sg.value_and_grad(f, dist, BITS["relax"], BITS["rebar"].init(key), key=key)
        with pytest.raises(ValueError, match="DisARM learns nothing: its cv is None, but was"):
            sg.value_and_grad(f, dist, BITS["disarm"], BITS["rebar"].init(key), key=key)

    def test_inputs_of_the_network(self):
        f, dist, key = lambda x: x[..., 0], sg.Bernoulli(jnp.zeros((2, 4))), jax.random.key(0)
        right, small = BITS["relax"], sg.Bernoulli(jnp.zeros((2, 3)))
        with pytest.raises(ValueError, match=r"f32\[7,137\].*, not .*f32\[6,137\]"):
            sg.value_and_grad(f, dist, right, right.init(key, small), key=key)
        for context in (None, jnp.zeros(3), jnp.zeros((2, 5))):
            with pytest.raises(ValueError, match=r"context of shape \(2, 3\)"):
                sg.value_and_grad(f, dist, right, right.init(key, dist), key=key, context=context)
