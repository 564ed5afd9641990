"""Training from end to end: metrics, seeds, checkpoints, a real kill, errors."""

import dataclasses
import itertools
import json
import os

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from marks import slow
from problems import largest_difference
from steingrad import data
from steingrad.experiments import (
    Config,
    ConfigError,
    Diverged,
    Run,
    RunError,
    Schedule,
    evaluate,
    load_trained,
    paper_settings,
    summary,
    train,
)
from steingrad.experiments.training.loop import Task
from steingrad.experiments.training.step import DECAY, Batches, grad_variance

pytestmark = pytest.mark.usefixtures("standard_promotion")


SMALL = Config(
    steps=60, layer_sizes=(6,), hidden=(8,), surrogate_hidden=5, batch_size=20, bound_samples=5
)
SCHEDULE = Schedule(report_every=20, checkpoint_every=20)
TIMES = ("ms_per_step",)


def lines(run):
    return [{k: v for k, v in line.items() if k not in TIMES} for line in run.metrics()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, standard_promotion):
    return train(SMALL, tmp_path_factory.mktemp("runs") / "small", schedule=SCHEDULE, quiet=True)


def test_a_run_is_a_folder(trained):
    assert trained.status == "finished"
    record = json.loads((trained.path / "config.json").read_text())
    assert record["config"]["estimator"] == "rodeo"
    assert record["data_files"] == dict(data.load("digits").files)
    assert record["environment"]["versions"]["jax"] == jax.__version__
    reports, final = lines(trained)[:-1], lines(trained)[-1]
    assert [line["step"] for line in reports] == [20, 40, 60]
    assert set(reports[0]) == {"step", "seed", "objective", "grad_variance", "alpha", "beta"}
    assert {"train_elbo", "valid_elbo", "valid_bound", "valid_bound_k", "test_bound",
            "test_bound_k", "final", "step", "seed"} == set(final)  # fmt: skip
    assert final["valid_bound"] > final["valid_bound_k"] > final["valid_elbo"]
    assert [p.name for p in trained.checkpoints()] == [
        "checkpoint-0000000060.eqx", "checkpoint-0000000040.eqx",
    ]  # fmt: skip
    assert summary(trained)["train_elbo"] == final["train_elbo"]


@pytest.mark.parametrize(
    ("estimator", "samples"),
    [
        ("disarm", 2),
        ("arms", 3),
        *slow(("relax", 3), ("reinforce", 1), ("rloo", 2), ("double_cv", 2)),
        *slow(("rebar", 3), ("local_expectation", 1)),
    ],
)
def test_every_estimator_trains(estimator, samples, tmp_path):
    config = dataclasses.replace(SMALL, estimator=estimator, samples=samples, steps=40)
    run = train(config, tmp_path / "run", schedule=SCHEDULE, quiet=True)
    first, second, final = lines(run)
    assert second["objective"] > first["objective"]
    assert np.isfinite(final["test_bound"])


QUICK_SETTINGS = [
    {"operator": "barker", "coordinates": 2},
    {"surrogate": "pooled", "samples": 3, "scan": "own"},
]
SLOW_SETTINGS = [
    {"likelihood": "gaussian", "learning_rate": 1e-4, "adapt_every": 3},
    {"layer_sizes": (6, 5), "hidden": (), "common_random_numbers": True},
    {"operator": "mpf", "damping": 1e-3},
    {"operator": "difference", "damping": 1e-3},
    {"operator": "birth_death"},
    {"surrogate": "linear"},
    {"surrogate": "exact"},
    {"surrogate_layers": 2},
    {"loo": False, "local": False},
    {"network": "resnet", "hidden": (200, 200)},
    {"layer_sizes": (6, 5, 4), "hidden": (7,), "average_decoder": True},
    {"estimator": "reinforce", "baseline": "moving_average"},
    {"estimator": "reinforce", "baseline": "learned"},
    {"estimator": "relax", "relax_surrogate": True},
    {"estimator": "relax", "samples": 3, "layer_sizes": (6, 5), "hidden": ()},
    {"network": "resnet", "hidden": (200, 200), "adapt_every": 3},
]


