"""The fast network agrees with the plain one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steingrad as sg
from problems import largest_difference, normal
from steingrad.surrogates import piecewise


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 2e-5), (jnp.float64, 1e-12)])
@pytest.mark.parametrize("shape", [(1, 7), (3, 2, 11), (2, 1, 3, 5)])
@pytest.mark.parametrize("block", [2**20, 100])
def test_piecewise_linear_is_the_network(dtype, tolerance, shape, block, monkeypatch):
    """Outputs and gradients (of parameters and both inputs) agree, in one or many blocks."""
    monkeypatch.setattr(piecewise, "BLOCK", block)
    with jax.enable_x64(dtype == jnp.float64):
        surrogate = sg.MLPSurrogate(hidden=13)
        cv = {
            "w_in": normal(0, (2, 13)),
            "b_in": normal(1, 13),
            "w_out": normal(2, (13, 2)),
            "b_out": normal(3, 2),
        }
        inputs = (cv, normal(4, shape[:-1]), normal(5, shape))
        inputs = jax.tree.map(lambda leaf: leaf.astype(dtype), inputs)
        cotangent = normal(6, (2, *shape[1:])).astype(dtype)

        def plain(cv, value, linear):
            outputs = surrogate.network(cv, value[..., None], linear)
            return jnp.stack([jnp.mean(h, axis=0) for h in outputs])

        fast = lambda p, v, t: piecewise.piecewise_linear(p, v, t, surrogate.slope)
        run = lambda f: jax.jit(lambda inputs, g: (f(*inputs), jax.vjp(f, *inputs)[1](g)))
        expected, plain_grads = run(plain)(inputs, cotangent)
        ours, fast_grads = run(fast)(inputs, cotangent)
        np.testing.assert_allclose(ours, expected, atol=tolerance)
        scale = max(float(jnp.abs(g).max()) for g in jax.tree.leaves(plain_grads))
        assert largest_difference(fast_grads, plain_grads) < tolerance * scale


def test_what_is_not_a_number_is_passed_on():
    cv = sg.MLPSurrogate(hidden=7).init(jax.random.key(0))
    at = lambda value, linear: piecewise.piecewise_linear(
        cv, jnp.array([[value]]), jnp.array([[linear]]), 0.3
    )
    assert jnp.isnan(at(1.0, [1.0, jnp.nan])).tolist() == 2 * [[[False, True]]]
    assert jnp.isnan(at(jnp.nan, [1.0, 2.0])).all()


def test_pooled_is_the_mlp_for_two_samples_only():
    dist = sg.Bernoulli(normal(0, (4, 6)))
    for num_samples, same in ((2, True), (3, False)):
        mlp, pooled = (
            sg.Rodeo(num_samples, surrogate=kind(hidden=8))
            for kind in (sg.MLPSurrogate, sg.PooledSurrogate)
        )
        x = mlp.sample(jax.random.key(0), dist)
        fx, dfx = jnp.sum(jnp.sin(3 * x), -1), 3 * jnp.cos(3 * x)
        cv = mlp.init(jax.random.key(1))
        cv = jax.tree.map(lambda leaf: leaf + 0.3, cv)
        ours, theirs = (jax.jit(e.estimate)(cv, dist, x, fx, dfx) for e in (mlp, pooled))
        assert np.allclose(ours, theirs, atol=1e-5) == same


def test_evaluations_of_the_exact_surrogate():
    dist = sg.Ordinal(jnp.zeros((4, 3)), (0, 1, 2))
    exact = sg.ExactSurrogate()
    assert sg.Rodeo(2, sg.Gibbs(), exact).num_evaluations(dist) == 2 * (1 + 4 * 2)
    assert sg.Rodeo(2, sg.Gibbs(num_coordinates=2), exact).num_evaluations(dist) == 2 * (1 + 2 * 2)
    whole = sg.TransitionMatrix(jnp.eye(81))
    assert sg.Rodeo(3, whole, exact).num_evaluations(dist) == 3 * (1 + 81)
    assert sg.Rodeo(3).num_evaluations(dist) == 3


def test_linear_surrogate_removes_the_variance_of_a_linear_objective():
    """With f linear, h = f, so RODEO with β = 1 and the own scan is deterministic."""
    dist = sg.Bernoulli(normal(0, 6))
    w = normal(1, 6)
    estimator = sg.Rodeo(2, sg.Gibbs("own"), sg.LinearSurrogate(), loo=False, local=False)
    cv = sg.Rodeo.CV(None, jnp.zeros(()), jnp.ones(()))
    grads = [
        estimator.value_and_grad(lambda x: x @ w, dist, cv, key=jax.random.key(seed))[1]
        for seed in range(3)
    ]
    theta = jax.nn.sigmoid(dist.logits)
    for g in grads:
        np.testing.assert_allclose(g.parameters, w * theta * (1 - theta), atol=1e-5)
