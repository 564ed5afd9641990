"""Pictures of runs and of what a model has learned."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.ticker import LogLocator, NullFormatter

from ..training.runs import Run

matplotlib.use("Agg")
import matplotlib.pyplot as plt

# Told apart in black and white by dashes and markers, and by eyes that do not see all colours.
STYLES = (
    {"color": "#0072b2", "linestyle": "-", "marker": "o"},
    {"color": "#d55e00", "linestyle": (0, (6, 2)), "marker": "s"},
    {"color": "#008862", "linestyle": (0, (1.5, 1.5)), "marker": "^"},
    {"color": "#a6518a", "linestyle": (0, (6, 2, 1.5, 2)), "marker": "D"},
    {"color": "#8a6d00", "linestyle": (0, (10, 3)), "marker": "v"},
    {"color": "#444444", "linestyle": (0, (4, 1.5, 1, 1.5, 1, 1.5)), "marker": "X"},
)
METRICS = {
    "grad_variance": "variance of the encoder's gradient",
    "objective": "ELBO (training batches)",
}
LOGARITHMIC = ("grad_variance",)
# The part of a run, at its start, that the vertical axis need not show: the rest would be flat.
START = 0.1


@dataclasses.dataclass(frozen=True)
class Curve:
    """Metrics at some steps of a run, or their means over runs."""

    label: str
    style: int
    """Number in `STYLES`."""
    steps: Sequence[int]
    seconds: Sequence[float]
    values: Mapping[str, Sequence[float]]


def plot_curves(runs: Mapping[str, Run], path: Path) -> None:
    """ELBO and gradient variance against steps, one curve for each run (mean over its seeds)."""
    curves = []
    for number, (name, run) in enumerate(runs.items()):
        points: dict[int, dict[str, list[float]]] = {}
        for line in run.metrics():
            for metric in METRICS:
                if metric in line:
                    values = points.setdefault(line["step"], {})
                    values.setdefault(metric, []).append(line[metric])
        means = {
            metric: [float(np.mean(values[metric])) for values in points.values()]
            for metric in METRICS
        }
        curves.append(Curve(name, number, list(points), [], means))
    plot(curves, ("objective", "grad_variance"), path, against=("steps",))


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
                    linewidth=1.5,
                    markersize=4.5,
                    markerfacecolor="white",
                    markevery=(curve.style * every // len(STYLES), every),
                    **style,
                )
            axis.set(xlabel=horizontal, ylabel=METRICS[metric])
            _show_late_part(axis, curves, horizontal, metric)
            axis.locator_params(axis="x", nbins=5)
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
            axis.grid(alpha=0.3)
    handles = axes[0][0].get_legend_handles_labels()[0]
    figure.legend(
        handles=handles, loc="outside upper center", ncols=6, frameon=False, handlelength=4
    )
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)


def _show_late_part(axis, curves: Sequence[Curve], horizontal: str, metric: str) -> None:
    """Scale the vertical axis to what comes after the start."""
    if metric in LOGARITHMIC:
        axis.set_yscale("log")
    first = START * max((x for curve in curves for x in getattr(curve, horizontal)), default=0)
    shown = [
        y
        for curve in curves
        for x, y in zip(getattr(curve, horizontal), curve.values[metric], strict=True)
        if x >= first and np.isfinite(y) and (y > 0 or metric not in LOGARITHMIC)
    ]
    if len(shown) < 2 or min(shown) == max(shown):
        return
    low, high = min(shown), max(shown)
    if metric in LOGARITHMIC:
        margin = (high / low) ** 0.05
        axis.set_ylim(low / margin, high * margin)
        # Labels that stay apart: every number of a decade, three of each, or the decades alone.
        decades = np.log10(high / low)
        subs = range(1, 10) if decades < 0.7 else (1, 2, 5) if decades < 3 else (1,)
        axis.yaxis.set_major_locator(LogLocator(subs=list(subs)))
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    else:
        margin = 0.05 * (high - low)
        axis.set_ylim(low - margin, high + margin)


def image_grid(
    rows: Sequence[Float[np.ndarray, "images pixels"]], shape: tuple[int, int]
) -> Float[np.ndarray, "height width"]:
    """Images in a grid, one row for each array, with a white line between them.

    >>> image_grid([np.zeros((3, 4)), np.zeros((3, 4))], (2, 2)).shape
    (5, 8)
    """
    height, width = shape
    columns = max(len(row) for row in rows)
    grid = np.ones((len(rows) * (height + 1) - 1, columns * (width + 1) - 1))
    for r, row in enumerate(rows):
        for c, image in enumerate(row):
            top, left = r * (height + 1), c * (width + 1)
            grid[top : top + height, left : left + width] = np.reshape(image, shape)
    return grid


def save_image(grid: Float[np.ndarray, "height width"], path: Path, zoom: int = 3) -> None:
    plt.imsave(path, np.kron(grid, np.ones((zoom, zoom))), cmap="gray", vmin=0, vmax=1)
