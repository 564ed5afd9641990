"""The paper's experiments (`grid.toml`) and published numbers (`results.csv`, `variance.csv`)."""

import csv
import dataclasses
import functools
import importlib.resources
import itertools
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from ..estimators import DESCRIPTIONS
from ..training.config import Config, ConfigError
from .settings import configure


@dataclasses.dataclass(frozen=True)
class Entry:
    """One configuration of an experiment: a cell of its tables or a curve of its figures."""

    label: str
    """The label of the table row or curve."""
    config: Config
    """The configuration, with the paper's number of steps and its five seeds."""

    @property
    def biased(self) -> bool:
        """Whether the estimator is biased by design."""
        return DESCRIPTIONS[self.config.estimator].biased


@dataclasses.dataclass(frozen=True)
class Published:
    """A number of the paper, over five runs of a million steps. `stderr` may be unpublished."""

    mean: float
    stderr: float | None


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    >>> experiment = experiments()["hierarchical"]
    >>> len(experiment.entries), experiment.metrics
    (51, ('train_elbo', 'test_bound'))
    >>> experiment.entries[0].config.layer_sizes
    (200, 200)
    >>> experiment.published(experiment.entries[0], "train_elbo")
    Published(mean=-103.52, stderr=0.06)
    """

    name: str
    title: str
    show: str
    """Either `table` or `curves`."""
    metrics: tuple[str, ...]
    entries: tuple[Entry, ...]
    reference: str | None = None
    """The estimator by whose number the others are divided, if only ratios are comparable."""
    table: str | None = None
    """The name of the published table to compare with."""
    published_metric: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The published name of a metric, if it differs from ours."""

    @property
    def ablation(self) -> bool:
        """Whether all runs are compared in one figure."""
        return self.name.startswith("ablation-")

    def published(self, entry: Entry, metric: str) -> Published | None:
        """Returns the paper's number for a cell, or `None`."""
        config = entry.config
        task = (config.dataset, config.likelihood, len(config.layer_sizes), config.samples)
        name = self.published_metric.get(metric, metric)
        return _published().get((self.table, *task, config.estimator, name))


@functools.cache
def experiments() -> dict[str, Experiment]:
    """Returns all experiments by name, in the order of the file."""
    tables = tomllib.loads(_file("grid.toml"))
    found = {}
    for name, table in tables.items():
        runs = table.pop("runs")
        if isinstance(runs, str):
            entries = found[runs].entries
        else:
            entries = tuple(entry for block in runs for entry in _multiply(block))
        table["metrics"], table["table"] = tuple(table["metrics"]), table.pop("published", None)
        found[name] = Experiment(name, entries=entries, **table)
    return found


def _multiply(block: dict[str, Any]) -> Iterator[Entry]:
    """Yields an entry for each combination of the values that are listed in a block."""
    lists = [value if isinstance(value, list) else [value] for value in block.values()]
    for values in itertools.product(*lists):
        settings = dict(zip(block, values, strict=True))
        label = settings.pop("label", DESCRIPTIONS[settings["estimator"]].label)
        yield Entry(label, configure(preset="paper", **settings))


@functools.cache
def _published() -> dict[tuple, Published]:
    found = {}
    for row in csv.DictReader(_file("results.csv").splitlines()):
        task = (row["dataset"], row["likelihood"], int(row["layers"]), int(row["k"]))
        stderr = float(row["stderr"]) if row["stderr"] else None
        number = Published(float(row["mean"]), stderr)
        found[row["table"], *task, row["estimator"], row["metric"]] = number
    return found


@functools.cache
def published_variances() -> dict[Config, tuple[int, float]]:
    """Returns the step and gradient variance of each configuration whose curve the paper shows."""
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


def find(name: str) -> Experiment:
    known = experiments()
    if name not in known:
        raise ConfigError(f"There is no experiment {name!r}. Choose from: {', '.join(known)}.")
    return known[name]


def _file(name: str) -> str:
    return (importlib.resources.files("steingrad_lab.paper") / name).read_text("utf-8")
