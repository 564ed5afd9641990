"""Training VAEs of categories, and the settings of ReinMax's experiments."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from small_runs import PLAIN, SCHEDULE, lines
from steingrad_lab.data import load
from steingrad_lab.estimators import DESCRIPTIONS
from steingrad_lab.settings import evaluations_of_sample
from steingrad_lab.training import Config, ConfigError, Schedule, Task, train
from steingrad_lab.training.config import from_json, to_json

SMALL = dataclasses.replace(
    PLAIN,
    model="categorical",
    categories=5,
    layer_sizes=(4,),
    hidden=(8, 6),
    likelihood="grey",
    kl="analytic",
    prior="learned",
    activation="relu",
    initialization="pytorch",
    optimizer="radam",
)
BITS_ONLY = {"disarm", "arms"}


def number(value):
    return jnp.asarray(value, jnp.int32)


@pytest.mark.parametrize("name", [name for name in DESCRIPTIONS if name not in BITS_ONLY])
def test_every_other_estimator_takes_categories(name):
    """The step is traced, not run."""
    samples = max(2, evaluations_of_sample(name, {}))
    task = Task.load(dataclasses.replace(SMALL, estimator=name, samples=samples))
    state = jax.eval_shape(task.initial_state)
    images = jax.ShapeDtypeStruct(task.dataset.train.shape, jnp.uint8)
    after = jax.eval_shape(task.trainer.run, state, number(1), images, number(0), number(1))
    assert jax.tree.structure(after) == jax.tree.structure(state)


@pytest.mark.parametrize("name", sorted(BITS_ONLY))
def test_estimators_of_bits_are_refused(name):
    with pytest.raises(ConfigError, match=r"needs independent bits.* given Categorical"):
        dataclasses.replace(SMALL, estimator=name)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"model": "categorical", "categories": 1}, "^categories must be 2 or more, not 1"),
        ({"categories": 9}, "^categories goes with model categorical"),
        ({"likelihood": "gaussian", "binarize": "fixed"}, "binarize goes with likelihood bern"),
        ({"layer_sizes": (5, 5), "kl": "analytic"}, "^kl goes with one stochastic layer"),
        ({"network": "resnet", "activation": "relu"}, "^activation goes with network mlp"),
    ],
    ids=str,
)
def test_refused(settings, says):
    with pytest.raises(ConfigError, match=says):
        Config(**{"estimator": "rloo", **settings})


def test_a_configuration_of_before():
    """A stored configuration without the newer settings is the one with their defaults."""
    newer = {"model", "categories", "binarize", "train_on_valid", "kl", "prior", "activation",
             "initialization", "optimizer"}  # fmt: skip
    stored = to_json(PLAIN)
    assert newer <= stored.keys()
    assert from_json({name: stored[name] for name in stored if name not in newer}) == PLAIN
    assert from_json(json.loads(json.dumps(to_json(SMALL)))) == SMALL


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["reinmax", "carms"])
def test_trained_side_by_side_and_resumed(estimator, tmp_path):
    """Two seeds, stopped in between, end as two seeds that were not."""
    config = dataclasses.replace(SMALL, estimator=estimator, seeds=(1, 2))
    schedule = dataclasses.replace(SCHEDULE, eval_every=40)
    whole = train(config, tmp_path / "whole", schedule=schedule, quiet=True)
    half = dataclasses.replace(config, steps=40)
    train(half, tmp_path / "parts", schedule=schedule, quiet=True)
    parts = train(config, tmp_path / "parts", schedule=schedule, resume=True, quiet=True)
    final = [[line for line in lines(run) if line.get("final")] for run in (whole, parts)]
    assert final[0] == final[1]
    assert len(final[0]) == 2
    elbos = {"train_elbo", "valid_elbo", "test_elbo"}
    assert elbos <= final[0][0].keys()
    between = [line for line in lines(whole) if line["step"] == 40 and "test_elbo" in line]
    assert len(between) == 2
    assert elbos <= between[0].keys()
    for before, after in zip(between, final[0], strict=True):
        assert after["test_elbo"] > before["test_elbo"]


def test_training_on_the_validation_images(tmp_path):
    config = dataclasses.replace(SMALL, steps=2, train_on_valid=True)
    task, plain = Task.load(config), load("digits")
    assert len(task.dataset.train) == len(plain.train) + len(plain.valid)
    run = train(config, tmp_path / "run", schedule=Schedule(eval_every=1), quiet=True)
    measured = {name for line in run.metrics() for name in line}
    assert {"train_elbo", "test_elbo", "test_bound"} <= measured
    assert not any(name.startswith("valid") for name in measured)


def test_pixels_that_are_drawn_once():
    config = dataclasses.replace(PLAIN, binarize="fixed")
    first, second, plain = Task.load(config), Task.load(config), load("digits")
    for split in ("train", "valid", "test"):
        images, grey = getattr(first.dataset, split), getattr(plain, split)
        assert np.array_equal(images, getattr(second.dataset, split))
        assert set(np.unique(images)) == {0, 255}
        assert np.array_equal(
            images[(grey == 0) | (grey == 255)], grey[(grey == 0) | (grey == 255)]
        )
        assert abs(images.mean() - grey.mean()) < 2
    observe = first.trainer.model.likelihood.observe
    y = observe(jax.random.key(0), jnp.asarray(images[:3]))
    assert np.array_equal(y, images[:3] / 255)


def test_the_first_step_of_the_optimisers():
    """RAdam begins with steps along the gradient; Adam begins with steps of one length."""
    gradient = {"w": jnp.array([0.5, -2.0, 1e-3])}
    for name, expected in (("radam", [-0.05, 0.2, -1e-4]), ("adam", [-0.1, 0.1, -0.1])):
        config = dataclasses.replace(PLAIN, optimizer=name, learning_rate=0.1)
        optimizer = Task.load(config).trainer.optimizer
        updates, _ = optimizer.update(gradient, optimizer.init(gradient), gradient)
        np.testing.assert_allclose(updates["w"], expected, rtol=1e-4)
