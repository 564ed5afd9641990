"""Derivatives of estimates are right, or raise an error that names an alternative."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steingrad as sg
from marks import slow

LOGITS, W, KEY = jnp.array([0.3, -0.5]), jnp.array([1.0, 2.0]), jax.random.key(0)


def f(x, w):
    return jnp.sum(jnp.sin(w * x), axis=-1)


def value(logits, w, estimator=None):
    estimator = estimator or sg.RLOO(2)
    cv = estimator.init(jax.random.key(1))
    return sg.expectation(f, sg.Bernoulli(logits), estimator, cv, key=KEY, args=(w,))


@pytest.mark.parametrize(
    "second",
    [
        jax.hessian(value),
        jax.jacrev(jax.grad(value)),
        jax.jit(jax.jacrev(jax.jit(jax.grad(value)))),
        jax.jacrev(jax.grad(value, 1), 0),
        jax.jacrev(jax.grad(lambda logits, w: value(logits, w) ** 2)),
    ],
    ids=["hessian", "reverse", "jit", "mixed", "square"],
)
def test_second_derivatives_by_the_distribution_are_refused(second):
    with pytest.raises(
        TypeError, match=r"(?s)drawn .*second derivatives use jax.grad of the gradient"
    ):
        second(LOGITS, W)


@pytest.mark.parametrize("estimator", [sg.DoubleCV(2), sg.ARMS(3), sg.LocalExpectation()])
def test_second_derivatives_are_refused_whatever_the_estimator(estimator):
    with pytest.raises(TypeError, match="For second derivatives"):
        jax.jacrev(jax.grad(lambda l: value(l, W, estimator)))(LOGITS)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("estimator", [sg.RLOO(2), sg.DoubleCV(2)], ids=["rloo", "double_cv"])
def test_second_derivatives_by_the_arguments_are_right(estimator):
    """Checked by finite differences of first derivatives with the same samples."""
    logits, w, step = jnp.array([0.3, -0.5]), jnp.array([1.0, 2.0]), 1e-6
    grad = jax.jit(jax.grad(lambda l, w: value(l, w, estimator), (0, 1)))
    by_w = jax.jit(jax.jacrev(lambda w: grad(logits, w)))(w)
    hessian = jax.jit(jax.hessian(lambda w: value(logits, w, estimator)))(w)
    np.testing.assert_allclose(hessian, by_w[1], rtol=1e-10)
    for i, e in enumerate(step * jnp.eye(2)):
        up, down = grad(logits, w + e), grad(logits, w - e)
        for ours, a, b in zip(by_w, up, down, strict=True):
            np.testing.assert_allclose(ours[:, i], (a - b) / (2 * step), atol=1e-7)


@pytest.mark.usefixtures("x64")
def test_the_way_out_is_unbiased():
    """The gradient along v is an expectation. The mean of its RLOO gradient, over all pairs of
    samples, is the Hessian times v."""
    logits, v = jnp.array([0.3, -0.5]), jnp.array([1.0, -2.0])
    g = lambda x: f(x, jnp.array([1.0, 2.0])) + x[..., 0] * x[..., 1]

    def along(logits, x):
        return g(x) * jax.jvp(lambda l: sg.Bernoulli(l).log_prob(x), (logits,), (v,))[1]

    exact = jax.hessian(lambda l: sg.exact_expectation(g, sg.Bernoulli(l)))(logits) @ v

    @jax.jit
    @jax.vmap
    def draws(key):
        of = lambda l: sg.expectation(lambda x: along(l, x), sg.Bernoulli(l), sg.RLOO(2), key=key)
        return jax.grad(of)(logits)

    g_draws = draws(jax.random.split(jax.random.key(3), 20_000))
    error = jnp.std(g_draws, axis=0) / np.sqrt(len(g_draws))
    assert float(jnp.max(jnp.abs(jnp.mean(g_draws, axis=0) - exact) / error)) < 4


@pytest.mark.parametrize(
    "forward",
    [
        lambda l: jax.jvp(lambda l: value(l, W), (l,), (l,)),
        jax.jit(lambda l: jax.jvp(jax.jit(lambda l: value(l, W)), (l,), (l,))),
        jax.jacfwd(lambda l: value(l, W)),
    ],
    ids=["jvp", "jit", "jacfwd"],
)
def test_forward_mode_names_the_way_out(forward):
    with pytest.raises(TypeError, match=r"reverse-mode derivatives only.*Use jax.grad"):
        forward(LOGITS)


def test_what_value_and_grad_returns_is_no_function_of_the_distribution():
    run = lambda l: sg.value_and_grad(f, sg.Bernoulli(l), sg.RLOO(2), key=KEY, args=(W,))
    with pytest.raises(TypeError, match=r"For first derivatives use jax.grad of `expectation`"):
        jax.grad(lambda l: run(l)[0])(LOGITS)
    # A surrogate loss whose gradient is the estimate uses no wrong derivative.
    loss = lambda l: jnp.sum(l * jax.lax.stop_gradient(run(l)[1].parameters))
    np.testing.assert_allclose(
        jax.jit(jax.grad(loss))(LOGITS), run(LOGITS)[1].parameters, atol=1e-6
    )


@pytest.mark.parametrize("transform", [jax.jit, jax.checkpoint, jax.vmap], ids=lambda t: t.__name__)
def test_first_derivatives_under_transformations(transform):
    expected = jax.grad(value)(LOGITS, W)
    if transform is jax.vmap:
        many = lambda l, w: jnp.sum(jax.vmap(lambda l: value(l, w))(jnp.stack([l, l]))) / 2
        np.testing.assert_allclose(jax.grad(many)(LOGITS, W), expected, atol=1e-6)
    else:
        np.testing.assert_allclose(jax.grad(transform(value))(LOGITS, W), expected, atol=1e-6)


SHARED = """
import jax, jax.numpy as jnp, numpy as np, steingrad as sg
from jax.sharding import AxisType, PartitionSpec as P

