"""Curves of runs, as pictures."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter

from ..training.runs import Run
from .metrics import METRICS
from .styles import LINE_WIDTH, MARGIN, START, STYLES

matplotlib.use("Agg")
import matplotlib.pyplot as plt


@dataclasses.dataclass(frozen=True)
class Curve:
    """Metrics at some steps of a run, or their means over runs."""

    label: str
    style: int
    """A number in `styles.STYLES`."""
    steps: Sequence[int]
    seconds: Sequence[float]
    values: Mapping[str, Sequence[float]]
    published: Mapping[str, tuple[int, float]] = dataclasses.field(default_factory=dict)
    """The paper's value of a metric, and the step at which it has it."""


def plot_curves(runs: Mapping[str, Run], path: Path) -> None:
    """ELBO and gradient variance against steps, one curve for each run (mean over its seeds)."""
    curves, metrics = [], ("objective", "grad_variance")
    for number, (name, run) in enumerate(runs.items()):
        points: dict[int, dict[str, list[float]]] = {}
        for line in run.metrics():
            for metric in metrics:
                if metric in line:
                    values = points.setdefault(line["step"], {})
                    values.setdefault(metric, []).append(line[metric])
        means = {
            metric: [float(np.mean(values[metric])) for values in points.values()]
            for metric in metrics
        }
        curves.append(Curve(name, number, list(points), [], means))
    plot(curves, metrics, path, against=("steps",))


def plot(
    curves: Sequence[Curve],
    metrics: Sequence[str],
    path: Path,
    against: Sequence[str] = ("steps", "seconds"),
) -> None:
    """A panel for each metric (columns) and horizontal axis (rows)."""
    size = (5 * len(metrics), 3.6 * len(against))
    figure, axes = plt.subplots(
        len(against), len(metrics), figsize=size, layout="constrained", squeeze=False
    )
    for axis_row, horizontal in zip(axes, against, strict=True):
        for axis, metric in zip(axis_row, metrics, strict=True):
            for curve in curves:
                x = getattr(curve, horizontal)
                style = STYLES[curve.style % len(STYLES)]
                every = max(1, len(x) // 8)
                axis.plot(
                    x,
                    curve.values[metric],
                    label=curve.label,
                    color=style.light,
                    linestyle=(0, style.dashes) if style.dashes else "-",
                    linewidth=LINE_WIDTH,
                    marker=style.marker,
                    markersize=4.5,
                    markerfacecolor="white",
                    markevery=(curve.style % len(STYLES) * every // len(STYLES), every),
                )
                if horizontal == "steps" and metric in curve.published:
                    step, value = curve.published[metric]
                    axis.plot(
                        step,
                        value,
                        color=style.light,
                        linestyle="none",
                        marker="*",
                        markersize=13,
                        markeredgecolor="black",
                        clip_on=False,
                        zorder=3,
                    )
            axis.set(xlabel=horizontal, ylabel=METRICS[metric].axis)
            _show_late_part(axis, curves, horizontal, metric)
            axis.locator_params(axis="x", nbins=5)
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
            axis.grid(alpha=0.3)
    handles = axes[0][0].get_legend_handles_labels()[0]
    figure.legend(
        handles=handles, loc="outside upper center", ncols=4, frameon=False, handlelength=4
    )
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)


def _show_late_part(axis, curves: Sequence[Curve], horizontal: str, metric: str) -> None:
    """Scale the vertical axis to what comes after the start."""
    if METRICS[metric].logarithmic:
        axis.set_yscale("log")
    first = START * max((x for curve in curves for x in getattr(curve, horizontal)), default=0)
    shown = [
        y
        for curve in curves
        for x, y in zip(getattr(curve, horizontal), curve.values[metric], strict=True)
        if x >= first and np.isfinite(y) and (y > 0 or not METRICS[metric].logarithmic)
    ]
    if horizontal == "steps":
        shown += [curve.published[metric][1] for curve in curves if metric in curve.published]
    if len(shown) < 2 or min(shown) == max(shown):
        return
    low, high = min(shown), max(shown)
    if METRICS[metric].logarithmic:
        margin = (high / low) ** MARGIN
        axis.set_ylim(low / margin, high * margin)
        # Labels that stay apart: every number of a decade, three of each, or the decades alone.
        decades = np.log10(high / low)
        subs = range(1, 10) if decades < 0.7 else (1, 2, 5) if decades < 3 else (1,)
        axis.yaxis.set_major_locator(LogLocator(subs=list(subs)))
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    else:
        margin = MARGIN * (high - low)
        axis.set_ylim(low - margin, high + margin)
