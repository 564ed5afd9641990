"""Lines of metrics: how a run makes them, and their means over seeds."""

from typing import Any

import numpy as np

from ..estimators import DESCRIPTIONS
from .runs import Run
from .step import State, grad_variance
from .stored import numbers_of
from .task import Task


def report_lines(
    task: Task, state: State, step: int, since: int, seconds: float
) -> list[dict[str, Any]]:
    """Returns a line of metrics for each seed, about the steps from `since` to `step`."""
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


def summary(run: Run) -> dict[str, float]:
    """Returns the last value of each metric, averaged over seeds."""
    last: dict[str, dict[int, float]] = {}
    for line in run.metrics():
        for name, value in numbers_of(line).items():
            last.setdefault(name, {})[line["seed"]] = value
    return {name: float(np.mean(list(values.values()))) for name, values in last.items()}