mesh = jax.make_mesh((2,), ("batch",), axis_types=(AxisType.Auto,))
logits, w = jnp.linspace(-1.0, 1.0, 12).reshape(4, 3), jnp.array([1.0, -2.0, 0.5])
keys = jax.random.split(jax.random.key(1), 2)
f = lambda x, w: jnp.sum(w * x, -1) ** 2
rodeo = sg.Rodeo(2, surrogate=sg.MLPSurrogate(hidden=4))
for estimator in (rodeo, sg.Reinforce(2, "moving_average")):
    cv = jax.tree.map(lambda p: p + 0.1, estimator.init(jax.random.key(0)))

    def value(logits, cv, w, key):
        return sg.expectation(f, sg.Bernoulli(logits), estimator, cv, key=key, args=(w,))

    def step(logits, cv, w, keys):
        loss = lambda *p: jax.lax.pmean(value(*p, keys[0]), "batch")
        return jax.grad(loss, (0, 1, 2))(logits, cv, w)

    specs = P("batch"), P(), P()
    in_specs = (*specs, P("batch"))
    sharded = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=in_specs, out_specs=specs))
    halves = lambda l, cv, w: (value(l[:2], cv, w, keys[0]) + value(l[2:], cv, w, keys[1])) / 2
    ours = sharded(logits, cv, w, keys)
    on_one = list(jax.jit(jax.grad(halves, (0, 1, 2)))(logits, cv, w))
    on_one[1] = jax.tree.map(lambda g: g / 2, on_one[1])  # the mean over the devices
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(tuple(on_one)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)

    def each(logits, cv, w, key):
        settings = {"key": key, "args": (w,), "reduce": False}
        return sg.expectation(f, sg.Bernoulli(logits), estimator, cv, **settings)

    def weighted(logits, cv, w, keys, factors):
        loss = lambda *p: jax.lax.psum(jnp.sum(factors * each(*p, keys[0])), "batch")
        return jax.grad(loss, (0, 1, 2))(logits, cv, w)

    factors = jnp.array([1.0, -2.0, 0.5, 3.0])
    sharded = jax.jit(jax.shard_map(
        weighted, mesh=mesh, in_specs=(*in_specs, P("batch")), out_specs=specs
    ))
    halves = lambda l, cv, w: (
        factors[:2] @ each(l[:2], cv, w, keys[0]) + factors[2:] @ each(l[2:], cv, w, keys[1])
    )
    ours = sharded(logits, cv, w, keys, factors)
    on_one = list(jax.jit(jax.grad(halves, (0, 1, 2)))(logits, cv, w))
    on_one[1] = jax.tree.map(lambda g: g / 2, on_one[1])
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(tuple(on_one)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)

    def explicit(logits, cv, w, keys):
        _, grads = sg.value_and_grad(
            f, sg.Bernoulli(logits), estimator, cv, key=keys[0], args=(w,), reduce=False
        )
        return grads.parameters, jax.lax.psum(grads.args[0], "batch")

    ours = jax.jit(jax.shard_map(
        explicit, mesh=mesh, in_specs=in_specs, out_specs=(P("batch"), P())
    ))(logits, cv, w, keys)
    ones = lambda l, w: jnp.sum(each(l[:2], cv, w, keys[0])) + jnp.sum(each(l[2:], cv, w, keys[1]))
    on_one = jax.jit(jax.grad(ones, (0, 1)))(logits, w)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(on_one), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)

    def closed(w, logits, keys):
        g = lambda x: f(x, w)
        q = sg.Bernoulli(logits)
        return jax.lax.pmean(sg.expectation(g, q, sg.RLOO(2), key=keys[0]), "batch")

