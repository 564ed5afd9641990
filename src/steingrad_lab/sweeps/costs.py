"""Estimates of how long a run takes, from earlier runs of its kind or from a rough figure."""

import contextlib
import dataclasses
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..estimators import DESCRIPTIONS
from ..training.config import Config
from ..training.runs import Run, RunError
from ..training.stored import parse_metrics

# Milliseconds per step and sample, for 28×28 images, batches of 100 and two server cores. On other
# machines only the ratios are right, so the first runs there scale these figures.
MS_PER_SAMPLE = {"mlp": 2.25, "resnet": 320.0}
# Seconds for the start and compilation of each seed.
OVERHEAD_SECONDS = 10.0
# Milliseconds per image and sample for the bounds at the end of a run.
BOUND_MS = {"mlp": 0.01, "resnet": 0.8}
# How much of the end of `metrics.jsonl` is read.
TAIL_BYTES = 16_384


def rough_ms(config: Config) -> float:
    """Returns roughly how many milliseconds a step takes on two cores."""
    estimator = DESCRIPTIONS[config.estimator]
    ms = MS_PER_SAMPLE[config.network] * config.samples * estimator.cost
    ms += estimator.pair_ms * config.samples * (config.samples - 1)
    return ms * len(config.layer_sizes) * len(config.seeds)


def last_lines(folder: Path) -> list[dict[str, Any]]:
    """Returns the last lines of a run's metrics. The whole file may have megabytes."""
    try:
        with (folder / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            content = file.read()
    except OSError:
        return []
    lines = []
    for line in content.splitlines():
        # The first line is cut off, and the last may be half written.
        with contextlib.suppress(ValueError):
            lines.append(parse_metrics(line))
    return lines


def measured_ms(lines: list[dict[str, Any]]) -> float | None:
    """Returns the median of the milliseconds per step in these lines."""
    values = [line["ms_per_step"] for line in lines if line.get("ms_per_step", 0) > 0]
    return statistics.median(values) if values else None


def _kind(config: Config) -> Config:
    """Returns a configuration that is the same for all runs whose steps take the same time.

    >>> _kind(Config(dataset="mnist", seeds=(4,))) == _kind(Config(dataset="omniglot", steps=5))
    True
    """
    return dataclasses.replace(
        config,
        dataset="digits" if config.dataset == "digits" else "mnist",
        likelihood="bernoulli",
        steps=1,
        bound_samples=1,
        learning_rate=Config.learning_rate,
        cv_learning_rate=Config.cv_learning_rate,
        seeds=tuple(range(len(config.seeds))),
    )


@dataclasses.dataclass(frozen=True)
class Costs:
    """The milliseconds per step of each kind of run.

    >>> costs = Costs().learn(Config(dataset="mnist", estimator="rloo"), 2.5)
    >>> costs.ms_per_step(Config(dataset="omniglot", estimator="rloo"))
    2.5
    >>> round(costs.ms_per_step(Config(dataset="mnist", estimator="double_cv")), 3)  # scaled
    2.75
    """

    measured: Mapping[Config, float] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, out: Path) -> "Costs":
        """Reads the measured times of the runs in a folder."""
        costs = cls()
        for path in sorted(out.glob("*/config.json")):
            try:
                config = Run(path.parent).config
            except RunError:
                continue
            costs = costs.learn(config, measured_ms(last_lines(path.parent)))
        return costs

    def learn(self, config: Config, ms: float | None) -> "Costs":
        return self if ms is None else Costs({**self.measured, _kind(config): ms})

    def ms_per_step(self, config: Config) -> float:
        kind = _kind(config)
        return self.measured.get(kind) or rough_ms(kind) * self._scale()

    def seconds(self, config: Config, step: int = 0) -> float:
        """Estimates the time from `step` to the end of a run."""
        steps = max(0, config.steps - step)
        # At the end there are two bounds on about 20,000 images, and the ELBO on 60,000.
        evaluated = 20_000 * (config.bound_samples + config.samples) + 60_000
        end = OVERHEAD_SECONDS + evaluated * BOUND_MS[config.network] / 1000
        return steps * self.ms_per_step(config) / 1000 + end * len(config.seeds)

    def _scale(self) -> float:
        """Returns how much slower this machine is than the one of the rough figures."""
        if not self.measured:
            return 1.0
        return statistics.median(ms / rough_ms(kind) for kind, ms in self.measured.items())
