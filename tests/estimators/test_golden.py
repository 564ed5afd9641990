"""Comparison with the authors' implementation, number by number.

`reference/golden_k2.npz` holds one case with K = 2 computed in float32 with the code that Shi,
Zhou, Hwang, Titsias and Mackey published with "Gradient Estimation with Discrete Stein Operators"
(NeurIPS 2022): inputs (logits, uniform numbers, samples, an objective with its values and
gradients, the surrogate's weights) and, for each estimator, the gradient with respect to the
logits, and the gradient of its mean square with respect to the learned parameters.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steingrad as sg
from steingrad.draws import Uniform
from steingrad.estimators import couplings


@pytest.fixture(scope="module")
def golden():
    with np.load(Path(__file__).parent / "reference" / "golden_k2.npz") as file:
        return {name: jnp.asarray(file[name]) for name in file}


def assert_close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * float(jnp.abs(theirs).max()))


def rodeo_cv(golden):
    surrogate = {
        "w_in": jnp.stack([golden["w_value"], golden["w_linear"]]),
        "b_in": golden["b_hidden"],
        "w_out": golden["w_out"],
        "b_out": golden["b_out"],
    }
    return sg.Rodeo.CV(surrogate, golden["alpha"], golden["beta"])


def adapt(estimator, cv, golden):
    dist = sg.Bernoulli(golden["logits"])
    at = estimator.evaluated(cv, dist, golden["x"], golden["f"], golden["df"])
    return jax.jit(estimator.adapt)(cv, dist, at)


def test_double_cv(golden):
    g, cv = adapt(sg.DoubleCV(2), sg.DoubleCV.CV(golden["alpha"]), golden)
    assert_close(g, golden["grad_double_cv"])
    assert_close(cv.alpha, golden["double_cv_dalpha"])


def test_disarm(golden, monkeypatch):
    """The pair is made of one uniform number for each bit, which the test passes in."""
    dist, estimator = sg.Bernoulli(golden["logits"]), sg.DisARM(2)
    u = golden["u"][:1]
    uniform = Uniform(2 * jnp.minimum(u, 1 - u), u > 0.5)
    monkeypatch.setattr(couplings, "uniform", lambda *_: uniform)
    x = estimator.sample(jax.random.key(0), dist)
    np.testing.assert_array_equal(x[0], golden["x"][0])
    quadratic = jnp.einsum("...i,ij,...j->...", x, golden["A"], x)
    fx = quadratic + x @ golden["c"] + 0.3 * jnp.sin(jnp.sum(x, axis=-1))
    assert_close(fx[0], golden["f"][0])
    assert_close(estimator.estimate(None, dist, x, fx), golden["grad_disarm"])


def test_rloo(golden):
    assert_close(adapt(sg.RLOO(2), None, golden)[0], golden["grad_rloo"])


@pytest.mark.parametrize("surrogate", [sg.MLPSurrogate(), sg.PooledSurrogate()])
def test_rodeo(golden, surrogate):
    """With two samples the pooled surrogate equals the surrogate of the paper."""
    g, cv = adapt(sg.Rodeo(2, surrogate=surrogate), rodeo_cv(golden), golden)
    assert_close(g, golden["grad_rodeo_gibbs"])
    assert_close(cv.alpha, golden["rodeo_gibbs_dalpha"])
    assert_close(cv.beta, golden["rodeo_gibbs_dbeta"])
    assert_close(cv.surrogate["w_in"][0], golden["rodeo_gibbs_dw_value"])
    assert_close(cv.surrogate["w_in"][1], golden["rodeo_gibbs_dw_linear"])
    assert_close(cv.surrogate["b_in"], golden["rodeo_gibbs_db_hidden"])
    assert_close(cv.surrogate["w_out"], golden["rodeo_gibbs_dw_out"])
    assert_close(cv.surrogate["b_out"], golden["rodeo_gibbs_db_out"])
