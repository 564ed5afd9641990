"""The authors' implementation, number by number (float32, one case with K = 2)."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import steingrad as sg
from steingrad.estimators import RodeoParams


@pytest.fixture(scope="module")
def golden():
    with np.load(Path(__file__).parent / "reference" / "golden_k2.npz") as file:
        return {name: jnp.asarray(file[name]) for name in file}


def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * float(jnp.abs(theirs).max()))


def rodeo_params(golden):
    surrogate = {
        "w_in": jnp.stack([golden["w_value"], golden["w_linear"]]),
        "b_in": golden["b_hidden"],
        "w_out": golden["w_out"],
        "b_out": golden["b_out"],
    }
    return RodeoParams(surrogate, golden["alpha"], golden["beta"])


def adapt(estimator, params, golden):
    dist = sg.Bernoulli(golden["logits"])
    return estimator.adapt(params, dist, golden["x"], golden["f"], golden["df"])


def test_rloo(golden):
    close(adapt(sg.RLOO(2), None, golden)[0], golden["grad_rloo"])


@pytest.mark.parametrize("surrogate", [sg.MLPSurrogate(), sg.PooledSurrogate()])
def test_rodeo(golden, surrogate):
    """With two samples the pooled surrogate is the paper's."""
    g, cv = adapt(sg.Rodeo(2, surrogate=surrogate), rodeo_params(golden), golden)
    close(g, golden["grad_rodeo_gibbs"])
    close(cv.alpha, golden["rodeo_gibbs_dalpha"])
    close(cv.beta, golden["rodeo_gibbs_dbeta"])
    close(cv.surrogate["w_in"][0], golden["rodeo_gibbs_dw_value"])
    close(cv.surrogate["w_in"][1], golden["rodeo_gibbs_dw_linear"])
    close(cv.surrogate["b_in"], golden["rodeo_gibbs_db_hidden"])
    close(cv.surrogate["w_out"], golden["rodeo_gibbs_dw_out"])
    close(cv.surrogate["b_out"], golden["rodeo_gibbs_db_out"])
