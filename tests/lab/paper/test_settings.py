"""The paper's settings, presets and the names of runs."""

import dataclasses

import pytest

from steingrad_lab.paper.grid import experiments
from steingrad_lab.paper.settings import (
    BOUND_SAMPLES,
    SEEDS,
    STEPS,
    configure,
    paper_settings,
    run_name,
)
from steingrad_lab.training import Config, ConfigError
from steingrad_lab.training.config import DEFAULTS


def test_paper_settings():
    assert paper_settings("mnist", "bernoulli", 1)["learning_rate"] == 1e-3
    assert paper_settings("omniglot", "bernoulli", 1)["learning_rate"] == 1e-3
    assert paper_settings("fashion_mnist", "bernoulli", 1)["learning_rate"] == 3e-4
    assert paper_settings("fashion_mnist", "gaussian", 1)["learning_rate"] == 1e-4
    assert paper_settings("mnist", "bernoulli", 3)["learning_rate"] == 1e-4
    assert paper_settings("mnist", "bernoulli", 3)["layer_sizes"] == (200, 200, 200)
    assert paper_settings("mnist", "bernoulli", 3)["hidden"] == ()


def test_configure():
    assert configure() == Config()
    assert configure(layer_sizes=(200, 200)) == configure(layers=2)
    assert configure(layer_sizes=(200, 200), hidden=(7,)).hidden == (7,)
    given = configure(preset="paper", likelihood="gaussian", steps=10_000)
    assert (given.learning_rate, given.steps, given.seeds) == (1e-4, 10_000, SEEDS)
    assert configure(preset="paper", network="resnet").network == "resnet"
    with pytest.raises(ConfigError, match="layers must be 1 or more, not 0"):
        configure(layers=0)
    with pytest.raises(ConfigError, match="Both layers and layer_sizes are given"):
        configure(layers=2, layer_sizes=(5, 5))


def test_the_grid_has_the_paper_s_budget():
    for experiment in experiments().values():
        for entry in experiment.entries:
            budget = (entry.config.steps, entry.config.seeds, entry.config.bound_samples)
            assert budget == (STEPS, SEEDS, BOUND_SAMPLES)


# Another value for each setting of the default configuration; other settings have their own base.
OTHERS = {
    "dataset": "mnist", "likelihood": "gaussian", "estimator": "rloo", "samples": 4,
    "operator": "mpf", "scan": "own", "coordinates": 5, "surrogate": "linear",
    "surrogate_hidden": 7, "surrogate_layers": 2, "loo": False, "local": False, "global_": False,
    "coefficients": "least_squares", "network": "resnet", "layer_sizes": (20,), "hidden": (7,),
    "batch_size": 7,
    "learning_rate": 0.5, "cv_learning_rate": 0.5, "adapt_every": 3, "seeds": (2,),
}  # fmt: skip
BASES = {
    "damping": (Config(operator="mpf"), 0.5),
    "baseline": (Config(estimator="reinforce"), "learned"),
    "flips": (Config(estimator="bronco", samples=4), 1),
    "uniform": (Config(estimator="bronco"), 0.3),
    "values": (Config(estimator="lariat"), False),
    "gradients": (Config(estimator="lariat"), False),
    "weighted": (Config(estimator="lariat"), True),
    "context": (Config(estimator="lariat"), True),
    "stein": (Config(estimator="lariat"), True),
    "surrogate_slope": (Config(), 0.2),
    "memory": (Config(estimator="bronco"), 50.0),
    "use_gradient": (Config(estimator="bronco"), False),
    "decay": (Config(estimator="lariat"), 0.9),
    "ridge": (Config(estimator="lariat"), 0.1),
    "relax_hidden": (Config(estimator="relax", samples=3), 7),
    "temperature": (Config(estimator="reinmax"), 0.7),
    "straight_through": (Config(estimator="gumbel_softmax"), True),
    "jacobian_draws": (Config(estimator="gumbel_softmax", straight_through=True), 3),
    "average_decoder": (Config(layer_sizes=(200, 200)), True),
    "common_random_numbers": (Config(layer_sizes=(200, 200)), True),
}


def test_unlike_configurations_have_unlike_names():
    """Exceptions are the steps and the samples of the final bound, which continue one run."""
    pairs = {name: (Config(), value) for name, value in OTHERS.items()} | BASES
    assert set(DEFAULTS) - set(pairs) == {"steps", "bound_samples"}
    made = [dataclasses.replace(base, **{name: value}) for name, (base, value) in pairs.items()]
    made += [base for base, _ in pairs.values()]
    made += [Config(layer_sizes=(20, 3)), Config(layer_sizes=(203, 1)), Config(hidden=())]
    assert len({run_name(config) for config in made}) == len(set(made))