@pytest.mark.parametrize(
    "settings",
    [*QUICK_SETTINGS, *slow(*SLOW_SETTINGS)],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_every_setting_trains(settings, tmp_path):
    config = dataclasses.replace(SMALL, steps=20, **settings)
    run = train(config, tmp_path / "run", schedule=SCHEDULE, quiet=True)
    assert all(np.isfinite(line["grad_variance"]) for line in lines(run)[:-1])
    assert Run(run.path).config == config


def test_adapt_every():
    """Control variates move at every third step only, in a loop and in single steps alike."""
    task = Task.load(dataclasses.replace(SMALL, estimator="double_cv", adapt_every=3))
    images, seed = jnp.asarray(task.dataset.train), jnp.asarray(1, jnp.int32)
    number = lambda n: jnp.asarray(n, jnp.int32)
    loop, single = (
        jax.jit(task.trainer._replace(max_steps=most).run) for most in (task.trainer.max_steps, 1)
    )
    states = [task.initial_state()]
    for step in range(5):
        states.append(single(states[-1], seed, images, number(step), number(step + 1)))
    moved = [
        not bool(jnp.array_equal(before.cv[0]["alpha"], after.cv[0]["alpha"]))
        for before, after in itertools.pairwise(states)
    ]
    assert moved == [True, False, False, True, False]
    at_once = loop(states[0], seed, images, number(0), number(5))
    assert largest_difference(at_once, states[-1]) < 1e-5


@pytest.mark.slow
def test_seeds_together_agree_with_seeds_alone(tmp_path):
    config = dataclasses.replace(SMALL, seeds=(1, 5), steps=30)
    together = train(config, tmp_path / "both", schedule=SCHEDULE, quiet=True)
    for seed in config.seeds:
        alone = train(
            dataclasses.replace(config, seeds=(seed,)), tmp_path / str(seed),
            schedule=SCHEDULE, quiet=True,
        )  # fmt: skip
        ours = [line for line in lines(together) if line["seed"] == seed]
        assert len(ours) == len(lines(alone))
        for a, b in zip(ours, lines(alone), strict=True):
            assert a.keys() == b.keys()
            for name in a:
                np.testing.assert_allclose(a[name], b[name], rtol=2e-4, atol=1e-5)


def test_cutting_and_resuming_change_nothing(trained, tmp_path):
    """Other dispatches, and a stop after 20 steps: the same numbers to the last bit."""
    short = dataclasses.replace(SMALL, steps=20)
    train(short, tmp_path / "run", schedule=Schedule(20, 10), quiet=True)
    resumed = train(SMALL, tmp_path / "run", schedule=Schedule(20, 7), resume=True, quiet=True)
    at_20 = {"step": 20, "seed": 1}
    first, evaluation, *others = lines(resumed)
    assert evaluation.items() >= at_20.items()  # what was final then
    assert "test_bound" in evaluation
    assert [first, *others] == lines(trained)


def test_a_finished_run_is_left_alone(trained):
    before = (trained.path / "metrics.jsonl").read_bytes()
    again = train(SMALL, trained.path, schedule=SCHEDULE, resume=True, quiet=True)
    assert again.status == "finished"
    assert (trained.path / "metrics.jsonl").read_bytes() == before


def test_another_configuration_is_refused(trained):
    other = dataclasses.replace(SMALL, learning_rate=0.5)
    with pytest.raises(RunError, match=r"learning_rate is 0\.001 there and 0\.5 here"):
        train(other, trained.path, resume=True, quiet=True)
    with pytest.raises(RunError, match=r"holds a run already.*--resume"):
        train(SMALL, trained.path, quiet=True)
    with pytest.raises(RunError, match="step 60 already"):
        train(dataclasses.replace(SMALL, steps=30), trained.path, resume=True, quiet=True)


def test_divergence(tmp_path):
    """Adam with an absurd step size: stopped, marked, the last good checkpoint kept."""
    config = dataclasses.replace(SMALL, likelihood="gaussian", learning_rate=1e19, steps=200)
    with pytest.raises(Diverged, match="non-finite between steps"):
        train(config, tmp_path / "run", schedule=Schedule(1, 1), quiet=True)
    run = Run(tmp_path / "run")
    assert run.status == "diverged"
    found = run.load(Task.load(config).initial_state())
    if found is not None:
        leaves = [l for l in jax.tree.leaves(found[1]) if eqx.is_inexact_array(l)]
        assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in leaves)


