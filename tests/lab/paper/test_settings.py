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
    "batch_size": 7, "model": "categorical", "binarize": "fixed", "train_on_valid": True,
    "kl": "analytic", "prior": "learned", "activation": "relu", "initialization": "pytorch",
    "optimizer": "radam",
    "learning_rate": 0.5, "cv_learning_rate": 0.5, "adapt_every": 3, "seeds": (2,),
}  # fmt: skip
BASES = {
    "damping": (Config(operator="mpf"), 0.5),
    "categories": (Config(model="categorical"), 9),
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


@pytest.mark.parametrize(
    ("categories", "codes", "optimizer", "learning_rate", "temperature"),
    [
        (8, 4, "adam", 5e-4, 1.3),
        (4, 24, "radam", 5e-4, 1.5),
        (8, 16, "radam", 7e-4, 1.5),
        (16, 12, "radam", 7e-4, 1.5),
        (64, 8, "radam", 5e-4, 1.5),
        (10, 30, "radam", 5e-4, 1.3),
    ],
)
def test_reinmax_preset(categories, codes, optimizer, learning_rate, temperature):
    """The numbers are those in the scripts of ReinMax's authors."""
    task = {"dataset": "mnist", "model": "categorical", "categories": categories, "codes": codes}
    config = configure(preset="reinmax", estimator="reinmax", **task)
    assert (config.optimizer, config.learning_rate) == (optimizer, learning_rate)
    assert (config.temperature, config.samples) == (temperature, 1)
    assert (config.likelihood, config.kl, config.prior) == ("grey", "analytic", "uniform")
    assert (config.hidden, config.activation) == ((512, 256), "relu")
    assert (config.initialization, config.train_on_valid) == ("pytorch", True)
    assert (config.steps, config.batch_size, len(config.seeds)) == (160 * 600, 100, 10)
    unbiased = configure(preset="reinmax", estimator="bronco", **task)
    flips = 2 if (categories, codes) == (8, 4) else 4
    assert (unbiased.samples, unbiased.temperature) == (1 + flips, None)
    assert unbiased.learning_rate == learning_rate
    soft = configure(preset="reinmax", estimator="gumbel_softmax", **task)
    assert (soft.samples, soft.straight_through) == (1, True)
    given = configure(preset="reinmax", estimator="reinmax", temperature=1.1, hidden=(7,), **task)
    assert (given.temperature, given.hidden) == (1.1, (7,))
    assert run_name(config).startswith(f"mnist-grey-{categories}x{codes}-reinmax-k1-seed0+1")


@pytest.mark.parametrize(
    ("dataset", "samples", "learning_rate", "temperature"),
    [("mnist", 2, 3e-4, 1.1), ("omniglot", 2, 3e-4, 1.1), ("omniglot", 3, 5e-4, 1.2)],
)
def test_reinmax_preset_of_bits(dataset, samples, learning_rate, temperature):
    config = configure(preset="reinmax", estimator="reinmax", dataset=dataset, samples=samples)
    assert (config.optimizer, config.learning_rate) == ("radam", learning_rate)
    assert (config.temperature, config.samples) == (temperature, samples)
    assert (config.likelihood, config.binarize) == ("bernoulli", "fixed")
    assert (config.kl, config.prior, config.initialization) == ("analytic", "learned", "pytorch")
    assert (config.layer_sizes, config.hidden) == ((200,), (200, 200))
    assert (config.activation, config.train_on_valid) == ("leaky_relu", False)


def test_reinmax_preset_leaves_out_what_does_nothing():
    """The preset works with several layers, other networks and other likelihoods."""
    layers = configure(preset="reinmax", model="categorical", layer_sizes=(5, 3), estimator="rloo")
    assert (layers.kl, layers.optimizer) == ("sampled", "radam")
    other = configure(preset="reinmax", network="resnet", likelihood="gaussian", estimator="rloo")
    assert (other.kl, other.binarize, other.initialization) == ("analytic", "dynamic", "glorot")


def test_codes():
    assert configure(codes=5).layer_sizes == (5,)
    assert configure(model="categorical", estimator="rloo").layer_sizes == (16,)
    assert configure(model="categorical", estimator="rloo", layer_sizes=(3, 2)).categories == 8
    with pytest.raises(ConfigError, match="Both codes and layer_sizes are given"):
        configure(codes=2, layer_sizes=(5, 5))
    with pytest.raises(ConfigError, match="Both layers and codes are given"):
        configure(codes=2, layers=2)
