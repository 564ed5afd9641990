"""The estimators of the benchmarks can be built and run. Their times are not tested here."""

import importlib
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import steingrad as sg
from marks import slow
from steingrad_lab.training import Config


@pytest.fixture(autouse=True)
def _room(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))


@pytest.mark.parametrize("estimator", [sg.Bronco(flips=2), *slow(sg.Lariat(), sg.Rodeo())])
def test_growth_runs(estimator):
    call, memory = importlib.import_module("growth").contestant(4, estimator)
    _, grads = call()
    assert grads.parameters.shape == (20, 4)
    assert memory > 0


@pytest.mark.slow
def test_steps_run():
    steps = importlib.import_module("steps")
    with jax.numpy_dtype_promotion("standard"):
        call, _ = steps.contestant(Config(estimator="bronco", samples=2, dataset="mnist"), 2)
        state = call()[0]
        bare = steps.bare_contestant(2, 2)()
    for tree in (state, bare):
        leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
        assert leaves
        assert all(jnp.all(jnp.isfinite(leaf)) for leaf in leaves)


@pytest.mark.slow
def test_scaling_runs():
    scaling, steps = map(importlib.import_module, ("scaling", "steps"))
    config = Config(estimator="bronco", samples=2, dataset="mnist", batch_size=10, layer_sizes=(7,))
    with jax.numpy_dtype_promotion("standard"):
        call, memory = scaling.contestant(config, steps.fake_dataset())
        state = call()[0]
    assert memory > 0
    leaves = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    assert all(jnp.all(jnp.isfinite(leaf)) for leaf in leaves)