def test_evaluate_against_a_direct_computation(trained):
    """Chunks of images and of samples add up to the definition."""
    _, task, step, state = load_trained(trained.path)
    assert step == SMALL.steps
    model, images = task.model(state, 0), task.dataset.test[:130]
    many = [evaluate(model, images, 250, jax.random.key(i)) for i in range(3)]
    y = model.likelihood.observe(jax.random.key(9), jnp.asarray(images))
    weights = model.log_weights(y, samples=250, key=jax.random.key(10))
    direct = float(jnp.mean(jax.nn.logsumexp(weights, axis=0) - np.log(250)))
    spread = np.std([m.bound for m in many]) + 0.5
    assert abs(np.mean([m.bound for m in many]) - direct) < 4 * spread
    assert many[0].bound > many[0].elbo
    one = evaluate(model, images, 1, jax.random.key(0))
    np.testing.assert_allclose(one.bound, one.elbo, rtol=1e-5)


def test_grad_variance_is_the_definition():
    """Against averages kept by hand over the same gradients."""
    task = Task.load(dataclasses.replace(SMALL, estimator="rloo", seeds=(3,)))
    state, seed = task.initial_state(), jnp.asarray(3, jnp.int32)
    images = jnp.asarray(task.dataset.train)
    step_fn = jax.jit(task.trainer.run)
    mean = square = 0.0
    previous = ravel_pytree(state.grad_mean)[0]
    for step in range(5):
        state = step_fn(state, seed, images, jnp.asarray(step, jnp.int32),
                        jnp.asarray(step + 1, jnp.int32))  # fmt: skip
        now = ravel_pytree(state.grad_mean)[0]
        gradient = (now - DECAY * previous) / (1 - DECAY)
        mean = DECAY * mean + (1 - DECAY) * np.asarray(gradient, np.float64)
        square = DECAY * square + (1 - DECAY) * np.asarray(gradient, np.float64) ** 2
        previous = now
    correction = 1 - DECAY**5
    by_hand = np.mean(square / correction - (mean / correction) ** 2)
    np.testing.assert_allclose(grad_variance(state, 5), by_hand, rtol=1e-3)


def test_every_image_is_seen_once_an_epoch():
    n, size = 57, 10
    seed = jnp.asarray(1, jnp.int32)
    for start in (0, 3, 7):
        batches = Batches.between(seed, jnp.asarray(start, jnp.int32), 12, n, size)
        whole = Batches.between(seed, jnp.asarray(0, jnp.int32), 30, n, size)
        for step in range(start, start + 12):
            step = jnp.asarray(step, jnp.int32)
            np.testing.assert_array_equal(batches.at(step), whole.at(step))
    epoch = np.concatenate([whole.at(jnp.asarray(s, jnp.int32)) for s in range(5)])
    assert len(set(epoch.tolist())) == 50
    assert epoch.max() < n
    assert not np.array_equal(whole.at(jnp.asarray(0)), whole.at(jnp.asarray(5)))


def test_paper_settings():
    assert paper_settings("mnist", "bernoulli", 1)["learning_rate"] == 1e-3
    assert paper_settings("omniglot", "bernoulli", 1)["learning_rate"] == 1e-3
    assert paper_settings("fashion_mnist", "bernoulli", 1)["learning_rate"] == 3e-4
    assert paper_settings("fashion_mnist", "gaussian", 1)["learning_rate"] == 1e-4
    assert paper_settings("mnist", "bernoulli", 3)["learning_rate"] == 1e-4
    assert paper_settings("mnist", "bernoulli", 3)["layer_sizes"] == (200, 200, 200)
    assert paper_settings("mnist", "bernoulli", 3)["hidden"] == ()


def test_config_is_checked_when_built():
    with pytest.raises(ConfigError, match="one unit or more"):
        Config(layer_sizes=(0,))
    with pytest.raises(ConfigError, match="1 or 2 hidden layers"):
        Config(surrogate_layers=3)


@pytest.mark.skipif(
    "STEINGRAD_DATA_DIR" not in os.environ, reason="needs MNIST: set STEINGRAD_DATA_DIR"
)
def test_real_mnist(tmp_path):
    """A few steps on the real thing: the ELBO rises, RODEO's variance is below RLOO's."""
    results = {}
    for estimator in ("rloo", "rodeo"):
        config = Config(dataset="mnist", estimator=estimator, steps=300, bound_samples=1)
        run = train(config, tmp_path / estimator, schedule=Schedule(100, 300), quiet=True)
        results[estimator] = lines(run)
    for metrics in results.values():
        assert metrics[2]["objective"] > metrics[0]["objective"] + 20
    assert results["rodeo"][2]["grad_variance"] < results["rloo"][2]["grad_variance"]
