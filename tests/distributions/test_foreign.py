"""Distributions of other libraries: the same numbers as with this library's own."""

import importlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steingrad as sg
from marks import slow
from problems import normal
from steingrad.diagnostics import check_objective, compare
from steingrad.distributions import foreign

MODULES = {
    "distrax": "distrax",
    "tfp": "tensorflow_probability.substrates.jax.distributions",
    "numpyro": "numpyro.distributions",
    "distreqx": "distreqx.distributions",
}
KEY = jax.random.key(0)
pytestmark = pytest.mark.usefixtures("standard_promotion")


@pytest.fixture(params=list(MODULES))
def library(request):
    return request.param, load(request.param)


def load(name):
    """The package itself; the test is skipped if it is not installed."""
    pytest.importorskip(MODULES[name].split(".")[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(MODULES[name])


def make(library, kind, ndim=1, **parameters):
    """An Independent of this kind, whose last `ndim` axes of variables belong to the state."""
    name, package = library
    if name == "numpyro":
        if kind == "OneHotCategorical":
            pytest.skip("numpyro has no OneHotCategorical")
        return getattr(package, kind)(**parameters).to_event(ndim)
    base = getattr(package, kind)(**parameters)
    if name == "distreqx":
        return package.Independent(base)
    return package.Independent(base, reinterpreted_batch_ndims=ndim)


def as_given(logits, given, kind):
    if given == "logits":
        return logits
    return jax.nn.sigmoid(logits) if kind == "Bernoulli" else jax.nn.softmax(logits)


WEIGHTS = {"Bernoulli": (2, 3), "Categorical": (2, 3), "OneHotCategorical": (2, 3, 4)}


def objective(kind):
    w = jnp.asarray(np.random.default_rng(5).normal(size=WEIGHTS[kind][1:]), jnp.float32)
    axes = tuple(range(1 - len(WEIGHTS[kind]), 0))
    return lambda x: jnp.sum(w * x.astype(jnp.float32), axis=axes) ** 2


def own(kind, logits):
    """The same problem with this library's own distribution."""
    if kind == "Bernoulli":
        return sg.Bernoulli(logits), objective(kind)
    f = objective(kind)
    if kind == "OneHotCategorical":
        return sg.Categorical(logits), f
    return sg.Categorical(logits), lambda x: f(jnp.argmax(x, axis=-1))


def problem_logits(kind):
    shape = (2, 3) if kind == "Bernoulli" else (2, 3, 4)
    return jnp.asarray(np.random.default_rng(6).normal(size=shape), jnp.float32)


@pytest.mark.parametrize("given", ["logits", "probs"])
@pytest.mark.parametrize("kind", WEIGHTS)
def test_same_numbers(library, kind, given):
    """Value and gradient of the logits behind what was given, with the same key."""
    f, logits = objective(kind), problem_logits(kind)
    if library[0] == "distreqx":  # it has no batch axes: see below
        logits, estimator = logits[0], sg.RLOO(3)
    else:
        estimator = sg.RLOO(3)

    def loss(logits):
        dist = make(library, kind, **{given: as_given(logits, given, kind)})
        return sg.expectation(f, dist, estimator, key=KEY)

    def ours(logits):
        dist, f = own(kind, logits)
        return sg.expectation(f, dist, estimator, key=KEY)

    value, grad = jax.jit(jax.value_and_grad(loss))(logits)
    expected, expected_grad = jax.value_and_grad(ours)(logits)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(grad, expected_grad, rtol=1e-4, atol=1e-6)
    assert float(jnp.max(jnp.abs(grad))) > 0.01


@pytest.mark.parametrize("given", ["logits", "probs"])
@pytest.mark.parametrize("kind", WEIGHTS)
def test_explicit_gradients_belong_to_what_was_given(library, kind, given):
    f, logits = objective(kind), problem_logits(kind)[0]
    array = as_given(logits, given, kind)
    dist = make(library, kind, **{given: array})
    exact = sg.exact_gradient(f, dist)
    direct = jax.grad(lambda a: sg.exact_expectation(f, make(library, kind, **{given: a})))(array)
    assert exact.shape == array.shape
    # Some libraries normalise what they are given, which removes a constant from each gradient.
    direct = direct if kind == "Bernoulli" else direct - direct[..., :1] + exact[..., :1]
    np.testing.assert_allclose(direct, exact, rtol=1e-4, atol=1e-4)
    estimator = sg.RLOO(2)
    value, grads = estimator.value_and_grad(f, dist, key=KEY)
    same, again = sg.value_and_grad(f, dist, estimator, key=KEY)
    by_door = jax.grad(
        lambda a: sg.expectation(f, make(library, kind, **{given: a}), estimator, key=KEY)
    )(array)
    by_door = by_door if kind == "Bernoulli" else by_door - by_door[..., :1]
    explicit = grads.parameters
    np.testing.assert_array_equal(explicit, again.parameters)
    explicit = explicit if kind == "Bernoulli" else explicit - explicit[..., :1]
    np.testing.assert_allclose(explicit, by_door, rtol=1e-4, atol=1e-4)
    assert value == same


@pytest.mark.parametrize("kind", ["Bernoulli", "Categorical", "OneHotCategorical"])
@pytest.mark.parametrize("name", ["distrax", "tfp", "numpyro"])
def test_a_single_variable_has_no_axis_of_coordinates(name, kind):
    """batch_shape and event_shape are those of the other library."""
    package = load(name)
    if not hasattr(package, kind):
        pytest.skip(f"{name} has no {kind}")
    logits = jnp.zeros(4) if kind == "Bernoulli" else jnp.zeros((4, 5))
    dist, seen = getattr(package, kind)(logits=logits), []

    def f(x):
        seen.append((x.shape, x.dtype))
        x = x.astype(jnp.float32)
        return jnp.sum(x**2, axis=-1) if kind == "OneHotCategorical" else x**2

    _, grads = sg.value_and_grad(f, dist, sg.RLOO(3), key=KEY)
    assert grads.parameters.shape == logits.shape
    event = (5,) if kind == "OneHotCategorical" else ()
    dtype = jnp.int32 if kind == "Categorical" else jnp.float32
    assert seen[-1] == ((3, 4, *event), dtype)
    converted = sg.as_distribution(dist)
    assert converted.batch_shape == (4,)
    drawn = converted.view(sg.RLOO(3).sample(KEY, converted))
    foreign_shape = dist.sample(jax.random.PRNGKey(0), (3,)).shape if name == "numpyro" else None
    assert drawn.shape == (foreign_shape or (3, 4, *event))


@pytest.mark.parametrize("name", ["distrax", "tfp", "numpyro"])
def test_several_axes_of_coordinates(name):
    """Independent over two axes: f sees both."""
    library = name, load(name)
    w = jnp.arange(6.0).reshape(2, 3)
    f = lambda x: jnp.sum(w * x, axis=(-2, -1))
    dist = make(library, "Bernoulli", 2, logits=jnp.zeros((4, 2, 3)))
    _, grads = sg.value_and_grad(f, dist, sg.LocalExpectation(), key=KEY)
    np.testing.assert_allclose(grads.parameters, jnp.broadcast_to(w / 16, (4, 2, 3)), rtol=1e-5)


def test_distreqx_shapes():
    """It has no batch axes. Leading axes of a Categorical without Independent act as such."""
    package = load("distreqx")
    shapes = lambda dist: (sg.as_distribution(dist).batch_shape, sg.as_distribution(dist).shape)
    assert shapes(package.Bernoulli(jnp.zeros((4, 3)))) == ((), (4, 3))
    assert shapes(package.Independent(package.Bernoulli(jnp.zeros(3)))) == ((), (3,))
    assert shapes(package.Categorical(jnp.zeros((4, 3)))) == ((4,), ())
    assert shapes(package.Independent(package.Categorical(jnp.zeros((4, 3))))) == ((), (4,))
    assert shapes(package.OneHotCategorical(jnp.zeros((4, 3)))) == ((4,), ())


ESTIMATORS = [
    sg.RLOO(2),
    sg.Bronco(use_gradient=False),
    sg.LocalExpectation(),
    *slow(sg.CARMS(2), sg.Reinforce(2), sg.Rodeo(2, surrogate=sg.ExactSurrogate())),
]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_indices(estimator):
    """Estimators without a gradient of f take the index convention, and are right."""
    package = load("distrax")
    dist = package.Independent(package.Categorical(logits=problem_logits("Categorical")[0]), 1)
    f = objective("Categorical")
    cv = estimator.init(KEY, dist)
    draw = lambda key: sg.value_and_grad(f, dist, estimator, cv, key=key)[1].parameters
    grads = jax.jit(jax.vmap(draw))(jax.random.split(KEY, 4000))
    error = jnp.mean(grads, 0) - sg.exact_gradient(f, dist)
    z = error / (jnp.std(grads, 0) / 4000**0.5 + 1e-6)
    assert float(jnp.max(jnp.abs(z))) < 4.5


@pytest.mark.parametrize(
    "estimator", [sg.ReinMax(), sg.Bronco(), sg.Rebar(), sg.Rodeo(2)], ids=repr
)
def test_indices_have_no_gradient(estimator):
    dist = load("distrax").Categorical(logits=jnp.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"are indices \(whole numbers\).*OneHotCategorical"):
        sg.value_and_grad(lambda x: 1.0 * x, dist, estimator, estimator.init(KEY, dist), key=KEY)


@pytest.mark.parametrize("estimator", [sg.Bronco(), *slow(sg.Rebar(), sg.Rodeo(2))], ids=repr)
def test_one_hot_vectors_have_one(estimator):
    package = load("distrax")
    logits = problem_logits("OneHotCategorical")[0]
    dist = package.Independent(package.OneHotCategorical(logits=logits), 1)
    f, cv = objective("OneHotCategorical"), estimator.init(KEY, dist)
    _, theirs = sg.value_and_grad(f, dist, estimator, cv, key=KEY)
    _, ours = sg.value_and_grad(f, sg.Categorical(dist.distribution.logits), estimator, cv, key=KEY)
    np.testing.assert_allclose(theirs.parameters, ours.parameters, rtol=1e-4, atol=1e-5)


def test_everything_else_that_takes_a_distribution():
    package = load("distrax")
    dist, f = package.Bernoulli(logits=jnp.array([0.4])), lambda x: 3.0 * x
    result = compare(f, dist, [sg.RLOO(2), sg.StraightThrough()], key=KEY, draws=200, adapt_steps=1)
    assert result.reference == "the exact gradient"
    check_objective(f, dist, key=KEY)
    x = sg.sample(KEY, dist, sg.ReinMax())
    assert x.shape == (1,)
    grad = jax.grad(lambda l: jnp.sum(sg.sample(KEY, package.Bernoulli(logits=l), sg.ReinMax())))(
        jnp.array([0.4])
    )
    assert float(grad[0]) > 0.1
    joint = sg.Joint(a=dist, b=sg.Bernoulli(jnp.zeros((1, 2))))
    g = lambda x: x["a"] * jnp.sum(x["b"], axis=-1)
    _, grads = sg.value_and_grad(g, joint, sg.RLOO(4), key=KEY)
    assert jax.tree.map(jnp.shape, grads.parameters) == {"a": (1,), "b": (1, 2)}


def test_certain_probabilities_have_no_gradient():
    package = load("distrax")
    f = lambda x: jnp.sum(x, axis=-1)

    def loss(p):
        dist = package.Independent(package.Bernoulli(probs=p), 1)
        return sg.expectation(f, dist, sg.RLOO(4), key=KEY)

    grad = jax.grad(loss)(jnp.array([0.0, 1.0, 0.5]))
    assert bool(jnp.all(jnp.isfinite(grad)))
    np.testing.assert_array_equal(grad[:2], 0)


@pytest.mark.usefixtures("unchecked_types")
def test_refusals(library):
    name, package = library
    with pytest.raises(TypeError, match="Allowed are Bernoulli, Categorical and OneHotCategorical"):
        sg.expectation(jnp.sum, package.Normal(jnp.zeros(()), jnp.ones(())), sg.RLOO(2), key=KEY)
    if name != "distreqx":
        dist = make(library, "Normal", 1, loc=jnp.zeros(3), scale=jnp.ones(3))
        with pytest.raises(TypeError, match="Independent of a Normal"):
            sg.as_distribution(dist)
    with pytest.raises(TypeError, match=r"Pass as_distribution\(dist\)"):
        sg.RLOO(2).sample(KEY, make(library, "Bernoulli", logits=jnp.zeros(3)))


def test_nothing_is_imported():
    """The libraries are recognised by name."""
    import subprocess
    import sys

    code = "import sys, steingrad; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in out.stdout.split()}
    assert not loaded & {"distrax", "tensorflow_probability", "numpyro", "distreqx"}


@pytest.mark.usefixtures("unchecked_types")
def test_other_objects_are_no_distributions():
    class Bernoulli:
        """Of no library."""

    with pytest.raises(TypeError, match=r"not a Bernoulli\. Of other libraries, Bernoulli"):
        sg.as_distribution(Bernoulli())
    assert not foreign.is_foreign(Bernoulli())


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("kind", ["bits", "index", "one-hot"])
def test_conversion_without_the_libraries(kind):
    """The converted forms themselves, with given probabilities and an event of two axes."""
    bits = kind == "bits"
    logits = normal(1, (2, 2, 3)) if bits else normal(1, (2, 1, 2, 3))
    probs = jax.nn.sigmoid(logits) if bits else jax.nn.softmax(logits)
    shape = logits.shape[1:] if bits else logits.shape[1:-1]
    if bits:
        make = lambda p: foreign.ForeignBernoulli(p, True, shape)
    else:
        make = lambda p: foreign.ForeignCategorical(p, True, shape, one_hot=kind == "one-hot")
    dist = make(probs)
    axes = tuple(range(-len(shape) - (kind == "one-hot"), 0))
    w = normal(2, (*shape, 3) if kind == "one-hot" else shape)
    f = lambda x: jnp.sum(w * x.astype(w.dtype), axis=axes) ** 2
    exact = sg.exact_gradient(f, dist)
    assert exact.shape == probs.shape
    numeric = jax.grad(lambda p: sg.exact_expectation(f, make(p)))(probs)
    np.testing.assert_allclose(exact, numeric, rtol=1e-10)
    _, grads = sg.value_and_grad(f, dist, sg.RLOO(3), key=KEY)
    by_door = jax.grad(lambda p: sg.expectation(f, make(p), sg.RLOO(3), key=KEY))(probs)
    np.testing.assert_allclose(grads.parameters, by_door, rtol=1e-10)
    keys = jax.random.split(KEY, 4000)
    many = jax.vmap(lambda key: sg.value_and_grad(f, dist, sg.RLOO(3), key=key)[1].parameters)
    draws = jax.jit(many)(keys)
    z = (jnp.mean(draws, 0) - exact) / (jnp.std(draws, 0) / len(keys) ** 0.5)
    assert float(jnp.max(jnp.abs(z))) < 4.0


@pytest.mark.parametrize("kind", ["Bernoulli", "Categorical"])
def test_a_distribution_as_the_argument_of_a_jitted_function(library, kind):
    """The distributions are pytrees, which jax.jit and jax.grad rebuild."""
    dist = make(library, kind, logits=problem_logits(kind)[0])
    loss = lambda dist: sg.expectation(objective(kind), dist, sg.RLOO(3), key=KEY)
    np.testing.assert_allclose(jax.jit(loss)(dist), loss(dist), rtol=1e-5)


@pytest.mark.parametrize(("estimator", "count"), [(sg.VIMCO(3), None), (sg.RLOO(2), 3)], ids=repr)
def test_multi_sample_bounds(estimator, count):
    """log w sees the states of the other library, and gradients reach its logits."""
    package, logits, seen = load("distrax"), problem_logits("Categorical"), []

    def bound(logits):
        dist = package.Independent(package.Categorical(logits=logits), 1)

        def log_w(x):
            seen.append((x.shape[-2:], x.dtype))
            return -dist.log_prob(x) + jnp.sum(x, axis=-1).astype(jnp.float32)

        return sg.multi_sample_bound(log_w, dist, estimator, key=KEY, num_samples=count)

    grad = jax.jit(jax.grad(bound))(logits)
    assert set(seen) == {((2, 3), jnp.dtype("int32"))}
    assert bool(jnp.all(jnp.isfinite(grad)))
    assert float(jnp.max(jnp.abs(grad))) > 0.01
