"""Expectations inside expectations: exact proofs, and what their control variates learn."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import steingrad as sg
from marks import slow
from problems import largest_difference, normal, random_cv
from significance import passes, z_scores
from steingrad.estimators.bronco import Drawn
from steingrad.objective import Values

pytestmark = pytest.mark.usefixtures("x64")


def given(estimator_class, **settings):
    """An estimator whose random numbers are given: `uniforms` for the samples, of shape `[n,
    *batch, d]`, and `slots` for the flips of Bronco, of shape `[1, n, *batch]`."""

    class Given(estimator_class):
        uniforms: Any = None
        slots: Any = None

        def draw(self, key, dist):
            u = self.uniforms
            if isinstance(dist, sg.Categorical):
                steps = jnp.cumsum(jax.nn.softmax(dist.logits), axis=-1)[..., :-1]
                values = jnp.sum(u[..., None] > steps, axis=-1)
                return jax.nn.one_hot(values, dist.num_values, dtype=u.dtype)
            theta = jax.nn.sigmoid(dist.logits)
            if isinstance(self, sg.DisARM):
                return jnp.concatenate([u > 1 - theta, u < theta]).astype(u.dtype)
            return (u > 1 - theta).astype(u.dtype)

        def choose(self, at, guess):
            return Drawn(self.slots)

    return lambda **random: Given(**settings, **random)


class Wrong(sg.RLOO):
    """RLOO with a biased baseline, the mean over all samples."""

    def gradient(self, cv, dist, at):
        return jax.tree.map(lambda g: g * (1 - 1 / len(at.x)), super().gradient(cv, dist, at))


ESTIMATORS = {
    "reinforce": (sg.Reinforce, {"num_samples": 1, "baseline": 0.3}),
    "rloo": (sg.RLOO, {"num_samples": 2}),
    "rodeo": (sg.Rodeo, {"num_samples": 2, "surrogate": sg.MLPSurrogate(hidden=3)}),
    "bronco": (sg.Bronco, {"num_samples": 1, "flips": 1, "uniform": 1.0}),
    "lariat": (sg.Lariat, {"num_samples": 2}),
    "local": (sg.LocalExpectation, {"num_samples": 1}),
    "disarm": (sg.DisARM, {"num_samples": 2}),
    "wrong": (Wrong, {"num_samples": 2}),
}


def control_variates(estimator, dist):
    """Control variates that are in use: after a few steps, or random."""
    if isinstance(estimator, (sg.Bronco, sg.Lariat)):
        cv = estimator.init(jax.random.key(5), dist)
        f = lambda x: jnp.sum(jnp.sin(2 * x), axis=tuple(range(-dist.event_ndim, 0)))

        def step(cv, key):
            _, grads = estimator.value_and_grad(f, dist, cv, key=key)
            return jax.tree.map(lambda p, g: p - g, cv, grads.cv), None

        return jax.lax.scan(step, cv, jax.random.split(jax.random.key(6), 30))[0]
    return random_cv(estimator) if estimator.init(jax.random.key(0), dist) is not None else None


class Program:
    """Layers of one coordinate each, where the logits of a layer depend on all layers below, and an
    f of all layers. The distributions have `values` values."""

    def __init__(self, names, values=2):
        self.names, self.values = names, values
        width = 1 if values == 2 else values
        self.parameters = {
            "logits": [normal(i, (width,)) for i in range(len(names))],
            "weights": [0.8 * normal(10 + i, (i * width, width)) for i in range(len(names))],
            "f": normal(20, (len(names) * width, 3)),
        }
        self.width = width

    def of_logits(self, logits):
        return sg.Bernoulli(logits) if self.values == 2 else sg.Categorical(logits[..., None, :])

    def logits(self, parameters, layer, below, batch=()):
        out = jnp.broadcast_to(parameters["logits"][layer], (*batch, self.width))
        return out + below @ parameters["weights"][layer]

    def f(self, parameters, states):
        a, b, c = jnp.moveaxis(states @ parameters["f"], -1, 0)
        return a + 0.5 * b**2 + jnp.sin(2 * c)

    def states(self):
        """The states of one layer, of shape `[values, width]`."""
        return jnp.arange(2.0)[:, None] if self.values == 2 else jnp.eye(self.values)

    def probabilities(self, parameters, layer, below):
        logits = self.logits(parameters, layer, below)
        return jax.nn.softmax(jnp.append(jnp.zeros(1), logits) if self.values == 2 else logits)

    def exact(self, parameters, below=None, layer=0):
        """The expectation, summed over all states of all layers."""
        below = jnp.zeros(0) if below is None else below
        if layer == len(self.names):
            return self.f(parameters, below)
        probs = self.probabilities(parameters, layer, below)
        above = [
            self.exact(parameters, jnp.concatenate([below, x]), layer + 1) for x in self.states()
        ]
        return jnp.sum(probs * jnp.stack(above))

    def enumerate(self):
        """Everything random: `uniforms` and `slots` of each layer, and their probabilities. The
        draws of a layer change only where a uniform number crosses one of the layer's
        thresholds."""
        count, choices, shapes = 1, [], []
        for layer, name in enumerate(self.names):
            cells = self.cells(layer, name == "disarm")
            draws = count * (1 if name == "disarm" else ESTIMATORS[name][1]["num_samples"])
            count *= ESTIMATORS[name][1]["num_samples"]
            flips = count if name == "bronco" else 0
            slots = [(i, 1 / (self.values - 1)) for i in range(self.values - 1)]
            choices += [cells] * draws + [slots] * flips
            shapes.append((draws, flips))
        grid = list(itertools.product(*choices))
        numbers = np.array([[value for value, _ in row] for row in grid]).T
        probability = np.array([np.prod([p for _, p in row]) for row in grid])
        return numbers, shapes, jnp.asarray(probability)

    def cells(self, layer, mirrored):
        """Intervals of a uniform number, each as its middle and its length."""
        belows = itertools.product(self.states(), repeat=layer)
        edges = [0.0, 1.0]
        probabilities = jax.jit(functools.partial(self.probabilities, self.parameters, layer))
        for below in belows:
            probs = np.asarray(probabilities(jnp.concatenate([jnp.zeros(0), *below])))
            edges += list(np.cumsum(probs)[:-1])
            edges += list(1 - np.cumsum(probs)[:-1]) if mirrored else []
        edges = np.unique(edges)
        return list(zip((edges[1:] + edges[:-1]) / 2, np.diff(edges), strict=True))

    def mean_gradient(self, random, stopped=False):
        """The mean of the estimated gradient over everything random, in one call: each combination
        is an element of the batch, whose cotangent is its probability."""
        numbers, shapes, probability = random
        batch, position, layers, lead = len(probability), 0, [], ()
        for name, (draws, flips) in zip(self.names, shapes, strict=True):
            estimator_class, settings = ESTIMATORS[name]
            u = numbers[position : position + draws].reshape(-1, *lead, batch, 1)
            slots = numbers[position + draws : position + draws + flips].astype(np.int32)
            position += draws + flips
            lead = (settings["num_samples"], *lead)
            slots = slots.reshape(1, *lead, batch) if flips else None
            make = given(estimator_class, **settings)
            estimator = make(uniforms=jnp.asarray(u), slots=slots)
            plain = estimator_class(**settings)
            one = self.of_logits(jnp.zeros(self.width))
            layers.append((estimator, control_variates(plain, one)))

        def value(parameters, below, layer):
            if layer == len(layers):
                return self.f(parameters, below)
            lead = below.shape[:-1]
            logits = self.logits(parameters, layer, below, lead)
            logits = jax.lax.stop_gradient(logits) if stopped and layer else logits

            def f(x):
                x = x.reshape(*x.shape[: 1 + len(lead)], self.width)
                whole = jnp.broadcast_to(below, (*x.shape[:-1], below.shape[-1]))
                return value(parameters, jnp.concatenate([whole, x], axis=-1), layer + 1)

            estimator, cv = layers[layer]
            dist, key = self.of_logits(logits), jax.random.key(0)
            return sg.expectation(f, dist, estimator, cv, key=key, reduce=False)

        run = lambda parameters: value(parameters, jnp.zeros((batch, 0)), 0)
        values, pull_back = jax.vjp(run, self.parameters)
        return probability @ values, pull_back(probability)[0]


def bias(names, values=2, stopped=False):
    program = Program(names, values)
    estimated = functools.partial(program.mean_gradient, program.enumerate(), stopped)
    value, gradient = jax.jit(estimated)()
    exact = jax.jit(jax.value_and_grad(program.exact))(program.parameters)
    assert abs(float(value - exact[0])) < 1e-10
    ours, theirs = (ravel_pytree(tree)[0] for tree in (gradient, exact[1]))
    return float(jnp.max(jnp.abs(ours - theirs)))


QUICK = ["rloo-bronco", "bronco-rodeo", "rodeo-lariat"]
PAIRS = [
    f"{outer}-{inner}"
    for outer in ("rloo", "rodeo", "bronco", "lariat", "local", "disarm")
    for inner in ("rloo", "rodeo", "bronco", "lariat", "local", "disarm")
]


@pytest.mark.parametrize("pair", [*QUICK, *slow(*(pair for pair in PAIRS if pair not in QUICK))])
def test_two_layers_of_bits(pair):
    """The mean over everything random is the gradient, for the parameters of all layers."""
    assert bias(pair.split("-")) < 1e-8


@pytest.mark.parametrize(
    "pair", ["bronco-rloo", *slow("rloo-bronco", "rodeo-rodeo", "local-rodeo", "lariat-bronco")]
)
def test_two_layers_of_categories(pair):
    assert bias(pair.split("-"), values=3) < 1e-8


@pytest.mark.parametrize(
    "names",
    [
        "bronco-bronco-bronco",
        *slow("rloo-reinforce-bronco", "bronco-local-rodeo", "local-bronco-lariat"),
    ],
)
def test_three_layers(names):
    assert bias(names.split("-")) < 1e-8


def test_exact_expectations_nest():
    """The same program with `exact_expectation` in both places gives the sum over all states."""
    program = Program(["rloo", "rloo"])

    @jax.jit
    def nested(parameters):
        def f(x):
            q = sg.Bernoulli(program.logits(parameters, 1, x, x.shape[:-1]))
            both = lambda y: jnp.concatenate([jnp.broadcast_to(x, y.shape), y], axis=-1)
            h = lambda y: program.f(parameters, both(y))
            return sg.exact_expectation(h, q, reduce=False)

        return sg.exact_expectation(f, sg.Bernoulli(parameters["logits"][0]))

    np.testing.assert_allclose(nested(program.parameters), program.exact(program.parameters))


def test_wrong_programs_are_caught():
    """A biased baseline in either layer, or logits that are not differentiated."""
    assert bias(["wrong", "reinforce"]) > 1e-3
    assert bias(["reinforce", "wrong"]) > 1e-3
    assert bias(["reinforce", "reinforce"], stopped=True) > 1e-3
    assert bias(["reinforce", "reinforce"]) < 1e-8


LOGITS = np.random.default_rng(70).normal(size=(3, 4))
WEIGHTS = np.random.default_rng(71).normal(size=(4, 5))
INNER = {
    "double_cv": sg.DoubleCV(2),
    "rodeo": sg.Rodeo(2, surrogate=sg.MLPSurrogate(hidden=3), coefficients="least_squares"),
    "learned": sg.Reinforce(1, baseline="learned"),
    "moving_average": sg.Reinforce(1, baseline="moving_average"),
    "lariat": sg.Lariat(2),
    "bronco": sg.Bronco(1, flips=1),
}
OUTER = {
    "rloo": sg.RLOO(2),
    "double_cv": sg.DoubleCV(2),
    "bronco": sg.Bronco(1, flips=1),
    "many_flips": sg.Bronco(1, flips=3),
    "local": sg.LocalExpectation(1),
}


def inner_value(weights, inner, inner_cv, x, inner_key, seen=None):
    """E[h(x, y)] for each state x, where y depends on x."""

    def h(y):
        if seen is not None:
            seen.append(y.shape)
        return (
            jnp.sum(jnp.sin(y * jnp.arange(1.0, 6.0)), -1) * (1 + x[..., 0]) + x[..., 1] * y[..., 0]
        )

    dist = sg.Bernoulli(x @ weights)
    return sg.expectation(h, dist, inner, inner_cv, key=inner_key, reduce=False)


def settled(estimator, dist):
    """Control variates that are not at their first values."""
    cv = estimator.init(jax.random.key(0), dist)
    return jax.tree.map(lambda leaf: leaf + 0.3, cv)


@pytest.mark.parametrize(
    ("inner", "outer"),
    [
        ("double_cv", "bronco"),
        ("bronco", "double_cv"),
        ("learned", "rloo"),
        *slow(
            *(
                (inner, outer)
                for inner in INNER
                for outer in OUTER
                if (inner, outer)
                not in (("double_cv", "bronco"), ("bronco", "double_cv"), ("learned", "rloo"))
            )
        ),
    ],
)
def test_inner_control_variates_adapt_as_if_not_nested(inner, outer):
    """Whatever the sign and scale of the loss, and wherever else the outer estimator evaluates f:
    the gradient is that of a call with the outer samples, which are constants."""
    key, inner_key = jax.random.key(1), jax.random.key(2)
    inner, outer = INNER[inner], OUTER[outer]
    dist = sg.Bernoulli(jnp.asarray(LOGITS))
    inner_cv = settled(inner, sg.Bernoulli(jnp.zeros((outer.num_samples, 3, 5))))
    outer_cv = settled(outer, dist)
    x = outer.draw(jax.random.split(key, 3)[0], dist)

    def nested(scale, logits, inner_cv):
        f = lambda x: inner_value(WEIGHTS, inner, inner_cv, x, inner_key)
        return scale * sg.expectation(f, sg.Bernoulli(logits), outer, outer_cv, key=key)

    def flat(scale, inner_cv):
        return scale * jnp.mean(inner_value(WEIGHTS, inner, inner_cv, x, inner_key))

    gradients = jax.jit(jax.vmap(jax.grad(nested, (1, 2)), (0, None, None)))
    scales = jnp.array([1.0, -1.0, 3.0])
    _, ours = gradients(scales, jnp.asarray(LOGITS), inner_cv)
    theirs = jax.jit(jax.vmap(jax.grad(flat, 1), (0, None)))(scales, inner_cv)
    assert largest_difference(ours, theirs) < 1e-10
    sizes = ravel_pytree(jax.tree.map(lambda g: g[0], ours))[0]
    assert float(jnp.max(jnp.abs(sizes))) > 1e-6
    if inner.cv_is_quadratic:
        # The step that lowers the variance for a loss of +E lowers it for −E too.
        for factor, number in ((1, 1), (9, 2)):
            scaled = jax.tree.map(lambda g, n=number: g[n], ours)
            once = jax.tree.map(lambda g, s=factor: s * g[0], ours)
            assert largest_difference(scaled, once) < 1e-10

    def f(x, inner_cv):
        return inner_value(WEIGHTS, inner, inner_cv, x, inner_key)

    _, grads = jax.jit(lambda cv: sg.value_and_grad(f, dist, outer, outer_cv, key=key, args=(cv,)))(
        inner_cv
    )
    assert largest_difference(grads.args[0], jax.tree.map(lambda g: g[0], ours)) < 1e-10


@pytest.mark.parametrize("inner", ["double_cv", *slow("bronco")])
def test_gradients_that_are_linear_in_the_cotangent_are_caught(inner, monkeypatch):
    """If f were pulled back with ones, and the result multiplied by the cotangent, the inner
    control variates would get a wrong gradient."""
    gradients = Values.gradients

    def linear(self, cotangents, **settings):
        dfx, of_arguments = gradients(self, jnp.ones_like(cotangents), **settings)
        return dfx, jax.tree.map(lambda g: jnp.mean(cotangents) * g, of_arguments)

    monkeypatch.setattr(Values, "gradients", linear)
    with pytest.raises(AssertionError):
        test_inner_control_variates_adapt_as_if_not_nested(inner, "rloo")


@pytest.mark.parametrize("outer", ["bronco", *slow("rloo", "double_cv", "many_flips", "local")])
def test_one_inner_call_for_all_samples(outer):
    """The inner f is called for all samples of the outer one at once."""
    outer, inner, seen = OUTER[outer], sg.RLOO(2), []
    cv = outer.init(jax.random.key(0), sg.Bernoulli(jnp.asarray(LOGITS)))

    def loss(logits):
        f = lambda x, key: inner_value(WEIGHTS, inner, None, x, key, seen)
        return sg.expectation(f, sg.Bernoulli(logits), outer, cv, key=jax.random.key(1))

    jax.make_jaxpr(jax.grad(loss))(jnp.asarray(LOGITS))
    assert seen == [(2, outer.num_samples, 3, 5)]


@pytest.mark.parametrize("inner", ["rloo", *slow("rodeo", "bronco", "disarm", "local", "lariat")])
def test_the_inner_draws_are_the_same_at_a_state_and_at_its_flips(inner):
    """Evaluated at several states under `jax.vmap`, as `Bronco` does, the values at equal states
    are equal, and those at other states differ."""
    estimator_class, settings = ESTIMATORS[inner]
    inner = estimator_class(**settings)
    inner_cv = inner.init(jax.random.key(0), sg.Bernoulli(jnp.zeros((2, 3, 5))))
    value = lambda x: inner_value(WEIGHTS, inner, inner_cv, x, jax.random.key(3))
    x = sg.Bernoulli(jnp.asarray(LOGITS)).sample(jax.random.key(4), (2,))
    flipped = x.at[..., 2].set(1 - x[..., 2])
    here, again, there = jax.jit(jax.vmap(value))(jnp.stack([x, x, flipped]))
    np.testing.assert_array_equal(here, again)
    np.testing.assert_allclose(here, jax.jit(value)(x), rtol=1e-12)
    assert bool(jnp.all(jnp.isfinite(there)))
    # With common random numbers most draws stay the same, so the values of f are correlated.
    independent = value(flipped) - inner_value(WEIGHTS, inner, inner_cv, x, jax.random.key(5))
    assert float(jnp.mean(jnp.abs(there - here))) < float(jnp.mean(jnp.abs(independent)))


def test_a_variable_that_does_not_exist_teaches_nothing():
    """Where the first variable says that there is no second one, the cotangent of the inner value
    is 0, and the inner control variates do not count its element."""
    inner, states = sg.Bronco(1, flips=1), jnp.array([[0.0], [1.0], [1.0]])
    cv = inner.init(jax.random.key(0), sg.Bernoulli(jnp.zeros((3, 2))))

    def loss(cv, bad):
        h = lambda y: jnp.sum(y, -1) / (states[:, 0] + 1 - bad)
        dist = sg.Bernoulli(jnp.zeros((3, 2)))
        values = sg.expectation(h, dist, inner, cv, key=jax.random.key(1), reduce=False)
        return jnp.sum(jnp.where(states[:, 0] > 0, values, 0))

    gradient = jax.jit(jax.grad(loss))
    fine, infinite = gradient(cv, 0.0), gradient(cv, 1.0)
    assert bool(jnp.isfinite(ravel_pytree(infinite)[0]).all())
    np.testing.assert_allclose(fine.steps, -2 / 3)  # two of three elements count
    np.testing.assert_allclose(infinite.steps, -2 / 3)


@pytest.mark.parametrize("outer", [sg.RLOO(2), sg.Bronco(1, use_gradient=False)])
def test_inner_parameters_may_be_shared(outer):
    """A network that reads the outer states gives the gradient of the same network outside. The
    inner estimator visits both states, so that there is no noise in it."""
    weights, dist = jnp.asarray(WEIGHTS[:, :1]), sg.Bernoulli(jnp.asarray(LOGITS))
    cv = outer.init(jax.random.key(0), dist)

    def log_prob(weights, y, x):
        return sg.Bernoulli(x @ weights).log_prob(y)

    def loss(weights, shared):
        def f(x):
            q: Any = sg.Bernoulli(x @ weights)
            if shared:
                settings = {"conditions": x, "batch_shape": x.shape[:-1], "num_coordinates": 1}
                q = sg.FromLogProb(log_prob, weights, normalized=True, **settings)
            h = lambda y: y[..., 0] * jnp.sum(jnp.sin(x), axis=-1)
            settings = {"key": jax.random.key(3), "reduce": False}
            return sg.expectation(h, q, sg.UnorderedSet(2), **settings) * (1 + x[..., 1])

        return sg.expectation(f, dist, outer, cv, key=jax.random.key(1))

    ours, theirs = (jax.jit(jax.grad(loss), static_argnums=1)(weights, s) for s in (True, False))
    np.testing.assert_allclose(ours, theirs, atol=1e-12)
    assert float(jnp.max(jnp.abs(ours))) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [False, True])
def test_real_random_numbers(wrong):
    """z-scores against the exact gradient. An inner call with the key of the outer one repeats its
    random numbers, and is caught."""
    outer, inner = sg.Bronco(1), sg.Bronco(1)
    bits = {"outer": normal(72, 2), "inner": normal(73, 2), "weights": normal(74, (2, 2))}
    flat, unravel = ravel_pytree(bits)
    outer_cv, inner_cv = (
        settled(estimator, sg.Bernoulli(jnp.zeros(2))) for estimator in (outer, inner)
    )

    def h(x, y):
        return jnp.sin(x[..., 0] + 2 * y[..., 0]) + x[..., 1] * y[..., 1] - y[..., 0]

    def of(bits, x):
        return sg.Bernoulli(bits["inner"] + x @ bits["weights"])

    def estimated(flat, outer_key):
        bits = unravel(flat)

        def f(x, key):
            key = outer_key if wrong else key
            q = of(bits, x)
            return sg.expectation(lambda y: h(x, y), q, inner, inner_cv, key=key, reduce=False)

        return sg.expectation(f, sg.Bernoulli(bits["outer"]), outer, outer_cv, key=outer_key)

    def exact(flat):
        bits = unravel(flat)
        f = lambda x: sg.exact_expectation(lambda y: h(x, y), of(bits, x), reduce=False)
        return sg.exact_expectation(f, sg.Bernoulli(bits["outer"]))

    draw = lambda key: jax.grad(estimated)(flat, key)
    assert passes(z_scores(draw, jax.grad(exact)(flat))) == (not wrong)