try:
    jax.shard_map(
        jax.grad(closed), mesh=mesh, in_specs=(P(), P("batch"), P("batch")), out_specs=P()
    )(w, logits, keys)
except TypeError as error:
    assert "Pass it to f through args" in str(error), error
else:
    raise AssertionError("closed over")
print("done")
"""


def in_cond(run):
    return lambda logits: jax.lax.cond(logits[0] > 0, run, lambda l: 0 * l[0], logits)


def in_switch(run):
    last = lambda l: jnp.sum(l)
    return lambda logits: jax.lax.switch(1, [lambda l: 0 * l[0], run, last], logits)


def in_scan(run):
    return lambda logits: jax.lax.scan(lambda l, _: (l, run(l)), logits, length=1)[1][0]


def in_a_rule_of_its_own(run):
    ours = jax.custom_vjp(run)
    ours.defvjp(lambda l: jax.vjp(run, l), lambda pull_back, cotangent: pull_back(cotangent))
    return ours


@pytest.mark.parametrize(
    "around", [in_scan, in_a_rule_of_its_own, *slow(in_cond, in_switch, jax.checkpoint)]
)
@pytest.mark.parametrize("key", [KEY, jax.random.key_data(KEY)], ids=["typed", "raw"])
def test_keys_inside_control_flow(around, key):
    """An eager derivative works, also if the objective uses keys of its own and is given some."""

    def noise(x, given, key):
        keys = [given, key, own]
        return x[..., 0] * sum(jax.random.normal(k, x.shape[:-1]) for k in keys)

    def run(logits):
        settings = {"key": key, "args": (key,), "relaxation": lambda x, given, key: x[..., 1]}
        estimator = sg.Rebar(2)
        cv = estimator.init(KEY)
        return sg.expectation(noise, sg.Bernoulli(logits), estimator, cv, **settings)

    own = jax.random.fold_in(key, 1)
    gradient = jax.grad(around(run))(LOGITS)
    np.testing.assert_allclose(gradient, jax.jit(jax.grad(run))(LOGITS), rtol=1e-5)
    assert jnp.all(gradient != 0)


@pytest.mark.slow
def test_devices_that_share_control_variates():
    """Two devices, each with half of the batch, give the same result as one device with both."""
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    environment["PYTHONPATH"] = str(Path(sg.__file__).parent.parent)
    run = subprocess.run(
        [sys.executable, "-c", SHARED], env=environment, capture_output=True, text=True, timeout=600
    )
    assert run.stdout == "done\n", run.stderr[-3000:]
