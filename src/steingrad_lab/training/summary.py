"""Lines of metrics: what a run reports, and what its reports come to."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..estimators import DESCRIPTIONS
from .runs import Run
from .step import State, grad_variance
from .task import Task


def report_lines(
    task: Task, state: State, step: int, since: int, seconds: float
) -> list[dict[str, Any]]:
    """A line of metrics for each seed, of the steps from `since` to `step`."""
    lines = []
    for number, seed in enumerate(task.config.seeds):
        own = task.state_of(state, number)
        line = {
            "step": step,
            "seed": seed,
            "objective": float(own.elbo_sum) / int(own.elbo_steps),
            "grad_variance": float(grad_variance(own, step)),
            "ms_per_step": 1000 * seconds / (step - since),
        }
        for layer, cv in enumerate(own.cv, 1):
            suffix = f"_{layer}" if len(own.cv) > 1 else ""
            for name in DESCRIPTIONS[task.config.estimator].watch if cv is not None else ():
                line[name + suffix] = float(getattr(cv, name))
        lines.append(line)
    return lines


def numbers_of(line: Mapping[str, Any]) -> dict[str, float]:
    """The metrics in a line, without what says when and where they were taken."""
    return {name: value for name, value in line.items() if name not in ("step", "seed", "final")}


def summary(run: Run) -> dict[str, float]:
    """Mean over seeds of the last value of each metric."""
    last: dict[str, dict[int, float]] = {}
    for line in run.metrics():
        for name, value in numbers_of(line).items():
            last.setdefault(name, {})[line["seed"]] = value
    return {name: float(np.mean(list(values.values()))) for name, values in last.items()}
