"""Pictures of curves, drawn with matplotlib."""

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
    """The index of the style in `styles.STYLES`, modulo its length."""
    steps: Sequence[int]
    seconds: Sequence[float]
    values: Mapping[str, Sequence[float]]
    published: Mapping[str, tuple[int, float]] = dataclasses.field(default_factory=dict)
    """The step and value that the paper gives for a metric."""


def plot_curves(runs: Mapping[str, Run], path: Path) -> None:
    """Plots ELBO and gradient variance against steps, with one curve (mean over seeds) per run."""
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
    """Saves a figure with a column of panels for each metric and a row for each horizontal axis."""
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
    """Scales the vertical axis to the curves without their start."""
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
        # Fewer labels for more decades, so that they do not overlap.
        decades = np.log10(high / low)
        subs = range(1, 10) if decades < 0.7 else (1, 2, 5) if decades < 3 else (1,)
        axis.yaxis.set_major_locator(LogLocator(subs=list(subs)))
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    else:
        margin = MARGIN * (high - low)
        axis.set_ylim(low - margin, high + margin)
