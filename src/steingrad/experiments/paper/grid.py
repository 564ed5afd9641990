"""The paper's experiments, from `paper/grid.toml`, and its numbers, from `paper/results.csv`."""

import csv
import dataclasses
import functools
import importlib.resources
import itertools
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from ..training.config import Config, ConfigError, differences, paper_settings


@dataclasses.dataclass(frozen=True)
class Entry:
    """One configuration of an experiment: a cell of its tables, a curve of its figures."""

    label: str
    """The row it stands in."""
    config: Config
    """With the paper's number of steps and its five seeds."""


@dataclasses.dataclass(frozen=True)
class Published:
    """A number of the paper, over five runs of a million steps; no error where it has none."""

    mean: float
    stderr: float | None


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    >>> experiment = experiments()["hierarchical"]
    >>> len(experiment.entries), experiment.metrics
    (27, ('train_elbo', 'test_bound'))
    >>> experiment.entries[0].config.layer_sizes
    (200, 200)
    >>> experiment.published(experiment.entries[0], "train_elbo")
    Published(mean=-103.52, stderr=0.06)
    """

    name: str
    title: str
    show: str
    """`table` or `curves`."""
    metrics: tuple[str, ...]
    entries: tuple[Entry, ...]
    reference: str | None = None
    """The estimator whose number divides the others of its task, where only ratios compare."""
    table: str | None = None
    """The published numbers it aims at."""
    published_metric: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def ablation(self) -> bool:
        """Whether all its runs are one comparison, and so one figure."""
        return self.name.startswith("ablation-")

    def published(self, entry: Entry, metric: str) -> Published | None:
        """The paper's number for this cell, if it has one."""
        config = entry.config
        task = (config.dataset, config.likelihood, len(config.layer_sizes), config.samples)
        name = self.published_metric.get(metric, metric)
        return _published().get((self.table, *task, config.estimator, name))


@functools.cache
def experiments() -> dict[str, Experiment]:
    """All experiments by name, in the order of the file."""
    tables = tomllib.loads(_file("grid.toml"))
    found = {}
    for name, table in tables.items():
        runs = table.pop("runs")
        if isinstance(runs, str):
            entries = found[runs].entries
        else:
            entries = tuple(entry for block in runs for entry in _multiply(block))
        found[name] = _experiment(name, entries, **table)
    return found


def _experiment(
    name: str, entries: tuple[Entry, ...], *, metrics: list, published: str | None = None, **fields
) -> Experiment:
    return Experiment(name, entries=entries, metrics=tuple(metrics), table=published, **fields)


def _multiply(block: dict[str, Any]) -> Iterator[Entry]:
    """An entry for each combination of the values listed in a block."""
    lists = [value if isinstance(value, list) else [value] for value in block.values()]
    for values in itertools.product(*lists):
        settings = dict(zip(block, values, strict=True))
        label = settings.pop("label", settings["estimator"])
        layers = settings.pop("layers", 1)
        likelihood, network = (
            settings.get(name, getattr(Config, name)) for name in ("likelihood", "network")
        )
        paper = paper_settings(settings["dataset"], likelihood, layers, network)
        yield Entry(label, Config(**{**paper, **settings}))


@functools.cache
def _published() -> dict[tuple, Published]:
    rows = csv.DictReader(_file("results.csv").splitlines())
    return {
        (
            row["table"],
            row["dataset"],
            row["likelihood"],
            int(row["layers"]),
            int(row["k"]),
            row["estimator"],
            row["metric"],
        ): Published(float(row["mean"]), float(row["stderr"]) if row["stderr"] else None)
        for row in rows
    }


@functools.cache
def published_variances() -> dict[Config, tuple[int, float]]:
    """Step and gradient variance, by the configurations whose curves the paper shows."""
    rows = {
        (row["dataset"], row["likelihood"], int(row["k"]), row["estimator"]): row
        for row in csv.DictReader(_file("variance.csv").splitlines())
    }
    published = {}
    for config in (entry.config for entry in experiments()["variance-curves"].entries):
        row = rows.get((config.dataset, config.likelihood, config.samples, config.estimator))
        if row:
            published[config] = int(row["step"]), float(row["grad_variance"])
    return published


def task_slug(config: Config) -> str:
    """What is estimated, and how.

    >>> task_slug(Config(dataset="mnist", layer_sizes=(200, 200), estimator="disarm"))
    'mnist-bernoulli-layers2-disarm-k2'
    """
    layers = f"layers{len(config.layer_sizes)}" if len(config.layer_sizes) > 1 else ""
    parts = (config.dataset, config.likelihood, layers, config.estimator, f"k{config.samples}")
    return "-".join(part for part in parts if part)


def seeds_slug(config: Config) -> str:
    return "seed" + "+".join(map(str, config.seeds))


def run_name(config: Config) -> str:
    """A folder name for a configuration: its task, and whatever differs from the paper's settings.

    The number of steps is no part of it, so that a larger budget goes on with the same run.

    >>> run_name(Config(dataset="mnist", operator="mpf", damping=1e-3, seeds=(1,)))
    'mnist-bernoulli-rodeo-k2-operator=mpf-damping=0.001-seed1'
    """
    layers = len(config.layer_sizes)
    paper = paper_settings(config.dataset, config.likelihood, layers, config.network)
    plain = Config(dataset=config.dataset, likelihood=config.likelihood, **paper)
    parts = [task_slug(config)]
    for name, (_, given) in differences(plain, config).items():
        if name not in ("estimator", "samples", "steps", "seeds", "bound_samples"):
            text = "+".join(map(str, given)) if isinstance(given, tuple) else str(given)
            parts.append(f"{name.strip('_')}={text}")
    return "-".join([*parts, seeds_slug(config)])


def find(name: str) -> Experiment:
    """An experiment by name."""
    known = experiments()
    if name not in known:
        raise ConfigError(f"There is no experiment {name!r}. There are: {', '.join(known)}.")
    return known[name]


def _file(name: str) -> str:
    return (importlib.resources.files("steingrad.experiments") / "paper" / name).read_text()
