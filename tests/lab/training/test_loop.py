"""Training from end to end: metrics, seeds, divergence."""

import dataclasses
import json
import os

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marks import slow
from small_runs import PLAIN, SCHEDULE, SMALL, lines
from steingrad_lab import data
from steingrad_lab.estimators import DESCRIPTIONS
from steingrad_lab.training import Config, Diverged, Run, Schedule, Task, loop, summary, train
from steingrad_lab.training.runs import RunError, checkpoint_step


def test_a_run_is_a_folder(trained):
    assert trained.status == "finished"
    record = json.loads((trained.path / "config.json").read_text())
    assert record["config"]["estimator"] == "rodeo"
    assert record["config"]["operator"] == "gibbs"  # the library's default when the run was made
    assert record["data_files"] == dict(data.load("digits").files)
    assert record["published"] == {"digits": True}
    assert record["environment"]["versions"]["jax"] == jax.__version__
    reports, final = lines(trained)[:-1], lines(trained)[-1]
    assert [line["step"] for line in reports] == [20, 40, 60]
    assert set(reports[0]) == {"step", "seed", "objective", "grad_variance", "alpha", "beta"}
    assert {"train_elbo", "valid_elbo", "test_elbo", "valid_bound", "valid_bound_k", "test_bound",
            "test_bound_k", "final", "step", "seed"} == set(final)  # fmt: skip
    assert final["valid_bound"] > final["valid_bound_k"] > final["valid_elbo"]
    assert [p.name for p in trained.checkpoints()] == [
        "checkpoint-0000000060.eqx", "checkpoint-0000000040.eqx",
    ]  # fmt: skip
    assert summary(trained)["train_elbo"] == final["train_elbo"]


SAMPLES = {"rebar": 3, "relax": 3, "arms": 3, "reinforce": 1, "local_expectation": 1}
QUICK = ("disarm", "arms")


@pytest.mark.parametrize(
    "estimator", [*QUICK, *slow(*(name for name in DESCRIPTIONS if name not in QUICK))]
)
def test_every_estimator_trains(estimator, tmp_path):
    samples = SAMPLES.get(estimator, 2)
    config = dataclasses.replace(PLAIN, estimator=estimator, samples=samples, steps=40)
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
    {"surrogate": "linear", "surrogate_hidden": None},
    {"surrogate": "exact", "surrogate_hidden": None},
    {"surrogate_layers": 2},
    {"loo": False, "local": False},
    {"network": "resnet", "hidden": (200, 200)},
    {"layer_sizes": (6, 5, 4), "hidden": (7,), "average_decoder": True},
    {"estimator": "reinforce", "surrogate_hidden": None, "baseline": "moving_average"},
    {"estimator": "reinforce", "surrogate_hidden": None, "baseline": "learned"},
    {"estimator": "modified_relax"},
    {
        "estimator": "relax",
        "surrogate_hidden": None,
        "samples": 3,
        "layer_sizes": (6, 5),
        "hidden": (),
    },
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


def test_the_time_of_a_step_is_that_of_steps(tmp_path, monkeypatch):
    """Evaluations and checkpoints between the steps do not count."""
    clock, compile_ = [0.0], loop._compile

    def at_two_milliseconds(*given):
        advance = compile_(*given)

        def steps(state, start, stop):
            clock[0] += 0.002 * (stop - start)
            return advance(state, start, stop)

        return steps

    def slow_elbos(*_):
        clock[0] += 100
        return {}

    monkeypatch.setattr(loop.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(loop, "_compile", at_two_milliseconds)
    monkeypatch.setattr(loop, "elbos", slow_elbos)
    schedule = Schedule(report_every=20, eval_every=15, checkpoint_every=5)
    run = train(PLAIN, tmp_path / "run", schedule=schedule, quiet=True)
    times = [line["ms_per_step"] for line in run.metrics() if "ms_per_step" in line]
    assert times == pytest.approx([2.0] * 3)


def test_slow_steps_are_kept_before_a_checkpoint_is_due(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "UNSAVED", 0.0)
    schedule = Schedule(report_every=20, checkpoint_every=0)
    run = train(PLAIN, tmp_path / "run", schedule=schedule, quiet=True)
    assert [checkpoint_step(path) for path in run.checkpoints()] == [60, 40]


def test_images_that_the_residual_network_cannot_halve(tmp_path):
    np.savez(tmp_path / "ten.npz", train=np.zeros((40, 10, 10)))
    config = Config(dataset=str(tmp_path / "ten.npz"), network="resnet", batch_size=5)
    with pytest.raises(RunError, match="multiples of 4"):
        Task.load(config)


def test_divergence(tmp_path):
    """With an absurd step size the run stops, is marked, and keeps its last good checkpoint."""
    config = dataclasses.replace(SMALL, likelihood="gaussian", learning_rate=1e19, steps=200)
    with pytest.raises(Diverged, match="non-finite between steps"):
        train(config, tmp_path / "run", schedule=Schedule(1, 1), quiet=True)
    run = Run(tmp_path / "run")
    assert run.status == "diverged"
    step, state = run.load(Task.load(config).initial_state())
    assert step >= 1
    leaves = [leaf for leaf in jax.tree.leaves(state) if eqx.is_inexact_array(leaf)]
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in leaves)


@pytest.mark.skipif(
    "STEINGRAD_DATA_DIR" not in os.environ, reason="needs MNIST: set STEINGRAD_DATA_DIR"
)
@pytest.mark.slow
def test_real_mnist(tmp_path):
    """In 300 steps the ELBO rises, and RODEO has a lower gradient variance than RLOO."""
    results = {}
    for estimator in ("rloo", "rodeo"):
        config = Config(dataset="mnist", estimator=estimator, steps=300, bound_samples=1)
        run = train(config, tmp_path / estimator, schedule=Schedule(100, 300), quiet=True)
        results[estimator] = lines(run)
    for metrics in results.values():
        assert metrics[2]["objective"] > metrics[0]["objective"] + 20
    assert results["rodeo"][2]["grad_variance"] < results["rloo"][2]["grad_variance"]
