"""Run folders with invented metrics, for tests of reports without training."""

import math
import random
from dataclasses import replace
from pathlib import Path

from steingrad_lab.data import is_own
from steingrad_lab.data.sources import SOURCES
from steingrad_lab.paper.grid import Entry, experiments
from steingrad_lab.training import Config, Run

RANKS = (
    "bronco",
    "lariat",
    "rodeo",
    "double_cv",
    "disarm",
    "arms",
    "rloo",
    "relax",
    "modified_relax",
    "straight_through",
    "reinmax",
)


def data_files(dataset: str) -> dict[str, str]:
    """Returns the published hashes, except for Omniglot."""
    if is_own(dataset):
        return {Path(dataset).name: "2" * 64}
    source = SOURCES[dataset]
    found = {}
    for forms in source.files:
        algorithm, _, known = forms[0].hashes[0].partition(":")
        found[f"{source.folder}/{forms[0].name}"] = known if algorithm == "sha256" else "0" * 64
    return found or {"digits": "1" * 64}


def entries(name: str, **settings) -> list[Entry]:
    """Returns the entries of an experiment that have these settings."""
    return [
        entry
        for entry in experiments()[name].entries
        if all(getattr(entry.config, key) == value for key, value in settings.items())
    ]


def published_elbo(config: Config) -> float:
    """Returns the paper's training ELBO of a configuration, or else of RODEO on the same task."""
    table = experiments()["hierarchical" if config.layer_sizes[1:] else "train-elbo"]
    own = table.published(Entry("", config), "train_elbo")
    rodeo = table.published(Entry("", replace(config, estimator="rodeo")), "train_elbo")
    return (own or rodeo).mean


def write_run(
    path,
    config: Config,
    *,
    final=-100.0,
    spread=0.0,
    variance=0.01,
    ms=2.0,
    lines=20,
    status="finished",
) -> Run:
    """Writes a run. The final ELBO of seed number i is `final + i * spread`."""
    files = data_files(config.dataset)
    published = dict.fromkeys(files, config.dataset != "omniglot")
    run = Run.create(path, config, files, published)
    noise = random.Random(str(config))
    for number in range(1, lines + 1):
        step = config.steps * number // lines
        for seed in config.seeds:
            progress = 1 - math.exp(-4 * number / lines)
            run.append(
                {
                    "step": step,
                    "seed": seed,
                    "objective": final - 200 * math.exp(-6 * progress) + noise.gauss(0, 0.5),
                    "grad_variance": variance
                    * (1 + 6 * math.exp(-20 * number / lines))
                    * math.exp(noise.gauss(0, 0.015)),
                    "ms_per_step": 5 * ms if number == 1 else ms,
                }
            )
    if status == "finished":
        for number, seed in enumerate(config.seeds):
            value = final + spread * number
            bounds = {"test_bound_k": value + 2, "test_bound": value + 5}
            run.append(
                {"step": config.steps, "seed": seed, "final": True, "train_elbo": value, **bounds}
            )
    run.update(status=status)
    return run


def write_paper(path, *, steps=20_000, seeds=(1, 2), lines=60) -> None:
    """Writes runs like a short reproduction, with most tables and all ablations."""
    draw = random.Random(1)
    wanted = [
        *entries("train-elbo", dataset="mnist"),
        *entries("train-elbo", dataset="omniglot", likelihood="bernoulli"),
        *entries("train-elbo", dataset="fashion_mnist", likelihood="bernoulli", samples=2),
        *entries("hierarchical"),
        *(entry for name in experiments() for entry in entries(name, dataset="mnist")),
        *entries("resnet"),
    ]
    for number, config in enumerate(dict.fromkeys(entry.config for entry in wanted)):
        target = published_elbo(config)
        rank = RANKS.index(config.estimator)
        write_run(
            path / f"run-{number}",
            replace(config, steps=steps, seeds=seeds),
            final=target - 3 + draw.gauss(0, 0.4),
            spread=draw.uniform(0.1, 0.6),
            variance=(2.5 if config.likelihood == "gaussian" else 0.009)
            * (1 + 0.14 * rank + draw.uniform(0, 0.1) + 0.3 * (config.operator is not None)),
            ms=(12 if config.network == "resnet" else 2 * len(config.layer_sizes))
            * (
                1.6 if config.estimator in ("rodeo", "relax", "modified_relax") else 1 + 0.08 * rank
            ),
            lines=lines,
        )
